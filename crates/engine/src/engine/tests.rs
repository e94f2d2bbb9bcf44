//! The engine against a simulated device.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::*;
use crate::draft::DraftCounts;
use crate::event::StopCause;
use crate::recorder::{
    Answers, Broken, Chain, Knowing, N_VOCAB, NotFinite, Outcome, Sizes, always, expected,
    expected_in, lost_step,
};
use crate::request::PromptOutput;
use rocmforge_gguf::TokenId;
use rocmforge_plan::{Batch, Fixed, InputToken, SamplingParams, StepRows};
use rocmforge_runtime::{ConfigError, ContextPolicy, DeviceError, Output, PrefixSharing};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn random_request(random: &mut Random, n_ctx: usize) -> Request {
    // Few distinct prefixes, so that they are often shared.
    let seed = random.below(3) as u32;
    let n_prompt = 1 + random.below(n_ctx - 1);
    let n_common = random.below(n_prompt + 1);
    let token = |i: usize, random: &mut Random| {
        if i < n_common {
            (i as u32 * 7 + seed) % N_VOCAB
        } else {
            random.below(N_VOCAB as usize) as u32
        }
    };
    let prompt = (0..n_prompt).map(|i| token(i, random)).collect();
    let mut request = Request::greedy(prompt, random.below(20));
    request.prompt_output = match random.below(5) {
        0 => PromptOutput::Scores {
            from: random.below(n_prompt + 1),
            top: 0,
        },
        1 => PromptOutput::Logits {
            from: random.below(n_prompt + 1),
        },
        _ => PromptOutput::Nothing,
    };
    if random.below(3) == 0 {
        let n_sinks = random.below((n_ctx - 1).min(20));
        request.context_policy = Some(ContextPolicy::Shift { n_sinks });
        request.max_tokens = random.below(3 * n_ctx);
    }
    request.tenant = ["", "a", "b"][random.below(3)].into();
    if random.below(3) == 0 {
        request.constraint = Some(Box::new(Chain {
            state: random.below(1000) as u64,
            n_left: 1 + random.below(15),
        }));
    }
    request
}

