//! Conversations with tools for models whose template writes no calls: a system prompt describes the tools and the form of
//! answers, and what was said before has that form, too. A grammar holds the answer to it
//! ([`structured::generic`](crate::serving::structured::generic)).

use std::collections::HashMap;

use serde_json::{Value, json};

/// The form of an answer that calls tools.
const CALLS: &str = r#"{"tool_calls": [{"name": "NAME", "arguments": {...}}]}"#;
/// How the description of the tools begins.
const TOOLS: &str = "The tools, each with a JSON schema of its arguments:";

/// Returns messages that a template without tools can write, with a description of the tools.
pub(super) fn described(messages: &[Value], tools: &[Value], must_call: bool) -> Vec<Value> {
    let mut all = vec![json!({ "role": "system", "content": description(tools, must_call) })];
    // The names of the tools whose results follow.
    let mut called: HashMap<&str, &Value> = HashMap::new();
    for message in messages {
        let text = message["content"].as_str().unwrap_or_default();
        let calls = message["tool_calls"].as_array();
        match message["role"].as_str() {
            Some("assistant") => {
                for call in calls.into_iter().flatten() {
                    let id = call["id"].as_str().unwrap_or_default();
                    called.insert(id, &call["function"]["name"]);
                }
                let text = match calls {
                    None => format!("{{\"response\": {}}}", Value::from(text)),
                    Some(calls) => {
                        let calls: Vec<String> = calls.iter().map(written).collect();
                        format!("{{\"tool_calls\": [{}]}}", calls.join(", "))
                    }
                };
                all.push(json!({ "role": "assistant", "content": text }));
            }
            Some("tool") => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let name = called.get(id).copied().unwrap_or(&message["name"]);
                let result = json!({ "tool": name, "result": text });
                add(&mut all, "user", &format!("{{\"tool_result\": {result}}}"));
            }
            Some(role @ ("user" | "system")) => add(&mut all, role, text),
            _ => all.push(message.clone()),
        }
    }
    all
}

/// Whether a prompt has the description.
pub(super) fn is_in(prompt: &str) -> bool {
    prompt.contains(TOOLS)
}

/// Puts the system prompt before the text of the first message after it.
pub(super) fn without_system(mut messages: Vec<Value>) -> Vec<Value> {
    let system = messages.remove(0);
    let text = system["content"].as_str().unwrap_or_default();
    match messages.first_mut() {
        Some(first) if first["role"] == "user" => {
            let asked = first["content"].as_str().unwrap_or_default();
            first["content"] = format!("{text}\n\n{asked}").into();
        }
        _ => messages.insert(0, json!({ "role": "user", "content": text })),
    }
    messages
}

/// Adds a message, or its text to one of the same role: many templates want the roles in turn.
fn add(messages: &mut Vec<Value>, role: &str, text: &str) {
    match messages.last_mut() {
        Some(last) if last["role"] == role => {
            let before = last["content"].as_str().unwrap_or_default();
            last["content"] = format!("{before}\n\n{text}").into();
        }
        _ => messages.push(json!({ "role": role, "content": text })),
    }
}

/// Returns a call as the model is to write it.
fn written(call: &Value) -> String {
    let Value::Object(function) = &call["function"] else {
        return "{}".into();
    };
    let part = |name: &str| function.get(name).unwrap_or(&Value::Null).to_string();
    format!(
        "{{\"name\": {}, \"arguments\": {}}}",
        part("name"),
        part("arguments")
    )
}

fn description(tools: &[Value], must_call: bool) -> String {
    let mut text = match must_call {
        true => {
            format!("Call tools: write one JSON object and nothing else, in this form:\n{CALLS}\n")
        }
        false => format!(
            "You can call tools. Write one JSON object and nothing else. To call tools:\n{CALLS}\n\
             To answer the user:\n{{\"response\": \"TEXT\"}}\n"
        ),
    };
    text.push_str(TOOLS);
    for tool in tools {
        text.push('\n');
        text.push_str(&tool["function"].to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_has_the_form_of_answers() {
        let call = json!({"id": "1", "function": {"name": "clock", "arguments": {"city": "Rome"}}});
        let messages = [
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Hi"}),
            json!({"role": "assistant", "content": "Hello \"you\""}),
            json!({"role": "user", "content": "What time is it?"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call, call]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "12:00"}),
            json!({"role": "tool", "tool_call_id": "2", "content": "no"}),
            json!({"role": "user", "content": "Well?"}),
        ];
        let tools = [json!({"type": "function", "function": {"name": "clock"}})];
        let all = described(&messages, &tools, false);
        let roles: Vec<&str> = all
            .iter()
            .map(|message| message["role"].as_str().unwrap())
            .collect();
        assert_eq!(
            roles,
            ["system", "user", "assistant", "user", "assistant", "user"]
        );
        let system = all[0]["content"].as_str().unwrap().to_string();
        assert!(
            is_in(&system) && system.ends_with("{\"name\":\"clock\"}\n\nBe brief."),
            "{system}"
        );
        assert_eq!(all[2]["content"], r#"{"response": "Hello \"you\""}"#);
        let call = r#"{"name": "clock", "arguments": {"city":"Rome"}}"#;
        assert_eq!(
            all[4]["content"],
            format!("{{\"tool_calls\": [{call}, {call}]}}")
        );
        assert_eq!(
            all[5]["content"],
            "{\"tool_result\": {\"tool\":\"clock\",\"result\":\"12:00\"}}\n\n\
             {\"tool_result\": {\"tool\":null,\"result\":\"no\"}}\n\nWell?"
        );
        let folded = without_system(all);
        assert_eq!(folded.len(), 5);
        assert_eq!(folded[0]["content"], format!("{system}\n\nHi"));
    }
}
