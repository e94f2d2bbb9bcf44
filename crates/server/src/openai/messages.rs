//! The messages of a conversation, as chat templates read them.

use serde_json::{Map, Value};

use crate::config::Limits;
use crate::http::error::ApiError;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Checks messages and gives them the form that templates know: text as one string, arguments of calls as objects.
///
/// # Errors
/// A message has no known role, or a content that is not text.
pub(crate) fn for_template(messages: Vec<Value>, limits: &Limits) -> Result<Vec<Value>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field(
            "messages",
            "at least one message is needed",
        ));
    }
    if messages.len() > limits.max_messages {
        let message = format!("use at most {} messages", limits.max_messages);
        return Err(ApiError::field("messages", message));
    }
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(at, message)| {
            of_message(message).map_err(|what| ApiError::field(format!("messages[{at}]"), what))
        })
        .collect()
}

fn of_message(message: Value) -> Result<Value, String> {
    let Value::Object(mut message) = message else {
        return Err("a message is an object with role and content".into());
    };
    let role = match message.get("role").and_then(Value::as_str) {
        Some(role) if ROLES.contains(&role) => role.to_string(),
        _ => return Err(format!("role: use one of {}", ROLES.join(", "))),
    };
    for name in ["reasoning_content", "tool_call_id"] {
        let value = message.get(name);
        if value.is_some_and(|text| !text.is_null() && !text.is_string()) {
            return Err(format!("{name}: use a text"));
        }
    }
    // Few templates know the newer name.
    if role == "developer" {
        message.insert("role".into(), "system".into());
    }
    let has_calls =
        matches!(message.get("tool_calls"), Some(Value::Array(calls)) if !calls.is_empty());
    let content = message.remove("content");
    let content = text(content.unwrap_or_default())?;
    match content {
        None if role == "assistant" => {
            message.insert("content".into(), "".into());
        }
        None => return Err("content: a text is needed".into()),
        Some(text) => {
            message.insert("content".into(), text.into());
        }
    }
    match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) if has_calls => {
            for call in calls {
                read_call(call)?;
            }
        }
        Some(Value::Null) | Some(Value::Array(_)) => {
            message.shift_remove("tool_calls");
        }
        Some(_) => return Err("tool_calls: use a list".into()),
        None => {}
    }
    Ok(Value::Object(message))
}

/// Returns the text of a content; `None` if it is null.
fn text(content: Value) -> Result<Option<String>, String> {
    match content {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Array(parts) => {
            let texts: Result<Vec<String>, String> = parts.into_iter().map(part).collect();
            Ok(Some(texts?.join("\n")))
        }
        _ => Err("content: use a text or a list of parts".into()),
    }
}

fn part(part: Value) -> Result<String, String> {
    let field = |name: &str| part.get(name).and_then(Value::as_str);
    let text = match field("type") {
        Some("text" | "input_text" | "output_text") => field("text"),
        Some("refusal") => field("refusal"),
        Some("image_url" | "input_image" | "input_audio" | "file" | "input_file" | "video_url") => {
            return Err(
                "content: this server reads text only; leave images, sound and files out".into(),
            );
        }
        _ => return Err("content: a part needs the type text".into()),
    };
    text.map(String::from)
        .ok_or_else(|| "content: a part of type text needs a text".into())
}

/// Parses the arguments of a call, which clients send as text and most templates write as an object.
fn read_call(call: &mut Value) -> Result<(), String> {
    let function = call.get_mut("function").and_then(Value::as_object_mut);
    let function = function.ok_or("tool_calls: a call needs a function")?;
    if !function.get("name").is_some_and(Value::is_string) {
        return Err("tool_calls: a function needs a name".into());
    }
    match function.get("arguments") {
        Some(Value::String(text)) => {
            if let Ok(object) = serde_json::from_str::<Map<String, Value>>(text) {
                function.insert("arguments".into(), Value::Object(object));
            }
        }
        Some(Value::Object(_)) => {}
        None | Some(Value::Null) => {
            function.insert("arguments".into(), Value::Object(Map::new()));
        }
        Some(_) => return Err("tool_calls: arguments are JSON in a text".into()),
    }
    Ok(())
}

