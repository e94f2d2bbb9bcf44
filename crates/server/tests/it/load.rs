//! Many streams at once: every text is as if alone, and nothing is left behind.

use rocmforge_engine::{EngineConfig, KvTokens};
use serde_json::{Value, json};

use crate::client::{TestServer, forge_mini, local, small};

fn body(i: usize, stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": format!("Tell me story number {i}.")}],
        "max_tokens": 16,
        "seed": i,
        "temperature": 1.0,
        "stream": stream,
    })
}

fn streamed(server: &TestServer, i: usize) -> String {
    let events = server.post("/v1/chat/completions", &body(i, true)).events();
    let texts = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    texts.collect()
}

fn check(n: usize) {
    let config = EngineConfig {
        max_seqs: n.min(256),
        kv_tokens: KvTokens::Exactly(n.min(256) * 96),
        ..small()
    };
    let server = TestServer::start(local(), vec![forge_mini(config)]);
    let server = &server;
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|i| scope.spawn(move || streamed(server, i)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for i in (0..n).step_by(n / 16) {
        let alone = server.post("/v1/chat/completions", &body(i, false)).ok();
        assert_eq!(
            together[i],
            alone["choices"][0]["message"]["content"].as_str().unwrap()
        );
    }
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!(server.metric("rocmforge_aborts_total"), 0.0);
}

#[test]
fn streams_together_are_as_alone() {
    check(64);
}

#[test]
#[ignore = "exhaustive: a thousand streams"]
fn a_thousand_streams_together_are_as_alone() {
    check(1000);
}
