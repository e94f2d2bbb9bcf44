//! Keys, scopes and limits.

use rocmforge::Pooling;
use rocmforge_server::{Config, Keys, NewKey, SharedPrefix};
use serde_json::json;

use crate::client::{FORGE_MINI, Reply, TestServer, forge_mini, local, roomy, small};
use crate::embeddings::embedder;

fn server(lines: &str) -> TestServer {
    let mut config = local();
    config.keys = Keys::parse(lines).unwrap();
    TestServer::start(config, vec![forge_mini(small())])
}

fn post(server: &TestServer, key: &str, fields: serde_json::Value) -> Reply {
    let mut body = json!({"prompt": "Once upon", "max_tokens": 4, "ignore_eos": true});
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    let bearer = format!("Bearer {key}");
    server.send(
        "/v1/completions",
        body.to_string().as_bytes(),
        &[("authorization", &bearer)],
    )
}

#[test]
fn every_route_but_health_needs_a_key() {
    let (alice, scraper) = (
        NewKey::create("alice").unwrap(),
        NewKey::create("scraper").unwrap(),
    );
    let lines = format!("{}:infer\n{}:metrics", alice.line, scraper.line);
    let server = server(&lines);
    assert_eq!(server.get("/health").status, 200);
    for path in ["/v1/models", "/metrics", "/props"] {
        let reply = server.get(path);
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert_eq!(reply.error(401)["type"], "authentication_error");
    }
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/tokenize",
        "/apply-template",
    ] {
        server.post(path, &json!({})).error(401);
    }
    post(&server, "wrong", json!({})).error(401);
    post(&server, &alice.key, json!({})).ok();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let by_header = [("x-api-key", alice.key.as_str())];
    server
        .send("/v1/completions", body.as_bytes(), &by_header)
        .ok();
    post(&server, &scraper.key, json!({})).error(403);
}

#[test]
fn a_key_has_a_number_of_requests_and_tokens() {
    let (one, few) = (
        NewKey::create("one").unwrap(),
        NewKey::create("few").unwrap(),
    );
    let lines = format!(
        "{}::requests=1\n{}::tokens_per_minute=8",
        one.line, few.line
    );
    let server = server(&lines);
    let bearer = format!("Bearer {}", one.key);
    let long = json!({"prompt": "Once", "max_tokens": 500, "ignore_eos": true, "stream": true});
    let headers = [("authorization", bearer.as_str())];
    let mut running = server.lines("/v1/completions", &long, &headers);
    running.next().unwrap();
    // The second request is refused while the first one runs.
    let refused = post(&server, &one.key, json!({}));
    assert_eq!(refused.header("retry-after"), Some("1"));
    refused.error(429);
    running.for_each(drop);
    post(&server, &one.key, json!({})).ok();
    post(&server, &few.key, json!({"max_tokens": 60})).ok();
    let reply = post(&server, &few.key, json!({}));
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() > 60);
    assert_eq!(reply.error(429)["type"], "rate_limit_error");
}

#[test]
fn keys_share_no_cache_of_embeddings() {
    let (a, b) = (NewKey::create("a").unwrap(), NewKey::create("b").unwrap());
    let mut config = local();
    config.keys = Keys::parse(&format!("{}\n{}", a.line, b.line)).unwrap();
    let served = embedder("embedder", FORGE_MINI.as_ref(), Pooling::Last);
    let server = TestServer::start(config, vec![served]);
    let body = json!({ "input": "word ".repeat(80) }).to_string();
    let computed = |key: &str| {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str())];
        let reply = server.send("/v1/embeddings", body.as_bytes(), &headers);
        reply.ok()["timings"]["prompt_n"].as_u64().unwrap()
    };
    let all = computed(&a.key);
    assert!(computed(&a.key) < all);
    assert_eq!(computed(&b.key), all);
}

/// What keys share is the message that the owner names, and nothing that follows it.
#[test]
fn keys_share_a_named_prefix() {
    let (a, b) = (NewKey::create("a").unwrap(), NewKey::create("b").unwrap());
    let system = "You answer questions about the river. ".repeat(12);
    let named = |text: &str| SharedPrefix {
        name: "a file".into(),
        text: text.into(),
    };
    let config = Config {
        keys: Keys::parse(&format!("{}\n{}", a.line, b.line)).unwrap(),
        shared_prefixes: vec![named("Another text."), named(&system)],
        ..local()
    };
    let server = TestServer::start(config, vec![forge_mini(roomy())]);
    let ask = |key: &str, system: &str| {
        let bearer = format!("Bearer {key}");
        let body = json!({"max_tokens": 1, "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": "What is a delta? ".repeat(12)},
        ]});
        let headers = [("authorization", bearer.as_str())];
        let reply = server.send(
            "/v1/chat/completions",
            body.to_string().as_bytes(),
            &headers,
        );
        let usage = reply.ok()["usage"].clone();
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        (cached.unwrap(), usage["prompt_tokens"].as_u64().unwrap())
    };
    let (cached, n_prompt) = ask(&a.key, &system);
    assert_eq!(cached, 0);
    let (again, _) = ask(&a.key, &system);
    let (of_other, _) = ask(&b.key, &system);
    assert!(of_other >= 64, "{of_other} of {n_prompt}");
    // At least the question is the other key's own.
    assert!(of_other + 32 < again, "{of_other}, {again} of {n_prompt}");
    let own = "I keep this to myself. ".repeat(16);
    assert_eq!(ask(&a.key, &own).0, 0);
    assert!(ask(&a.key, &own).0 >= 64);
    assert_eq!(ask(&b.key, &own).0, 0);
}

#[test]
fn keys_share_no_cache() {
    let (a, b) = (NewKey::create("a").unwrap(), NewKey::create("b").unwrap());
    let server = server(&format!("{}\n{}", a.line, b.line));
    let prompt = "word ".repeat(80);
    let cached = |key: &str| {
        let reply = post(&server, key, json!({ "prompt": prompt })).ok();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(cached(&a.key), 0);
    assert!(cached(&a.key) >= 64);
    assert_eq!(cached(&b.key), 0);
}
