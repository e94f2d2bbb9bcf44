//! Ollama's routes: the same answers as chat completions give, as lines of JSON.

use std::sync::Arc;
use std::time::Duration;

use rocmforge_server::{Keys, NewKey};
use serde_json::{Value, json};

use crate::client::{TestServer, local, start};
use crate::models::lazy;

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Greedy, as Ollama's clients write it.
fn options() -> Value {
    json!({"temperature": 0, "num_predict": 16})
}

#[test]
fn chats_are_answered_whole_and_in_lines() {
    let server = start();
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]);
    let chat = json!({"temperature": 0, "max_tokens": 16, "messages": messages});
    let expected = server.post("/v1/chat/completions", &chat).ok();
    let text = expected["choices"][0]["message"]["content"]
        .as_str()
        .unwrap();
    let body = json!({"model": "forge-mini:latest", "messages": messages, "stream": false, "options": options()});
    let whole = server.post("/api/chat", &body).ok();
    assert_eq!(
        whole["message"],
        json!({"role": "assistant", "content": text})
    );
    assert_eq!(
        (&whole["done"], &whole["done_reason"]),
        (&json!(true), &json!("length"))
    );
    assert_eq!(whole["eval_count"], 16);
    assert_eq!(
        whole["prompt_eval_count"],
        expected["usage"]["prompt_tokens"]
    );

    // A stream unless it is turned off.
    let body = json!({"model": "forge-mini", "messages": messages, "options": options()});
    let streamed = server.post("/api/chat", &body);
    assert_eq!(
        streamed.header("content-type"),
        Some("application/x-ndjson")
    );
    let lines = lines(&streamed.text);
    let texts = lines
        .iter()
        .map(|line| line["message"]["content"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), text);
    let done: Vec<bool> = lines
        .iter()
        .map(|line| line["done"].as_bool().unwrap())
        .collect();
    assert!(done[done.len() - 1] && !done[..done.len() - 1].contains(&true));

    let body = json!({"prompt": "Tell me a story.", "system": "Be brief.", "stream": false, "options": options()});
    assert_eq!(server.post("/api/generate", &body).ok()["response"], text);
    let body =
        json!({"prompt": "Once upon a time", "raw": true, "stream": false, "options": options()});
    let raw = server.post("/api/generate", &body).ok();
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 16});
    let expected = server.post("/v1/completions", &body).ok();
    assert_eq!(raw["response"], expected["choices"][0]["text"]);
}

#[test]
fn answers_follow_a_format() {
    let server = start();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["n"], "additionalProperties": false});
    let body = json!({"messages": [{"role": "user", "content": "A number"}], "format": schema, "stream": false});
    let reply = server.post("/api/chat", &body).ok();
    let read: Value = serde_json::from_str(reply["message"]["content"].as_str().unwrap()).unwrap();
    assert!((1..=5).contains(&read["n"].as_u64().unwrap()), "{read}");
}

#[test]
fn models_are_listed_and_errors_are_texts() {
    let server = start();
    let tags = server.get("/api/tags").ok();
    assert_eq!(tags["models"][0]["name"], "forge-mini");
    assert_eq!(tags["models"][0]["details"]["family"], "llama");
    let shown = server
        .post("/api/show", &json!({"model": "forge-mini"}))
        .ok();
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert!(server.get("/api/version").ok()["version"].is_string());
    for (path, body, status) in [
        ("/api/chat", json!({"model": "other", "messages": []}), 404),
        (
            "/api/chat",
            json!({"messages": [], "keep_alive": "soon"}),
            400,
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}),
            400,
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a"}], "format": "xml"}),
            400,
        ),
        (
            "/api/generate",
            json!({"prompt": "a", "template": "x"}),
            400,
        ),
        ("/api/embed", json!({"input": "a"}), 501),
        ("/api/embeddings", json!({"prompt": "a"}), 501),
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text);
        assert!(reply.json()["error"].is_string(), "{}", reply.text);
    }
}

#[test]
fn options_that_are_not_known_are_named() {
    let server = start();
    let mut options = options();
    options["num_ctx"] = 4096.into();
    options["num_gpu"] = 1.into();
    let body = json!({"prompt": "a", "stream": false, "options": options, "other": 1});
    let reply = server.post("/api/generate", &body);
    let mut names: Vec<&str> = reply
        .header("x-ignored-fields")
        .unwrap()
        .split(',')
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["num_ctx", "num_gpu", "other"]);
    let reply = server.post("/api/generate", &json!({"prompt": "a", "stream": false}));
    assert_eq!(reply.header("x-ignored-fields"), None);
}

#[test]
fn an_empty_request_loads_and_unloads() {
    let loads = Arc::default();
    let server = TestServer::start(local(), vec![lazy("a", 1, &loads)]);
    let models = || {
        server.get("/api/ps").ok()["models"]
            .as_array()
            .unwrap()
            .len()
    };
    let reply = server.post("/api/generate", &json!({"model": "a"})).ok();
    assert_eq!(
        (&reply["done"], &reply["response"]),
        (&json!(true), &json!(""))
    );
    assert_eq!((reply["done_reason"].as_str(), models()), (Some("load"), 1));
    // What it could not answer is refused without a prompt, too.
    for wrong in [
        json!({"format": [1]}),
        json!({"think": 3}),
        json!({"options": 1}),
        json!({"tools": [{"function": {"name": 1}}]}),
    ] {
        for route in ["/api/generate", "/api/chat"] {
            assert_eq!(server.post(route, &wrong).status, 400, "{wrong}");
        }
    }
    assert_eq!(server.post("/api/generate", &json!({"raw": 1})).status, 400);
    let unload = json!({"model": "a", "messages": [], "keep_alive": 0});
    for _ in 0..2 {
        let reply = server.post("/api/chat", &unload).ok();
        assert_eq!(reply["message"]["content"], "");
        assert_eq!(
            (reply["done_reason"].as_str(), models()),
            (Some("unload"), 0)
        );
    }
    // After an answer, the next look for unused models finds it.
    let body = json!({"model": "a", "prompt": "a", "stream": false, "options": options(), "keep_alive": "1ms"});
    server.post("/api/generate", &body).ok();
    for _ in 0..400 {
        if models() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("the model stays");
}

/// Who may not unload models keeps none from staying, either.
#[test]
fn a_time_in_memory_is_the_owners() {
    let (alice, owner) = (
        NewKey::create("alice").unwrap(),
        NewKey::create("owner").unwrap(),
    );
    let mut config = local();
    config.keys = Keys::parse(&format!("{}\n{}:infer,admin", alice.line, owner.line)).unwrap();
    let loads = Arc::default();
    let server = TestServer::start(config, vec![lazy("a", 1, &loads)]);
    let unload = |key: &str| {
        let body = json!({"model": "a", "keep_alive": 0}).to_string();
        server.send("/api/generate", body.as_bytes(), &[("x-api-key", key)])
    };
    let reply = unload(&alice.key);
    assert_eq!(reply.header("x-ignored-fields"), Some("keep_alive"));
    assert_eq!(reply.ok()["done_reason"], "load");
    assert_eq!(unload(&owner.key).ok()["done_reason"], "unload");
}