#[test]
fn random_traffic_matches_each_request_alone() {
    let (mut n_shifts, mut n_failed_steps, mut n_constrained) = (0, 0, 0);
    let mut drafts = DraftCounts::default();
    // Of engines with states: steps, aborts, preemptions, and tokens of prompts that began from a snapshot.
    let mut with_states = [0; 4];
    for seed in 0..150u64 {
        let mut random = Random(seed);
        let page = [1, 4, 16][random.below(3)];
        let n_ctx = 8 + random.below(60);
        let max_seqs = 1 + random.below(6);
        // Sometimes fewer slots than sequences.
        let has_states = seed % 3 == 0;
        let n_slots = usize::from(has_states) * (1 + Random(seed).below(3 * max_seqs));
        let answer = [StepRows::Any, StepRows::Answer][seed as usize / 2 % 2];
        let limits = Limits {
            max_answer_rows: (answer == StepRows::Answer).then_some(max_seqs),
            n_ctx,
            max_seqs,
            max_tokens: max_seqs + random.below(24),
            max_logits: 2 + random.below(8),
            step_target: [None, Some(Duration::ZERO), Some(Duration::MAX)][random.below(3)],
            prefix_sharing: if random.below(4) == 0 {
                PrefixSharing::Off
            } else {
                PrefixSharing::On
            },
            context_policy: ContextPolicy::Stop,
            fixed_by: has_states.then_some(Fixed::States),
            output: Output::Logits,
            whole_sequences: false,
        };
        // Sometimes only one context, so that sequences are preempted.
        let n_blocks = n_ctx.div_ceil(page) * (1 + random.below(3)) + random.below(3);
        let sizes = Sizes {
            limits,
            n_blocks,
            n_slots,
            page,
            steps_in_flight: 1 + random.below(2),
        };
        // Now and then a step fails, but neither the next one nor the one that may be in flight.
        let (mut fails, mut n_since) = (Random(seed), 0);
        let before = Box::new(move |_: &Batch| {
            n_since += 1;
            if seed % 2 == 1 || n_since < 4 || fails.below(10) > 0 {
                return Ok(());
            }
            n_since = 0;
            Err(lost_step())
        });
        let mut engine = sizes.engine(before);
        let answers = Answers::default();
        if seed % 5 < 3 {
            let drafter = Knowing {
                answers: Arc::clone(&answers),
                one_of: 2 + seed % 7,
                n_draws: seed,
            };
            let n = 1 + seed as usize % 6;
            let length = match seed % 4 {
                0 => DraftLength::UpTo(n),
                _ => DraftLength::Always(n),
            };
            engine.speculate(Box::new(drafter), length);
        }
        let mut open: BTreeMap<RequestId, Request> = BTreeMap::new();
        let mut results: BTreeMap<RequestId, Outcome> = BTreeMap::new();
        let mut left = 40;
        let (mut steps, mut n_aborted) = (0, 0);
        while left > 0 || !engine.is_idle() {
            steps += 1;
            assert!(steps < 50_000, "seed {seed}: no progress");
            if left > 0 && random.below(3) == 0 {
                left -= 1;
                let mut request = random_request(&mut random, n_ctx);
                if has_states {
                    request.context_policy = None;
                }
                let id = engine.submit(request.clone()).unwrap();
                let ids = expected_in(&request, n_ctx, page, answer).ids;
                { answers.lock().unwrap() }.insert(id, (request.prompt.len(), ids));
                open.insert(id, request);
                results.insert(id, Outcome::default());
            }
            if random.below(20) == 0 && !open.is_empty() {
                let id = *open.keys().nth(random.below(open.len())).unwrap();
                engine.abort(id);
                n_aborted += 1;
                open.remove(&id);
                results.remove(&id);
            }
            // An error is that of a step with one request; the next step tries it again.
            for event in engine.step().unwrap_or_default() {
                let id = event.request();
                let finished = matches!(event, Event::Finished { .. });
                let result = results.get_mut(&id).expect("no event after an abort");
                match event {
                    Event::PromptScore {
                        position, logprob, ..
                    } => result.scores.push((position, logprob)),
                    Event::PromptLogits {
                        position, logits, ..
                    } => {
                        assert_eq!(logits, [position as f32]);
                        result.logits.push(position);
                    }
                    Event::Embedding { .. } => panic!("nobody asked for one"),
                    Event::PromptDone { .. } => result.prompts_done += 1,
                    Event::Token { id, .. } => result.ids.push(id),
                    Event::Finished { reason, .. } => result.reason = Some(reason),
                    Event::Failed { failure, .. } => panic!("{failure}"),
                }
                if finished {
                    assert_eq!(
                        *result,
                        expected_in(&open[&id], n_ctx, page, answer),
                        "seed {seed}, {:?}",
                        open[&id]
                    );
                    let request = open.remove(&id);
                    n_constrained += usize::from(request.is_some_and(|r| r.constraint.is_some()));
                    results.remove(&id);
                }
            }
            engine
                .check_integrity()
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        assert!(
            open.is_empty(),
            "seed {seed}: {} requests never ended",
            open.len()
        );
        n_shifts += engine.context_shifts().n_shifts;
        n_failed_steps += engine.stats().failed_steps;
        drafts += engine.stats().drafts;
        if has_states {
            let stats = engine.stats();
            let counts = [steps, n_aborted, stats.preemptions, stats.prefix.hits];
            with_states = std::array::from_fn(|i| with_states[i] + counts[i]);
        }
        let blocks = engine.stats().blocks;
        assert_eq!((blocks.used, blocks.total), (0, n_blocks));
    }
    assert!(n_failed_steps > 500, "{n_failed_steps}");
    assert!(
        drafts.n_accepted > 2000 && drafts.n_drafted > drafts.n_accepted + 1000,
        "{drafts:?}"
    );
    let [n_steps, n_aborted, n_preempted, n_shared] = with_states;
    assert!(
        n_steps > 5000 && n_aborted > 500 && n_preempted > 20 && n_shared > 200,
        "{with_states:?}"
    );
    assert!(n_shifts > 1000, "{n_shifts}");
    assert!(n_constrained > 500, "{n_constrained}");
}

#[test]
fn rejects_invalid_requests_with_a_reason() {
    let limits = Limits {
        max_answer_rows: None,
        n_ctx: 8,
        max_seqs: 2,
        max_tokens: 8,
        max_logits: 4,
        step_target: None,
        prefix_sharing: PrefixSharing::On,
        context_policy: ContextPolicy::Stop,
        fixed_by: None,
        output: Output::Logits,
        whole_sequences: false,
    };
    let sizes = Sizes {
        limits,
        n_blocks: 2,
        n_slots: 0,
        page: 4,
        steps_in_flight: 1,
    };
    let mut engine = sizes.engine(always());
    let mut refuse = |request: Request, part: &str| {
        let message = engine.submit(request).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    refuse(Request::greedy(vec![], 1), "the prompt is empty");
    refuse(
        Request::greedy(vec![1; 9], 0),
        "9 tokens, but the context holds 8",
    );
    refuse(Request::greedy(vec![1; 8], 1), "use a larger context");
    refuse(Request::greedy(vec![1, N_VOCAB], 1), "token id 50");
    let mut request = Request::greedy(vec![1], 1);
    request.sampling = Arc::new(SamplingParams {
        logit_bias: vec![(N_VOCAB, 1.0)],
        ..SamplingParams::default()
    });
    refuse(request, "token id 50");
    let mut request = Request::greedy(vec![1], 1);
    request.sampling = Arc::new(SamplingParams {
        top_p: f32::NAN,
        ..SamplingParams::default()
    });
    refuse(request, "top-p is NaN");
    for n_sinks in [7, 8, usize::MAX] {
        let mut request = Request::greedy(vec![1], 100);
        request.context_policy = Some(ContextPolicy::Shift { n_sinks });
        refuse(request, "fewer sinks");
    }
    // A prompt is never shortened.
    let mut request = Request::greedy(vec![1; 9], 1);
    request.context_policy = Some(ContextPolicy::Shift { n_sinks: 4 });
    refuse(request, "9 tokens, but the context holds 8");
    assert!(engine.submit(Request::greedy(vec![1; 8], 0)).is_ok());
}

#[test]
fn running_one_request_keeps_the_events_of_others() {
    for stop_after in [1, 3, usize::MAX] {
        let mut engine = Sizes::small(4).engine(always());
        let requests = [Request::greedy(vec![1, 2], 3), Request::greedy(vec![3], 6)];
        let submitted = requests.clone().map(|r| engine.submit(r).unwrap());
        let mut ids: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
        for request in submitted {
            let mut n_events = 0;
            engine
                .run(request, |event| {
                    if let Event::Token { request, id, .. } = event {
                        ids.entry(*request).or_default().push(*id);
                    }
                    n_events += 1;
                    if request == submitted[0] && n_events >= stop_after {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })
                .unwrap();
        }
        assert_eq!(ids[&submitted[1]], expected(&requests[1], 32, 4).ids);
        assert!(engine.is_idle());
    }
}

#[test]
fn dead_device_is_an_error() {
    let limits = Limits {
        max_answer_rows: None,
        n_ctx: 8,
        max_seqs: 2,
        max_tokens: 8,
        max_logits: 4,
        step_target: None,
        prefix_sharing: PrefixSharing::On,
        context_policy: ContextPolicy::Stop,
        fixed_by: None,
        output: Output::Logits,
        whole_sequences: false,
    };
    let executor = Executor::start(1, || Ok((Broken, ()))).unwrap().0;
    let mut engine = Engine::new(
        executor,
        limits,
        (BlockPool::new(2, 4), 0),
        1,
        N_VOCAB as usize,
        None,
    );
    engine.submit(Request::greedy(vec![1], 1)).unwrap();
    assert!(matches!(
        engine.step(),
        Err(EngineError::Device(DeviceError::WorkerGone { .. }))
    ));
    assert!(
        Executor::start(1, || -> Result<(Broken, ()), RuntimeError> {
            Err(ConfigError::NoExperts.into())
        })
        .is_err()
    );
}

/// Runs the engine until it is idle; returns what each request got, and the requests that failed.
fn run_all(engine: &mut Engine) -> (BTreeMap<RequestId, Outcome>, Vec<RequestId>) {
    let mut outcomes: BTreeMap<RequestId, Outcome> = BTreeMap::new();
    let mut failed = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap_or_default() {
            let outcome = outcomes.entry(event.request()).or_default();
            match event {
                Event::Token { id, .. } => outcome.ids.push(id),
                Event::PromptDone { .. } => outcome.prompts_done += 1,
                Event::Finished { reason, .. } => outcome.reason = Some(reason),
                Event::Failed { request, .. } => failed.push(request),
                Event::PromptScore { .. }
                | Event::PromptLogits { .. }
                | Event::Embedding { .. } => {}
            }
        }
        engine.check_integrity().unwrap();
    }
    (outcomes, failed)
}

/// The device fails every step that has a certain token: only the request with this token fails, and the others get the
/// tokens that they get without it.
#[test]
fn a_request_that_fails_steps_fails_alone() {
    const POISON: TokenId = N_VOCAB - 1;
    for (n_requests, poisoned) in [(1, 0), (2, 1), (7, 0), (7, 3), (7, 6)] {
        let before =
            Box::new(
                |batch: &Batch| match batch.tokens.contains(&InputToken::Id(POISON)) {
                    true => Err(lost_step()),
                    false => Ok(()),
                },
            );
        let mut engine = Sizes::small(8).engine(before);
        // Prompts whose answers have no such token.
        let prompt = |i: usize| vec![i as u32 + 1, 2 * i as u32, 3];
        let mut requests: Vec<Request> = (0..30)
            .map(|i| Request::greedy(prompt(i), 9))
            .filter(|request| !expected(request, 32, 4).ids.contains(&POISON))
            .take(n_requests)
            .collect();
        assert_eq!(requests.len(), n_requests);
        Arc::make_mut(&mut requests[poisoned].prompt)[1] = POISON;
        let ids: Vec<RequestId> = requests
            .iter()
            .map(|request| engine.submit(request.clone()).unwrap())
            .collect();
        let (outcomes, failed) = run_all(&mut engine);
        assert_eq!(failed, [ids[poisoned]], "{n_requests} {poisoned}");
        for (i, request) in requests.iter().enumerate() {
            if i != poisoned {
                assert_eq!(outcomes[&ids[i]], expected(request, 32, 4), "{i}");
            }
        }
        // The engine goes on.
        let id = engine.submit(requests[(poisoned + 1) % n_requests].clone());
        if n_requests > 1 {
            let (outcomes, _) = run_all(&mut engine);
            assert_eq!(outcomes[&id.unwrap()].reason, Some(FinishReason::Length));
        }
    }
}

#[test]
fn a_new_backend_continues_every_request() {
    let sizes = Sizes::small(4);
    let mut n_steps = 0;
    let mut engine = sizes.engine(Box::new(move |_| {
        n_steps += 1;
        match n_steps > 3 {
            true => Err(lost_step()),
            false => Ok(()),
        }
    }));
    let requests: Vec<Request> = (0..4).map(|i| Request::greedy(vec![i, 7, i], 12)).collect();
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let mut tokens: BTreeMap<RequestId, Vec<TokenId>> = BTreeMap::new();
    let mut n_restarts = 0;
    while !engine.is_idle() {
        match engine.step() {
            Ok(events) => {
                for event in events {
                    if let Event::Token { request, id, .. } = event {
                        tokens.entry(request).or_default().push(id);
                    }
                }
            }
            Err(_) => {
                engine.restart(sizes.executor(always()));
                n_restarts += 1;
            }
        }
        engine.check_integrity().unwrap();
    }
    assert_eq!(n_restarts, 1);
    for (request, id) in requests.iter().zip(ids) {
        assert_eq!(tokens[&id], expected(request, 32, 4).ids);
    }
}

#[test]
fn stops_at_stop_tokens_and_deadlines() {
    let mut engine = Sizes::small(4).engine(always());
    let request = Request::greedy(vec![5, 6], 20);
    let ids = expected(&request, 32, 4).ids;
    let at = ids.iter().position(|id| *id == ids[4]).unwrap();
    let stopping = Request {
        stop_ids: vec![N_VOCAB - 1, ids[4]],
        ..request.clone()
    };
    let overdue = Request {
        deadline: Some(std::time::Instant::now()),
        ..request.clone()
    };
    let patient = Request {
        deadline: Some(std::time::Instant::now() + Duration::from_secs(3600)),
        ..request
    };
    let [stopping, overdue, patient] =
        [stopping, overdue, patient].map(|request| engine.submit(request).unwrap());
    let (outcomes, _) = run_all(&mut engine);
    let stopped = &outcomes[&stopping];
    assert_eq!(stopped.ids, ids[..=at]);
    let cause = StopCause::Token(ids[4]);
    assert_eq!(stopped.reason, Some(FinishReason::Stop(cause)));
    assert!(outcomes[&overdue].ids.is_empty());
    assert_eq!(outcomes[&overdue].reason, Some(FinishReason::Deadline));
    assert_eq!(outcomes[&patient].ids, ids);
    assert_eq!(outcomes[&patient].reason, Some(FinishReason::Length));
}

/// An engine with 16 blocks of 4 tokens that knows that answers have 24 tokens: with a prompt of 4, 7 blocks.
fn engine_that_knows_answers() -> (Engine, Vec<Request>) {
    let sizes = Sizes {
        n_blocks: 16,
        ..Sizes::small(8)
    };
    let mut engine = sizes.engine(always());
    let requests: Vec<Request> = (0..24)
        .map(|i| Request::greedy(vec![i, 3, 7, 11], 24))
        .collect();
    for request in &requests[..8] {
        engine.submit(request.clone()).unwrap();
    }
    run_all(&mut engine);
    // As long as nothing was known, too many began.
    assert!(engine.stats().preemptions > 0);
    (engine, requests)
}

#[test]
fn answers_of_a_known_length_are_not_preempted() {
    let (mut engine, requests) = engine_that_knows_answers();
    let before = engine.stats().preemptions;
    let ids: Vec<RequestId> = { requests.iter() }
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let (outcomes, _) = run_all(&mut engine);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(outcomes[id].ids, expected(request, 32, 4).ids);
    }
    assert_eq!(engine.stats().preemptions, before);
}

/// Requests of lower priority give their blocks back to two prior ones, whose answers are to come.
#[test]
fn prior_requests_do_not_wait_for_the_answers_of_others() {
    let (mut engine, requests) = engine_that_knows_answers();
    for request in &requests[8..14] {
        engine.submit(request.clone()).unwrap();
    }
    for _ in 0..12 {
        engine.step().unwrap();
    }
    let stats = engine.stats();
    assert!(stats.waiting > 0 && stats.blocks.used < 16, "{stats:?}");
    let prior = [20, 21].map(|i: usize| {
        let request = Request {
            priority: 1,
            ..requests[i].clone()
        };
        engine.submit(request).unwrap()
    });
    let events: Vec<Event> = (0..4).flat_map(|_| engine.step().unwrap()).collect();
    for prior in prior {
        let is_its =
            |event: &Event| matches!(event, Event::Token { request, .. } if *request == prior);
        assert!(events.iter().any(is_its));
    }
    run_all(&mut engine);
}

#[test]
fn a_request_that_has_to_wait_leaves_the_cache_alone() {
    let (mut engine, requests) = engine_that_knows_answers();
    for request in &requests[8..10] {
        engine.submit(request.clone()).unwrap();
    }
    engine.step().unwrap();
    let long = Request::greedy((0..16).collect(), 16);
    engine.submit(long).unwrap();
    for _ in 0..8 {
        let before = engine.stats();
        engine.step().unwrap();
        let after = engine.stats();
        assert_eq!((after.waiting, after.running), (1, 2));
        let n_lost = before.blocks.cached.saturating_sub(after.blocks.cached);
        assert!(n_lost <= after.blocks.used - before.blocks.used);
    }
    run_all(&mut engine);
}

#[test]
fn requests_that_wait_too_long_fail_and_running_ones_go_on() {
    let mut engine = Sizes::small(1).engine(always());
    let soon = std::time::Instant::now() + Duration::from_millis(20);
    let request = Request {
        start_by: Some(soon),
        ..Request::greedy(vec![5, 6], 20)
    };
    let [running, waiting] = [(), ()].map(|()| engine.submit(request.clone()).unwrap());
    engine.step().unwrap();
    while std::time::Instant::now() <= soon {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut failures = Vec::new();
    let mut ids = Vec::new();
    let mut queue_time = None;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event {
                Event::Token { request, id, .. } if request == running => ids.push(id),
                Event::PromptDone {
                    queue_time: time, ..
                } => queue_time = Some(time),
                Event::Failed { request, failure } => failures.push((request, failure)),
                _ => {}
            }
        }
    }
    assert_eq!(ids, expected(&request, 32, 4).ids);
    let [(failed, failure)] = &failures[..] else {
        panic!("{failures:?}");
    };
    assert_eq!(*failed, waiting);
    assert!(matches!(failure, Failure::NotStarted), "{failure}");
    assert!(queue_time.is_some_and(|time| time < Duration::from_millis(20)));
    assert_eq!(engine.stats().blocks.used, 0);
}

