//! What the server's owner sees and does.

use std::time::Duration;

use rocmforge_engine::EngineConfig;
use rocmforge_server::{Keys, NewKey};
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, Reply, TestServer, forge_mini, local, roomy, small, start};

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
    let line = "rocmforge_aborts_total{cause=\"owner\",engine=\"0\",model_name=\"forge-mini\"} 1";
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
        ("GET", "/admin/profile"),
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
        server.ask("GET", "/admin/profile", &[header]).error(403);
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

/// Returns the numbers of a list of objects.
fn numbers(list: &Value, name: &str) -> Vec<f64> {
    let objects = list.as_array().unwrap().iter();
    objects
        .map(|object| object[name].as_f64().unwrap())
        .collect()
}

#[test]
fn a_profile_has_each_step_of_live_traffic() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let mut lines = server.lines(COMPLETIONS, &long(), &[]);
    lines.next().unwrap();
    let profile = server.get("/admin/profile?steps=20").ok();
    assert_eq!(profile["model"], "forge-mini");
    assert_eq!(profile["missed_steps"], 0);
    let steps = &profile["steps"];
    // One sequence generates.
    assert_eq!(numbers(steps, "decode_rows"), [1.0; 20]);
    assert_eq!(numbers(steps, "prompt_tokens"), [0.0; 20]);
    assert!(numbers(steps, "at_ms").is_sorted());
    let total = &profile["total"];
    assert_eq!(total["generated_tokens"], 20);
    let ms: f64 = numbers(steps, "ms").iter().sum();
    let near = |value: &Value, expected: f64| {
        let value = value.as_f64().unwrap();
        assert!(
            (value / expected - 1.0).abs() < 1e-6,
            "{value} is not {expected}"
        );
    };
    near(&total["device_seconds"], ms / 1e3);
    near(&total["step_ms"]["mean"], ms / 20.0);
    // At the test's peaks, a step takes as long as reading its weights and computing with them: two operations for each.
    let least = numbers(steps, "least_ms");
    near(&total["roofline_share"], least.iter().sum::<f64>() / ms);
    let file_bytes = std::fs::metadata(FORGE_MINI).unwrap().len() as f64;
    let ms_to_read = file_bytes / 1e9 * 1e3;
    assert!(
        least
            .iter()
            .all(|least| (0.5 * ms_to_read..8.0 * ms_to_read).contains(least)),
        "{least:?}"
    );
    let kinds: Vec<&String> = profile["kinds"].as_object().unwrap().keys().collect();
    assert_eq!(kinds, ["decode"]);
    assert_eq!(profile["shapes"].as_array().unwrap().len(), 1);
    // Prompts beside it.
    std::thread::scope(|scope| {
        let following = scope.spawn(|| server.get("/admin/profile?steps=10000&seconds=1").ok());
        let prompt = json!({"prompt": "word ".repeat(300), "max_tokens": 1});
        while !following.is_finished() {
            server.post(COMPLETIONS, &prompt).ok();
        }
        let profile = following.join().unwrap();
        assert!(
            profile["kinds"]["mixed"]["prompt_tokens"].as_u64() > Some(0),
            "{profile}"
        );
    });
    drop(lines);
    server.wait_for("vllm:num_requests_running", 0.0);
    let idle = server.get("/admin/profile?seconds=0.05").ok();
    assert_eq!(
        (&idle["total"]["steps"], &idle["steps"]),
        (&json!(0), &json!([]))
    );
}

#[test]
fn a_profile_is_a_page_for_browsers() {
    let server = start();
    let browser = [("accept", "text/html,application/xhtml+xml")];
    let reply = server.ask("GET", "/admin/profile?seconds=0.05", &browser);
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';";
    assert!(reply.text.contains(policy), "{}", reply.text);
    assert!(reply.text.contains("Live traffic of forge-mini"));
}

#[test]
fn profiles_are_bounded() {
    let server = start();
    for query in [
        "steps=0",
        "steps=10001",
        "steps=-1",
        "seconds=61",
        "seconds=nan",
        "seconds=x",
    ] {
        server.get(&format!("/admin/profile?{query}")).error(400);
    }
    server.get("/admin/profile?model=other").error(404);
    std::thread::scope(|scope| {
        let profile = || server.get("/admin/profile?seconds=2").status;
        let asked: Vec<_> = (0..6).map(|_| scope.spawn(profile)).collect();
        let mut statuses: Vec<u16> = asked
            .into_iter()
            .map(|asked| asked.join().unwrap())
            .collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    });
}

#[test]
fn metrics_count_steps() {
    let server = start();
    let of = |name: &str| server.metric(name);
    let before = [
        of("vllm:iteration_tokens_total_count"),
        of("vllm:iteration_tokens_total_sum"),
    ];
    let body = json!({"prompt": "Once upon a time", "max_tokens": 3, "ignore_eos": true});
    let usage = &server.post(COMPLETIONS, &body).ok()["usage"];
    // The prompt's step generates the first token, two more steps one each.
    assert_eq!(of("vllm:iteration_tokens_total_count"), before[0] + 3.0);
    let n_prompt = usage["prompt_tokens"].as_f64().unwrap();
    assert_eq!(
        of("vllm:iteration_tokens_total_sum"),
        before[1] + n_prompt + 2.0
    );
    let text = server.get("/metrics").text;
    let line = |name: &str, part: &str| {
        let found = text
            .lines()
            .find(|line| line.starts_with(name) && line.contains(part));
        found.unwrap_or_else(|| panic!("{name} {part} is not in:\n{text}"))
    };
    let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
    for phase in ["decode", "prefill"] {
        let line = line(
            "rocmforge_device_seconds_total{",
            &format!("phase=\"{phase}\""),
        );
        assert!(value(line) > 0.0, "{line}");
    }
    assert!(value(line("rocmforge_roofline_share{", "forge-mini")) > 0.0);
    let cache = line("vllm:cache_config_info{", "forge-mini");
    let label = |name: &str| {
        let rest = cache.split(&format!("{name}=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap()
    };
    // `small` has a cache of 4,096 tokens.
    let [size, n] =
        ["block_size", "num_gpu_blocks"].map(|name| label(name).parse::<u32>().unwrap());
    assert_eq!(size * n, 4096);
    assert_eq!(
        (label("cache_dtype"), label("enable_prefix_caching")),
        ("f16", "True")
    );
}
