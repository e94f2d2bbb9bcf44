//! Models that think first: an answer follows its structure after the end of the reasoning.

use rocmforge_engine::serve::ServeOptions;
use rocmforge_model::Purpose;
use rocmforge_text::chat_template::ChatTemplate;
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, TestServer, loaded, local, offer, small};

/// Opens the reasoning of every answer, and writes calls in JSON between marks.
const TEMPLATE: &str = "{# </think> <tool_call> #}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n\
    {% endfor %}<|im_start|>assistant\n<think>\n";

fn start() -> TestServer {
    start_with(TEMPLATE)
}

fn start_with(template: &str) -> TestServer {
    let options = ServeOptions::default();
    let mut model = loaded(FORGE_MINI.as_ref(), Purpose::Text, small(), options);
    model.template = ChatTemplate::from_source(template).unwrap();
    TestServer::start(local(), vec![offer("forge-mini", model)])
}

/// Biases that have forge-mini think "the the the ..." and then end its reasoning.
fn thinks(server: &TestServer) -> Value {
    let id = |text: &str| {
        let reply = server.post("/tokenize", &json!({ "content": text })).ok();
        let ids = reply["tokens"].as_array().unwrap().clone();
        assert_eq!(ids.len(), 1, "{text}");
        ids[0].to_string()
    };
    json!({ id(" the"): 100, id("</think>"): 80 })
}

fn ask(server: &TestServer, fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me about a person."}],
        "temperature": 0,
        "frequency_penalty": 2,
        "max_tokens": 200,
        "logit_bias": thinks(server),
    });
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 99}, "job": {"enum": ["smith", "baker"]}},
        "required": ["age", "job"],
        "additionalProperties": false,
    })
}

fn check(text: &Value) {
    let person: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    assert!((1..=99).contains(&person["age"].as_u64().unwrap()));
    assert!(["smith", "baker"].contains(&person["job"].as_str().unwrap()));
}

fn check_thoughts(text: &Value) {
    let text = text.as_str().unwrap();
    assert!(
        text.split(' ').all(|word| word == "the") && text.len() > 3,
        "{text}"
    );
}

#[test]
fn a_structure_begins_after_the_reasoning() {
    let server = start();
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema()}});
    let body = ask(&server, json!({ "response_format": format }));
    let reply = server.post("/v1/chat/completions", &body).ok();
    let message = &reply["choices"][0]["message"];
    check_thoughts(&message["reasoning_content"]);
    check(&message["content"]);
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");

    let body = ask(
        &server,
        json!({ "response_format": format, "stream": true }),
    );
    let events = server.post("/v1/chat/completions", &body).events();
    let joined = |name: &str| -> String {
        let deltas = events
            .iter()
            .map(|event| &event["choices"][0]["delta"][name]);
        deltas.filter_map(Value::as_str).collect()
    };
    assert_eq!(joined("reasoning_content"), message["reasoning_content"]);
    assert_eq!(joined("content"), message["content"]);

    let text = json!({"format": {"type": "json_schema", "name": "person", "schema": schema()}});
    let fields = json!({"input": "Tell me about a person.", "text": text});
    let reply = server.post("/v1/responses", &ask(&server, fields)).ok();
    check_thoughts(&reply["output"][0]["content"][0]["text"]);
    check(&reply["output"][1]["content"][0]["text"]);

    let options = ask(&server, json!({"num_predict": 200}));
    let body = json!({"messages": options["messages"], "options": options, "format": schema(), "stream": false});
    let reply = server.post("/api/chat", &body).ok();
    check_thoughts(&reply["message"]["thinking"]);
    check(&reply["message"]["content"]);
}

#[test]
fn a_forced_call_comes_after_the_reasoning() {
    let server = start();
    let tools = json!([{"type": "function", "function": {"name": "hire", "parameters": schema()}}]);
    let fields = json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false});
    let reply = server
        .post("/v1/chat/completions", &ask(&server, fields))
        .ok();
    let choice = &reply["choices"][0];
    check_thoughts(&choice["message"]["reasoning_content"]);
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "hire", "{choice}");
    check(&function["arguments"]);
    assert_eq!(choice["finish_reason"], "tool_calls");

    let tools = json!([{"name": "hire", "input_schema": schema()}]);
    let choice = json!({"type": "tool", "name": "hire", "disable_parallel_tool_use": true});
    let fields = json!({"tools": tools, "tool_choice": choice});
    let reply = server.post("/v1/messages", &ask(&server, fields)).ok();
    check_thoughts(&reply["content"][0]["thinking"]);
    assert_eq!(reply["content"][1]["name"], "hire", "{reply}");
    check(&reply["content"][1]["input"].to_string().into());
    assert_eq!(reply["stop_reason"], "tool_use");
}

/// Where the prompt opens no reasoning, the model may, or may answer at once.
#[test]
fn a_structure_begins_after_reasoning_that_the_model_opens() {
    let server = start_with(TEMPLATE.strip_suffix("<think>\n").unwrap());
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "person", "schema": schema()}});
    let mut body = ask(&server, json!({ "response_format": format }));
    let message = |body: &Value| {
        let reply = server.post("/v1/chat/completions", body).ok();
        reply["choices"][0]["message"].clone()
    };
    let at_once = message(&body);
    assert_eq!(at_once["reasoning_content"], Value::Null, "{at_once}");
    check(&at_once["content"]);
    let reply = server
        .post("/tokenize", &json!({"content": "<think>"}))
        .ok();
    // More than the grammar's first tokens, and less than the thoughts.
    body["logit_bias"][reply["tokens"][0].to_string()] = 60.into();
    let thought = message(&body);
    check_thoughts(&thought["reasoning_content"]);
    check(&thought["content"]);
}
