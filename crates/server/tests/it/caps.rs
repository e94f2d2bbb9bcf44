//! Every cap, reached: what the client gets, and that another client's answer meanwhile is as if alone.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rocmforge_engine::serve::ServeOptions;
use rocmforge_engine::{EngineConfig, KvTokens};
use rocmforge_model::Purpose;
use rocmforge_server::{Config, Keys, NewKey, Offer};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, TestServer, forge_mini, local, model, small};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A server in which an answer can take seconds.
fn roomy(max_seqs: usize, options: ServeOptions) -> Offer {
    let config = EngineConfig {
        n_ctx: Some(16_384),
        kv_tokens: KvTokens::Exactly(65_536),
        max_seqs,
        ..small()
    };
    model(
        "forge-mini",
        FORGE_MINI.as_ref(),
        Purpose::Text,
        config,
        options,
    )
}

/// A request that takes long.
fn long() -> Value {
    json!({"prompt": "Once", "max_tokens": 100_000, "ignore_eos": true, "stream": true})
}

/// A request whose answer is the same each time.
fn witness() -> Value {
    json!({"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true, "seed": 1, "stream": true})
}

/// The text of a stream.
fn text(lines: impl Iterator<Item = String>) -> String {
    let data = lines.filter_map(|line| line.strip_prefix("data: ").map(String::from));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(&data).ok());
    let texts = events.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_string()));
    texts.collect()
}

/// Runs `work` while another client's answer is on its way, which must not change.
fn beside_another_client(server: &TestServer, work: impl FnOnce()) {
    let alone = text(server.lines(COMPLETIONS, &witness(), &[]));
    assert!(!alone.is_empty());
    let mut beside = server.lines(COMPLETIONS, &witness(), &[]);
    let first: Vec<String> = beside.by_ref().take(1).collect();
    work();
    assert_eq!(text(first.into_iter().chain(beside)), alone);
}

#[test]
fn a_number_just_beyond_a_bound_is_refused() {
    let server = TestServer::start(local(), vec![forge_mini(small())]);
    // The next numbers that JSON can hold.
    let (above_1, below_0) = (1.0 + f64::EPSILON, -f64::MIN_POSITIVE);
    for (name, value, status) in [
        ("top_p", above_1, 400),
        ("xtc_threshold", above_1, 400),
        ("temperature", below_0, 400),
        ("min_p", below_0, 400),
        ("xtc_threshold", 1.0, 200),
        ("xtc_threshold", 1.0 - f64::EPSILON, 200),
        ("temperature", f64::MIN_POSITIVE, 200),
        ("min_p", 0.0, 200),
    ] {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body[name] = value.into();
        let reply = server.post(COMPLETIONS, &body);
        assert_eq!(reply.status, status, "{body}: {}", reply.text);
    }
}

#[test]
fn caps_on_what_a_request_holds() {
    let mut config = local();
    let limits = &mut config.limits;
    limits.max_body_bytes = 100_000;
    (limits.max_messages, limits.max_tools, limits.max_choices) = (4, 2, 3);
    (limits.max_stops, limits.max_stop_bytes, limits.max_biases) = (2, 16, 2);
    limits.max_stop_ids = 2;
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let message = json!({"role": "user", "content": "Hi"});
    let tool = |name: usize| json!({"type": "function", "function": {"name": format!("f{name}")}});
    let ask = |name: &str, value: &Value| {
        let mut body = json!({"messages": [message], "max_tokens": 1});
        body[name] = value.clone();
        server.post(CHAT, &body)
    };
    beside_another_client(&server, || {
        // The most that is allowed, and one more.
        for (name, most, more) in [
            (
                "messages",
                json!(vec![&message; 4]),
                json!(vec![&message; 5]),
            ),
            (
                "tools",
                json!([tool(0), tool(1)]),
                json!([tool(0), tool(1), tool(2)]),
            ),
            ("n", json!(3), json!(4)),
            ("stop", json!(["a", "b"]), json!(["a", "b", "c"])),
            ("stop", json!(["x".repeat(16)]), json!(["x".repeat(17)])),
            ("stop_token_ids", json!([1, 2]), json!([1, 2, 3])),
            (
                "logit_bias",
                json!({"1": 0, "2": 0}),
                json!({"1": 0, "2": 0, "3": 0}),
            ),
        ] {
            ask(name, &most).ok();
            let error = ask(name, &more).error(400);
            let param = error["param"].as_str().unwrap_or_default();
            assert!(param.starts_with(name), "{name}: {error}");
        }
        let prompts = |n: usize| json!({"prompt": vec!["a"; n], "max_tokens": 1});
        server.post(COMPLETIONS, &prompts(3)).ok();
        let error = server.post(COMPLETIONS, &prompts(4)).error(400);
        assert_eq!(error["param"], "prompt");
        server.send(CHAT, &vec![b' '; 100_001], &[]).error(413);
        let deep = format!("{{\"messages\": {}{}}}", "[".repeat(500), "]".repeat(500));
        server.send(CHAT, deep.as_bytes(), &[]).error(400);
        // A schema of more than 64 KiB.
        let schema = json!({"enum": ["x".repeat(70_000)]});
        let error = ask("guided_json", &schema).error(400);
        assert!(
            error["message"].as_str().unwrap().contains("65536"),
            "{error}"
        );
    });
}