/// Writes the arguments of calls as text again, for templates that join them to other text.
pub(crate) fn with_text_arguments(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let calls = messages
        .iter_mut()
        .filter_map(|message| message.get_mut("tool_calls")?.as_array_mut())
        .flatten();
    for call in calls {
        if let Some(arguments) = call.pointer_mut("/function/arguments") {
            *arguments = Value::String(arguments.to_string());
        }
    }
    messages
}

/// Checks the tools of a conversation.
///
/// # Errors
/// There are too many, or one is not a function with a name.
pub(crate) fn check_tools(tools: &[Value], limits: &Limits) -> Result<(), ApiError> {
    if tools.len() > limits.max_tools {
        return Err(ApiError::field(
            "tools",
            format!("use at most {} tools", limits.max_tools),
        ));
    }
    for (at, tool) in tools.iter().enumerate() {
        let wrong = |what: &str| Err(ApiError::field(format!("tools[{at}]"), what));
        if tool.get("type").is_some_and(|kind| kind != "function") {
            return wrong("this server knows tools of the type function only");
        }
        let Some(function) = tool.get("function").and_then(Value::as_object) else {
            return wrong("a tool needs a function with a name");
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return wrong("a tool needs a function with a name");
        }
        let description = function.get("description");
        if description.is_some_and(|text| !text.is_null() && !text.is_string()) {
            return wrong("the description of a function is a text");
        }
        let parameters = function.get("parameters");
        if parameters.is_some_and(|schema| !schema.is_null() && !schema.is_object()) {
            return wrong("the parameters of a function are a JSON schema");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(message: Value) -> Result<Value, String> {
        let limits = Limits::default();
        let messages = for_template(vec![message], &limits);
        messages
            .map(|mut messages| messages.remove(0))
            .map_err(|error| error.message)
    }

    #[test]
    fn joins_parts_and_parses_arguments() {
        let parts = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        assert_eq!(
            one(parts).unwrap(),
            json!({"role": "user", "content": "a\nb"})
        );
        let call = |arguments: Value| {
            json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]})
        };
        let read = one(call(json!("{\"b\": 1, \"a\": 2}"))).unwrap();
        assert_eq!(
            read["tool_calls"][0]["function"]["arguments"].to_string(),
            r#"{"b":1,"a":2}"#
        );
        assert_eq!(read["content"], "");
        let written = with_text_arguments(&[read]);
        assert_eq!(
            written[0]["tool_calls"][0]["function"]["arguments"],
            r#"{"b":1,"a":2}"#
        );
        // What is no object stays as it was sent.
        let read = one(call(json!("[1"))).unwrap();
        assert_eq!(read["tool_calls"][0]["function"]["arguments"], "[1");
    }

    #[test]
    fn refuses_what_is_not_text() {
        for (message, part) in [
            (json!(1), "an object"),
            (json!({"role": "root", "content": ""}), "role"),
            (json!({"role": "user"}), "a text is needed"),
            (
                json!({"role": "assistant", "content": "", "reasoning_content": []}),
                "reasoning_content",
            ),
            (json!({"role": "user", "content": 1}), "use a text"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}),
                "text only",
            ),
            (json!({"role": "user", "content": [1]}), "type text"),
            (json!({"role": "assistant", "tool_calls": 1}), "list"),
            (
                json!({"role": "assistant", "tool_calls": [{}]}),
                "needs a function",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}),
                "arguments",
            ),
        ] {
            let error = one(message.clone()).unwrap_err();
            assert!(error.contains(part), "{message}: {error}");
            assert!(error.starts_with("messages[0]"), "{error}");
        }
    }
}
