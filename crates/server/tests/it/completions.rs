//! `/v1/completions`, and the routes of llama-server.

use serde_json::{Value, json};

use crate::client::start;

const COMPLETIONS: &str = "/v1/completions";

fn ask(prompt: Value) -> Value {
    json!({ "prompt": prompt, "temperature": 0, "max_tokens": 8 })
}

fn texts(reply: &Value) -> Vec<String> {
    let choices = reply["choices"].as_array().unwrap().iter();
    choices
        .map(|choice| choice["text"].as_str().unwrap().to_string())
        .collect()
}

#[test]
fn prompts_may_be_texts_or_ids_one_or_many() {
    let server = start();
    let ids = |text: &str| {
        let body = json!({"content": text, "add_special": true});
        server.post("/tokenize", &body).ok()["tokens"].clone()
    };
    let (a, b) = ("Once upon a time", "The sky is");
    let first = texts(&server.post(COMPLETIONS, &ask(json!(a))).ok());
    let second = texts(&server.post(COMPLETIONS, &ask(json!(b))).ok());
    let both = [first.clone(), second].concat();
    assert_eq!(texts(&server.post(COMPLETIONS, &ask(ids(a))).ok()), first);
    assert_eq!(
        texts(&server.post(COMPLETIONS, &ask(json!([a, b]))).ok()),
        both
    );
    let many = json!([ids(a), ids(b)]);
    assert_eq!(texts(&server.post(COMPLETIONS, &ask(many)).ok()), both);
}

#[test]
fn an_echo_begins_with_the_prompt_and_its_scores() {
    let server = start();
    let mut body = ask(json!("Once upon a time"));
    let plain = texts(&server.post(COMPLETIONS, &body).ok());
    body["echo"] = true.into();
    body["logprobs"] = 2.into();
    let reply = server.post(COMPLETIONS, &body).ok();
    assert_eq!(texts(&reply), [format!("Once upon a time{}", plain[0])]);
    let lists = &reply["choices"][0]["logprobs"];
    let len = |name: &str| lists[name].as_array().unwrap().len();
    let n = len("tokens");
    assert_eq!(
        [
            len("token_logprobs"),
            len("top_logprobs"),
            len("text_offset")
        ],
        [n; 3]
    );
    assert!(lists["token_logprobs"][0].is_null() && lists["token_logprobs"][1].is_number());
    let tokens = lists["tokens"].as_array().unwrap().iter();
    let joined: String = tokens.map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined.trim_start(), texts(&reply)[0]);

    // A stream gives the same, in pieces.
    body["stream"] = true.into();
    let events = server.post(COMPLETIONS, &body).events();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, texts(&reply)[0]);
    let mut offsets = Vec::new();
    for event in &events {
        let list = event["choices"][0]["logprobs"]["text_offset"].as_array();
        offsets.extend(list.into_iter().flatten().cloned());
    }
    assert_eq!(Value::Array(offsets), lists["text_offset"]);
}

#[test]
fn a_prompt_is_scored_without_an_answer() {
    let server = start();
    let mut body = ask(json!("Once upon a time"));
    (body["echo"], body["logprobs"], body["n"]) = (true.into(), 1.into(), 2.into());
    let lists = server.post(COMPLETIONS, &body).ok()["choices"][0]["logprobs"].clone();
    body["max_tokens"] = 0.into();
    let reply = server.post(COMPLETIONS, &body).ok();
    assert_eq!(texts(&reply), ["Once upon a time"; 2]);
    assert_eq!(reply["usage"]["completion_tokens"], 0);
    for choice in reply["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "length");
        for (name, list) in choice["logprobs"].as_object().unwrap() {
            let list = list.as_array().unwrap();
            assert!(list.len() > 2, "{name}");
            assert_eq!(
                list[..],
                lists[name].as_array().unwrap()[..list.len()],
                "{name}"
            );
        }
    }
    body["stream"] = true.into();
    let events = server.post(COMPLETIONS, &body).events();
    let of_first = events
        .iter()
        .filter(|event| event["choices"][0]["index"] == 0);
    let text: String = of_first
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    assert_eq!(text, "Once upon a time");
    // Without echo there is nothing to return.
    body["max_tokens"] = json!(-1);
    server.post(COMPLETIONS, &body).error(400);
}

#[test]
fn tokens_and_texts_are_inverse() {
    let server = start();
    let text = "Hello, wörld! 2 + 2 <|im_end|>";
    let tokens = server.post("/tokenize", &json!({ "content": text })).ok()["tokens"].clone();
    let back = server
        .post("/detokenize", &json!({ "tokens": tokens }))
        .ok();
    assert_eq!(back["content"], text);
    server
        .post("/detokenize", &json!({"tokens": [4_000_000]}))
        .error(400);
    let props = server.get("/props").ok();
    assert!(
        props["chat_template"]
            .as_str()
            .unwrap()
            .contains("im_start")
    );
}

#[test]
fn lists_its_models() {
    let server = start();
    let list = server.get("/v1/models").ok();
    assert_eq!(list["data"][0]["id"], "forge-mini");
    assert_eq!(server.get("/v1/models/forge-mini").ok()["object"], "model");
    assert_eq!(
        server.get("/v1/models/other").error(404)["code"],
        "model_not_found"
    );
    let body = json!({"model": "gpt-4", "prompt": "a"});
    assert_eq!(server.post(COMPLETIONS, &body).error(404)["param"], "model");
    assert_eq!(server.get("/health").ok()["status"], "ok");
    assert_eq!(server.get("/health/live").status, 200);
}
