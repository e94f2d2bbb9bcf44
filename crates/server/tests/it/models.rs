//! Several models: they are loaded when somebody asks for them, and leave when others need their memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rocmforge_engine::serve::ServeOptions;
use rocmforge_model::Purpose;
use rocmforge_server::{Config, Keys, NewKey, Offer, Prepared, Server, ServerError};
use rocmforge_text::chat_template::ChatTemplate;
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::client::{FORGE_MINI, TestServer, forge_mini, loaded, local, offer, roomy, small};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// What models have in memory, and how often each was loaded.
#[derive(Default)]
pub(crate) struct Loads {
    /// A model's tokenizer lives as long as the model.
    in_memory: Mutex<Vec<Weak<Tokenizer>>>,
    n: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl Loads {
    fn n(&self) -> usize {
        self.n.load(Ordering::SeqCst)
    }
}

/// forge-mini under another name. It is loaded on demand, as often as needed, and takes `bytes`.
pub(crate) fn lazy(name: &str, bytes: u64, loads: &Arc<Loads>) -> Offer {
    let loads = Arc::clone(loads);
    Offer {
        name: name.to_string(),
        aliases: vec![format!("{name}-alias")],
        defaults: Map::new(),
        at_start: false,
        file: None,
        file_bytes: 1234,
        prepare: Box::new(move || {
            let loads = Arc::clone(&loads);
            let start = move |_| {
                let options = ServeOptions::default();
                let mut in_memory = loads.in_memory.lock().unwrap();
                loads.n.fetch_add(1, Ordering::SeqCst);
                let mut n_others = || {
                    in_memory.retain(|model| model.strong_count() > 0);
                    in_memory.len()
                };
                // An answer that has ended may hold its tokenizer for a moment more.
                let most = loads.most_at_once.load(Ordering::SeqCst);
                let end = Instant::now() + Duration::from_millis(500);
                while n_others() > 0 && n_others() >= most && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let n_others = n_others();
                loads.most_at_once.fetch_max(n_others + 1, Ordering::SeqCst);
                let model = loaded(FORGE_MINI.as_ref(), Purpose::Text, roomy(), options);
                in_memory.push(Arc::downgrade(&model.tokenizer));
                Ok(model)
            };
            Ok(Prepared {
                bytes,
                start: Box::new(start),
            })
        }),
    }
}

fn with_bytes(max_model_bytes: u64) -> Config {
    Config {
        max_model_bytes: Some(max_model_bytes),
        ..local()
    }
}

fn status(server: &TestServer, name: &str) -> Value {
    server.get(&format!("/v1/models/{name}")).ok()["status"]["value"].clone()
}

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8})
}

#[test]
fn nothing_is_left_of_a_server_that_has_ended() {
    let loads = Arc::new(Loads::default());
    let server = TestServer::start(local(), vec![lazy("a", 1, &loads)]);
    server.post(COMPLETIONS, &ask("a")).ok();
    drop(server);
    assert_eq!(loads.in_memory.lock().unwrap()[0].strong_count(), 0);
}

