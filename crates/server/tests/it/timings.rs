//! Where the time of an answer went.

use std::time::Duration;

use rocmforge_engine::serve::ServeOptions;
use rocmforge_engine::speculate::{DraftLength, NgramDrafter};
use rocmforge_engine::{Engine, EngineConfig, KvTokens};
use rocmforge_model::Purpose;
use serde_json::{Value, json};

use crate::client::{
    FORGE_MINI, TestServer, forge_mini, loaded, local, offer, roomy, small, start,
};

#[test]
fn reading_the_prompt_is_timed() {
    let server = start();
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
    let mut stream = chat.clone();
    stream["stream"] = true.into();
    stream["stream_options"] = json!({"include_usage": true});
    let text = json!({"prompt": "Once upon a time", "max_tokens": 2});
    let of_stream = server.post("/v1/chat/completions", &stream).events();
    let input = json!({"input": "Hi", "max_output_tokens": 2});
    let of_lines = server.post("/v1/messages", &stream).text;
    let last = of_lines
        .lines()
        .find(|line| line.contains("message_delta\","))
        .unwrap();
    let last = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    for (answer, has_template) in [
        (server.post("/v1/chat/completions", &chat).ok(), true),
        (of_stream.last().unwrap().clone(), true),
        (server.post("/v1/responses", &input).ok(), true),
        (server.post("/v1/messages", &chat).ok(), true),
        (last, true),
        (server.post("/v1/completions", &text).ok(), false),
        (server.post("/completion", &text).ok(), false),
    ] {
        let timings = &answer["timings"];
        let ms = |name: &str| timings[name].as_f64().unwrap();
        assert_eq!(ms("template_ms") > 0.0, has_template, "{timings}");
        assert!(ms("tokenize_ms") > 0.0, "{timings}");
        assert!(ms("queue_ms") >= 0.0, "{timings}");
        assert_eq!(timings["n_preempted"], 0);
    }
}

#[test]
fn answers_say_how_often_they_were_preempted() {
    // Too little for both answers.
    let config = EngineConfig {
        n_ctx: Some(256),
        kv_tokens: KvTokens::Exactly(320),
        ..small()
    };
    let server = TestServer::start(local(), vec![forge_mini(config)]);
    let body = json!({"prompt": ["Once", "Twice"], "max_tokens": 200, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 400);
    let n: &Value = &answer["timings"]["n_preempted"];
    assert_eq!(
        n.as_f64(),
        Some(server.metric("vllm:num_preemptions_total"))
    );
    assert!(n.as_u64() > Some(0), "{n}");
}

/// A text that repeats itself, drafted from what came before in it.
#[test]
fn answers_say_how_much_was_drafted() {
    let (path, options) = (FORGE_MINI.as_ref(), ServeOptions::default());
    let model = loaded(path, Purpose::Text, roomy(), options);
    let drafts = |engine: &mut Engine| {
        engine.speculate(Box::new(NgramDrafter::default()), DraftLength::Always(4));
    };
    model.engine.with_engine(drafts).unwrap();
    let drafting = TestServer::start(local(), vec![offer("forge-mini", model)]);
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let body = json!({
        "prompt": "Once", "max_tokens": 40, "temperature": 0, "logit_bias": {"300": 80}, "ignore_eos": true,
    });
    let [with, without] =
        [&drafting, &server].map(|server| server.post("/v1/completions", &body).ok());
    assert_eq!(with["choices"], without["choices"]);
    assert_eq!(without["timings"].get("draft_n"), None);
    for (name, metric) in [
        ("draft_n", "vllm:spec_decode_num_draft_tokens_total"),
        (
            "draft_n_accepted",
            "vllm:spec_decode_num_accepted_tokens_total",
        ),
    ] {
        let n = with["timings"][name].as_f64();
        assert!(n > Some(0.0), "{}", with["timings"]);
        assert_eq!(n, Some(drafting.metric(metric)));
    }
}

/// An answer that takes longer than the server allows: the client gets what there is.
#[test]
fn an_answer_that_takes_too_long_is_cut_and_marked() {
    let mut config = local();
    config.limits.max_answer_time = Duration::from_millis(500);
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    let body = json!({"prompt": "Once", "max_tokens": 15_000, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["timings"]["n_deadline"], 1);
    let n_tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(n_tokens < 15_000, "{n_tokens}");
    let mut body = body;
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let events = server.post("/v1/completions", &body).events();
    assert_eq!(events.last().unwrap()["timings"]["n_deadline"], 1);
    body["max_tokens"] = 1.into();
    let events = server.post("/v1/completions", &body).events();
    assert_eq!(events.last().unwrap()["timings"]["n_deadline"], 0);
}
