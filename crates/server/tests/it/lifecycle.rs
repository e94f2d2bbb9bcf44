//! Clients that leave, and the end of the server.

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use rocmforge_engine::EngineConfig;
use rocmforge_engine::serve::ServeOptions;
use rocmforge_model::Purpose;
use rocmforge_server::{Config, Limits, Offer, Prepared, Server, ServerError};
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, TestServer, forge_mini, local, model, offer, roomy, small, start};
use crate::device::{Before, devices, on};

const COMPLETIONS: &str = "/v1/completions";

/// A request that takes long.
fn long() -> Value {
    json!({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": true, "stream": true})
}

#[test]
fn a_client_that_leaves_ends_its_request() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let mut lines = server.lines(COMPLETIONS, &long(), &[]);
    assert!(lines.next().unwrap().starts_with("data: "));
    assert_eq!(server.metric("vllm:num_requests_running"), 1.0);
    drop(lines);
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("rocmforge_aborts_total"), 1.0);
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
}

#[test]
fn a_client_that_leaves_before_a_whole_answer_ends_its_request() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let mut body = long();
    body["stream"] = false.into();
    let (body, address) = (body.to_string(), server.url.trim_start_matches("http://"));
    let mut stream = TcpStream::connect(address).unwrap();
    let n = body.len();
    write!(
        stream,
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {n}\r\n\r\n{body}"
    )
    .unwrap();
    server.wait_for("vllm:num_requests_running", 1.0);
    drop(stream);
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("rocmforge_aborts_total"), 1.0);
}

#[test]
fn a_full_queue_is_refused_with_a_time() {
    let config = EngineConfig {
        max_seqs: 1,
        ..roomy()
    };
    let options = ServeOptions {
        max_waiting: 1,
        ..ServeOptions::default()
    };
    let one = model(
        "forge-mini",
        FORGE_MINI.as_ref(),
        Purpose::Text,
        config,
        options,
    );
    let mut config = local();
    config.limits.head_timeout = Duration::from_millis(10);
    let server = TestServer::start(config, vec![one]);
    let mut running = server.lines(COMPLETIONS, &long(), &[]);
    running.next().unwrap();
    // It waits until it is served, so its stream has no event yet.
    let waiting = server.lines(COMPLETIONS, &long(), &[]);
    let reply = server.post(COMPLETIONS, &long());
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(reply.error(429)["code"], "queue_full");
    drop((running, waiting));
    server.wait_for("vllm:num_requests_running", 0.0);
    server
        .post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1}))
        .ok();
}

#[test]
fn a_request_that_waits_too_long_is_told() {
    let one = forge_mini(EngineConfig {
        max_seqs: 1,
        ..roomy()
    });
    let mut config = local();
    config.limits.max_queue_time = Duration::from_millis(50);
    let server = TestServer::start(config, vec![one]);
    let mut running = server.lines(COMPLETIONS, &long(), &[]);
    running.next().unwrap();
    // A stream has no head before it begins, so its failure is a status, too.
    for stream in [false, true] {
        let mut late = long();
        late["stream"] = stream.into();
        let error = server.post(COMPLETIONS, &late).error(504);
        assert_eq!(error["code"], "queue_timeout");
    }
    // The first one goes on.
    assert!(running.any(|line| line.starts_with("data: ")));
    drop(running);
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("vllm:request_queue_time_seconds_count"), 2.0);
}

#[test]
fn a_stream_that_waits_long_gets_its_head_and_pings() {
    let one = forge_mini(EngineConfig {
        max_seqs: 1,
        ..roomy()
    });
    let mut config = local();
    config.limits.head_timeout = Duration::from_millis(20);
    config.limits.ping_interval = Duration::from_millis(20);
    let server = TestServer::start(config, vec![one]);
    let mut running = server.lines(COMPLETIONS, &long(), &[]);
    running.next().unwrap();
    let mut waiting = server.lines(COMPLETIONS, &long(), &[]);
    assert_eq!(waiting.next().unwrap(), ": ping");
    drop(running);
    assert!(waiting.any(|line| line.starts_with("data: ")));
}

#[test]
fn a_stream_that_waits_when_the_server_stops_gets_503() {
    let one = forge_mini(EngineConfig {
        max_seqs: 1,
        ..roomy()
    });
    let mut config = local();
    config.drain_timeout = Duration::from_millis(100);
    config.limits.head_timeout = Duration::from_secs(60);
    let server = TestServer::start(config, vec![one]);
    let mut running = server.lines(COMPLETIONS, &long(), &[]);
    running.next().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(COMPLETIONS, &long()));
        server.wait_for("vllm:num_requests_waiting", 1.0);
        server.stop();
        let error = waiting.join().unwrap().error(503);
        assert_eq!(error["code"], "shutting_down");
    });
}