#[test]
fn a_model_is_loaded_when_it_is_asked_for() {
    let loads = Arc::new(Loads::default());
    let offers = vec![forge_mini(small()), lazy("second", 1, &loads)];
    let server = TestServer::start(local(), offers);
    assert_eq!(status(&server, "forge-mini"), "loaded");
    assert_eq!(status(&server, "second"), "unloaded");
    let models = server.get("/v1/models").ok();
    assert_eq!(models["data"].as_array().unwrap().len(), 2);
    assert_eq!(models["data"][1]["max_model_len"], Value::Null);
    let tags = server.get("/api/tags").ok();
    assert_eq!(tags["models"][1]["size"], 1234);
    assert_eq!(
        server.get("/api/ps").ok()["models"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let first = server.post(COMPLETIONS, &ask("forge-mini")).ok();
    let second = server.post(COMPLETIONS, &ask("second-alias")).ok();
    assert_eq!(second["model"], "second");
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!(status(&server, "second-alias"), "loaded");
    assert_eq!(
        server.get("/api/ps").ok()["models"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    server
        .post("/api/show", &json!({"model": "second:latest"}))
        .ok();
    assert_eq!(loads.n(), 1);
    server.post(COMPLETIONS, &ask("third")).error(404);
}

#[test]
fn a_look_at_properties_loads_nothing() {
    let loads = Arc::new(Loads::default());
    let server = TestServer::start(local(), vec![lazy("a", 1, &loads), lazy("b", 1, &loads)]);
    let props = server.get("/props").ok();
    assert_eq!(props["model_alias"], "a");
    assert_eq!(props["default_generation_settings"]["n_ctx"], 0);
    assert_eq!(props["chat_template"], Value::Null);
    assert_eq!(server.get("/props?model=b-alias").ok()["model_alias"], "b");
    server.get("/props?model=c").error(404);
    assert_eq!(loads.n(), 0);

    server.post("/models/load", &json!({"model": "b"})).ok();
    let props = server.get("/props?model=b").ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 16_384);
    assert_eq!(props["eos_token"], "<|im_end|>");
    assert_eq!(status(&server, "a"), "unloaded");
}

#[test]
fn a_model_leaves_after_its_requests() {
    let loads = Arc::new(Loads::default());
    let offers = vec![lazy("a", 10, &loads), lazy("b", 10, &loads)];
    let server = TestServer::start(with_bytes(15), offers);
    let mut long = ask("a");
    long["max_tokens"] = json!(2000);
    long["ignore_eos"] = json!(true);
    long["stream"] = json!(true);
    let mut running = server.lines(COMPLETIONS, &long, &[]);
    running.next().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| server.post(COMPLETIONS, &ask("b")).ok());
        let rest: Vec<String> = running.filter(|line| !line.is_empty()).collect();
        assert_eq!(rest.last().unwrap(), "data: [DONE]");
        assert_eq!(other.join().unwrap()["model"], "b");
    });
    assert_eq!(status(&server, "a"), "unloaded");
    // Its metrics go with it, but counters stay.
    let metrics = server.get("/metrics").text;
    let is_of_a = |line: &&str| line.contains("model_name=\"a\"");
    let of_a: Vec<&str> = metrics.lines().filter(is_of_a).collect();
    assert!(
        of_a.iter()
            .any(|line| line.starts_with("vllm:generation_tokens_total"))
    );
    assert!(
        !of_a
            .iter()
            .any(|line| line.starts_with("vllm:kv_cache_usage_perc"))
    );
    server.post(COMPLETIONS, &ask("a")).ok();
    assert_eq!(
        (status(&server, "a"), status(&server, "b")),
        (json!("loaded"), json!("unloaded"))
    );
    assert_eq!(loads.n(), 3);
    assert_eq!(loads.most_at_once.load(Ordering::SeqCst), 1);
}

/// A model that the owner unloads has its memory until its requests are finished.
#[test]
fn a_model_that_leaves_keeps_its_memory_until_then() {
    let loads = Arc::new(Loads::default());
    let offers = vec![lazy("a", 10, &loads), lazy("b", 10, &loads)];
    let server = &TestServer::start(with_bytes(15), offers);
    let mut long = ask("a");
    long["max_tokens"] = json!(2000);
    long["ignore_eos"] = json!(true);
    long["stream"] = json!(true);
    let mut running = server.lines(COMPLETIONS, &long, &[]);
    running.next().unwrap();
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| server.post("/models/unload", &json!({"model": "a"})));
        while status(server, "a") == "loaded" {
            std::thread::yield_now();
        }
        let other = scope.spawn(|| server.post(COMPLETIONS, &ask("b")).ok());
        assert_eq!(
            running.filter(|line| !line.is_empty()).last().unwrap(),
            "data: [DONE]"
        );
        unload.join().unwrap().ok();
        assert_eq!(other.join().unwrap()["model"], "b");
    });
    assert_eq!(loads.most_at_once.load(Ordering::SeqCst), 1);
}

/// Nobody waits for ever, whoever else wants the memory.
#[test]
fn many_clients_share_the_memory_of_two_models() {
    let loads = Arc::new(Loads::default());
    let names = ["a", "b", "c", "d"];
    let offers = names.map(|name| lazy(name, 10, &loads)).into();
    let server = &TestServer::start(with_bytes(25), offers);
    let expected = &server.post(COMPLETIONS, &ask("a")).ok()["choices"];
    std::thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                for turn in 0..4 {
                    let name = names[(client + turn * 3) % 4];
                    let reply = server.post(COMPLETIONS, &ask(name)).ok();
                    assert_eq!(
                        (&reply["choices"], &reply["model"]),
                        (expected, &json!(name))
                    );
                }
            });
        }
    });
    assert!(loads.n() >= 4);
    assert!(loads.most_at_once.load(Ordering::SeqCst) <= 2);
}

