//! A conversation as an agent has it: each turn sends all messages again, the server's own answers among them, and one
//! more. Tool calls are answered with results.

use serde_json::{Value, json};

use super::client::{Answer, Outcome};
use super::{Load, words};

/// How conversations go on.
#[derive(Debug, Clone, Copy)]
pub struct Conversation {
    /// Requests of each conversation.
    pub n_turns: usize,
    /// Words that each turn adds: a message of the user, or results of tools.
    pub turn_tokens: usize,
    /// Tools in each request. With tools, every second turn must call one.
    pub n_tools: usize,
}

impl Conversation {
    /// Holds conversation `i` of a load, up to its first failure.
    pub(super) async fn hold(&self, load: &Load, i: usize) -> Vec<Outcome> {
        let system = words(load.seed, i, load.prompt_tokens);
        let mut messages = vec![json!({ "role": "system", "content": system })];
        let tools: Vec<Value> = (0..self.n_tools).map(tool).collect();
        let mut outcomes = Vec::new();
        let mut called = Vec::new();
        let mut earlier_tokens = 0;
        for turn in 0..self.n_turns {
            // Each turn has words of its own.
            let words = words(!load.seed, i * self.n_turns + turn, self.turn_tokens);
            messages.extend(next_messages(&called, &words));
            let mut body = json!({
                "messages": messages,
                "max_tokens": load.max_tokens,
                "seed": i,
            });
            if !tools.is_empty() {
                body["tools"] = json!(tools);
                body["parallel_tool_calls"] = false.into();
                // The rest is up to the model.
                body["tool_choice"] = if turn % 2 == 0 { "required" } else { "auto" }.into();
            }
            let mut answer = match load.target.ask("chat/completions", body).await {
                Ok(answer) => answer,
                Err(error) => {
                    outcomes.push(Err(error));
                    break;
                }
            };
            messages.push(message(&answer));
            called = answer.calls.drain(..).map(|call| call.id).collect();
            let mut times = answer.times;
            times.turn = turn;
            times.earlier_tokens =
                std::mem::replace(&mut earlier_tokens, times.prompt_tokens + times.n_tokens);
            outcomes.push(Ok(times));
        }
        outcomes
    }
}

/// Returns the description of a tool. Its arguments are short whatever the model chooses.
fn tool(at: usize) -> Value {
    let files = ["src/main.rs", "src/lib.rs", "README.md", "tests/all.rs"];
    json!({
        "type": "function",
        "function": {
            "name": format!("read_file_{at}"),
            "description": "Reads a file of the project and returns its text",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": { "type": "string", "enum": files, "description": "Path of the file" },
                    "part": { "type": "string", "enum": ["head", "tail", "all"] },
                },
                "required": ["path", "part"],
                "additionalProperties": false,
            },
        },
    })
}

/// Returns what follows an answer: the results of the tools that it called, or a message of the user.
fn next_messages(called: &[String], words: &str) -> Vec<Value> {
    let results = called.iter().enumerate().map(|(at, id)| {
        let content = if at == 0 { words } else { "the same" };
        json!({ "role": "tool", "tool_call_id": id, "content": content })
    });
    match called.is_empty() {
        true => vec![json!({ "role": "user", "content": words })],
        false => results.collect(),
    }
}

/// Returns an answer as a message of the conversation.
fn message(answer: &Answer) -> Value {
    let mut message = json!({ "role": "assistant", "content": answer.text });
    if !answer.calls.is_empty() {
        let calls = answer.calls.iter().map(|call| {
            // Servers refuse what a limit on tokens has cut off.
            let is_whole = serde_json::from_str::<Value>(&call.arguments).is_ok();
            let arguments = if is_whole { &*call.arguments } else { "{}" };
            let function = json!({ "name": call.name, "arguments": arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        });
        message["tool_calls"] = calls.collect();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::super::client::Call;
    use super::*;

    #[test]
    fn a_call_is_followed_by_its_result() {
        let call = |id: &str, arguments: &str| Call {
            id: id.to_string(),
            name: "f".to_string(),
            arguments: arguments.to_string(),
        };
        let answer = Answer {
            text: "a".to_string(),
            calls: vec![call("x", "{\"b\": 1}"), call("y", "{\"b\":")],
            ..Answer::default()
        };
        let function = |arguments: &str| json!({"name": "f", "arguments": arguments});
        let calls = json!([
            {"id": "x", "type": "function", "function": function("{\"b\": 1}")},
            {"id": "y", "type": "function", "function": function("{}")},
        ]);
        assert_eq!(
            message(&answer),
            json!({"role": "assistant", "content": "a", "tool_calls": calls})
        );
        let results = next_messages(&["x".to_string(), "y".to_string()], "words");
        let ids = results.iter().map(|result| &result["tool_call_id"]);
        assert_eq!(ids.collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(results[0]["content"], "words");
        assert_eq!(
            next_messages(&[], "words"),
            [json!({"role": "user", "content": "words"})]
        );
    }
}
