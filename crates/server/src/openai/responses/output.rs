//! Items that go out: reasoning, a message, and calls of functions.

use std::sync::Arc;

use rocmforge_engine::FinishReason;
use rocmforge_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::openai::chat_events::finish_reason;
use crate::openai::usage::Timings;
use crate::serving::choices::{Totals, Whole};
use crate::serving::model::Served;
use crate::serving::reader::{Parts, Reader};

/// A response that is being made.
pub(super) struct Response {
    head: Value,
    id: String,
    pub(super) reader: Reader,
    model: Arc<Served>,
}

/// Returns the item of reasoning, of a message or of a call.
pub(super) fn reasoning(id: &str, text: &str, status: &str) -> Value {
    let content = match text.is_empty() {
        true => json!([]),
        false => json!([{ "type": "reasoning_text", "text": text }]),
    };
    json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": status })
}

pub(super) fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

pub(super) fn message(id: &str, content: Value, status: &str) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    })
}

pub(super) fn call(id: &str, call_id: &str, name: &str, arguments: &str, status: &str) -> Value {
    json!({
        "id": id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    })
}

impl Response {
    pub(super) fn new(head: Value, id: String, reader: Reader, model: Arc<Served>) -> Response {
        Response {
            head,
            id,
            reader,
            model,
        }
    }

    /// Returns the id of an item of this response.
    pub(super) fn item_id(&self, kind: &str, at: usize) -> String {
        format!("{kind}_{}_{at}", self.id.trim_start_matches("resp_"))
    }

    /// Returns the response before its end.
    pub(super) fn begun(&self) -> Value {
        let mut body = self.head.clone();
        body["status"] = "in_progress".into();
        body["output"] = json!([]);
        body["usage"] = Value::Null;
        body["incomplete_details"] = Value::Null;
        body
    }

    /// Returns the response at its end.
    pub(super) fn ended(
        &self,
        output: Vec<Value>,
        reason: Option<FinishReason>,
        totals: &Totals,
    ) -> Value {
        let mut body = self.head.clone();
        let is_whole = finish_reason(reason) != "length";
        body["status"] = if is_whole { "completed" } else { "incomplete" }.into();
        body["incomplete_details"] = match is_whole {
            true => Value::Null,
            false => json!({ "reason": "max_output_tokens" }),
        };
        let n_reasoning: usize = output.iter().map(|item| self.reasoning_tokens(item)).sum();
        body["output"] = output.into();
        body["usage"] = json!({
            "input_tokens": totals.prompt_tokens,
            "input_tokens_details": { "cached_tokens": totals.cached_tokens },
            "output_tokens": totals.completion_tokens,
            "output_tokens_details": { "reasoning_tokens": n_reasoning },
            "total_tokens": totals.prompt_tokens + totals.completion_tokens,
        });
        body["timings"] = json!(Timings::new(totals));
        body
    }

    /// Returns the tokens of an item's text, if it is reasoning.
    fn reasoning_tokens(&self, item: &Value) -> usize {
        let text = match item["type"] == "reasoning" {
            true => item.pointer("/content/0/text").and_then(Value::as_str),
            false => None,
        };
        let count = |text| {
            self.model
                .tokenizer
                .encode(text, EncodeOptions::default())
                .len()
        };
        text.map_or(0, count)
    }

    /// Returns the response of a whole answer, of which the parts so far were gathered.
    pub(super) fn whole(mut self, mut parts: Parts, whole: &Whole, totals: &Totals) -> Value {
        self.reader.gather_rest(&mut parts);
        let mut output = Vec::new();
        if let Some(text) = parts.reasoning {
            output.push(reasoning(
                &self.item_id("rs", output.len()),
                &text,
                "completed",
            ));
        }
        if let Some(text) = parts.content {
            let id = self.item_id("msg", output.len());
            output.push(message(&id, json!([part(&text)]), "completed"));
        }
        for made in parts.calls {
            let id = self.item_id("fc", output.len());
            output.push(call(
                &id,
                &made.id,
                &made.name,
                &made.arguments,
                "completed",
            ));
        }
        self.ended(output, whole.reason, totals)
    }
}