#[test]
fn a_model_that_cannot_be_loaded_harms_no_other() {
    let n_tries = Arc::new(AtomicUsize::new(0));
    let of_offer = Arc::clone(&n_tries);
    let damaged = Offer {
        name: "damaged".to_string(),
        aliases: Vec::new(),
        defaults: Map::new(),
        at_start: false,
        file: None,
        file_bytes: 0,
        prepare: Box::new(move || {
            of_offer.fetch_add(1, Ordering::SeqCst);
            Err("/home/of/owner.gguf: the file ends early".into())
        }),
    };
    let server = TestServer::start(local(), vec![forge_mini(small()), damaged]);
    for _ in 0..3 {
        let reply = server.post(COMPLETIONS, &ask("damaged"));
        let error = reply.error(503);
        assert_eq!(error["code"], "model_load_failed");
        assert!(reply.header("retry-after").is_some());
        // What files there are is no business of clients.
        assert!(!reply.text.contains("owner"), "{}", reply.text);
    }
    assert_eq!(n_tries.load(Ordering::SeqCst), 1);
    let reply = server.post("/models/load", &json!({"model": "damaged"}));
    let error = reply.error(503);
    assert_eq!(error["code"], "model_load_failed");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("/home/of/owner.gguf: the file ends early"),
        "{message}"
    );
    assert_eq!(n_tries.load(Ordering::SeqCst), 2);
    server.post(COMPLETIONS, &ask("forge-mini")).ok();
}

/// A damaged file makes another model leave once, not again and again.
#[test]
fn models_do_not_leave_twice_for_the_same_damaged_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("late.gguf");
    std::fs::write(&file, "damaged").unwrap();
    let (loads, n_tries) = (Arc::new(Loads::default()), Arc::new(AtomicUsize::new(0)));
    let of_offer = Arc::clone(&n_tries);
    let late = Offer {
        file: Some(file.clone()),
        prepare: Box::new(move || {
            let n_tries = Arc::clone(&of_offer);
            let start = Box::new(move |_| {
                n_tries.fetch_add(1, Ordering::SeqCst);
                Err("a tensor is damaged".into())
            });
            Ok(Prepared { bytes: 10, start })
        }),
        ..lazy("late", 10, &loads)
    };
    let mut config = with_bytes(15);
    config.limits.load_retry_time = Duration::ZERO;
    let server = TestServer::start(config, vec![lazy("good", 10, &loads), late]);
    let try_late = || {
        server.post(COMPLETIONS, &ask("good")).ok();
        let error = server.post(COMPLETIONS, &ask("late")).error(503);
        assert_eq!(error["code"], "model_load_failed");
        (n_tries.load(Ordering::SeqCst), status(&server, "good"))
    };
    assert_eq!(try_late(), (1, json!("unloaded")));
    for _ in 0..3 {
        assert_eq!(try_late(), (1, json!("loaded")));
    }
    // The memory is free.
    server
        .post("/models/unload", &json!({"model": "good"}))
        .ok();
    server.post(COMPLETIONS, &ask("late")).error(503);
    assert_eq!(n_tries.load(Ordering::SeqCst), 2);
    assert_eq!(try_late(), (2, json!("loaded")));
    std::fs::write(&file, "damaged again").unwrap();
    assert_eq!(try_late(), (3, json!("unloaded")));
    assert_eq!(try_late(), (3, json!("loaded")));
    server
        .post("/models/load", &json!({"model": "late"}))
        .error(503);
    assert_eq!(n_tries.load(Ordering::SeqCst), 4);
    assert_eq!(status(&server, "good"), "unloaded");
}

