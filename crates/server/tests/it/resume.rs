//! Streams that clients read again.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use rocmforge_server::{Config, Keys, NewKey, Offer};
use serde_json::{Value, json};

use crate::client::{Reply, TestServer, forge_mini, local, roomy, small};

const COMPLETIONS: &str = "/v1/completions";
const ID: &str = "conv-1::org/model";
const KEEP: [(&str, &str); 1] = [("x-conversation-id", ID)];

fn stream(from: usize) -> String {
    format!("/v1/stream?conv_id=conv-1%3A%3Aorg%2Fmodel&from={from}")
}

fn request(n_tokens: usize) -> Value {
    json!({"prompt": "Once", "max_tokens": n_tokens, "temperature": 0, "ignore_eos": true, "stream": true})
}

/// The text of all events, which do not repeat.
fn text(events: &[Value]) -> String {
    let texts = events
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().unwrap());
    texts.collect()
}

/// Checks that a stream is whole.
fn check_end(reply: &Reply) {
    let events = reply.events();
    let last = &events[events.len() - 1];
    assert_eq!(last["choices"][0]["finish_reason"], "length");
}

fn lookup(server: &TestServer) -> Value {
    let ids = json!({"conversation_ids": ["conv-1", "other"]});
    server.post("/v1/streams/lookup", &ids).ok()
}

#[test]
fn a_stream_goes_on_without_its_client_and_is_read_again() {
    let server = TestServer::start(local(), vec![forge_mini(small())]);
    let alone = server.post(COMPLETIONS, &request(120)).events();
    let mut lines = server.lines(COMPLETIONS, &request(120), &KEEP);
    let first = lines.next().unwrap();
    drop(lines);
    // The rest, from where the client has stopped.
    let rest = server.get(&stream(first.len() + 2));
    assert_eq!(rest.header("content-type"), Some("text/event-stream"));
    let mut events = vec![serde_json::from_str(first.strip_prefix("data: ").unwrap()).unwrap()];
    events.extend(rest.events());
    assert_eq!(text(&events), text(&alone));
    assert_eq!(server.metric("rocmforge_aborts_total"), 0.0);
    // All of it, as often as wanted.
    let whole = server.get(&stream(0)).text;
    assert_eq!(whole, format!("{first}\n\n{}", rest.text));
    let found = lookup(&server);
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!(found[0]["conversation_id"], ID);
    assert_eq!(found[0]["is_done"], true);
    assert_eq!(found[0]["total_bytes"], whole.len());
    assert!(found[0]["completed_at"].as_i64() >= found[0]["started_at"].as_i64());
    assert_eq!(server.get(&stream(whole.len())).text, "");
    // Another request of the conversation changes nothing.
    let counted = server.send("/tokenize", b"{\"content\": \"a\"}", &KEEP);
    counted.ok();
    let error = server.get(&stream(whole.len() + 1)).error(400);
    assert_eq!(error["code"], "offset_lost");
    server.get("/v1/stream").error(400);
    // It is forgotten when the client says so.
    for _ in 0..2 {
        assert_eq!(server.ask("DELETE", &stream(0), &[]).status, 204);
    }
    server.get(&stream(0)).error(404);
    assert_eq!(lookup(&server), json!([]));
}

#[test]
fn a_stream_ends_when_its_client_says_so_or_asks_again() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let begin = |n_tokens| {
        let mut lines = server.lines(COMPLETIONS, &request(n_tokens), &KEEP);
        lines.next().unwrap();
        lines
    };
    let lines = begin(100_000);
    assert_eq!(server.ask("DELETE", &stream(0), &[]).status, 204);
    assert!(lines.last().is_some());
    server.wait_for("vllm:num_requests_running", 0.0);
    let old = begin(100_000);
    // The same id is another stream then.
    assert!(begin(3).any(|line| line == "data: [DONE]"));
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("rocmforge_aborts_total"), 2.0);
    check_end(&server.get(&stream(0)));
    drop(old);
}

#[test]
fn an_empty_id_is_no_stream() {
    let server = TestServer::start(local(), vec![forge_mini(small())]);
    for method in ["GET", "DELETE"] {
        let reply = server.ask(method, "/v1/stream?conv_id=", &[]);
        assert_eq!(reply.error(400)["param"], "conv_id");
    }
}

#[test]
fn a_refused_request_ends_no_stream() {
    let server = TestServer::start(local(), vec![forge_mini(small())]);
    let send = |path: &str, body: &Value| server.send(path, body.to_string().as_bytes(), &KEEP);
    send(COMPLETIONS, &request(3)).events();
    let mut wrong = request(3);
    wrong["logprobs"] = 1000.into();
    send(COMPLETIONS, &wrong).error(400);
    check_end(&server.get(&stream(0)));
    // A stream of Ollama need not be asked for.
    let options = json!({"num_predict": 3});
    let body = json!({"model": "forge-mini", "prompt": "a", "raw": true, "options": options});
    let lines = send("/api/generate", &body).text;
    assert!(lines.lines().count() > 1, "{lines}");
    assert_eq!(server.get(&stream(0)).text, lines);
}