#[test]
fn serves_by_priority_then_age() {
    let mut engine = Sizes::small(1).engine(always());
    let submitted = [0, 1, 0, 5, 1].map(|priority| {
        let request = Request {
            priority,
            ..Request::greedy(vec![1, 2], 2)
        };
        engine.submit(request).unwrap()
    });
    let mut ended = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { request, .. } = event {
                ended.push(request);
            }
        }
    }
    let order = [3, 1, 4, 0, 2].map(|i| submitted[i]);
    assert_eq!(ended, order);
}

#[test]
fn a_tenant_with_many_requests_delays_another_by_one() {
    let mut engine = Sizes::small(1).engine(always());
    let mut submit = |tenant: &str| {
        let request = Request {
            tenant: tenant.into(),
            ..Request::greedy(vec![1, 2], 2)
        };
        engine.submit(request).unwrap()
    };
    let many: Vec<RequestId> = (0..500).map(|_| submit("many")).collect();
    let [first, second] = [submit("few"), submit("few")];
    let mut ended = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Finished { request, .. } = event {
                ended.push(request);
            }
        }
    }
    let of_few = [first, second].map(|few| ended.iter().position(|id| *id == few));
    assert_eq!(of_few, [Some(1), Some(3)]);
    ended.retain(|id| ![first, second].contains(id));
    assert_eq!(ended, many);
}

