//! Items that come in, in the form that chat templates read.

use serde_json::{Value, json};

use crate::http::error::ApiError;

/// Returns the items of `input`: a text is a message of the user.
///
/// # Errors
/// It is neither a text nor a list.
pub(super) fn items(input: Value) -> Result<Vec<Value>, ApiError> {
    match input {
        Value::String(text) => Ok(vec![json!({ "role": "user", "content": text })]),
        Value::Array(items) => Ok(items),
        _ => Err(ApiError::field("input", "use a text or a list of items")),
    }
}

/// Returns the messages that items become. Calls and reasoning belong to the message of the assistant beside them.
///
/// # Errors
/// An item has a wrong form.
pub(super) fn messages(items: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut messages: Vec<Value> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let wrong = |what: &str| ApiError::field(format!("input[{at}]"), what);
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        let kind = text("type").unwrap_or("message");
        match kind {
            "message" => {
                let role = text("role").ok_or_else(|| wrong("a message needs a role"))?;
                let content = item.get("content").cloned().unwrap_or_default();
                match messages.last_mut().filter(|last| is_open(last, role)) {
                    Some(last) => last["content"] = content,
                    None => messages.push(json!({ "role": role, "content": content })),
                }
            }
            "function_call" => {
                let parts = [text("call_id"), text("name"), text("arguments")];
                let [Some(id), Some(name), Some(arguments)] = parts else {
                    return Err(wrong("a function_call needs call_id, name and arguments"));
                };
                let function = json!({ "name": name, "arguments": arguments });
                let call = json!({ "id": id, "type": "function", "function": function });
                let message = of_assistant(&mut messages);
                match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => message["tool_calls"] = json!([call]),
                }
            }
            "function_call_output" => {
                let id = text("call_id");
                let id = id.ok_or_else(|| wrong("a function_call_output needs call_id"))?;
                let output = item.get("output").cloned().unwrap_or_default();
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
            }
            "reasoning" => {
                let parts = item.get("content").and_then(Value::as_array);
                let texts = parts.into_iter().flatten();
                let text: String = texts
                    .filter_map(|part| part.get("text")?.as_str())
                    .collect();
                if !text.is_empty() {
                    messages.push(json!({
                        "role": "assistant",
                        "content": null,
                        "reasoning_content": text,
                    }));
                }
            }
            _ => {
                return Err(wrong(
                    "this server knows the items message, function_call, function_call_output and reasoning",
                ));
            }
        }
    }
    Ok(messages)
}

/// Whether a message of the assistant has reasoning and no content yet.
fn is_open(message: &Value, role: &str) -> bool {
    role == "assistant"
        && message["role"] == "assistant"
        && message["content"].is_null()
        && message.get("tool_calls").is_none()
}

/// Returns the message of the assistant that a call belongs to.
fn of_assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages
        .last()
        .is_none_or(|last| last["role"] != "assistant")
    {
        messages.push(json!({ "role": "assistant", "content": null }));
    }
    messages.last_mut().expect("there is one")
}

/// Returns tools in the form of chat completions.
///
/// # Errors
/// A tool is not a function.
pub(super) fn tools(tools: &[Value]) -> Result<Vec<Value>, ApiError> {
    let tool = |(at, tool): (usize, &Value)| {
        if tool.get("type").is_none_or(|kind| kind != "function") {
            let what = "this server knows tools of the type function only";
            return Err(ApiError::field(format!("tools[{at}]"), what));
        }
        let mut function = json!({});
        for name in ["name", "description", "parameters"] {
            if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
                function[name] = value.clone();
            }
        }
        Ok(json!({ "type": "function", "function": function }))
    };
    tools.iter().enumerate().map(tool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let items = [
            json!({"role": "user", "content": "Hi"}),
            json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}),
            json!({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}),
            json!({"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "c1", "output": "1"}),
        ];
        let call = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}});
        assert_eq!(
            messages(&items).unwrap(),
            [
                json!({"role": "user", "content": "Hi"}),
                json!({"role": "assistant", "content": [{"type": "output_text", "text": "Hello"}],
                "reasoning_content": "Hm.", "tool_calls": [call("c1", "f"), call("c2", "g")]}),
                json!({"role": "tool", "tool_call_id": "c1", "content": "1"}),
            ]
        );
        for item in [
            json!(1),
            json!({"type": "computer_call"}),
            json!({"type": "function_call"}),
        ] {
            assert!(messages(&[item]).is_err());
        }
    }
}
