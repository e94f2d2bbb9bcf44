//! The handle against the simulated device of the engine's tests.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::engine::{ComputedStep, StepWatcher};
use crate::error::QueueLimit;
use crate::event::{Failure, FinishReason};
use crate::progress::{RequestProgress, RequestState};
use crate::recorder::{Before, Broken, N_VOCAB, Sizes, always, expected, lost_step};
use crate::request::{PromptOutput, Request};
use rocmforge_gguf::TokenId;
use rocmforge_gpu::GpuError;
use rocmforge_plan::{Batch, InputToken};
use rocmforge_runtime::RuntimeError;

fn server(sizes: Sizes, before: Before, options: ServeOptions) -> Server {
    serve(sizes.engine(before), options).unwrap()
}

fn request(i: u32) -> Request {
    Request::greedy(vec![i % N_VOCAB, 7, i * 3 % N_VOCAB], 5 + i as usize % 12)
}

/// What a client got.
#[derive(Debug, Default)]
struct Got {
    ids: Vec<TokenId>,
    n_events: usize,
    reason: Option<FinishReason>,
    failure: Option<Failure>,
}

fn read(stream: impl Iterator<Item = StreamEvent>) -> Got {
    let mut got = Got::default();
    for event in stream {
        got.n_events += 1;
        match event {
            StreamEvent::Tokens { tokens, .. } => got.ids.extend(tokens.iter().map(|t| t.id)),
            StreamEvent::Finished { reason, .. } => got.reason = Some(reason),
            StreamEvent::Failed(failure) => got.failure = Some(failure),
            StreamEvent::PromptDone { .. }
            | StreamEvent::PromptScores(_)
            | StreamEvent::Embedding(_) => {}
        }
    }
    got
}

/// Waits until nothing runs, then checks that nothing is left of any request.
fn check_empty(handle: &Handle) {
    while !handle.with_engine(|engine| engine.is_idle()).unwrap() {
        std::thread::yield_now();
    }
    let checked = handle.with_engine(|engine| engine.check_integrity());
    checked.unwrap().unwrap();
    let stats = handle.stats();
    assert_eq!((stats.running, stats.waiting), (0, 0));
    assert_eq!(stats.blocks.used, 0);
}

/// A device that waits for a permit before each step and tells which first tokens of prompts it has seen.
struct Gate {
    permits: mpsc::Sender<()>,
    /// The number of sequences in each step that has begun.
    n_seqs: Arc<Mutex<Vec<usize>>>,
}

fn gated() -> (Gate, Before) {
    let (permits, wait) = mpsc::channel();
    let n_seqs = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&n_seqs);
    let before = Box::new(move |batch: &Batch| {
        // Without a gate, steps run freely.
        let _ = wait.recv();
        seen.lock().unwrap().push(batch.seqs.len());
        Ok(())
    });
    (Gate { permits, n_seqs }, before)
}

#[test]
fn each_client_gets_what_it_gets_alone() {
    let server = server(Sizes::small(3), always(), ServeOptions::default());
    let clients: Vec<_> = (0..20)
        .map(|i| {
            let handle = Handle::clone(&server);
            std::thread::spawn(move || read(handle.submit(request(i)).unwrap()))
        })
        .collect();
    for (i, client) in clients.into_iter().enumerate() {
        let got = client.join().unwrap();
        let expected = expected(&request(i as u32), 32, 4);
        assert_eq!((got.ids, got.reason), (expected.ids, expected.reason));
    }
    check_empty(&server);
}