/// A device that takes a second for each token of a prompt, and 10 seconds for a request.
#[test]
fn requests_that_would_wait_too_long_are_refused() {
    let mut engine = Sizes::small(2).engine(always());
    let load = crate::scheduler::Load {
        n_drafted: 0,
        n_prefill: 1,
        n_decoding: 0,
    };
    let request = |n_tokens: usize, tenant: &str, priority: i32| Request {
        first_token_within: Some(Duration::from_secs(9)),
        tenant: tenant.into(),
        priority,
        ..Request::greedy(vec![1; n_tokens], 2)
    };
    // Nothing is known, so nothing is refused.
    let first = engine.submit(request(20, "", 0)).unwrap();
    engine.abort(first);
    engine.scheduler.record_time(load, Duration::from_secs(1));
    assert_eq!(engine.stats().queue_time, Duration::ZERO);
    for _ in 0..2 {
        engine.submit(request(4, "a", 0)).unwrap();
    }
    assert_eq!(engine.stats().queue_time, Duration::from_secs(8));
    let refused = engine.submit(request(4, "a", 0)).unwrap_err();
    let EngineError::Failed(Failure::Overloaded { wait, less_after }) = refused else {
        panic!("{refused}");
    };
    assert_eq!(wait, Duration::from_secs(12));
    assert_eq!(less_after, Duration::from_secs(3));
    // Two tokens fit, and so do four of another tenant, before which only one request of the first has its turn.
    engine.submit(request(1, "a", 0)).unwrap();
    engine.submit(request(4, "b", 0)).unwrap();
    engine.submit(request(9, "a", 1)).unwrap();
    assert!(engine.submit(request(1, "a", 1)).is_err());
    let (outcomes, _) = run_all(&mut engine);
    assert_eq!(outcomes.len(), 5);
    assert_eq!(engine.left_queue().requests, 8);
}

