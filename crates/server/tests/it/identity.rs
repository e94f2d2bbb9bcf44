//! What answers say of the model that made them.

use std::collections::BTreeSet;

use rocmforge_engine::EngineConfig;
use rocmforge_engine::serve::ServeOptions;
use rocmforge_plan::KvType;
use rocmforge_runtime::BackendInfo;
use rocmforge_runtime::gpu::Offload;
use serde_json::{Value, json};

use crate::client::{TestServer, forge_mini, local, offer, small, start};
use crate::device::{devices, on};
use crate::llama::with_marks;

const COMPLETIONS: &str = "/v1/completions";

fn ask() -> Value {
    json!({"prompt": "Once", "max_tokens": 2})
}

/// The fingerprint of a server's first model.
fn fingerprint(server: &TestServer) -> String {
    let answer = server.post(COMPLETIONS, &ask()).ok();
    answer["system_fingerprint"].as_str().unwrap().to_string()
}

#[test]
fn the_fingerprint_is_that_of_all_that_answers_depend_on() {
    let first = fingerprint(&start());
    let digits = first.strip_prefix("rf-").unwrap();
    assert_eq!(digits.len(), 12, "{first}");
    assert!(digits.chars().all(|c| c.is_ascii_hexdigit()), "{first}");
    // What changes no text.
    let more = EngineConfig {
        max_seqs: 5,
        ..small()
    };
    let server = TestServer::start(local(), vec![forge_mini(more)]);
    assert_eq!(fingerprint(&server), first);
    let other_cache = EngineConfig {
        kv_types: KvType::F32.into(),
        ..small()
    };
    let other_device = EngineConfig {
        n_threads: Some(2),
        ..small()
    };
    let others = [
        forge_mini(other_cache),
        forge_mini(other_device),
        with_marks(),
    ];
    let others = others.map(|model| fingerprint(&TestServer::start(local(), vec![model])));
    let all = BTreeSet::from_iter(others.into_iter().chain([first]));
    assert_eq!(all.len(), 4, "{all:?}");
}

#[test]
fn every_object_of_an_answer_has_the_fingerprint() {
    let server = start();
    let expected = fingerprint(&server);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3});
    for (path, mut body) in [(COMPLETIONS, ask()), ("/v1/chat/completions", chat)] {
        let whole = server.post(path, &body).ok();
        body["stream"] = true.into();
        let events = server.post(path, &body).events();
        for object in events.iter().chain([&whole]) {
            assert_eq!(object["system_fingerprint"], expected, "{object}");
            assert_eq!(object["reproducible"], "batch_invariant", "{object}");
        }
    }
}

#[test]
fn a_gpu_repeats_steps_of_the_same_rows_only() {
    let on_gpu = |info| BackendInfo {
        offload: Offload::default(),
        batch_invariant: false,
        ..info
    };
    let device = devices(small(), || Box::new(|| Ok(())), on_gpu)().unwrap();
    let model = on(device, small(), ServeOptions::default());
    let server = TestServer::start(local(), vec![offer("forge-mini", model)]);
    let answer = server.post(COMPLETIONS, &ask()).ok();
    assert_eq!(answer["reproducible"], "same_step");
}
