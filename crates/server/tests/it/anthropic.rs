//! `/v1/messages`: the same answers as chat completions give, in Anthropic's form.

use serde_json::{Value, json};

use crate::client::start;

const MESSAGES: &str = "/v1/messages";

fn ask(fields: Value) -> Value {
    let mut body = json!({
        "model": "forge-mini",
        "max_tokens": 16,
        "temperature": 0,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]}],
    });
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

#[test]
fn messages_are_answered_whole_and_as_a_stream() {
    let server = start();
    let chat = json!({"temperature": 0, "max_tokens": 16, "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]});
    let expected = server.post("/v1/chat/completions", &chat).ok();
    let text = expected["choices"][0]["message"]["content"]
        .as_str()
        .unwrap();
    let reply = server.post(MESSAGES, &ask(json!({}))).ok();
    assert_eq!(reply["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(
        (&reply["type"], &reply["role"]),
        (&json!("message"), &json!("assistant"))
    );
    assert_eq!(reply["stop_reason"], "max_tokens");
    let usage = &reply["usage"];
    let n_input = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(
        n_input,
        expected["usage"]["prompt_tokens"].as_u64().unwrap()
    );
    let counted = server
        .post("/v1/messages/count_tokens", &ask(json!({})))
        .ok();
    assert_eq!(counted["input_tokens"], n_input);

    let streamed = server.post(MESSAGES, &ask(json!({"stream": true})));
    let lines: Vec<&str> = streamed.text.lines().collect();
    let names: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("event: "))
        .collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    let n = names.len();
    assert_eq!(
        names[n - 3..],
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let data = lines.iter().filter_map(|line| line.strip_prefix("data: "));
    let data: Vec<Value> = data
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let texts = data
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(texts.collect::<String>(), text);
    assert!(
        data.iter()
            .zip(&names)
            .all(|(event, name)| event["type"] == **name)
    );

    let stop: String = text.chars().skip(8).take(4).collect();
    let stopped = server
        .post(MESSAGES, &ask(json!({"stop_sequences": [stop]})))
        .ok();
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
    assert_eq!(
        stopped["content"][0]["text"],
        text.split(&stop).next().unwrap()
    );
}

#[test]
fn errors_have_anthropics_form() {
    let server = start();
    let kind = |body: &Value, status: u16| {
        let reply = server.post(MESSAGES, body);
        assert_eq!(reply.status, status, "{}", reply.text);
        let error = reply.json();
        assert_eq!(error["type"], "error");
        assert!(error["error"]["message"].is_string());
        error["error"]["type"].as_str().unwrap().to_string()
    };
    assert_eq!(kind(&json!({}), 400), "invalid_request_error");
    assert_eq!(
        kind(&ask(json!({"max_tokens": null})), 400),
        "invalid_request_error"
    );
    assert_eq!(
        kind(&ask(json!({"model": "claude"})), 404),
        "not_found_error"
    );
    assert_eq!(
        kind(&ask(json!({"tool_choice": {"type": "sometimes"}})), 400),
        "invalid_request_error"
    );
    assert_eq!(
        kind(
            &ask(json!({"tools": [{"type": "bash_20250124", "name": "bash"}]})),
            400
        ),
        "invalid_request_error"
    );
    assert_eq!(
        kind(
            &ask(json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]})),
            400
        ),
        "invalid_request_error"
    );
    let reply = server.send(MESSAGES, b"[", &[]);
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
}
