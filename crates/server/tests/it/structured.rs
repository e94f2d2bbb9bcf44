//! Answers of a given structure, and calls of tools that the client demands.

use rocmforge_engine::serve::ServeOptions;
use rocmforge_model::Purpose;
use rocmforge_text::chat_template::ChatTemplate;
use serde_json::{Value, json};

use crate::client::{FORGE_MINI, TestServer, forge_mini, loaded, local, offer, roomy, start};

const CHAT: &str = "/v1/chat/completions";

fn ask(seed: usize, fields: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me about a person."}],
        "max_tokens": 200,
        "temperature": 1.2,
        "seed": seed,
    });
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "job": {"enum": ["smith", "baker"]},
        },
        "required": ["name", "age", "job"],
        "additionalProperties": false,
    })
}

fn check_person(person: &Value) {
    let fields = person.as_object().unwrap();
    assert_eq!(fields.len(), 3, "{person}");
    assert!(
        person["name"].as_str().unwrap().chars().count() <= 12,
        "{person}"
    );
    assert!(person["age"].as_u64().unwrap() <= 120, "{person}");
    assert!(
        ["smith", "baker"].contains(&person["job"].as_str().unwrap()),
        "{person}"
    );
}

fn tools() -> Value {
    let weather = json!({
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": false,
        "$defs": {"city": {"enum": ["Paris", "Rome"]}},
    });
    json!([
        {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": weather}},
        {"type": "function", "function": {"name": "clock"}},
    ])
}

fn check_weather(arguments: &str) {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!(
        ["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()),
        "{arguments}"
    );
    assert!(
        (1..=9).contains(&arguments["days"].as_u64().unwrap()),
        "{arguments}"
    );
}

#[test]
fn answers_follow_a_schema() {
    let server = start();
    for seed in 0..6 {
        let format = json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": person()}});
        let body = ask(seed, json!({ "response_format": format }));
        let reply = server.post(CHAT, &body).ok();
        let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
        check_person(&serde_json::from_str(text).unwrap());
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
        let mut body = body;
        body["stream"] = true.into();
        let events = server.post(CHAT, &body).events();
        let deltas = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), text);
    }
    let text = json!({"format": {"type": "json_schema", "name": "person", "schema": person()}});
    let body = json!({"input": "Tell me about a person.", "text": text, "max_output_tokens": 200});
    let reply = server.post("/v1/responses", &body).ok();
    let text = reply["output"][0]["content"][0]["text"].as_str().unwrap();
    check_person(&serde_json::from_str(text).unwrap());
}

#[test]
fn answers_follow_expressions_and_choices() {
    let server = start();
    let text = |fields: Value| {
        let reply = server.post(CHAT, &ask(1, fields)).ok();
        reply["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .to_string()
    };
    let choice = text(json!({"guided_choice": ["yes", "no"]}));
    assert!(["yes", "no"].contains(&choice.as_str()), "{choice}");
    let digits = text(json!({"structured_outputs": {"regex": "[0-9]{4}"}}));
    assert!(
        digits.len() == 4 && digits.bytes().all(|c| c.is_ascii_digit()),
        "{digits}"
    );
    let gbnf = text(json!({"grammar": "root ::= \"a\" [bc]{3}"}));
    assert!(gbnf.len() == 4 && gbnf.starts_with('a'), "{gbnf}");
    let object = text(json!({"response_format": {"type": "json_object"}, "max_tokens": 400}));
    // A random text of a small model may not end in time.
    assert!(object.trim_start().starts_with('{'), "{object}");
    let body = json!({"prompt": "The answer is ", "guided_choice": ["1", "2"], "max_tokens": 5});
    let reply = server.post("/v1/completions", &body).ok();
    let text = reply["choices"][0]["text"].as_str().unwrap();
    assert!(["1", "2"].contains(&text), "{text}");
}

#[test]
fn a_tool_is_called_when_it_must_be() {
    let server = start();
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, parallel) in [
        (named, false),
        (json!("required"), false),
        (json!("required"), true),
    ] {
        let fields = json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": parallel, "max_tokens": 300});
        let reply = server.post(CHAT, &ask(3, fields.clone())).ok();
        let answer = &reply["choices"][0];
        let calls = answer["message"]["tool_calls"].as_array().unwrap();
        assert!(parallel || calls.len() == 1);
        for call in calls {
            assert_eq!(call["type"], "function");
            if call["function"]["name"] == "weather" {
                check_weather(call["function"]["arguments"].as_str().unwrap());
            }
        }
        assert_eq!(answer["message"]["content"], Value::Null);
        if !parallel {
            assert_eq!(answer["finish_reason"], "tool_calls");
        }
        // A stream has the same call.
        let mut body = ask(3, fields);
        body["stream"] = true.into();
        let events = server.post(CHAT, &body).events();
        let deltas: Vec<&Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0))
            .filter(|call| call["index"] == 0)
            .collect();
        let names = deltas
            .iter()
            .filter_map(|call| call["function"]["name"].as_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            [calls[0]["function"]["name"].as_str().unwrap()]
        );
        let parts = deltas
            .iter()
            .map(|call| call["function"]["arguments"].as_str().unwrap());
        assert_eq!(
            parts.collect::<String>(),
            calls[0]["function"]["arguments"].as_str().unwrap()
        );
    }
}

