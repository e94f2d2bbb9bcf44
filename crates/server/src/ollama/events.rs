//! Answers in Ollama's form: one object, or a line for each piece.

use std::time::Duration;

use jiff::Timestamp;
use rocmforge_engine::FinishReason;
use serde_json::{Value, json};

use crate::http::error::ApiError;
use crate::http::stream::{Encoder, Out};
use crate::openai::chat_events::finish_reason;
use crate::serving::choices::{Totals, Update, Whole};
use crate::serving::reader::{Call, Parts, Piece, Reader};

/// The route that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// A message.
    Chat,
    /// A text.
    Generate,
}

/// The lines of an answer.
pub(super) struct Lines {
    shape: Shape,
    model: String,
    /// `None` if the text is raw.
    reader: Option<Reader>,
    /// The call whose arguments are coming. Calls are sent whole.
    call: Option<Call>,
    reason: Option<FinishReason>,
}

impl Lines {
    pub(super) fn new(shape: Shape, model: &str, reader: Option<Reader>) -> Lines {
        Lines {
            shape,
            model: model.to_string(),
            reader,
            call: None,
            reason: None,
        }
    }

    /// Returns an answer without a text, and why it has none.
    pub(super) fn empty(shape: Shape, model: &str, reason: &str) -> Value {
        let mut line = Lines::new(shape, model, None).line("", None, &[]);
        line["done"] = true.into();
        line["done_reason"] = reason.into();
        line
    }

    /// Returns a line with a text, reasoning or calls.
    fn line(&self, text: &str, thinking: Option<&str>, calls: &[Call]) -> Value {
        let mut line = json!({ "model": self.model, "created_at": Timestamp::now().to_string() });
        let calls: Vec<Value> = calls.iter().map(of_call).collect();
        match self.shape {
            Shape::Generate => {
                line["response"] = text.into();
                if let Some(thinking) = thinking {
                    line["thinking"] = thinking.into();
                }
            }
            Shape::Chat => {
                line["message"] = json!({ "role": "assistant", "content": text });
                if let Some(thinking) = thinking {
                    line["message"]["thinking"] = thinking.into();
                }
                if !calls.is_empty() {
                    line["message"]["tool_calls"] = calls.into();
                }
            }
        }
        line["done"] = false.into();
        line
    }

    fn pieces(&mut self, pieces: Vec<Piece>, out: &mut Out) {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => out.line(&self.line("", Some(&text), &[])),
                Piece::Content(text) => {
                    self.send_call(out);
                    out.line(&self.line(&text, None, &[]));
                }
                Piece::Call {
                    head, arguments, ..
                } => {
                    if let Some((id, name)) = head {
                        self.send_call(out);
                        let arguments = String::new();
                        self.call = Some(Call {
                            id,
                            name,
                            arguments,
                        });
                    }
                    if let Some(call) = &mut self.call {
                        call.arguments.push_str(&arguments);
                    }
                }
            }
        }
    }

    fn send_call(&mut self, out: &mut Out) {
        if let Some(call) = self.call.take() {
            out.line(&self.line("", None, &[call]));
        }
    }

    fn push(&mut self, text: String, out: &mut Out) {
        let pieces = match &mut self.reader {
            Some(reader) => reader.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Piece::Content(text)],
        };
        self.pieces(pieces, out);
    }

    /// Marks a line as the last one.
    fn ended(&self, mut line: Value, totals: &Totals) -> Value {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let sums = json!({
            "done": true,
            "done_reason": finish_reason(self.reason),
            "total_duration": nanos(totals.prompt_time + totals.decode_time),
            "load_duration": 0,
            "prompt_eval_count": totals.prompt_tokens,
            "prompt_eval_duration": nanos(totals.prompt_time),
            "eval_count": totals.completion_tokens,
            "eval_duration": nanos(totals.decode_time),
        });
        if let (Value::Object(line), Value::Object(sums)) = (&mut line, sums) {
            line.extend(sums);
        }
        line
    }

    /// Returns a whole answer.
    pub(super) fn whole(mut self, whole: &Whole, totals: &Totals) -> Value {
        self.reason = whole.reason;
        let line = match &mut self.reader {
            None => self.line(&whole.text, None, &[]),
            Some(reader) => {
                let mut parts = Parts::default();
                reader.gather(&whole.text, &mut parts);
                reader.gather_rest(&mut parts);
                let text = parts.content.unwrap_or_default();
                self.line(&text, parts.reasoning.as_deref(), &parts.calls)
            }
        };
        self.ended(line, totals)
    }
}

fn of_call(call: &Call) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "id": call.id, "function": { "name": call.name, "arguments": arguments } })
}

impl Encoder for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";
    // Clients parse every line.
    const PING: &'static [u8] = b"";

    fn begin(&mut self, _: &mut Out) {}

    fn update(&mut self, update: Update, out: &mut Out) -> Option<usize> {
        match update {
            Update::PromptScores { .. } => {}
            Update::Tokens { text, .. } => self.push(text, out),
            Update::Finished { reason, text, .. } => {
                self.push(text, out);
                let rest = self.reader.as_mut().map(Reader::finish);
                self.pieces(rest.unwrap_or_default(), out);
                self.send_call(out);
                self.reason = Some(reason);
            }
        }
        None
    }

    fn end(&mut self, totals: &Totals, out: &mut Out) {
        let last = self.line("", None, &[]);
        out.line(&self.ended(last, totals));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.line(&json!({ "error": error.message }));
    }
}
