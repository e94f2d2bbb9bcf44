//! Target `template`: renders any chat template over a conversation, in this process with the interpreter's limits.
//!
//! Input: the template, optionally a zero byte and messages as JSON. Some templates (strings that double, products of
//! large numbers) can only be stopped in a child process. `chat_template::sandbox` does so and has its own tests, so
//! templates here are short and have no large numbers.

use rocmforge_text::chat_template::{ChatTemplate, Clock, Conversation};
use serde_json::{Value, json};

/// Maximum digits of a number in a template.
const MAX_DIGITS: usize = 2;

pub(crate) fn run(data: &[u8]) {
    let (source, messages) = match data.iter().position(|&b| b == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &[][..]),
    };
    let source = small_numbers(&String::from_utf8_lossy(source));
    let messages = match serde_json::from_slice(messages) {
        Ok(Value::Array(messages)) => messages,
        _ => vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": [{"type": "text", "text": "Hi <|im_end|>"}]}),
            json!({"role": "assistant", "content": "é\u{2028}", "tool_calls": []}),
            json!({"role": "user", "content": "Hi"}),
        ],
    };
    let tools = [json!({"type": "function", "function": {"name": "f", "parameters": {}}})];
    let Ok(template) = ChatTemplate::from_source(&source) else {
        return;
    };
    let template = template
        .with_tokens("<s>", "</s>")
        .with_clock(Clock::At { unix_seconds: 0 });
    for tools in [&[][..], &tools] {
        let conversation = Conversation {
            messages: &messages,
            tools,
            add_generation_prompt: true,
            variables: None,
        };
        if let Err(error) = template.render(&conversation) {
            // Messages may quote the template, but must be bounded.
            assert!(error.to_string().len() < 1 << 20);
        }
    }
    template.mentions("enable_thinking");
}

/// Returns `source` with every number cut to its first digits.
fn small_numbers(source: &str) -> String {
    let mut digits = 0;
    let keep = |c: &char| {
        digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
        digits <= MAX_DIGITS
    };
    source.chars().filter(keep).collect()
}