#[test]
fn other_apis_demand_calls_too() {
    let server = start();
    let tool = tools()[0]["function"].clone();
    let body = json!({
        "max_tokens": 200,
        "seed": 3,
        "messages": [{"role": "user", "content": "The weather?"}],
        "tools": [{"name": "weather", "input_schema": tool["parameters"]}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": true},
    });
    let reply = server.post("/v1/messages", &body).ok();
    assert_eq!(reply["stop_reason"], "tool_use");
    assert_eq!(reply["content"][0]["type"], "tool_use");
    check_weather(&reply["content"][0]["input"].to_string());
    let body = json!({
        "max_output_tokens": 200,
        "seed": 3,
        "input": "The weather?",
        "tools": [{"type": "function", "name": "weather", "parameters": tool["parameters"]}],
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": false,
    });
    let reply = server.post("/v1/responses", &body).ok();
    assert_eq!(reply["output"][0]["type"], "function_call");
    check_weather(reply["output"][0]["arguments"].as_str().unwrap());
}

/// An answer that has the form of a call, for a client without tools, and for one that wants no call.
#[test]
fn without_tools_an_answer_is_no_call() {
    let server = start();
    let call = "<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";
    for fields in [json!({}), json!({"tools": tools(), "tool_choice": "none"})] {
        let mut body = ask(1, fields);
        body["guided_choice"] = json!([call]);
        let reply = server.post(CHAT, &body).ok();
        let choice = &reply["choices"][0];
        assert_eq!(choice["message"]["content"], call);
        assert!(choice["message"].get("tool_calls").is_none(), "{reply}");
        assert_eq!(choice["finish_reason"], "stop");
    }
}

/// A model that would write for long after its call.
#[test]
fn an_answer_ends_after_its_only_call() {
    let server = TestServer::start(local(), vec![forge_mini(roomy())]);
    let call = r#"<tool_call>\n\{"name": "clock", "arguments": \{\}\}\n</tool_call>[a-z ]*"#;
    let fields = json!({
        "tools": tools(),
        "parallel_tool_calls": false,
        "guided_regex": call,
        "ignore_eos": true,
        "max_tokens": 10_000,
    });
    let mut body = ask(1, fields);
    for stream in [false, true] {
        body["stream"] = stream.into();
        let reply = server.post(CHAT, &body);
        if !stream {
            let reply = reply.ok();
            let choice = &reply["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls");
            assert_eq!(choice["message"]["content"], Value::Null);
            assert!(reply["usage"]["completion_tokens"].as_u64() < Some(10_000));
        }
    }
    // They are answers, too.
    let metrics = server.get("/metrics").text;
    let line = "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"forge-mini\"} 2";
    assert!(metrics.contains(line), "{metrics}");
    assert_eq!(server.metric("rocmforge_aborts_total"), 0.0);
}

#[test]
fn structures_that_cannot_be_are_refused() {
    let server = start();
    for fields in [
        json!({"guided_json": {"$ref": "https://example.com/schema"}}),
        json!({"guided_json": "{"}),
        json!({"guided_regex": "("}),
        json!({"grammar": "root ::= missing"}),
        json!({"guided_choice": []}),
        json!({"tools": tools(), "tool_choice": "required", "guided_regex": "a"}),
        json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "other"}}}),
        json!({"tools": tools(), "tool_choice": {"type": "function"}}),
    ] {
        server.post(CHAT, &ask(0, fields)).error(400);
    }
    server.post(CHAT, &ask(0, json!({"max_tokens": 1}))).ok();
}

