//! What a client may send: every wrong field is a sentence, nothing is a failure of the server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{TestServer, forge_mini, local, small, start};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn wrong_fields_are_named() {
    let server = start();
    let ask = |name: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        body[name] = value;
        server.post(CHAT, &body)
    };
    for (name, value) in [
        ("messages", json!([])),
        ("messages", json!("Hi")),
        ("n", json!(0)),
        ("n", json!(1_000_000)),
        ("n", json!(-1)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-5)),
        ("max_tokens", json!("many")),
        ("temperature", json!(-1)),
        ("temperature", json!(1e300)),
        ("top_p", json!(2)),
        ("top_p", json!("x")),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!([1])),
        ("stop", json!(1)),
        ("stop", json!(vec!["x"; 100])),
        ("stop", json!("x".repeat(10_000))),
        ("top_logprobs", json!(21)),
        ("top_logprobs", json!(2)),
        ("tools", json!({})),
        ("tools", json!([1])),
        ("tools", json!([{"type": "retrieval"}])),
        ("tool_choice", json!("sometimes")),
        ("tool_choice", json!("required")),
        ("response_format", json!({"type": "xml"})),
        ("samplers", json!(["best"])),
        ("mirostat", json!(1)),
        ("seed", json!("x")),
        ("audio", json!({"voice": "x"})),
        ("model", json!(1)),
    ] {
        let reply = ask(name, value.clone());
        let error = reply.error(400);
        let param = error["param"].as_str().unwrap_or_default();
        assert!(param.starts_with(name), "{name} = {value}: {}", reply.text);
    }
    for (name, value) in [
        ("logit_bias", json!({"4000000000": 1})),
        ("stop_token_ids", json!([4_000_000])),
        ("logit_bias", json!({"1": 1e300})),
    ] {
        ask(name, value).error(400);
    }
    // Fields inside of others.
    for (name, value) in [
        ("stream_options", json!({"include_usage": "yes"})),
        (
            "tools",
            json!([{"type": "function", "function": {"name": "f", "parameters": []}}]),
        ),
        (
            "tools",
            json!([{"type": "function", "function": {"name": "f", "description": 1}}]),
        ),
    ] {
        ask(name, value).error(400);
    }
    for (path, name, value) in [
        ("/v1/messages", "metadata", json!([])),
        ("/v1/messages", "thinking", json!({"type": 1})),
        ("/v1/messages", "tool_choice", json!({"type": 1})),
        (
            "/v1/messages",
            "tools",
            json!([{"name": "f", "input_schema": 1}]),
        ),
        ("/api/chat", "think", json!([])),
        ("/v1/responses", "reasoning", json!({"effort": 1})),
        ("/v1/responses", "text", json!({"format": "json"})),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "max_tokens": 1});
        body[name] = value;
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.text);
    }
    // Values that clients send and that change nothing.
    for (name, value) in [
        ("seed", json!(-1)),
        ("seed", json!(null)),
        ("top_k", json!(-1)),
        ("stop", json!(null)),
        ("stop", json!([""])),
        ("response_format", json!({"type": "text"})),
        ("tools", json!([])),
        ("logit_bias", json!({})),
        ("stream_options", json!(null)),
        ("user", json!("someone")),
    ] {
        ask(name, value).ok();
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_at_once() {
    let server = start();
    let body = json!({"messages": [{"role": "user", "content": "word ".repeat(2000)}]});
    assert_eq!(
        server.post(CHAT, &body).error(400)["code"],
        "context_length_exceeded"
    );
    assert_eq!(server.metric("vllm:num_requests_waiting"), 0.0);
}

#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    let server = start();
    for ids in [
        json!([4_000_000_000_u32]),
        json!([[1], [4096]]),
        json!([-1]),
        json!([1.5]),
    ] {
        for echo in [false, true] {
            let body = json!({"prompt": ids, "max_tokens": 1, "echo": echo, "logprobs": 1});
            server.post("/v1/completions", &body).error(400);
        }
    }
}

#[test]
fn bodies_are_bounded() {
    let mut config = local();
    config.limits.max_body_bytes = 10_000;
    let server = TestServer::start(config, vec![forge_mini(small())]);
    // The client gets the answer, although it writes all before it reads.
    for n_bytes in [20_000, 20 << 20] {
        server.send(CHAT, &vec![b' '; n_bytes], &[]).error(413);
    }
    for body in ["", "[]", "{", "null", "{\"messages\":"] {
        assert_eq!(
            server.send(CHAT, body.as_bytes(), &[]).error(400)["code"],
            "invalid_json"
        );
    }
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(2000), "]".repeat(2000));
    server.send(CHAT, deep.as_bytes(), &[]).error(400);
    server
        .send(CHAT, b"{\"messages\": \"\xff\"}", &[])
        .error(400);
    server
        .post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}))
        .ok();
}

#[test]
fn unknown_routes_and_methods_have_errors_in_json() {
    let server = start();
    server.get("/nothing").error(404);
    server.get(CHAT).error(405);
    let reply = server.send("/health", b"{}", &[]);
    reply.error(405);
    assert!(reply.header("x-request-id").is_some());
}

#[test]
fn ids_of_requests_are_echoed_if_they_are_plain() {
    let server = start();
    let id = |sent: &str| {
        let reply = server.send(
            "/tokenize",
            b"{\"content\": \"a\"}",
            &[("x-request-id", sent)],
        );
        reply.header("x-request-id").unwrap().to_string()
    };
    assert_eq!(id("trace-1.2_3"), "trace-1.2_3");
    assert!(id("a b").starts_with("req-"));
    assert!(id(&"x".repeat(1000)).starts_with("req-"));
}

/// Sends bytes on a connection of their own and returns all that comes back.
fn raw(server: &TestServer, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn other_hosts_are_refused_on_loopback() {
    let server = start();
    let get = |host: &str| {
        raw(
            &server,
            format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
    };
    assert!(get("localhost:80").starts_with("HTTP/1.1 200"));
    assert!(get("evil.example.com").starts_with("HTTP/1.1 403"));
}

#[test]
fn pages_of_other_sites_are_refused_without_keys() {
    let server = start();
    let tokenize =
        |origin: &str| server.send("/tokenize", b"{\"content\": \"a\"}", &[("origin", origin)]);
    tokenize("https://example.com").error(403);
    tokenize(&server.url).ok();
}

#[test]
fn slow_and_broken_clients_are_let_go() {
    let mut config = local();
    config.limits.read_timeout = Duration::from_millis(300);
    config.limits.max_connections = 4;
    let server = TestServer::start(config, vec![forge_mini(small())]);
    // More connections than there may be, none of which ends its head.
    let address = server.url.trim_start_matches("http://").to_string();
    let slow: Vec<TcpStream> = (0..6)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream
                .write_all(b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\n")
                .unwrap();
            stream
        })
        .collect();
    // They are closed in time, and others are served.
    server.post("/tokenize", &json!({"content": "a"})).ok();
    drop(slow);
    // A body that does not come.
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{";
    assert!(raw(&server, head.as_bytes()).starts_with("HTTP/1.1 408"));
    for bytes in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET / HTTP/9.9\r\n\r\n",
        &[b'A'; 200_000],
    ] {
        raw(&server, bytes);
    }
    server.post("/tokenize", &json!({"content": "a"})).ok();
}
