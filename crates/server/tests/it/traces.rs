//! Spans of requests, as a collector gets them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rocmforge_server::{Collector, Config};
use serde_json::{Value, json};

use crate::client::{TestServer, forge_mini, local, roomy};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A collector that passes on the bodies it gets.
fn collector() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (to, bodies) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            let mut lines = Vec::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                lines.push(line.to_lowercase());
            }
            assert_eq!(lines[0], "post /v1/traces http/1.1\r\n");
            let length = lines
                .iter()
                .find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.unwrap().trim().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            // Before the server knows, which may end then.
            let passed_on = to.send(serde_json::from_slice(&body).unwrap());
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
            let _ = reader.get_mut().write_all(answer);
            if passed_on.is_err() {
                return;
            }
        }
    });
    (url, bodies)
}

fn attribute(span: &Value, name: &str) -> Value {
    let mut all = span["attributes"].as_array().unwrap().iter();
    let found = all.find(|attribute| attribute["key"] == name);
    let value = found
        .map(|found| found["value"].clone())
        .unwrap_or_default();
    value
        .as_object()
        .and_then(|value| value.values().next())
        .cloned()
        .unwrap_or_default()
}

fn time(span: &Value, name: &str) -> u64 {
    span[name].as_str().unwrap().parse().unwrap()
}

#[test]
fn requests_have_spans() {
    let (url, bodies) = collector();
    let config = Config {
        collector: Some(Collector::parse(&url).unwrap()),
        ..local()
    };
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    let chat = json!({"messages": [{"role": "user", "content": "secret"}], "max_tokens": 5, "ignore_eos": true});
    let chat = chat.to_string();
    let send = |flags: &str, id: &str| {
        let parent = format!("00-{TRACE}-{SPAN}-{flags}");
        let headers = [("traceparent", parent.as_str()), ("x-request-id", id)];
        server
            .send("/v1/chat/completions", chat.as_bytes(), &headers)
            .ok()
    };
    let reply = send("01", "wanted");
    send("00", "unwanted");
    let long =
        json!({"prompt": "secret", "max_tokens": 100_000, "ignore_eos": true, "stream": true});
    let mut lines = server.lines("/v1/completions", &long, &[]);
    lines.next().unwrap();
    drop(lines);
    server.wait_for("vllm:num_requests_running", 0.0);
    server.stop();
    server.join().unwrap();
    let bodies: Vec<Value> = bodies.try_iter().collect();
    let mut spans = Vec::new();
    for body in &bodies {
        assert!(!body.to_string().contains("secret"), "{body}");
        let resource = &body["resourceSpans"][0];
        assert_eq!(
            attribute(&resource["resource"], "service.name"),
            "rocmforge"
        );
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap());
    }
    let of = |name: &str| -> Vec<&Value> {
        let is_it = |span: &&Value| span["name"] == name;
        spans.iter().copied().filter(is_it).collect()
    };
    // A span that the client does not want is not there.
    let roots = of("/v1/chat/completions");
    assert_eq!(roots.len(), 1, "{roots:?}");
    let root = roots[0];
    assert_eq!(
        (&root["traceId"], &root["parentSpanId"]),
        (&json!(TRACE), &json!(SPAN))
    );
    assert_eq!(attribute(root, "rocmforge.request.id"), "wanted");
    assert_eq!(attribute(root, "gen_ai.response.model"), "forge-mini");
    let tokens = |name: &str| reply["usage"][name].to_string();
    assert_eq!(
        attribute(root, "gen_ai.usage.input_tokens"),
        tokens("prompt_tokens")
    );
    assert_eq!(attribute(root, "gen_ai.usage.output_tokens"), "5");
    assert!(root.get("status").is_none());
    let mut before = time(root, "startTimeUnixNano");
    for name in ["template", "tokenize", "queue", "prefill", "decode"] {
        let parts = of(name);
        let part = parts
            .iter()
            .find(|part| part["traceId"] == TRACE)
            .expect(name);
        assert_eq!(part["parentSpanId"], root["spanId"]);
        let (start, end) = (
            time(part, "startTimeUnixNano"),
            time(part, "endTimeUnixNano"),
        );
        assert!(before <= start && start <= end, "{name}");
        before = end;
    }
    assert!(before <= time(root, "endTimeUnixNano"));
    let cut = of("/v1/completions");
    // The server's own request when it starts has a span, too.
    let cut = cut
        .iter()
        .find(|span| span.get("status").is_some())
        .unwrap();
    assert_eq!(cut["status"], json!({"code": 2, "message": "client"}));
    assert!(cut.get("parentSpanId").is_none());
}

/// Nobody listens there.
#[test]
fn a_collector_that_is_away_delays_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let config = Config {
        collector: Some(Collector::parse(&url).unwrap()),
        ..local()
    };
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    server
        .post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}))
        .ok();
    server.stop();
    server.join().unwrap();
}

/// It accepts connections and never answers.
#[test]
fn a_collector_that_hangs_holds_up_no_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = Config {
        collector: Some(Collector::parse(&url).unwrap()),
        drain_timeout: Duration::from_millis(200),
        ..local()
    };
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    server
        .post("/v1/completions", &json!({"prompt": "a", "max_tokens": 1}))
        .ok();
    // The server sends spans, and waits for the answer.
    let (connection, _) = listener.accept().unwrap();
    server.stop();
    let (ended, end) = channel();
    std::thread::spawn(move || ended.send(server.join()));
    let hangs = "the server waits for the collector";
    end.recv_timeout(Duration::from_secs(60))
        .expect(hangs)
        .unwrap();
    drop(connection);
}