#[test]
fn shares_prefixes_only_with_the_same_salt() {
    let sizes = Sizes {
        n_blocks: 32,
        ..Sizes::small(1)
    };
    let mut engine = sizes.engine(always());
    let salts = [None, Some("a"), Some("b"), Some("a"), None];
    let requests = salts.map(|salt| Request {
        cache_salt: salt.map(String::from),
        ..Request::greedy((0..12).collect(), 1)
    });
    let mut cached = Vec::new();
    for request in requests {
        engine.submit(request).unwrap();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::PromptDone { cached_tokens, .. } = event {
                    cached.push(cached_tokens);
                }
            }
        }
    }
    assert_eq!(cached, [0, 0, 0, 8, 8]);
    let prefix = engine.stats().prefix;
    assert_eq!((prefix.queries, prefix.hits), (60, 16));
}

/// Runs a request alone; returns the tokens that were cached, and those that it got.
fn turn(engine: &mut Engine, prompt: &[u32], max_tokens: usize) -> (usize, Vec<u32>) {
    let request = Request::greedy(prompt.to_vec(), max_tokens);
    let id = engine.submit(request).unwrap();
    let (mut cached, mut ids) = (None, Vec::new());
    let ended = engine.run(id, |event| {
        match event {
            Event::PromptDone { cached_tokens, .. } => cached = Some(*cached_tokens),
            Event::Token { id, .. } => ids.push(*id),
            _ => {}
        }
        ControlFlow::Continue(())
    });
    assert!(ended.unwrap());
    engine.check_integrity().unwrap();
    (cached.unwrap(), ids)
}