/// The panic comes in the midst of making room, where there is no code but the server's.
#[test]
fn a_panic_while_loading_leaves_nothing_half_done() {
    let loads = Arc::new(Loads::default());
    let offers = vec![lazy("a", 10, &loads), lazy("b", 10, &loads)];
    let config = Config {
        notice: |text| assert!(!text.contains("leaves"), "a fault of the test"),
        ..with_bytes(15)
    };
    let server = TestServer::start(config, offers);
    server.post(COMPLETIONS, &ask("a")).ok();
    let error = server.post(COMPLETIONS, &ask("b")).error(503);
    assert_eq!(error["code"], "model_load_failed");
    let states = ["a", "b"].map(|name| status(&server, name));
    assert_eq!(states, ["unloaded", "unloaded"]);
    server.post("/models/load", &json!({"model": "b"})).ok();
    server.post(COMPLETIONS, &ask("b")).ok();
}

#[test]
fn a_request_does_not_wait_for_its_model_for_ever() {
    let loads = Arc::new(Loads::default());
    let offers = vec![lazy("a", 10, &loads), lazy("b", 10, &loads)];
    let mut config = with_bytes(15);
    config.limits.max_queue_time = Duration::from_millis(300);
    let server = TestServer::start(config, offers);
    // On a busy machine, loading takes longer than a request waits; it goes on all the same.
    let load = || server.post("/models/load", &json!({"model": "a"})).status;
    while load() != 200 {}
    let long = json!({"model": "a", "prompt": "Once", "max_tokens": 15_000, "ignore_eos": true, "stream": true});
    let mut running = server.lines(COMPLETIONS, &long, &[]);
    running.next().unwrap();
    let error = server.post(COMPLETIONS, &ask("b")).error(504);
    assert_eq!(error["code"], "queue_timeout");
    assert!(running.next().is_some());
}

#[test]
fn the_owner_loads_and_unloads() {
    let loads = Arc::new(Loads::default());
    let server = TestServer::start(local(), vec![lazy("a", 1, &loads)]);
    let model = json!({"model": "a"});
    assert_eq!(
        server.post("/models/unload", &model).error(400)["code"],
        "model_not_loaded"
    );
    assert_eq!(
        server.post("/models/load", &model).ok(),
        json!({"success": true})
    );
    assert_eq!(status(&server, "a"), "loaded");
    assert_eq!(
        server.post("/models/unload", &model).ok(),
        json!({"success": true})
    );
    assert_eq!(status(&server, "a"), "unloaded");
    assert_eq!(loads.in_memory.lock().unwrap()[0].strong_count(), 0);
    server
        .post("/models/load", &json!({"model": "x"}))
        .error(404);
    server.get("/admin/profile").error(400);

    let user = NewKey::create("user").unwrap();
    let config = Config {
        keys: Keys::parse(&user.line).unwrap(),
        ..local()
    };
    let server = TestServer::start(config, vec![lazy("a", 1, &loads)]);
    let key = format!("Bearer {}", user.key);
    let body = model.to_string();
    for route in ["/models/load", "/models/unload"] {
        let reply = server.send(route, body.as_bytes(), &[("authorization", &key)]);
        reply.error(403);
    }
}

#[test]
fn a_model_that_nobody_uses_leaves() {
    let loads = Arc::new(Loads::default());
    let idle_time = Duration::from_millis(250);
    let config = Config {
        idle_unload: Some(idle_time),
        ..local()
    };
    let at_start = Offer {
        at_start: true,
        ..lazy("a", 1, &loads)
    };
    let server = TestServer::start(config, vec![at_start]);
    let wait_until_it_leaves = || {
        let leaves = || {
            std::thread::sleep(idle_time / 4);
            status(&server, "a") == "unloaded"
        };
        assert!((0..400).any(|_| leaves()));
    };
    wait_until_it_leaves();
    // It comes back, and stays as long as it answers.
    let long = json!({"model": "a", "prompt": "Once", "max_tokens": 15_000, "ignore_eos": true, "stream": true});
    let began = Instant::now();
    let mut lines = server.lines(COMPLETIONS, &long, &[]);
    while began.elapsed() < 6 * idle_time {
        assert!(lines.next().is_some());
    }
    assert_eq!(status(&server, "a"), "loaded");
    drop(lines);
    wait_until_it_leaves();
    server.post(COMPLETIONS, &ask("a")).ok();
    assert_eq!(loads.n(), 3);
}

#[test]
fn what_fits_is_loaded_at_the_start() {
    let loads = Arc::new(Loads::default());
    let at_start = |name, bytes| Offer {
        at_start: true,
        ..lazy(name, bytes, &loads)
    };
    let offers = vec![at_start("a", 10), at_start("b", 10), at_start("c", 5)];
    let server = TestServer::start(with_bytes(15), offers);
    let states = ["a", "b", "c"].map(|name| status(&server, name));
    assert_eq!(states, ["loaded", "unloaded", "loaded"]);
}