#[test]
fn a_dropped_stream_is_not_in_the_next_step_and_frees_its_blocks() {
    let (gate, before) = gated();
    let sizes = Sizes {
        steps_in_flight: 1,
        ..Sizes::small(4)
    };
    let server = server(sizes, before, ServeOptions::default());
    let handle: &Handle = &server;
    let mut streams = handle.submit_all([request(1), request(2)]).unwrap();
    gate.permits.send(()).unwrap();
    // The prompts' step has ended; the next one is at the gate, or about to be scheduled.
    assert!(matches!(
        streams[1].next(),
        Some(StreamEvent::PromptDone { .. })
    ));
    drop(streams.remove(0));
    // The step that may be at the gate, and the one after it.
    gate.permits.send(()).unwrap();
    gate.permits.send(()).unwrap();
    drop(gate.permits);
    let got = read(streams.remove(0));
    assert_eq!(got.reason, Some(FinishReason::Length));
    let n_seqs = gate.n_seqs.lock().unwrap().clone();
    assert_eq!(n_seqs[0], 2);
    assert!(n_seqs[2..].iter().all(|&n| n == 1), "{n_seqs:?}");
    check_empty(handle);
}

/// Wakes a thread, and counts how often.
struct Unpark {
    thread: std::thread::Thread,
    n_woken: AtomicUsize,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.n_woken.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Reads the events as a task does, which sleeps until it is woken.
fn polled(mut stream: EventStream, wake: &Arc<Unpark>) -> impl Iterator<Item = StreamEvent> {
    let waker = Waker::from(Arc::clone(wake));
    std::iter::from_fn(move || {
        let mut context = Context::from_waker(&waker);
        loop {
            match stream.poll_event(&mut context) {
                Poll::Ready(event) => return event,
                Poll::Pending => std::thread::park(),
            }
        }
    })
}

#[test]
fn a_task_is_woken_for_every_event_it_waits_for() {
    let (gate, before) = gated();
    let server = server(Sizes::small(4), before, ServeOptions::default());
    let wake = Arc::new(Unpark {
        thread: std::thread::current(),
        n_woken: AtomicUsize::new(0),
    });
    let mut ended = server.submit(request(3)).unwrap();
    let mut stream = server.submit(request(8)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(ended.poll_event(&mut context).is_pending());
    let waker = Waker::from(Arc::clone(&wake));
    let first = stream.poll_event(&mut Context::from_waker(&waker));
    assert!(first.is_pending());
    let mut events = polled(stream, &wake);
    // The steps that may be in flight when the second request comes, and the one with its prompt.
    for _ in 0..3 {
        gate.permits.send(()).unwrap();
    }
    assert!(matches!(
        events.next(),
        Some(StreamEvent::PromptDone { .. })
    ));
    drop(gate.permits);
    let got = read(events);
    assert_eq!(got.ids, expected(&request(8), 32, 4).ids);
    // At most once for each token and for the prompt.
    let n_woken = wake.n_woken.load(Ordering::Relaxed);
    assert!((1..=got.ids.len() + 2).contains(&n_woken), "{n_woken}");
    // Nobody polled the other one: it is there as a whole, and then over.
    check_empty(&server);
    let mut rest = std::iter::from_fn(|| match ended.poll_event(&mut context) {
        Poll::Ready(event) => event,
        Poll::Pending => panic!("the request has ended"),
    });
    assert_eq!(read(&mut rest).ids, expected(&request(3), 32, 4).ids);
    assert!(rest.next().is_none());
}

#[cfg(feature = "stream")]
#[test]
fn a_stream_of_futures_has_the_same_events() {
    use futures_core::Stream;

    let server = server(Sizes::small(4), always(), ServeOptions::default());
    let mut stream = Box::pin(server.submit(request(8)).unwrap());
    let thread = std::thread::current();
    let n_woken = AtomicUsize::new(0);
    let waker = Waker::from(Arc::new(Unpark { thread, n_woken }));
    let events = std::iter::from_fn(|| {
        loop {
            let mut context = Context::from_waker(&waker);
            match Stream::poll_next(stream.as_mut(), &mut context) {
                Poll::Ready(event) => return event,
                Poll::Pending => std::thread::park(),
            }
        }
    });
    assert_eq!(read(events).ids, expected(&request(8), 32, 4).ids);
    check_empty(&server);
}

#[test]
fn refuses_requests_beyond_the_queue() {
    let (gate, before) = gated();
    let options = ServeOptions {
        max_waiting: 2,
        ..ServeOptions::default()
    };
    let server = server(Sizes::small(1), before, options);
    let handle: &Handle = &server;
    let first = handle.submit(request(1)).unwrap();
    // Until the first one is admitted, it waits too.
    while handle.stats().running == 0 {
        std::thread::yield_now();
    }
    let waiting = handle.submit_all([request(2), request(3)]).unwrap();
    let refused = handle.submit(request(4));
    assert!(matches!(
        refused.err(),
        Some(SubmitError::Full(QueueLimit::Requests(2)))
    ));
    drop(gate.permits);
    for (i, stream) in [first].into_iter().chain(waiting).enumerate() {
        assert_eq!(
            read(stream).ids,
            expected(&request(i as u32 + 1), 32, 4).ids
        );
    }
    let later = read(handle.submit(request(4)).unwrap());
    assert_eq!(later.reason, Some(FinishReason::Length));
    let invalid = handle.submit(Request::greedy(vec![], 1));
    assert!(matches!(invalid.err(), Some(SubmitError::Invalid(_))));
    let logits = Request {
        prompt_output: PromptOutput::Logits { from: 0 },
        ..request(1)
    };
    let refused = handle.submit(logits).err().expect("it is refused");
    assert!(refused.to_string().contains("PromptOutput::Scores"));
    check_empty(handle);
}

/// A prompt that does not fit beside those that wait is refused; alone, it has a place.
#[test]
fn refuses_tokens_beyond_the_queue() {
    let (gate, before) = gated();
    let options = ServeOptions {
        max_waiting_tokens: 10,
        ..ServeOptions::default()
    };
    let server = server(Sizes::small(1), before, options);
    let prompt = |n_tokens| Request::greedy(vec![1; n_tokens], 3);
    let mut streams = vec![server.submit(prompt(20)).unwrap()];
    while server.stats().running == 0 {
        std::thread::yield_now();
    }
    streams.push(server.submit(prompt(20)).unwrap());
    let refused = server.submit(prompt(1));
    let Some(SubmitError::Full(QueueLimit::Tokens(10))) = refused.err() else {
        panic!("the queue has no place");
    };
    drop(gate.permits);
    for stream in streams {
        assert_eq!(read(stream).reason, Some(FinishReason::Length));
    }
    server.submit(prompt(20)).unwrap();
    check_empty(&server);
}

/// The prompt of a group is computed once, and its requests have their places together.
#[test]
fn a_group_computes_its_prompt_once_and_is_queued_as_one() {
    let (gate, before) = gated();
    let options = ServeOptions {
        max_waiting: 5,
        ..ServeOptions::default()
    };
    let server = server(Sizes::small(8), before, options);
    let group = |i: u32, n: usize| vec![Request::greedy(vec![i; 17], 4); n];
    let streams = server.submit_groups([group(1, 4), group(2, 1)]).unwrap();
    let refused = server.submit_groups([group(3, 1), group(4, 5)]);
    assert!(matches!(refused.err(), Some(SubmitError::Full(_))));
    drop(gate.permits);
    for (i, stream) in streams.into_iter().enumerate() {
        let request = &group(1 + i as u32 / 4, 1)[0];
        assert_eq!(read(stream).ids, expected(request, 32, 4).ids);
    }
    // Three followers find the four full pages of their leader's prompt.
    assert_eq!(server.stats().prefix.hits, 3 * 16);
    check_empty(&server);
}

/// Followers go on when their leader leaves before its prompt is computed, and leave as others do.
#[test]
fn followers_do_not_need_their_leader() {
    let (gate, before) = gated();
    let server = server(Sizes::small(1), before, ServeOptions::default());
    let running = server.submit(request(1)).unwrap();
    let mut streams = server.submit_groups([vec![request(2); 4]]).unwrap();
    drop(streams.remove(2));
    drop(streams.remove(0));
    drop(gate.permits);
    for stream in streams {
        assert_eq!(read(stream).ids, expected(&request(2), 32, 4).ids);
    }
    drop(running);
    check_empty(&server);
}

/// The engine ends requests whose clients read nothing; a client then gets all tokens as one event.
#[test]
fn a_slow_reader_delays_nobody_and_loses_nothing() {
    let server = server(Sizes::small(4), always(), ServeOptions::default());
    let handle: &Handle = &server;
    let slow = handle.submit(request(8)).unwrap();
    for i in 0..4 {
        let got = read(handle.submit(request(i)).unwrap());
        assert_eq!(got.ids, expected(&request(i), 32, 4).ids);
    }
    check_empty(handle);
    let got = read(slow);
    assert_eq!(got.ids, expected(&request(8), 32, 4).ids);
    // The prompt's end, all tokens, the end.
    assert_eq!(got.n_events, 3);
}

#[test]
fn an_aborted_stream_ends_with_this_reason() {
    let (gate, before) = gated();
    let server = server(Sizes::small(4), before, ServeOptions::default());
    let [mut stream, queued] = {
        let requests = [request(11), request(1)];
        <[EventStream; 2]>::try_from(server.submit_all(requests).unwrap())
            .unwrap_or_else(|_| unreachable!("two requests"))
    };
    queued.abort();
    gate.permits.send(()).unwrap();
    assert!(stream.next().is_some());
    stream.abort();
    drop(gate.permits);
    for stream in [stream, queued] {
        assert_eq!(read(stream).reason, Some(FinishReason::Aborted));
    }
    check_empty(&server);
}

#[test]
fn stopping_ends_all_streams_and_returns_the_engine() {
    let (gate, before) = gated();
    let server = server(Sizes::small(4), before, ServeOptions::default());
    let handle = Handle::clone(&server);
    let stream = handle.submit(request(1)).unwrap();
    gate.permits.send(()).unwrap();
    drop(gate.permits);
    let engine = server.stop().unwrap();
    engine.check_integrity().unwrap();
    let got = read(stream);
    let ended = got.reason.expect("it ends");
    assert!([FinishReason::Aborted, FinishReason::Length].contains(&ended));
    assert!(matches!(
        handle.submit(request(1)).err(),
        Some(SubmitError::Stopped)
    ));
}

/// The error of a GPU that computes nothing more: an illegal address.
fn lost_gpu() -> RuntimeError {
    let cause = GpuError::Driver {
        call: "cuCtxSynchronize",
        code: 700,
        text: "an illegal memory access".into(),
        advice: "",
    };
    cause.into()
}

/// The first step that finds the device lost fails every request, running or waiting, with what happened to it.
#[test]
fn a_lost_device_fails_all_streams_at_once() {
    let sizes = Sizes::small(4);
    let panics: Before = Box::new(|_| panic!("the device's panic"));
    let faults: Before = Box::new(|_| Err(lost_gpu()));
    for (before, cause) in [
        (panics, "the device's panic"),
        (faults, "illegal memory access"),
    ] {
        let server = server(sizes, before, ServeOptions::default());
        let streams = server.submit_all((0..9).map(request)).unwrap();
        for stream in streams {
            let failure = read(stream).failure.expect("it fails");
            assert!(failure.to_string().contains(cause), "{failure}");
        }
        let engine = server.stop().unwrap();
        assert_eq!(engine.stats().failed_steps, 1);
    }
}

/// Those who ask before, and after.
#[test]
fn others_learn_that_an_engine_has_failed() {
    let failed_of = |server: &Server| {
        let (to, told) = mpsc::channel();
        let again = to.clone();
        server.on_failure(move |failure| to.send(failure.to_string()).unwrap());
        (told, again)
    };
    let server_of = |before| server(Sizes::small(2), before, ServeOptions::default());

    let lost = server_of(Box::new(|_| Err(lost_gpu())));
    let (told, again) = failed_of(&lost);
    assert!(lost.failure().is_none());
    assert!(read(lost.submit(request(1)).unwrap()).failure.is_some());
    // It was known before the stream ended.
    let failure = lost.failure().unwrap().to_string();
    assert_eq!(told.recv().unwrap(), failure);
    lost.on_failure(move |failure| again.send(failure.to_string()).unwrap());
    assert_eq!(told.recv().unwrap(), failure);

    let panics = server_of(always());
    let (told, _) = failed_of(&panics);
    assert!(panics.with_engine(|_| panic!("a defect")).is_err());
    let failure = told.recv().unwrap();
    assert_eq!(failure, Failure::EngineStopped.to_string());
    // Its thread may still be ending.
    match panics.submit(request(1)) {
        Err(error) => assert!(matches!(error, SubmitError::Stopped)),
        Ok(stream) => assert!(matches!(read(stream).failure, Some(Failure::EngineStopped))),
    }

    // Nobody is told of an end that was asked for.
    let stopped = server_of(always());
    let (told, again) = failed_of(&stopped);
    drop(again);
    let handle = Handle::clone(&stopped);
    stopped.stop().unwrap();
    assert!(handle.failure().is_none());
    drop(handle);
    assert!(told.recv().is_err());
}

/// A request that ends the device's thread whenever it runs fails alone, although it takes many backends to find it.
#[test]
fn a_request_that_loses_devices_fails_alone() {
    const POISON: TokenId = N_VOCAB - 1;
    let sizes = Sizes::small(16);
    let before = || -> Before {
        Box::new(|batch: &Batch| {
            assert!(!batch.tokens.contains(&InputToken::Id(POISON)), "poison");
            Ok(())
        })
    };
    // The answers of the others never feed the poison back.
    let others = (0..40).map(|i| Request::greedy(vec![i, 2 * i % 49, 3], 3));
    let others = others.filter(|request| !expected(request, 32, 4).ids.contains(&POISON));
    let others: Vec<Request> = others.take(15).collect();
    assert_eq!(others.len(), 15);
    for poisoned in [0, 7, 15] {
        let options = ServeOptions {
            restart: Some(Box::new(move || Ok(sizes.executor(before())))),
            ..ServeOptions::default()
        };
        let server = server(sizes, before(), options);
        let mut requests = others.clone();
        requests.insert(poisoned, Request::greedy(vec![POISON], 3));
        let streams = server.submit_all(requests.clone()).unwrap();
        for (i, (stream, request)) in streams.into_iter().zip(&requests).enumerate() {
            let got = read(stream);
            match i == poisoned {
                true => assert!(got.failure.unwrap().to_string().contains("poison")),
                false => assert_eq!(got.ids, expected(request, 32, 4).ids, "{poisoned} {i}"),
            }
        }
        check_empty(&server);
    }
}

#[test]
fn a_new_backend_loses_nothing() {
    let sizes = Sizes::small(2);
    let broken = rocmforge_runtime::Executor::start(1, || Ok((Broken, ())));
    let mut engine = sizes.engine(always());
    engine.restart(broken.unwrap().0);
    let options = ServeOptions {
        restart: Some(Box::new(move || Ok(sizes.executor(always())))),
        ..ServeOptions::default()
    };
    let server = serve(engine, options).unwrap();
    let streams = server.submit_all((0..5).map(request)).unwrap();
    for (i, stream) in streams.into_iter().enumerate() {
        assert_eq!(read(stream).ids, expected(&request(i as u32), 32, 4).ids);
    }
    // That of the test, and that of the thread.
    let stats = server.stats();
    assert_eq!((stats.restarts, stats.failed_steps), (2, 1));
    check_empty(&server);
}

/// Clients leave at random points, some steps fail, and one request always fails its step.
#[test]
fn nothing_is_left_of_clients_that_leave() {
    const POISON: TokenId = N_VOCAB - 1;
    let mut n_steps = 0;
    let before = Box::new(move |batch: &Batch| {
        n_steps += 1;
        let is_poisoned = batch.tokens[0] == InputToken::Id(POISON) && batch.positions[0] == 0;
        match is_poisoned || n_steps % 23 == 0 {
            true => Err(lost_step()),
            false => Ok(()),
        }
    });
    let server = server(Sizes::small(4), before, ServeOptions::default());
    // The request that begins with the poison would fail when it comes first in a batch.
    let clients: Vec<_> = (0..64u32)
        .filter(|i| i % N_VOCAB != POISON)
        .map(|i| {
            let handle = Handle::clone(&server);
            std::thread::spawn(move || {
                let mut stream = handle.submit(request(i)).unwrap();
                let n_read = i as usize % 5;
                match i % 2 {
                    0 => drop(stream.by_ref().take(n_read).count()),
                    _ => {
                        let got = read(stream);
                        assert!(got.failure.is_none(), "{got:?}");
                        assert_eq!(got.ids, expected(&request(i), 32, 4).ids);
                    }
                }
            })
        })
        .collect();
    let failures: BTreeSet<bool> = clients.into_iter().map(|c| c.join().is_err()).collect();
    assert_eq!(failures, BTreeSet::from([false]));
    let poisoned = server.submit(Request::greedy(vec![POISON], 2));
    assert!(matches!(
        read(poisoned.unwrap()).failure,
        Some(Failure::Device(_))
    ));
    check_empty(&server);
}

/// Waits until a request is in a state.
fn wait_for(watch: &Watch, state: RequestState) {
    while watch.progress().state != state {
        std::thread::yield_now();
    }
}

#[test]
fn others_see_how_far_a_request_is_and_may_end_it() {
    let (gate, before) = gated();
    let sizes = Sizes {
        steps_in_flight: 1,
        ..Sizes::small(1)
    };
    let server = server(sizes, before, ServeOptions::default());
    let long = Request::greedy((0..9).collect(), 6);
    let mut first = server.submit(long.clone()).unwrap();
    let second = server.submit(request(2)).unwrap();
    let (watch, other) = (first.watch(), second.watch());
    // Its step is at the gate.
    wait_for(&watch, RequestState::Prefill);
    assert!(watch.progress().queue_time.is_some());
    assert_eq!(other.progress(), RequestProgress::default());
    gate.permits.send(()).unwrap();
    assert!(matches!(first.next(), Some(StreamEvent::PromptDone { .. })));
    wait_for(&watch, RequestState::Decode);
    assert_eq!(watch.progress().generated_tokens, 1);
    other.abort();
    drop(gate.permits);
    assert_eq!(read(second).reason, Some(FinishReason::Aborted));
    read(first);
    assert_eq!(watch.progress().generated_tokens, 6);
    assert_eq!(watch.progress().cached_tokens, 0);
    // The two full blocks of 4 tokens.
    let again = server.submit(long).unwrap();
    let watch = again.watch();
    read(again);
    assert_eq!(watch.progress().cached_tokens, 8);
    check_empty(&server);
}

#[test]
fn a_watcher_gets_the_shape_of_each_step() {
    let server = server(Sizes::small(4), always(), ServeOptions::default());
    let (to, steps) = mpsc::channel();
    let watcher: StepWatcher = Box::new(move |step| drop(to.send(step)));
    server
        .with_engine(|engine| engine.watch_steps(Some(watcher)))
        .unwrap();
    read(server.submit(Request::greedy(vec![1, 2, 3], 4)).unwrap());
    server
        .with_engine(|engine| engine.watch_steps(None))
        .unwrap();
    read(server.submit(request(1)).unwrap());
    let shape = |step: &ComputedStep| {
        let [seq] = step.shape.seqs[..] else {
            panic!("one sequence runs");
        };
        (seq.first_pos, seq.n_rows, step.n_decoding, step.n_prefill)
    };
    let shapes: Vec<_> = steps.iter().map(|step| shape(&step)).collect();
    assert_eq!(
        shapes,
        [(0, 3, 0, 3), (3, 1, 1, 0), (4, 1, 1, 0), (5, 1, 1, 0)]
    );
}
