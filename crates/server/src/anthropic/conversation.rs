//! Anthropic's messages and tools in the form that chat templates read.

use serde_json::{Map, Value, json};

use crate::http::error::ApiError;
use crate::http::fields::Fields;

/// Returns the messages of a request, with its system prompt as the first one.
///
/// # Errors
/// A message or a block has a wrong form.
pub(super) fn messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        let text = text_of(&system).ok_or_else(|| {
            ApiError::field("system", "use a text or a list of blocks of type text")
        })?;
        messages.push(json!({ "role": "system", "content": text }));
    }
    let turns: Vec<Value> = fields.need("messages")?;
    for (at, turn) in turns.iter().enumerate() {
        let turn =
            of_turn(turn).map_err(|what| ApiError::field(format!("messages[{at}]"), what))?;
        messages.extend(turn);
    }
    Ok(messages)
}

/// Returns the messages that a turn becomes: results of tools are messages of their own.
fn of_turn(turn: &Value) -> Result<Vec<Value>, String> {
    let role = turn.get("role").and_then(Value::as_str);
    let content = turn.get("content").unwrap_or(&Value::Null);
    let blocks: Vec<Value> = match content {
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(blocks) => blocks.clone(),
        _ => return Err("content: use a text or a list of blocks".into()),
    };
    match role {
        Some("user") => of_user(&blocks),
        Some("assistant") => of_assistant(&blocks).map(|message| vec![message]),
        _ => Err("role: use user or assistant".into()),
    }
}

fn of_user(blocks: &[Value]) -> Result<Vec<Value>, String> {
    let (mut messages, mut texts) = (Vec::new(), Vec::new());
    for block in blocks {
        match kind(block) {
            "text" => texts.push(field(block, "text")?),
            "tool_result" => {
                let content = block.get("content").unwrap_or(&Value::Null);
                let text = match content {
                    Value::Null => Some(String::new()),
                    content => text_of(content),
                };
                messages.push(json!({
                    "role": "tool",
                    "tool_call_id": field(block, "tool_use_id")?,
                    "content": text.ok_or("tool_result: this server reads text only")?,
                }));
            }
            other => return Err(not_read(other)),
        }
    }
    if !texts.is_empty() || messages.is_empty() {
        messages.push(json!({ "role": "user", "content": texts.join("\n") }));
    }
    Ok(messages)
}

fn of_assistant(blocks: &[Value]) -> Result<Value, String> {
    let (mut texts, mut reasoning, mut calls) = (Vec::new(), String::new(), Vec::new());
    for block in blocks {
        match kind(block) {
            "text" => texts.push(field(block, "text")?),
            "thinking" => reasoning.push_str(field(block, "thinking")?),
            "redacted_thinking" => {}
            "tool_use" => {
                let input = block.get("input").cloned().unwrap_or_else(|| json!({}));
                let function = json!({ "name": field(block, "name")?, "arguments": input });
                calls.push(json!({
                    "id": field(block, "id")?,
                    "type": "function",
                    "function": function,
                }));
            }
            other => return Err(not_read(other)),
        }
    }
    let mut message = json!({ "role": "assistant", "content": texts.concat() });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

fn kind(block: &Value) -> &str {
    block
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn field<'v>(block: &'v Value, name: &str) -> Result<&'v str, String> {
    let text = block.get(name).and_then(Value::as_str);
    text.ok_or_else(|| format!("content: a block of type {} needs {name}", kind(block)))
}

fn not_read(kind: &str) -> String {
    match kind {
        "image" | "document" => "content: this server reads text only".into(),
        _ => {
            "content: this server knows the blocks text, thinking, tool_use and tool_result".into()
        }
    }
}

/// Returns the text of a string, or of a list of text blocks.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let text = |block: &Value| match kind(block) {
                "text" => block.get("text").and_then(Value::as_str).map(String::from),
                _ => None,
            };
            let texts: Option<Vec<String>> = blocks.iter().map(text).collect();
            Some(texts?.join("\n"))
        }
        _ => None,
    }
}

/// Returns the tools of a request in OpenAI's form.
///
/// # Errors
/// A tool has no name, or is one of Anthropic's own.
pub(super) fn tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let tools: Vec<Map<String, Value>> = fields.take("tools")?.unwrap_or_default();
    let tool = |(at, mut tool): (usize, Map<String, Value>)| {
        let wrong = |what: &str| ApiError::field(format!("tools[{at}]"), what);
        if tool.get("type").is_some_and(|kind| kind != "custom") {
            return Err(wrong(
                "this server has no tools of its own; use type custom",
            ));
        }
        let name = tool.remove("name").filter(Value::is_string);
        let mut function = json!({ "name": name.ok_or_else(|| wrong("a tool needs a name"))? });
        if let Some(description) = tool.remove("description") {
            function["description"] = description;
        }
        let schema = tool.remove("input_schema");
        function["parameters"] = schema.unwrap_or_else(|| json!({ "type": "object" }));
        Ok(json!({ "type": "function", "function": function }))
    };
    tools.into_iter().enumerate().map(tool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Value) -> Result<Vec<Value>, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        messages(&mut fields).map_err(|error| error.message)
    }

    #[test]
    fn turns_become_messages() {
        // The conversation of Anthropic's page on tool use.
        let read = read(json!({
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": "What is the weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Use the tool.", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"location": "Paris"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "15 degrees"}]},
                    {"type": "text", "text": "And tomorrow?"}]},
            ],
        }));
        let call = json!({"id": "toolu_1", "type": "function",
            "function": {"name": "weather", "arguments": {"location": "Paris"}}});
        assert_eq!(
            read.unwrap(),
            [
                json!({"role": "system", "content": "Be brief."}),
                json!({"role": "user", "content": "What is the weather?"}),
                json!({"role": "assistant", "content": "I look.", "reasoning_content": "Use the tool.", "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": "toolu_1", "content": "15 degrees"}),
                json!({"role": "user", "content": "And tomorrow?"}),
            ]
        );
    }

    #[test]
    fn wrong_blocks_are_named() {
        for (turn, part) in [
            (json!({"role": "system", "content": "x"}), "role"),
            (json!({"role": "user"}), "content"),
            (
                json!({"role": "user", "content": [{"type": "image", "source": {}}]}),
                "text only",
            ),
            (
                json!({"role": "user", "content": [{"type": "tool_result"}]}),
                "tool_use_id",
            ),
            (json!({"role": "user", "content": [1]}), "blocks"),
            (
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}),
                "name",
            ),
        ] {
            let error = read(json!({ "messages": [turn] })).unwrap_err();
            assert!(
                error.starts_with("messages[0]") && error.contains(part),
                "{error}"
            );
        }
        assert!(read(json!({"messages": [], "system": 1})).is_err());
    }
}