#[test]
fn a_stream_has_few_readers_and_tells_them_of_its_end() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let mut first = server.lines(COMPLETIONS, &request(100_000), &KEEP);
    first.next().unwrap();
    let address = server.url.trim_start_matches("http://");
    let others: Vec<BufReader<TcpStream>> = (1..4)
        .map(|_| {
            let mut connection = TcpStream::connect(address).unwrap();
            let head = format!("GET {} HTTP/1.1\r\nhost: localhost\r\n\r\n", stream(0));
            connection.write_all(head.as_bytes()).unwrap();
            let mut reader = BufReader::new(connection);
            reader.read_line(&mut String::new()).unwrap();
            reader
        })
        .collect();
    let error = server.get(&stream(0)).error(429);
    assert_eq!(error["code"], "too_many_readers");
    assert_eq!(server.ask("DELETE", &stream(0), &[]).status, 204);
    let last = first.filter(|line| !line.is_empty()).last().unwrap();
    assert!(last.contains("offset_lost"), "{last}");
    drop(others);
}

#[test]
fn a_stream_that_nobody_reads_ends() {
    let mut config = local();
    config.limits.max_unread_time = Duration::from_millis(50);
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    let mut lines = server.lines(COMPLETIONS, &request(100_000), &KEEP);
    lines.next().unwrap();
    drop(lines);
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("rocmforge_aborts_total"), 1.0);
    while server.get(&stream(0)).status != 404 {
        std::thread::yield_now();
    }
    // What is no stream ends with its client, and is not kept.
    let mut whole = request(3);
    whole["stream"] = false.into();
    let body = whole.to_string();
    assert_eq!(
        server.send(COMPLETIONS, body.as_bytes(), &KEEP).ok()["usage"]["completion_tokens"],
        3
    );
    server.get(&stream(0)).error(404);
    let refused = server.send(COMPLETIONS, b"{\"stream\": true}", &KEEP);
    assert_eq!(refused.error(400)["param"], "prompt");
    let id = "x".repeat(257);
    let refused = server.send(COMPLETIONS, body.as_bytes(), &[("x-conversation-id", &id)]);
    refused.error(400);
}

#[test]
fn a_stream_that_nobody_reads_does_not_hold_up_the_end() {
    let mut config = local();
    config.drain_timeout = Duration::from_secs(3600);
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    let mut lines = server.lines(COMPLETIONS, &request(100_000), &KEEP);
    lines.next().unwrap();
    drop(lines);
    server.stop();
    server.join().unwrap();
}

#[test]
fn streams_belong_to_keys() {
    let keys = ["alice", "bob"].map(|name| NewKey::create(name).unwrap());
    let config = Config {
        keys: Keys::parse(&format!("{}\n{}", keys[0].line, keys[1].line)).unwrap(),
        ..local()
    };
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let [alice, bob] = keys.map(|key| key.key);
    let body = request(3).to_string();
    let ask = |key: &str, method, path: &str| server.ask(method, path, &[("x-api-key", key)]);
    server
        .send(
            COMPLETIONS,
            body.as_bytes(),
            &[KEEP[0], ("x-api-key", &alice)],
        )
        .events();
    ask(&bob, "GET", &stream(0)).error(404);
    assert_eq!(ask(&bob, "DELETE", &stream(0)).status, 204);
    check_end(&ask(&alice, "GET", &stream(0)));
}

#[test]
fn a_request_whose_model_is_loaded_goes_on_without_its_client() {
    let gate = Arc::new(RwLock::new(()));
    let of_model = Arc::clone(&gate);
    let away = forge_mini(small());
    let away = Offer {
        name: "away".into(),
        at_start: false,
        prepare: Box::new(move || {
            drop(of_model.read());
            (away.prepare)()
        }),
        ..forge_mini(small())
    };
    let server = TestServer::start(local(), vec![forge_mini(small()), away]);
    let mut body = request(3);
    body["model"] = "away".into();
    let sent = body.to_string();
    let closed = gate.write().unwrap();
    let wait = |status: &str| {
        while server.get("/v1/models/away").ok()["status"]["value"] != status {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        // A client that ends its request is told.
        let waits = scope.spawn(|| server.send(COMPLETIONS, sent.as_bytes(), &KEEP));
        wait("loading");
        assert_eq!(server.ask("DELETE", &stream(0), &[]).status, 204);
        assert_eq!(waits.join().unwrap().error(400)["code"], "cancelled");
        server.get(&stream(0)).error(404);
    });
    // One whose connection ends comes back.
    let address = server.url.trim_start_matches("http://");
    let mut connection = std::net::TcpStream::connect(address).unwrap();
    let n = sent.len();
    let head =
        format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\nx-conversation-id: {ID}\r\n");
    std::io::Write::write_all(
        &mut connection,
        format!("{head}content-length: {n}\r\n\r\n{sent}").as_bytes(),
    )
    .unwrap();
    let replies = || std::iter::repeat_with(|| server.get(&stream(0)));
    let early = replies().find(|reply| reply.status != 404).unwrap();
    assert_eq!(early.error(503)["code"], "not_begun");
    assert_eq!(early.header("retry-after"), Some("1"));
    drop(connection);
    drop(closed);
    let late: Reply = replies().find(|reply| reply.status == 200).unwrap();
    let ids: HashSet<String> = late
        .events()
        .iter()
        .map(|event| event["id"].to_string())
        .collect();
    assert_eq!(ids.len(), 1);
}