#[test]
fn a_model_has_defaults() {
    let with = |defaults: Value| Offer {
        defaults: defaults.as_object().unwrap().clone(),
        ..forge_mini(small())
    };
    let server = TestServer::start(
        local(),
        vec![with(json!({"max_tokens": 3, "temperature": 0}))],
    );
    let hello = json!([{"role": "user", "content": "Hello"}]);
    let n_tokens = |reply: &Value| reply["usage"]["completion_tokens"].clone();
    let chat = server.post(CHAT, &json!({"messages": hello, "temperature": null}));
    assert_eq!(chat.header("x-ignored-fields"), None);
    assert_eq!(n_tokens(&chat.ok()), 3);
    let chat = server
        .post(CHAT, &json!({"messages": hello, "max_tokens": 5}))
        .ok();
    assert_eq!(n_tokens(&chat), 5);
    let completion = server
        .post(COMPLETIONS, &json!({"prompt": "Once", "temperature": 2.0}))
        .ok();
    assert_eq!(n_tokens(&completion), 3);
    let native = server.post("/completion", &json!({"prompt": "Once"})).ok();
    assert_eq!(native["tokens_predicted"], 3);
    assert_eq!(native["generation_settings"]["temperature"], 0.0);
    let native = server
        .post("/completion", &json!({"prompt": "Once", "n_predict": 4}))
        .ok();
    assert_eq!(native["tokens_predicted"], 4);
    let ollama = json!({"model": "forge-mini", "messages": hello, "stream": false});
    assert_eq!(server.post("/api/chat", &ollama).ok()["eval_count"], 3);
    let response = server
        .post("/v1/responses", &json!({"input": "Hello"}))
        .ok();
    assert_eq!(response["usage"]["output_tokens"], 3);

    for wrong in [json!({"max_tokns": 3}), json!({"temperature": "hot"})] {
        let refused = Server::bind(local(), vec![with(wrong)]);
        assert!(matches!(refused.err(), Some(ServerError::Defaults { .. })));
    }
}

/// Variables of the template that are defaults of the model, in every API.
#[test]
fn defaults_of_a_template_count_everywhere() {
    let options = ServeOptions::default();
    let mut model = loaded(FORGE_MINI.as_ref(), Purpose::Text, small(), options);
    // It has a format for calls, and writes no tools.
    let template = "{# <tool_call> #}{{ style }}{{ messages[0].content }}";
    model.template = ChatTemplate::from_source(template).unwrap();
    let defaults = json!({"chat_template_kwargs": {"style": "In many words: "}});
    let offered = Offer {
        defaults: defaults.as_object().unwrap().clone(),
        ..offer("forge-mini", model)
    };
    let server = TestServer::start(local(), vec![offered]);
    let hello = json!([{"role": "user", "content": "Hello"}]);
    let prompt = server.post("/apply-template", &json!({"messages": hello}));
    assert_eq!(prompt.header("x-ignored-fields"), None);
    let prompt = prompt.ok()["prompt"].clone();
    assert_eq!(prompt, "In many words: Hello");
    let tokens = server.post("/tokenize", &json!({"content": prompt})).ok();
    let n_tokens = tokens["tokens"].as_array().unwrap().len();

    let chat = server.post(CHAT, &json!({"messages": hello, "max_tokens": 1}));
    assert_eq!(chat.ok()["usage"]["prompt_tokens"], n_tokens);
    let ollama = json!({"messages": hello, "stream": false, "options": {"num_predict": 1}});
    let ollama = server.post("/api/chat", &ollama).ok();
    assert_eq!(ollama["prompt_eval_count"], n_tokens);
    // Nothing is generated, so it does not matter that the tool's schema cannot be followed.
    let schema = json!({"type": "array", "uniqueItems": true});
    let body = json!({
        "messages": hello,
        "tools": [{"name": "f", "input_schema": schema}],
        "tool_choice": {"type": "any"},
    });
    let counted = server.post("/v1/messages/count_tokens", &body).ok();
    assert_eq!(counted["input_tokens"], n_tokens);
}
