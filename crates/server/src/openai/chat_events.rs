//! The answers of a chat, whole or as a stream of chunks.

use std::sync::Arc;

use rocmforge_engine::FinishReason;
use rocmforge_text::answer::{AnswerParser, Delta};
use rocmforge_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::logprobs;
use super::usage::{Timings, usage};
use crate::http::stream::{Encoder, Out};
use crate::serving::choices::{Totals, Update, Whole};
use crate::serving::model::{Served, unix_seconds};

/// Returns the fields that all objects of an answer share.
pub(super) fn object(id: &str, kind: &str, model: &str) -> Value {
    json!({ "id": id, "object": kind, "created": unix_seconds(), "model": model })
}

/// Returns OpenAI's word for why an answer ended.
pub(super) fn finish_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length | FinishReason::Context | FinishReason::Deadline) => "length",
        _ => "stop",
    }
}

/// One answer: its parser, and what it has shown so far.
pub(super) struct Answer {
    parser: AnswerParser,
    /// Whether it ends after the first call.
    one_call: bool,
    ids: Vec<String>,
    n_complete: usize,
}

/// What a delta adds to a message.
enum Piece {
    Reasoning(String),
    Content(String),
    Call {
        index: usize,
        /// Id and name, with the first part.
        head: Option<(String, String)>,
        arguments: String,
    },
}

impl Answer {
    pub(super) fn new(parser: AnswerParser, one_call: bool) -> Answer {
        Answer {
            parser,
            one_call,
            ids: Vec::new(),
            n_complete: 0,
        }
    }

    fn push(&mut self, text: &str) -> Vec<Piece> {
        let deltas = self.parser.push(text);
        self.pieces(deltas)
    }

    fn finish(&mut self) -> Vec<Piece> {
        let deltas = self.parser.finish();
        self.pieces(deltas)
    }

    fn pieces(&mut self, deltas: Vec<Delta>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for delta in deltas {
            // Calls after the first one are left out.
            let is_late = |index: usize| self.one_call && index > 0;
            match delta {
                Delta::Reasoning(text) => pieces.push(Piece::Reasoning(text)),
                Delta::Content(text) | Delta::Unfinished(text) => pieces.push(Piece::Content(text)),
                Delta::Call(call) if !is_late(call.index) => {
                    let head = call.name.map(|name| {
                        let random = rocmforge::parts::random_seed();
                        let id = call.id.unwrap_or_else(|| format!("call_{random:08x}"));
                        self.ids.push(id.clone());
                        (id, name)
                    });
                    pieces.push(Piece::Call {
                        index: call.index,
                        head,
                        arguments: call.arguments,
                    });
                }
                Delta::CallEnd { index, complete } if !is_late(index) => {
                    self.n_complete += usize::from(complete);
                }
                Delta::Call(_) | Delta::CallEnd { .. } => {}
            }
        }
        pieces
    }

    fn is_over(&self) -> bool {
        self.one_call && self.n_complete > 0
    }

    fn reason(&self, reason: Option<FinishReason>) -> &'static str {
        match finish_reason(reason) {
            "stop" if self.n_complete > 0 => "tool_calls",
            word => word,
        }
    }

    /// Returns the choice of a whole answer.
    pub(super) fn whole(
        mut self,
        index: usize,
        tokenizer: &Tokenizer,
        whole: Whole,
        with_logprobs: bool,
    ) -> Value {
        let mut pieces = self.push(&whole.text);
        pieces.extend(self.finish());
        let (mut content, mut reasoning) = (None::<String>, None::<String>);
        let mut calls: Vec<Value> = Vec::new();
        let mut arguments: Vec<String> = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => reasoning.get_or_insert_default().push_str(&text),
                Piece::Content(text) => content.get_or_insert_default().push_str(&text),
                Piece::Call {
                    head,
                    arguments: part,
                    ..
                } => {
                    if let Some((id, name)) = head {
                        calls.push(
                            json!({"id": id, "type": "function", "function": {"name": name}}),
                        );
                        arguments.push(String::new());
                    }
                    if let Some(arguments) = arguments.last_mut() {
                        arguments.push_str(&part);
                    }
                }
            }
        }
        for (call, arguments) in calls.iter_mut().zip(arguments) {
            call["function"]["arguments"] = arguments.into();
        }
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
            "finish_reason": self.reason(whole.reason),
        })
    }
}

/// The chunks of a stream.
pub(super) struct ChatEvents {
    head: Value,
    model: Arc<Served>,
    answers: Vec<Answer>,
    with_logprobs: bool,
    include_usage: bool,
}

impl ChatEvents {
    pub(super) fn new(
        head: Value,
        model: Arc<Served>,
        answers: Vec<Answer>,
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
        let reason = self.answers[index].reason(reason);
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
