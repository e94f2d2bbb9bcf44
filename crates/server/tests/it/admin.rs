//! What the server's owner sees and does.

use std::time::Duration;

use rocmforge_engine::EngineConfig;
use rocmforge_server::{Keys, NewKey};
use serde_json::{Value, json};

use crate::client::{Reply, TestServer, forge_mini, local, roomy, small, start};

const COMPLETIONS: &str = "/v1/completions";
const TABLE: &str = "/admin/requests";

/// A request that takes long. Its prompt has a word that nothing else has.
fn long() -> Value {
    json!({"prompt": "Once a xyzzy", "max_tokens": 100_000, "ignore_eos": true, "stream": true})
}

fn whole() -> Value {
    let mut body = long();
    body["stream"] = false.into();
    body
}

/// Waits until the table has rows that satisfy `is_it`, and returns them.
fn rows(server: &TestServer, is_it: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut table = Value::Null;
    for _ in 0..400 {
        table = server.get(TABLE).ok();
        let rows = table["requests"].as_array().unwrap();
        if is_it(rows) {
            return rows.clone();
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("the table stays {table}");
}

fn end(server: &TestServer, row: &Value) -> Reply {
    let id = row["id"].as_str().unwrap();
    server.ask("DELETE", &format!("{TABLE}/{id}"), &[])
}

#[test]
fn the_table_shows_what_runs_and_ends_it() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let id = [("x-request-id", "mine-1")];
    let mut lines = server.lines(COMPLETIONS, &long(), &id);
    lines.next().unwrap();
    let decodes = |rows: &[Value]| rows.len() == 1 && rows[0]["state"] == "decode";
    let row = rows(&server, decodes).remove(0);
    let text = row.to_string();
    for (name, value) in [
        ("id", json!("mine-1")),
        ("model", json!("forge-mini")),
        ("route", json!(COMPLETIONS)),
        ("key", Value::Null),
        ("stream", json!(true)),
        ("answers", json!(1)),
        ("cached_tokens", json!(0)),
    ] {
        assert_eq!(row[name], value, "{name} of {text}");
    }
    let body = json!({"content": "Once a xyzzy", "add_special": true});
    let tokens = server.post("/tokenize", &body).ok();
    let n_tokens = tokens["tokens"].as_array().unwrap().len();
    assert_eq!(row["prompt_tokens"], n_tokens);
    assert!(row["generated_tokens"].as_u64().unwrap() > 0, "{text}");
    let [age, queue] = ["age_seconds", "queue_seconds"].map(|name| row[name].as_f64().unwrap());
    assert!(0.0 <= queue && queue <= age, "{text}");
    assert!(!text.contains("xyzzy"), "{text}");
    assert_eq!(end(&server, &row).ok()["ended"], true);
    let rest: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    assert!(rest.last().unwrap().contains("ended_by_owner"), "{rest:?}");
    server.wait_for("vllm:num_requests_running", 0.0);
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
    let metrics = server.get("/metrics").text;
    let line = "rocmforge_aborts_total{cause=\"owner\",model_name=\"forge-mini\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    rows(&server, <[Value]>::is_empty);
    end(&server, &row).error(404);
}

#[test]
fn a_request_that_waits_can_be_ended() {
    let one = EngineConfig {
        max_seqs: 1,
        ..roomy()
    };
    let server = TestServer::start(local(), vec![forge_mini(one)]);
    let mut running = server.lines(COMPLETIONS, &long(), &[]);
    running.next().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(COMPLETIONS, &whole()));
        let states = |rows: &[Value]| {
            let submitted = rows.iter().filter(|row| row["model"] == "forge-mini");
            let states: Vec<&Value> = submitted.map(|row| &row["state"]).collect();
            states == ["decode", "queued"]
        };
        let both = rows(&server, states);
        assert!(both[1]["queue_seconds"].as_f64().unwrap() > 0.0);
        end(&server, &both[1]).ok();
        // A status that clients do not try again after.
        let error = waiting.join().unwrap().error(403);
        assert_eq!(error["code"], "ended_by_owner");
    });
    // The first one goes on.
    assert!(running.any(|line| line.starts_with("data: ")));
}