/// A model whose template has no calls.
fn without_calls(template: &str) -> TestServer {
    let options = ServeOptions::default();
    let mut model = loaded(FORGE_MINI.as_ref(), Purpose::Text, roomy(), options);
    model.template = ChatTemplate::from_source(template).unwrap();
    TestServer::start(local(), vec![offer("forge-mini", model)])
}

const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    <|im_start|>assistant\n";
const NO_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

/// Returns the tokens that a word can begin with.
fn beginnings(server: &TestServer, word: &str) -> Vec<Value> {
    let ids = (1..=word.len()).filter_map(|len| {
        let reply = server.post("/tokenize", &json!({ "content": &word[..len] }));
        let ids = reply.ok()["tokens"].as_array().unwrap().clone();
        (ids.len() == 1).then(|| ids[0].clone())
    });
    ids.collect()
}

/// Where the template has no calls, a system prompt describes the tools, and the answer is a text or calls.
#[test]
fn models_without_calls_have_tools() {
    for template in [PLAIN, NO_SYSTEM] {
        let server = without_calls(template);
        let with_tools = |fields: Value| {
            let mut body = ask(1, fields);
            body["tools"] = json!([tools()[0]]);
            body["parallel_tool_calls"] = false.into();
            body
        };
        let reply = server.post("/apply-template", &with_tools(json!({})));
        let prompt = reply.ok()["prompt"].to_string();
        assert!(
            prompt.contains("Paris") && prompt.contains("about a person."),
            "{prompt}"
        );
        assert_eq!(prompt.contains("|>system"), template == PLAIN, "{prompt}");
        let begins_calls = beginnings(&server, "tool_calls");
        let never = begins_calls.iter().map(|id| json!([id, false]));
        let never_calls: Value = never.collect();
        for choice in ["auto", "required"] {
            let bias = json!([[begins_calls.last(), 100]]);
            let fields = json!({"logit_bias": bias, "tool_choice": choice, "max_tokens": 600, "temperature": 0.8});
            let reply = server.post(CHAT, &with_tools(fields)).ok();
            let answer = &reply["choices"][0];
            let calls = answer["message"]["tool_calls"].as_array();
            let calls = calls.unwrap_or_else(|| panic!("{reply}"));
            assert_eq!(calls.len(), 1, "{reply}");
            let function = &calls[0]["function"];
            assert_eq!(function["name"], "weather");
            check_weather(function["arguments"].as_str().unwrap());
            assert_eq!(answer["finish_reason"], "tool_calls");
        }
        let mut body = with_tools(json!({"logit_bias": never_calls, "max_tokens": 60}));
        let reply = server.post(CHAT, &body).ok();
        let message = &reply["choices"][0]["message"];
        let text = message["content"].as_str().unwrap();
        assert!(!text.is_empty() && !text.contains("response"), "{text}");
        assert!(message["tool_calls"].is_null());
        body["stream"] = true.into();
        let events = server.post(CHAT, &body).events();
        let deltas = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(deltas.collect::<String>(), text);
        // A structure of the client's comes first.
        let body = with_tools(json!({"guided_choice": ["yes", "no"]}));
        let reply = server.post(CHAT, &body).ok();
        let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(["yes", "no"].contains(&text), "{reply}");
    }
}
