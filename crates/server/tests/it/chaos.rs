//! Clients that leave at random points, and a device that fails now and then: the answers of the others are as if each were
//! alone, and nothing is left behind.

use std::hash::{DefaultHasher, Hasher as _};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rocmforge_engine::serve::{Handle, ServeOptions};
use rocmforge_engine::{EngineConfig, KvTokens};
use rocmforge_model::Purpose;
use rocmforge_runtime::DeviceError;
use rocmforge_server::Model;
use serde_json::{Value, json};

use crate::client::{
    FORGE_MINI, Reply as Answer, TestServer, forge_mini, loaded, local, offer, small,
};
use crate::device::{Before, devices, on};

const CHAT: &str = "/v1/chat/completions";

/// Different requests.
const N_BODIES: usize = 24;

/// Clients at the same time: several times as many as are served at once.
const N_CLIENTS: usize = 40;

fn crowded() -> EngineConfig {
    EngineConfig {
        max_seqs: 8,
        // Too little for eight long prompts, so answers also lose their place.
        kv_tokens: KvTokens::Exactly(1024),
        ..small()
    }
}

/// Returns a number below `n` that seems random.
fn random(seed: impl std::hash::Hash, n: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    hasher.finish() as usize % n
}

/// Returns request `i`: short and long prompts, several answers, answers of a given structure, calls, with and without a
/// stream.
fn body(i: usize) -> Value {
    let n_words = [4, 30, 120][i % 3];
    let text = format!("Tell me story {i}. {}", "And then? ".repeat(n_words / 3));
    let mut body = json!({
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4 + random(("tokens", i), 12),
        "seed": i,
        "temperature": 1.0,
        "stream": i.is_multiple_of(2),
    });
    match i % 8 {
        1 | 4 => body["n"] = 4.into(),
        2 | 7 => {
            body["guided_regex"] = "[a-z]{3,9}( [a-z]{3,9}){2,5}\\.".into();
        }
        5 => {
            body["response_format"] = json!({"type": "json_object"});
        }
        _ => {}
    }
    body
}

/// Returns the texts of the answers of a reply.
fn texts(answer: &Answer, body: &Value) -> Vec<String> {
    if body["stream"] == false {
        let choices = answer.ok()["choices"].clone();
        let choices = choices.as_array().unwrap().iter();
        let text = |choice: &Value| choice["message"]["content"].as_str().unwrap().to_string();
        return choices.map(text).collect();
    }
    let mut texts = vec![String::new(); body["n"].as_u64().unwrap_or(1) as usize];
    for event in answer.events() {
        assert!(event["error"].is_null(), "{event}");
        for choice in event["choices"].as_array().unwrap() {
            let text = choice["delta"]["content"].as_str().unwrap_or_default();
            texts[choice["index"].as_u64().unwrap() as usize].push_str(text);
        }
    }
    texts
}

/// Reads a stream with pauses, as a slow client does.
fn slowly(server: &TestServer, body: &Value) -> Answer {
    let lines = server.lines(CHAT, body, &[]);
    let lines: Vec<String> = lines
        .inspect(|_| std::thread::sleep(Duration::from_millis(3)))
        .collect();
    Answer {
        status: 200,
        headers: ureq::http::HeaderMap::new(),
        text: lines.join("\n"),
    }
}

/// Sends request `i` and leaves at a random point.
fn leave(server: &TestServer, i: usize) {
    let body = body(random(("body", i), N_BODIES)).to_string();
    let n = body.len();
    // An answer that is shorter than what the client reads ends with the connection.
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {n}\r\n\r\n{body}"
    );
    let address = server.url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let pause = |n: usize| std::thread::sleep(Duration::from_millis(random(("ms", i), n) as u64));
    // The server may close a connection that it reads no more from.
    let part = match i % 8 {
        // Within the head, or within the body.
        0 => random(("cut", i), request.len()),
        _ => request.len(),
    };
    stream.write_all(&request.as_bytes()[..part]).unwrap();
    match i % 8 {
        0 | 1 => {}
        // While it waits, or while its prompt is computed.
        2..=4 => pause(60),
        // Within the answer.
        5 | 6 => {
            let mut read = vec![0; 1 + random(("bytes", i), 4000)];
            let _ = stream.read_exact(&mut read);
        }
        // With an answer that it never read.
        _ => pause(300),
    }
}

/// How a device fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// A step is not computed.
    Step,
    /// The device's thread ends, and another device takes its place.
    Loss,
}

/// Steps of which one fails.
const STEPS_TO_FAULT: u32 = 67;

fn mini() -> Model {
    loaded(
        FORGE_MINI.as_ref(),
        Purpose::Text,
        crowded(),
        ServeOptions::default(),
    )
}

/// Returns forge-mini on a device that fails.
fn faulty(fault: Fault) -> Model {
    let hook = move || -> Before {
        let mut n_steps = 0_u32;
        Box::new(move || {
            n_steps += 1;
            match fault {
                _ if !n_steps.is_multiple_of(STEPS_TO_FAULT) => Ok(()),
                Fault::Step => Err(DeviceError::LostStep { step: 0, found: 0 }),
                Fault::Loss => panic!("a fault of the test"),
            }
        })
    };
    let mut devices = devices(crowded(), hook, |info| info);
    let device = devices().unwrap();
    let options = ServeOptions {
        restart: (fault == Fault::Loss).then_some(devices),
        ..ServeOptions::default()
    };
    on(device, crowded(), options)
}

/// Lets `n` clients in, half of which leave.
fn check(n: usize, fault: Option<Fault>) {
    let alone = TestServer::start(local(), vec![forge_mini(small())]);
    let expected: Vec<Vec<String>> = (0..N_BODIES)
        .map(|i| texts(&alone.post(CHAT, &body(i)), &body(i)))
        .collect();
    let model = fault.map_or_else(mini, faulty);
    let engine = Handle::clone(&model.engine);
    let server = TestServer::start(local(), vec![offer("forge-mini", model)]);
    let next = AtomicUsize::new(0);
    let client = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return;
            }
            if i % 2 == 1 {
                leave(&server, i / 2);
                continue;
            }
            let which = random(("stays", i), N_BODIES);
            let body = body(which);
            let is_slow = body["stream"] == true && i.is_multiple_of(10);
            let answer = match is_slow {
                true => slowly(&server, &body),
                false => server.post(CHAT, &body),
            };
            assert_eq!(texts(&answer, &body), expected[which], "client {i}: {body}");
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..N_CLIENTS).map(|_| scope.spawn(client)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
    for gauge in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    ] {
        server.wait_for(gauge, 0.0);
    }
    let checked = engine.with_engine(|engine| engine.check_integrity());
    checked.unwrap().unwrap();
    assert_eq!(engine.stats().blocks.used, 0);
    assert!(server.metric("rocmforge_aborts_total") > 0.0);
    let has_failed = server.metric("rocmforge_failed_steps_total") > 0.0;
    assert_eq!(has_failed, fault.is_some());
    // It ends by itself: nothing that a client left behind is under way.
    server.stop();
    server.join().unwrap();
}

#[test]
fn clients_that_leave_change_nothing() {
    check(100, None);
}

#[test]
#[ignore = "exhaustive: ten thousand clients"]
fn ten_thousand_clients_that_leave_change_nothing() {
    check(10_000, None);
}

#[test]
#[ignore = "exhaustive: clients of devices that fail"]
fn a_device_that_fails_changes_no_text() {
    for fault in [Fault::Step, Fault::Loss] {
        check(80, Some(fault));
    }
}
