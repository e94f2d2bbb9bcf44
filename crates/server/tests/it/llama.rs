//! llama-server's completions, and text in gaps.

use std::fs;

use rocmforge_engine::serve::ServeOptions;
use rocmforge_gguf::{Gguf, LoadMode, OwnedValue, Writer};
use rocmforge_model::Purpose;
use rocmforge_server::Offer;
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, TestServer, local, model, small, start};

/// Tokens of forge-mini that mark a gap in these tests.
const MARKS: [u32; 5] = [4000, 4001, 4002, 4003, 4004];

/// forge-mini as a model for code.
pub(crate) fn with_marks() -> Offer {
    let file = Gguf::open(FORGE_MINI.as_ref(), LoadMode::Mmap).unwrap();
    let mut writer = Writer::new("");
    for (key, value) in file.metadata().iter() {
        writer.set(key, OwnedValue::from(value));
    }
    for (name, id) in ["pre", "suf", "mid", "rep", "sep"].iter().zip(MARKS) {
        writer.set(&format!("tokenizer.ggml.fim_{name}_token_id"), id);
    }
    for info in file.tensors() {
        let data = file.tensor_data(info).to_vec();
        let added = writer.add_tensor(&info.name, &info.dims, info.ty, data);
        added.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("code.gguf");
    fs::write(&path, writer.to_vec().unwrap()).unwrap();
    model(
        "code",
        &path,
        Purpose::Text,
        small(),
        ServeOptions::default(),
    )
}

fn ids(server: &TestServer, text: &str) -> Vec<u64> {
    let body = json!({"content": text, "parse_special": false});
    let reply = server.post("/tokenize", &body).ok();
    let ids = reply["tokens"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap()).collect()
}

/// What the model writes after these tokens.
fn after(server: &TestServer, ids: &[u64]) -> Value {
    let body = json!({"prompt": ids, "temperature": 0, "max_tokens": 12});
    let reply = server.post("/v1/completions", &body).ok();
    reply["choices"][0]["text"].clone()
}

#[test]
fn completions_are_those_of_openais_route() {
    let server = start();
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 16});
    let expected = server.post("/v1/completions", &body).ok();
    let text = expected["choices"][0]["text"].as_str().unwrap();
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "n_predict": 16, "cache_prompt": true,
        "return_tokens": true, "n_probs": 2});
    let whole = server.post("/completion", &body).ok();
    assert_eq!(whole["content"], text);
    assert_eq!(
        (&whole["stop"], &whole["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 16);
    assert_eq!(whole["tokens_predicted"], 16);
    assert_eq!(
        whole["tokens_evaluated"],
        expected["usage"]["prompt_tokens"]
    );
    let probs = whole["completion_probabilities"].as_array().unwrap();
    assert_eq!(probs.len(), 16);
    for (prob, id) in probs.iter().zip(whole["tokens"].as_array().unwrap()) {
        // Greedy: the token is the best one.
        assert_eq!(&prob["id"], id);
        assert_eq!(prob["logprob"], prob["top_logprobs"][0]["logprob"]);
        assert_eq!(prob["top_logprobs"].as_array().unwrap().len(), 2);
    }

    let mut body = body;
    body["stream"] = true.into();
    let reply = server.post("/completion", &body);
    let pieces: Vec<Value> = reply
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let texts = pieces
        .iter()
        .map(|piece| piece["content"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), text);
    let stops: Vec<bool> = pieces
        .iter()
        .map(|p| p["stop"].as_bool().unwrap())
        .collect();
    assert!(stops[stops.len() - 1] && !stops[..stops.len() - 1].contains(&true));

    // Two prompts, a stop text, and llama-server's defaults.
    let body = json!({"prompt": ["Once upon a time", "The cat"], "n_predict": 4, "seed": 1});
    let both = server.post("/completion", &body).ok();
    assert_eq!(
        (&both[0]["index"], &both[1]["index"]),
        (&json!(0), &json!(1))
    );
    let word = text.split(' ').find(|word| word.len() > 3).unwrap();
    let body =
        json!({"prompt": "Once upon a time", "temperature": 0, "n_predict": -1, "stop": [word]});
    let stopped = server.post("/completion", &body).ok();
    assert_eq!(
        (&stopped["stop_type"], &stopped["stopping_word"]),
        (&json!("word"), &json!(word))
    );
    assert_eq!(stopped["content"], text.split(word).next().unwrap());
    let error = server.post("/completion", &json!({"prompt": "a", "n_predict": 0}));
    assert_eq!(error.error(400)["param"], "n_predict");
}

#[test]
fn gaps_are_filled() {
    let server = TestServer::start(local(), vec![with_marks()]);
    let [pre, suf, mid, rep, sep] = MARKS.map(u64::from);
    let (before, rest) = (
        ids(&server, "def add(a, b):"),
        ids(&server, "\nprint(add(1, 2))"),
    );
    let prompt = [&[pre][..], &before, &[suf], &rest, &[mid]].concat();
    let expected = after(&server, &prompt);
    let options = json!({"temperature": 0, "n_predict": 12, "input_prefix": "def add(a, b):",
        "input_suffix": "\nprint(add(1, 2))"});
    let filled = server.post("/infill", &options).ok();
    assert_eq!(filled["content"], expected);
    assert_eq!(filled["tokens_evaluated"], prompt.len());
    let body = json!({"prompt": "def add(a, b):", "suffix": "\nprint(add(1, 2))", "temperature": 0, "max_tokens": 12});
    let completed = server.post("/v1/completions", &body).ok();
    assert_eq!(completed["choices"][0]["text"], expected);
    let body = json!({"prompt": "def add(a, b):", "suffix": "\nprint(add(1, 2))", "stream": false,
        "options": {"temperature": 0, "num_predict": 12}});
    assert_eq!(
        server.post("/api/generate", &body).ok()["response"],
        expected
    );

    // Other files, and a text that the gap begins with.
    let mut options = options;
    options["prompt"] = " return".into();
    options["input_extra"] = json!([{"filename": "a.py", "text": "x = 1"}]);
    let prompt = [
        &[rep][..],
        &ids(&server, "project\n"),
        &[sep],
        &ids(&server, "a.py\n"),
        &ids(&server, "x = 1"),
        &[sep],
        &ids(&server, "file\n"),
        &[pre],
        &before,
        &ids(&server, " return"),
        &[suf],
        &rest,
        &[mid],
    ]
    .concat();
    assert_eq!(
        server.post("/infill", &options).ok()["content"],
        after(&server, &prompt)
    );

    // What is far from the gap is left out: the context has 512 tokens.
    let long = "one two three four five six seven eight nine ten ".repeat(100);
    let body = json!({"input_prefix": long, "input_suffix": long, "n_predict": 12, "temperature": 0,
        "input_extra": [{"text": long}]});
    let n = 512 - 12 - 3;
    let words = ids(&server, &long);
    let prompt = [
        &[pre][..],
        &words[words.len() - (n - n / 4)..],
        &[suf],
        &words[..n / 4],
        &[mid],
    ]
    .concat();
    let filled = server.post("/infill", &body).ok();
    assert_eq!(filled["tokens_evaluated"], 512 - 12);
    assert_eq!(filled["content"], after(&server, &prompt));
}

#[test]
fn models_without_marks_say_so() {
    let server = start();
    let error = server
        .post(
            "/infill",
            &json!({"input_prefix": "a", "input_suffix": "b"}),
        )
        .error(501);
    assert!(error["code"] == "wrong_model", "{error}");
    let body = json!({"prompt": "a", "suffix": "b", "max_tokens": 2});
    server.post("/v1/completions", &body).error(501);
    // No suffix, no gap.
    server
        .post(
            "/v1/completions",
            &json!({"prompt": "a", "suffix": "", "max_tokens": 2}),
        )
        .ok();
}

#[test]
fn answers_say_how_they_were_made() {
    let server = start();
    let body = json!({"prompt": "Once upon a time", "temperature": 0.5, "seed": 7, "n_predict": 3, "n_probs": 2,
        "stop": ["xyz"], "logit_bias": [[5, false]], "repeat_last_n": -1});
    let whole = server.post("/completion", &body).ok();
    let settings = &whole["generation_settings"];
    for (name, value) in [
        ("temperature", json!(0.5)),
        ("seed", json!(7)),
        ("n_predict", json!(3)),
        ("top_k", json!(40)),
        ("repeat_last_n", json!(-1)),
        ("stop", json!(["xyz"])),
        ("logit_bias", json!([{"token": 5, "bias": null}])),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    let best = &whole["completion_probabilities"][0];
    assert!(best["top_logprobs"][1]["id"].is_u64(), "{best}");
    let timings = &whole["timings"];
    let time = |name: &str| timings[name].as_f64().unwrap();
    let n_prompt = time("prompt_n") * time("prompt_per_token_ms");
    assert!((n_prompt - time("prompt_ms")).abs() < 1e-6);
    let n_predicted = 2.0 * time("predicted_per_token_ms");
    assert!((n_predicted - time("predicted_ms")).abs() < 1e-6);

    // Editors ask for what they read.
    let mut body = body;
    body["response_fields"] = json!(["content", "generation_settings/seed", "no/such"]);
    let expected = json!({"content": whole["content"], "generation_settings/seed": 7});
    assert_eq!(server.post("/completion", &body).ok(), expected);

    let full = server
        .post(
            "/completion",
            &json!({"prompt": "a", "ignore_eos": true, "return_tokens": true}),
        )
        .ok();
    assert_eq!(
        (&full["truncated"], &full["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    let text = full["content"].as_str().unwrap();
    assert_eq!(full["has_new_line"], text.contains('\n'));
    // Among them are some that would have ended the answer.
    let n_tokens = full["tokens"].as_array().unwrap().len();
    assert_eq!(full["tokens_predicted"], n_tokens);
    assert_eq!(whole["truncated"], false);
}

#[test]
fn routes_have_llama_servers_names() {
    let server = start();
    let models = server.get("/v1/models").ok();
    assert_eq!(server.get("/models").ok(), models);
    let body =
        json!({"messages": [{"role": "user", "content": "Hi"}], "n_predict": 2, "temperature": 0});
    let answer = server.post("/chat/completions", &body).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    for path in ["/rerank", "/reranking", "/v1/reranking"] {
        let body = json!({"query": "a", "documents": ["b"]});
        server.post(path, &body).error(501);
    }
    let mut both = body;
    both["add_generation_prompt"] = true.into();
    both["continue_final_message"] = true.into();
    server.post("/chat/completions", &both).error(400);
}
