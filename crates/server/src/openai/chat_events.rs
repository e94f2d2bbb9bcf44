//! The answers of a chat, whole or as a stream of chunks.

use std::sync::Arc;

use rocmforge_engine::FinishReason;
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::logprobs;
use super::usage::{Timings, usage};
use crate::http::stream::{Encoder, Out};
use crate::serving::choices::{Totals, Update, Whole};
use crate::serving::model::{Served, unix_seconds};
use crate::serving::reader::{Parts, Piece, Reader};

/// Returns the fields that all objects of an answer share.
pub(super) fn object(id: &str, kind: &str, model: &Served) -> Value {
    json!({
        "id": id,
        "object": kind,
        "created": unix_seconds(),
        "model": model.name,
        "system_fingerprint": model.identity.fingerprint,
        "reproducible": model.identity.reproducible,
    })
}

/// Returns OpenAI's word for why an answer ended.
pub(crate) fn finish_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length | FinishReason::Context | FinishReason::Deadline) => "length",
        _ => "stop",
    }
}

/// Returns OpenAI's word for why an answer of a chat ended.
fn chat_reason(reader: &Reader, reason: Option<FinishReason>) -> &'static str {
    match reader.waits_for_tools(reason) {
        true => "tool_calls",
        false => finish_reason(reason),
    }
}

/// Returns the choice of a whole answer, of which the parts so far were gathered.
pub(super) fn choice(
    index: usize,
    (mut reader, mut parts): (Reader, Parts),
    tokenizer: &Tokenizer,
    whole: Whole,
    with_logprobs: bool,
) -> Value {
    reader.gather_rest(&mut parts);
    let Parts {
        reasoning,
        content,
        calls,
    } = parts;
    let calls: Vec<Value> = calls
        .into_iter()
        .map(|call| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        })
        .collect();
    // A message of calls alone has no content.
    let content = match (content, calls.is_empty()) {
        (None, false) => Value::Null,
        (content, _) => content.unwrap_or_default().into(),
    };
    let mut message = json!({ "role": "assistant", "content": content });
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    let logprobs = match with_logprobs {
        true => logprobs::of_chat(tokenizer, &whole.tokens),
        false => Value::Null,
    };
    json!({
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": chat_reason(&reader, whole.reason),
    })
}

/// The chunks of a stream.
pub(super) struct ChatEvents {
    head: Value,
    model: Arc<Served>,
    answers: Vec<Reader>,
    with_logprobs: bool,
    include_usage: bool,
}

impl ChatEvents {
    pub(super) fn new(
        head: Value,
        model: Arc<Served>,
        answers: Vec<Reader>,
        with_logprobs: bool,
        include_usage: bool,
    ) -> ChatEvents {
        ChatEvents {
            head,
            model,
            answers,
            with_logprobs,
            include_usage,
        }
    }

    fn chunk(
        &self,
        index: usize,
        delta: Map<String, Value>,
        logprobs: Value,
        reason: Value,
    ) -> Value {
        let mut chunk = self.head.clone();
        chunk["choices"] = json!([{
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }]);
        chunk
    }

    /// Writes pieces; the log-probabilities go with the first of them.
    fn pieces(&self, index: usize, pieces: Vec<Piece>, mut logprobs: Value, out: &mut Out) {
        let has_any = !pieces.is_empty();
        for piece in pieces {
            let (name, value) = match piece {
                Piece::Reasoning(text) => ("reasoning_content", text.into()),
                Piece::Content(text) => ("content", text.into()),
                Piece::Call {
                    index,
                    head,
                    arguments,
                } => {
                    let mut call =
                        json!({ "index": index, "function": { "arguments": arguments } });
                    if let Some((id, name)) = head {
                        call["id"] = id.into();
                        call["type"] = "function".into();
                        call["function"]["name"] = name.into();
                    }
                    ("tool_calls", json!([call]))
                }
            };
            let delta = Map::from_iter([(name.to_string(), value)]);
            out.data(&self.chunk(index, delta, logprobs.take(), Value::Null));
        }
        // Tokens that complete no text have log-probabilities all the same.
        if !has_any && !logprobs.is_null() {
            out.data(&self.chunk(index, Map::new(), logprobs, Value::Null));
        }
    }

    fn finished(&mut self, index: usize, reason: Option<FinishReason>, out: &mut Out) {
        let pieces = self.answers[index].finish();
        self.pieces(index, pieces, Value::Null, out);
        let reason = chat_reason(&self.answers[index], reason);
        out.data(&self.chunk(index, Map::new(), Value::Null, reason.into()));
    }
}

impl Encoder for ChatEvents {
    fn begin(&mut self, out: &mut Out) {
        for index in 0..self.answers.len() {
            let role = [("role", "assistant"), ("content", "")];
            let delta = role.map(|(name, value)| (name.to_string(), value.into()));
            out.data(&self.chunk(index, Map::from_iter(delta), Value::Null, Value::Null));
        }
    }

    fn update(&mut self, update: Update, out: &mut Out) -> Option<usize> {
        match update {
            Update::PromptScores { .. } => None,
            Update::Tokens {
                choice,
                tokens,
                text,
            } => {
                let logprobs = match self.with_logprobs {
                    true => logprobs::of_chat(&self.model.tokenizer, &tokens),
                    false => Value::Null,
                };
                let pieces = self.answers[choice].push(&text);
                self.pieces(choice, pieces, logprobs, out);
                if !self.answers[choice].is_over() {
                    return None;
                }
                self.finished(choice, None, out);
                Some(choice)
            }
            Update::Finished {
                choice,
                reason,
                text,
            } => {
                let pieces = self.answers[choice].push(&text);
                self.pieces(choice, pieces, Value::Null, out);
                self.finished(choice, Some(reason), out);
                None
            }
        }
    }

    fn end(&mut self, totals: &Totals, out: &mut Out) {
        if self.include_usage {
            let mut chunk = self.head.clone();
            chunk["choices"] = json!([]);
            chunk["usage"] = usage(totals);
            chunk["timings"] = json!(Timings::new(totals));
            out.data(&chunk);
        }
        out.done();
    }
}