#[test]
fn a_stopping_server_finishes_what_runs_and_refuses_the_rest() {
    let server = start();
    let body = json!({"prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let mut lines = server.lines(COMPLETIONS, &body, &[]);
    lines.next().unwrap();
    server.stop();
    // Connections that are open are told; the answer goes on.
    let rest: Vec<String> = lines.collect();
    assert!(
        rest.iter().any(|line| line.contains("\"length\"")),
        "{rest:?}"
    );
    assert_eq!(
        rest.iter().rev().find(|line| !line.is_empty()).unwrap(),
        "data: [DONE]"
    );
    server.join().unwrap();
}

#[test]
fn a_stopping_server_loads_no_model() {
    let away = Offer {
        name: "away".into(),
        at_start: false,
        prepare: Box::new(|| panic!("it is not to be loaded")),
        ..forge_mini(small())
    };
    let server = TestServer::start(local(), vec![forge_mini(roomy()), away]);
    let mut lines = server.lines(COMPLETIONS, &long(), &[]);
    lines.next().unwrap();
    server.stop();
    while server.get("/health").status != 503 {
        std::thread::yield_now();
    }
    let body = json!({"model": "away", "content": "a"});
    for path in ["/api/show", "/models/load", "/tokenize"] {
        let reply = server.post(path, &body);
        assert_eq!(reply.status, 503, "{path}: {}", reply.text);
        assert!(
            reply.text.contains("shutting down"),
            "{path}: {}",
            reply.text
        );
    }
    drop(lines);
    server.join().unwrap();
}

#[test]
fn requests_that_take_too_long_get_an_error_at_the_end() {
    let mut config = local();
    config.drain_timeout = Duration::from_millis(100);
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    let mut lines = server.lines(COMPLETIONS, &long(), &[]);
    lines.next().unwrap();
    let started = Instant::now();
    server.stop();
    let rest: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    assert!(rest.last().unwrap().contains("shutting_down"), "{rest:?}");
    server.join().unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn other_machines_need_keys() {
    let mut config = local();
    config.address = "0.0.0.0:0".parse().unwrap();
    let refused = Server::bind(config, vec![forge_mini(small())]);
    assert!(matches!(refused.err(), Some(ServerError::NoKeys { .. })));
    let twins = vec![forge_mini(small()), forge_mini(small())];
    let refused = Server::bind(local(), twins);
    assert!(matches!(refused.err(), Some(ServerError::SameName { .. })));
}

/// Waits for a status of `/health/live`.
fn wait_for_live(server: &TestServer, status: u16) -> Value {
    for _ in 0..400 {
        let reply = server.get("/health/live");
        if reply.status == status {
            return reply.json();
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("/health/live does not answer {status}");
}

/// A server that says soon that it hangs.
fn impatient() -> Config {
    let limits = Limits {
        max_step_time: Duration::from_millis(50),
        ..Limits::default()
    };
    Config { limits, ..local() }
}

#[test]
fn a_device_that_hangs_is_told() {
    let gate = Arc::new(RwLock::new(()));
    let of_device = Arc::clone(&gate);
    let hook = move || -> Before {
        let gate = Arc::clone(&of_device);
        Box::new(move || {
            drop(gate.read());
            Ok(())
        })
    };
    let device = devices(small(), hook, |info| info)().unwrap();
    let hangs = offer("hangs", on(device, small(), ServeOptions::default()));
    let server = TestServer::start(impatient(), vec![hangs]);
    assert_eq!(server.get("/health/live").ok()["status"], "ok");
    let body = json!({"prompt": "Once", "max_tokens": 2});
    let unload = json!({"model": "hangs"});
    std::thread::scope(|scope| {
        let closed = gate.write().unwrap();
        let answer = scope.spawn(|| server.post(COMPLETIONS, &body));
        assert_eq!(wait_for_live(&server, 503)["status"], "stuck");
        server.get("/health").ok();
        // A model that leaves has steps, too.
        let unloaded = scope.spawn(|| server.post("/models/unload", &unload));
        let status = || server.get("/v1/models/hangs").ok()["status"]["value"].clone();
        while status() != "unloaded" {
            std::thread::sleep(Duration::from_millis(25));
        }
        assert_eq!(server.get("/health/live").status, 503);
        drop(closed);
        answer.join().unwrap().ok();
        unloaded.join().unwrap().ok();
    });
    server.get("/health/live").ok();
}

#[test]
fn a_model_that_is_loaded_does_not_hang() {
    let gate = Arc::new(RwLock::new(()));
    let of_model = Arc::clone(&gate);
    let slow = Offer {
        name: "slow".to_string(),
        aliases: Vec::new(),
        defaults: serde_json::Map::new(),
        at_start: false,
        file: None,
        file_bytes: 0,
        prepare: Box::new(move || {
            let gate = Arc::clone(&of_model);
            let start = Box::new(move |_| {
                drop(gate.read());
                Err("the test is over".into())
            });
            Ok(Prepared { bytes: 1, start })
        }),
    };
    let config = impatient();
    let max_step_time = config.limits.max_step_time;
    let server = TestServer::start(config, vec![forge_mini(small()), slow]);
    let body = json!({"model": "slow"});
    std::thread::scope(|scope| {
        let closed = gate.write().unwrap();
        let loaded = scope.spawn(|| server.post("/models/load", &body));
        let status = || server.get("/v1/models/slow").ok()["status"]["value"].clone();
        while status() != "loading" {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(2 * max_step_time);
        server.get("/health/live").ok();
        drop(closed);
        loaded.join().unwrap().error(503);
    });
}
