//! Why requests end, with forge-mini.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::{Loaded, load, models};
use rocmforge_engine::{Engine, EngineConfig, Event, FinishReason, Request, StopCause};
use rocmforge_gguf::TokenId;
use rocmforge_plan::SamplingParams;
use rocmforge_text::tokenizer::EncodeOptions;

/// What a request gave.
#[derive(Debug, Default)]
struct Answer {
    ids: Vec<TokenId>,
    text: String,
    reason: Option<FinishReason>,
}

fn start() -> (Loaded, Engine) {
    let loaded = load(&models().join("forge-mini-Q4_K_M.gguf"));
    let config = EngineConfig {
        n_ctx: Some(128),
        n_threads: Some(1),
        ..EngineConfig::default()
    };
    let engine = loaded.engine(&config);
    (loaded, engine)
}

fn run(engine: &mut Engine, request: Request) -> Answer {
    let id = engine.submit(request).unwrap();
    let mut answer = Answer::default();
    let on_event = |event: &Event| {
        match event {
            Event::Token { id, text, .. } => {
                answer.ids.push(*id);
                answer.text += text;
            }
            Event::Finished { reason, text, .. } => {
                answer.text += text;
                answer.reason = Some(*reason);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    };
    assert!(engine.run(id, on_event).unwrap());
    answer
}

fn story(loaded: &Loaded) -> Request {
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let prompt = loaded.tokenizer.encode_bytes(b"Once upon a time", options);
    Request {
        ignore_eos: true,
        ..Request::greedy(prompt, 24)
    }
}

#[test]
fn stop_tokens_end_a_request_without_their_text() {
    let (loaded, mut engine) = start();
    let whole = run(&mut engine, story(&loaded));
    assert_eq!(
        (whole.ids.len(), whole.reason),
        (24, Some(FinishReason::Length))
    );
    let stop = whole.ids[6];
    let at = whole.ids.iter().position(|id| *id == stop).unwrap();
    let stopping = Request {
        stop_ids: vec![stop],
        ..story(&loaded)
    };
    let stopped = run(&mut engine, stopping.clone());
    assert_eq!(stopped.ids, whole.ids[..=at]);
    let cause = StopCause::Token(stop);
    assert_eq!(stopped.reason, Some(FinishReason::Stop(cause)));
    assert!(whole.text.starts_with(&stopped.text) && stopped.text.len() < whole.text.len());
    // Before the minimum the model has to say something else.
    let n = at + 5;
    let longer = run(
        &mut engine,
        Request {
            min_tokens: n,
            ..stopping
        },
    );
    assert!(longer.ids.len() >= n);
    assert!(!longer.ids[..n].contains(&stop), "{:?}", longer.ids);
    assert_eq!(longer.ids[..at], whole.ids[..at]);
}

#[test]
fn the_end_token_ends_a_request_after_its_minimum() {
    let (loaded, mut engine) = start();
    let end = loaded.tokenizer.eog_ids()[0];
    // The model says nothing but the end token.
    let ending = Request {
        ignore_eos: false,
        sampling: Arc::new(SamplingParams {
            logit_bias: vec![(end, 1000.0)],
            ..SamplingParams::greedy()
        }),
        ..story(&loaded)
    };
    let reason = FinishReason::Stop(StopCause::Eog(end));
    let ended = run(&mut engine, ending.clone());
    assert_eq!((ended.ids, ended.reason), (vec![end], Some(reason)));
    assert_eq!(ended.text, "");
    let whole = run(&mut engine, story(&loaded));
    for min_tokens in [1, 3] {
        let request = Request {
            min_tokens,
            ..ending.clone()
        };
        let ended = run(&mut engine, request);
        assert_eq!(ended.ids[..min_tokens], whole.ids[..min_tokens]);
        assert_eq!(ended.ids[min_tokens..], [end]);
        assert_eq!(ended.reason, Some(reason));
    }
}

#[test]
fn the_first_stop_text_is_named_and_ends_nothing_before_the_minimum() {
    let (loaded, mut engine) = start();
    let whole = run(&mut engine, story(&loaded));
    let (at, _) = whole.text.char_indices().nth(8).unwrap();
    let stop = whole.text[at..].chars().take(3).collect::<String>();
    let first = whole.text.find(&stop).unwrap();
    let stopping = Request {
        stop: vec!["not in the text".into(), stop],
        ..story(&loaded)
    };
    let stopped = run(&mut engine, stopping.clone());
    assert_eq!(stopped.text, whole.text[..first]);
    let cause = StopCause::Text(1);
    assert_eq!(stopped.reason, Some(FinishReason::Stop(cause)));
    let patient = Request {
        min_tokens: 24,
        ..stopping
    };
    let patient = run(&mut engine, patient);
    assert_eq!((patient.ids, patient.text), (whole.ids, whole.text));
}

#[test]
fn an_aborted_request_gives_the_text_that_was_held_back() {
    let (loaded, mut engine) = start();
    let whole = run(&mut engine, story(&loaded));
    // All of the text could be the beginning of this.
    let request = Request {
        stop: vec![whole.text.clone() + "!"],
        ..story(&loaded)
    };
    let id = engine.submit(request).unwrap();
    let mut n_tokens = 0;
    while n_tokens < 10 {
        for event in engine.step().unwrap() {
            if let Event::Token { text, .. } = event {
                assert_eq!(text, "");
                n_tokens += 1;
            }
        }
    }
    let Some(Event::Finished { reason, text, .. }) = engine.abort(id) else {
        panic!("the request has not ended");
    };
    assert_eq!(reason, FinishReason::Aborted);
    assert!(
        !text.is_empty() && whole.text.starts_with(&text),
        "{text:?}"
    );
    assert!(engine.abort(id).is_none());
    engine.check_integrity().unwrap();
}
