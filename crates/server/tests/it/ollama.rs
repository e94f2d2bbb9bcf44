//! Ollama's routes: the same answers as chat completions give, as lines of JSON.

use serde_json::{Value, json};

use crate::client::start;

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
        ("/api/chat", json!({"messages": []}), 400),
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
    ] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text);
        assert!(reply.json()["error"].is_string(), "{}", reply.text);
    }
}