/// Sends bytes on a connection of their own and returns what comes back.
fn raw(server: &TestServer, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    let patience = Some(Duration::from_secs(20));
    stream.set_read_timeout(patience).unwrap();
    // The server may close the connection before it has read all.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn caps_on_heads_and_connections() {
    let mut config = local();
    config.limits.max_connections = 3;
    config.limits.read_timeout = Duration::from_millis(300);
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let head = |more: &str| {
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{more}connection: close\r\n\r\n")
    };
    let numbered = |n: usize| -> String { (0..n).map(|i| format!("x-{i}: 1\r\n")).collect() };
    beside_another_client(&server, || {
        let status = |more: &str| raw(&server, head(more).as_bytes())[..12].to_string();
        assert_eq!(status(&numbered(90)), "HTTP/1.1 200");
        assert_eq!(status(&numbered(110)), "HTTP/1.1 431");
        assert_eq!(
            status(&format!("x: {}\r\n", "a".repeat(100_000))),
            "HTTP/1.1 431"
        );
        let body = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{";
        assert!(raw(&server, body.as_bytes()).starts_with("HTTP/1.1 408"));
        // Two that say nothing take what is left; the next one is served when their time is over.
        let address = server.url.trim_start_matches("http://");
        let idle = [(), ()].map(|()| TcpStream::connect(address).unwrap());
        assert_eq!(status(""), "HTTP/1.1 200");
        drop(idle);
    });
}

#[test]
fn a_client_that_does_not_read_is_let_go() {
    let mut config = local();
    config.limits.write_timeout = Duration::from_millis(300);
    let server = TestServer::start(config, vec![roomy(8, ServeOptions::default())]);
    let mut body = long();
    // More bytes than the system holds for a connection.
    body["logprobs"] = 20.into();
    body["n"] = 6.into();
    let body = body.to_string();
    beside_another_client(&server, || {
        // With a small buffer, so that the system takes little of the answer.
        let address: SocketAddr = server.url.trim_start_matches("http://").parse().unwrap();
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_recv_buffer_size(&socket, 4096).unwrap();
        connect(&socket, &address).unwrap();
        let mut stream = TcpStream::from(socket);
        let n = body.len();
        write!(
            stream,
            "POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {n}\r\n\r\n{body}"
        )
        .unwrap();
        server.wait_for("rocmforge_aborts_total", 6.0);
        let metrics = server.get("/metrics").text;
        let line = "rocmforge_aborts_total{cause=\"slow_reader\",engine=\"0\",model_name=\"forge-mini\"} 6";
        assert!(metrics.contains(line), "{metrics}");
        drop(stream);
    });
    server.wait_for("vllm:num_requests_running", 0.0);
}

#[test]
fn caps_on_what_waits() {
    let options = ServeOptions {
        max_waiting: 3,
        max_waiting_tokens: 100,
        ..ServeOptions::default()
    };
    let server = &TestServer::start(local(), vec![roomy(1, options)]);
    // Nothing waits, so there is place for all answers to one prompt: they succeed or fail together.
    let several = json!({"prompt": "word ".repeat(100), "max_tokens": 2, "n": 5});
    let choices = server.post(COMPLETIONS, &several).ok()["choices"].clone();
    assert_eq!(choices.as_array().unwrap().len(), 5);
    // Three full pages of the prompt are computed once.
    assert!(server.metric("vllm:prefix_cache_hits_total") >= 4.0 * 96.0);
    let mut running = server.lines(COMPLETIONS, &long(), &[]);
    running.next().unwrap();
    std::thread::scope(|scope| {
        let short = |n: usize| json!({"prompt": "a", "max_tokens": 1, "n": n});
        let waits = scope.spawn(move || server.post(COMPLETIONS, &short(1)).ok());
        server.wait_for("vllm:num_requests_waiting", 1.0);
        for body in [
            short(3),
            json!({"prompt": "word ".repeat(100), "max_tokens": 1}),
        ] {
            let refused = server.post(COMPLETIONS, &body);
            let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=3600).contains(&seconds));
            assert_eq!(refused.error(429)["code"], "queue_full");
        }
        // What runs goes on, and what waits has its turn.
        assert!(running.any(|line| line.starts_with("data: ")));
        drop(running);
        waits.join().unwrap();
    });
}