/// A conversation, a branch of it, and more of them than there are slots. The device checks each state that it begins from.
#[test]
fn conversations_continue_from_snapshots_of_states() {
    for n_slots in [3, 4, 8] {
        let mut sizes = Sizes {
            n_slots,
            n_blocks: 256,
            ..Sizes::small(1)
        };
        sizes.limits.n_ctx = 512;
        sizes.limits.fixed_by = Some(Fixed::States);
        let mut engine = sizes.engine(always());
        let mut text: Vec<u32> = (0..10).collect();
        let mut n_known = 0;
        for question in 0..30 {
            let (cached, ids) = turn(&mut engine, &text, 9);
            // All blocks before the question; the last token of an answer has not been computed.
            assert_eq!(cached, n_known / 4 * 4, "{n_slots} slots, turn {question}");
            text.extend(ids);
            n_known = text.len() - 1;
            text.extend([(40 + question) % N_VOCAB; 5]);
        }
        // Another question in place of the last one: the blocks are known, but the state is that before the answer, at most.
        let mut other = text[..n_known].to_vec();
        other.extend([7; 6]);
        let (cached, _) = turn(&mut engine, &other, 2);
        assert_eq!(cached, n_known / 4 * 4);
        // Where texts part, there is a snapshot the second time.
        let parted = |last: u32| [&text[..23], &[last; 9]].concat();
        let (first, _) = turn(&mut engine, &parted(8), 2);
        let (second, _) = turn(&mut engine, &parted(9), 2);
        assert!(first <= 20 && second == 20, "{first}, {second}");
    }
}

/// The prompt of a failed row is computed anew the next time.
#[test]
fn a_failed_row_leaves_nothing_in_the_prefix_cache() {
    let limits = Sizes::small(1).limits;
    for fails in [false, true] {
        let executor = Executor::start(1, move || Ok((NotFinite { fails }, ()))).unwrap();
        let pool = (BlockPool::new(8, 4), 0);
        let mut engine = Engine::new(executor.0, limits, pool, 1, N_VOCAB as usize, None);
        let mut cached = Vec::new();
        let mut n_failed = 0;
        for _ in 0..2 {
            engine
                .submit(Request::greedy((0..12).collect(), 2))
                .unwrap();
            while !engine.is_idle() {
                for event in engine.step().unwrap() {
                    match event {
                        Event::PromptDone { cached_tokens, .. } => cached.push(cached_tokens),
                        Event::Failed { .. } => n_failed += 1,
                        _ => {}
                    }
                }
                engine.check_integrity().unwrap();
            }
        }
        match fails {
            true => assert_eq!((cached, n_failed), (vec![0, 0], 2)),
            false => assert_eq!((cached, n_failed), (vec![0, 8], 0)),
        }
        assert_eq!(engine.stats().blocks.used, 0);
    }
}