#[test]
fn all_answers_to_a_prompt_are_one_request() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let mut body = long();
    body["n"] = 3.into();
    let twins = [("x-request-id", "twin")];
    let mut first = server.lines(COMPLETIONS, &body, &twins);
    first.next().unwrap();
    let second = server.lines(COMPLETIONS, &long(), &twins);
    let both = rows(&server, |rows| {
        rows.len() == 2 && rows[0]["answers"] == 3 && rows[1]["state"] == "decode"
    });
    assert_eq!(both[0]["id"], "twin");
    assert_ne!(both[1]["id"], "twin");
    // The second one found the first full block of the prompt, or none, but not three times.
    assert!(both[0]["cached_tokens"].as_u64() <= both[0]["prompt_tokens"].as_u64());
    end(&server, &both[0]).ok();
    assert!(first.any(|line| line.contains("ended_by_owner")));
    server.wait_for("vllm:num_requests_running", 1.0);
    drop(second);
    server.wait_for("vllm:num_requests_running", 0.0);
}

#[test]
fn only_the_owner_may_administer() {
    let [owner, user] = ["owner", "user"].map(|name| NewKey::create(name).unwrap());
    let mut config = local();
    config.keys = Keys::parse(&format!("{}:admin\n{}", owner.line, user.line)).unwrap();
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let ask = |method, path, key: &NewKey| {
        let bearer = format!("Bearer {}", key.key);
        server.ask(method, path, &[("authorization", &bearer)])
    };
    for (method, path) in [
        ("GET", TABLE),
        ("DELETE", "/admin/requests/x"),
        ("POST", "/admin/drain"),
        ("POST", "/admin/reload"),
    ] {
        server.ask(method, path, &[]).error(401);
        ask(method, path, &user).error(403);
    }
    ask("GET", TABLE, &owner).ok();
    ask("GET", "/v1/models", &owner).error(403);
}

#[test]
fn no_page_of_another_site_may_administer() {
    let server = start();
    for header in [
        ("origin", "http://example.com"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("host", "example.com"),
    ] {
        server.ask("POST", "/admin/drain", &[header]).error(403);
        server.ask("GET", TABLE, &[header]).error(403);
    }
    let own = [
        ("origin", server.url.as_str()),
        ("sec-fetch-site", "same-origin"),
    ];
    server.ask("GET", TABLE, &own).ok();
}

#[test]
fn a_drained_server_finishes_what_runs() {
    let server = start();
    let body = json!({"prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let mut lines = server.lines(COMPLETIONS, &body, &[]);
    lines.next().unwrap();
    let reply = server.ask("POST", "/admin/drain", &[]);
    assert_eq!((reply.status, &reply.json()["under_way"]), (202, &json!(1)));
    server.post(COMPLETIONS, &whole()).error(503);
    assert!(lines.any(|line| line.contains("\"length\"")));
    server.join().unwrap();
}

#[test]
fn the_owner_changes_keys_while_the_server_runs() {
    let [owner, user] = ["owner", "user"].map(|name| NewKey::create(name).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let write = |lines: &str| std::fs::write(&file, lines).unwrap();
    let first = format!("{}:infer,admin", owner.line);
    write(&first);
    let mut config = local();
    config.keys = Keys::read(&file).unwrap();
    config.keys_file = Some(file.clone());
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let models = |key: &NewKey| {
        let bearer = format!("Bearer {}", key.key);
        server.ask("GET", "/v1/models", &[("authorization", &bearer)])
    };
    let reload = || {
        let bearer = format!("Bearer {}", owner.key);
        server.ask("POST", "/admin/reload", &[("authorization", &bearer)])
    };
    models(&user).error(401);
    write(&format!("{first}\n{}", user.line));
    assert_eq!(reload().ok()["read"], json!(["keys"]));
    models(&user).ok();
    write("damaged");
    let reply = reload();
    assert_eq!(reply.status, 500);
    assert!(
        reply.json()["errors"][0]
            .as_str()
            .unwrap()
            .contains("line 1")
    );
    models(&user).ok();
}