#[test]
fn an_answer_that_would_begin_too_late_is_refused() {
    let mut config = local();
    config.limits.max_first_token_time = Some(Duration::from_micros(1));
    let server = TestServer::start(config, vec![roomy(8, ServeOptions::default())]);
    // An idle device refuses nothing: no other time would be better.
    let mut running = server.lines(COMPLETIONS, &long(), &[]);
    running.next().unwrap();
    for stream in [false, true] {
        let body =
            json!({"prompt": "word ".repeat(300), "max_tokens": 2, "n": 2, "stream": stream});
        let refused = server.post(COMPLETIONS, &body);
        let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=3600).contains(&seconds));
        assert_eq!(refused.error(429)["code"], "overloaded");
    }
    assert_eq!(server.metric("vllm:num_requests_waiting"), 0.0);
    assert!(running.any(|line| line.starts_with("data: ")));
    drop(running);
    server.wait_for("vllm:num_requests_running", 0.0);
    server
        .post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1}))
        .ok();
}

fn with_keys(names: [&str; 2], limits: &str) -> (Config, [String; 2]) {
    let keys = names.map(|name| NewKey::create(name).unwrap());
    let lines = keys.each_ref().map(|key| format!("{}{limits}", key.line));
    let mut config = local();
    config.keys = Keys::parse(&lines.join("\n")).unwrap();
    (config, keys.map(|key| format!("Bearer {}", key.key)))
}

#[test]
fn a_key_with_many_requests_lets_another_have_its_turn() {
    let (config, [many, few]) = with_keys(["many", "few"], "");
    let server = TestServer::start(config, vec![roomy(1, ServeOptions::default())]);
    let server = &server;
    let (many, few) = ([("authorization", &*many)], [("authorization", &*few)]);
    let waiting = |n: usize| {
        let metrics = || server.send_get("/metrics", &many).text;
        let line =
            format!("vllm:num_requests_waiting{{engine=\"0\",model_name=\"forge-mini\"}} {n}");
        while !metrics().contains(&line) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let mut running = server.lines(COMPLETIONS, &long(), &many);
    running.next().unwrap();
    let body = json!({"prompt": "Once", "max_tokens": 300, "ignore_eos": true}).to_string();
    let end = |key| {
        assert_eq!(server.send(COMPLETIONS, body.as_bytes(), key).status, 200);
        Instant::now()
    };
    std::thread::scope(|scope| {
        let of_many: Vec<_> = (1..=6)
            .map(|n| {
                let request = scope.spawn(|| end(&many));
                waiting(n);
                request
            })
            .collect();
        let of_few = scope.spawn(|| end(&few));
        waiting(7);
        drop(running);
        let of_few = of_few.join().unwrap();
        let of_many = of_many.into_iter().map(|request| request.join().unwrap());
        let n_later = of_many.filter(|end| *end > of_few).count();
        // One of them had its turn before; the clocks of threads may swap neighbours.
        assert!(n_later >= 4, "{n_later} of 6");
    });
}
