//! `/v1/responses`: the same answers as chat completions give, as items.

use rocmforge_server::{Keys, NewKey};
use serde_json::{Value, json};

use crate::client::{TestServer, forge_mini, local, small, start};

const RESPONSES: &str = "/v1/responses";

fn ask(fields: Value) -> Value {
    let mut body = json!({"model": "forge-mini", "input": "Tell me a story.", "temperature": 0, "max_output_tokens": 16});
    let fields = fields.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(fields);
    body
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"]
        .as_str()
        .unwrap()
}

#[test]
fn responses_are_whole_and_streamed() {
    let server = start();
    let chat = json!({"temperature": 0, "max_tokens": 16, "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}]});
    let expected = server.post("/v1/chat/completions", &chat).ok();
    let expected_text = expected["choices"][0]["message"]["content"]
        .as_str()
        .unwrap();
    let body = ask(json!({"instructions": "Be brief."}));
    let reply = server.post(RESPONSES, &body).ok();
    assert_eq!(text(&reply), expected_text);
    assert_eq!(
        (&reply["object"], &reply["status"]),
        (&json!("response"), &json!("incomplete"))
    );
    assert_eq!(reply["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(
        reply["usage"]["total_tokens"],
        expected["usage"]["total_tokens"]
    );

    let mut body = body;
    body["stream"] = true.into();
    body["input"] =
        json!([{"role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]}]);
    let streamed = server.post(RESPONSES, &body);
    let data = streamed
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    let n = kinds.len();
    assert_eq!(
        kinds[n - 4..],
        [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete"
        ]
    );
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    let joined: String = deltas
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(joined, expected_text);
    assert_eq!(text(&events[n - 1]["response"]), expected_text);
}

#[test]
fn a_response_continues_one_that_was_stored() {
    let server = start();
    let first = server.post(RESPONSES, &ask(json!({"store": true}))).ok();
    let next = ask(json!({"previous_response_id": first["id"], "input": "Go on."}));
    let second = server.post(RESPONSES, &next).ok();
    let chat = json!({"temperature": 0, "max_tokens": 16, "messages": [
        {"role": "user", "content": "Tell me a story."},
        {"role": "assistant", "content": text(&first)},
        {"role": "user", "content": "Go on."}]});
    let expected = server.post("/v1/chat/completions", &chat).ok();
    assert_eq!(
        text(&second),
        expected["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
    );
    let stored = |id: &Value| server.get(&format!("{RESPONSES}/{}", id.as_str().unwrap()));
    assert_eq!(stored(&first["id"]).ok(), first);
    stored(&second["id"]).error(404);
    // The second one was not stored.
    let unknown = ask(json!({"previous_response_id": second["id"]}));
    server.post(RESPONSES, &unknown).error(404);
}

#[test]
fn stored_responses_belong_to_their_key() {
    let (a, b) = (NewKey::create("a").unwrap(), NewKey::create("b").unwrap());
    let mut config = local();
    config.keys = Keys::parse(&format!("{}\n{}", a.line, b.line)).unwrap();
    let server = TestServer::start(config, vec![forge_mini(small())]);
    let post = |key: &NewKey, body: Value| {
        server.send(
            RESPONSES,
            body.to_string().as_bytes(),
            &[("x-api-key", &key.key)],
        )
    };
    let first = post(&a, ask(json!({"store": true}))).ok();
    let next = || ask(json!({"previous_response_id": first["id"]}));
    let path = format!("{RESPONSES}/{}", first["id"].as_str().unwrap());
    let stored = |key: &NewKey| server.send_get(&path, &[("x-api-key", &key.key)]);
    stored(&b).error(404);
    assert_eq!(stored(&a).ok(), first);
    post(&b, next()).error(404);
    post(&a, next()).ok();
}

#[test]
fn what_is_not_supported_is_refused() {
    let server = start();
    for fields in [
        json!({"input": 1}),
        json!({"input": [{"type": "computer_call"}]}),
        json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        json!({"tools": [{"type": "web_search"}]}),
        json!({"background": true}),
        json!({"max_output_tokens": 0}),
    ] {
        server.post(RESPONSES, &ask(fields)).error(400);
    }
}
