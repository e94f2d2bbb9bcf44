//! A response as a stream of events.

use std::sync::Arc;

use rocmforge_engine::FinishReason;
use serde_json::{Value, json};

use super::output::{Response, call, message, part, reasoning};
use super::store::Kept;
use crate::app::App;
use crate::http::error::ApiError;
use crate::http::stream::{Encoder, Out};
use crate::serving::choices::{Totals, Update};
use crate::serving::reader::Piece;

/// The item that is being written.
enum Open {
    Reasoning {
        id: String,
        text: String,
    },
    Message {
        id: String,
        text: String,
    },
    Call {
        index: usize,
        id: String,
        call_id: String,
        name: String,
        arguments: String,
    },
}

/// The events of a response.
pub(super) struct ResponseEvents {
    response: Response,
    app: Arc<App>,
    kept: Kept,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Open>,
    reason: Option<FinishReason>,
    n_events: u64,
}

impl ResponseEvents {
    pub(super) fn new(response: Response, app: Arc<App>, kept: Kept) -> ResponseEvents {
        ResponseEvents {
            response,
            app,
            kept,
            output: Vec::new(),
            open: None,
            reason: None,
            n_events: 0,
        }
    }

    fn send(&mut self, kind: &str, mut event: Value, out: &mut Out) {
        event["type"] = kind.into();
        event["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        out.event(kind, &event);
    }

    /// Sends an event about the item that is being written.
    fn about_item(&mut self, kind: &str, id: &str, mut event: Value, out: &mut Out) {
        event["item_id"] = id.into();
        event["output_index"] = self.output.len().into();
        self.send(kind, event, out);
    }

    fn added(&mut self, item: &Value, out: &mut Out) {
        let event = json!({ "output_index": self.output.len(), "item": item });
        self.send("response.output_item.added", event, out);
    }

    fn pieces(&mut self, pieces: Vec<Piece>, out: &mut Out) {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => self.reasoning(&text, out),
                Piece::Content(text) => self.content(&text, out),
                Piece::Call {
                    index,
                    head,
                    arguments,
                } => self.call(index, head, &arguments, out),
            }
        }
    }

    fn reasoning(&mut self, delta: &str, out: &mut Out) {
        if !matches!(self.open, Some(Open::Reasoning { .. })) {
            self.close(out);
            let id = self.response.item_id("rs", self.output.len());
            self.added(&reasoning(&id, "", "in_progress"), out);
            let text = String::new();
            self.open = Some(Open::Reasoning { id, text });
        }
        if let Some(Open::Reasoning { id, text }) = &mut self.open {
            text.push_str(delta);
            let id = id.clone();
            let event = json!({ "content_index": 0, "delta": delta });
            self.about_item("response.reasoning_text.delta", &id, event, out);
        }
    }

    fn content(&mut self, delta: &str, out: &mut Out) {
        if !matches!(self.open, Some(Open::Message { .. })) {
            self.close(out);
            let id = self.response.item_id("msg", self.output.len());
            self.added(&message(&id, json!([]), "in_progress"), out);
            let event = json!({ "content_index": 0, "part": part("") });
            self.about_item("response.content_part.added", &id, event, out);
            let text = String::new();
            self.open = Some(Open::Message { id, text });
        }
        if let Some(Open::Message { id, text }) = &mut self.open {
            text.push_str(delta);
            let id = id.clone();
            let event = json!({ "content_index": 0, "delta": delta, "logprobs": [] });
            self.about_item("response.output_text.delta", &id, event, out);
        }
    }

    fn call(&mut self, index: usize, head: Option<(String, String)>, delta: &str, out: &mut Out) {
        if let Some((call_id, name)) = head {
            self.close(out);
            let id = self.response.item_id("fc", self.output.len());
            self.added(&call(&id, &call_id, &name, "", "in_progress"), out);
            let arguments = String::new();
            self.open = Some(Open::Call {
                index,
                id,
                call_id,
                name,
                arguments,
            });
        }
        if let Some(Open::Call {
            index: open,
            id,
            arguments,
            ..
        }) = &mut self.open
            && *open == index
            && !delta.is_empty()
        {
            arguments.push_str(delta);
            let id = id.clone();
            let event = json!({ "delta": delta });
            self.about_item("response.function_call_arguments.delta", &id, event, out);
        }
    }

    /// Completes the item that is being written.
    fn close(&mut self, out: &mut Out) {
        let Some(open) = self.open.take() else {
            return;
        };
        let item = match open {
            Open::Reasoning { id, text } => {
                let event = json!({ "content_index": 0, "text": text });
                self.about_item("response.reasoning_text.done", &id, event, out);
                reasoning(&id, &text, "completed")
            }
            Open::Message { id, text } => {
                let event = json!({ "content_index": 0, "text": text, "logprobs": [] });
                self.about_item("response.output_text.done", &id, event, out);
                let event = json!({ "content_index": 0, "part": part(&text) });
                self.about_item("response.content_part.done", &id, event, out);
                message(&id, json!([part(&text)]), "completed")
            }
            Open::Call {
                id,
                call_id,
                name,
                arguments,
                ..
            } => {
                let event = json!({ "name": name, "arguments": arguments });
                self.about_item("response.function_call_arguments.done", &id, event, out);
                call(&id, &call_id, &name, &arguments, "completed")
            }
        };
        let event = json!({ "output_index": self.output.len(), "item": item });
        self.send("response.output_item.done", event, out);
        self.output.push(item);
    }

    fn finished(&mut self, reason: Option<FinishReason>, out: &mut Out) {
        let pieces = self.response.reader.finish();
        self.pieces(pieces, out);
        self.close(out);
        self.reason = reason;
    }
}

impl Encoder for ResponseEvents {
    fn begin(&mut self, out: &mut Out) {
        let response = self.response.begun();
        self.send("response.created", json!({ "response": response }), out);
        self.send("response.in_progress", json!({ "response": response }), out);
    }

    fn update(&mut self, update: Update, out: &mut Out) -> Option<usize> {
        match update {
            Update::PromptScores { .. } => None,
            Update::Tokens { choice, text, .. } => {
                let pieces = self.response.reader.push(&text);
                self.pieces(pieces, out);
                if !self.response.reader.is_over() {
                    return None;
                }
                self.finished(None, out);
                Some(choice)
            }
            Update::Finished { reason, text, .. } => {
                let pieces = self.response.reader.push(&text);
                self.pieces(pieces, out);
                self.finished(Some(reason), out);
                None
            }
        }
    }

    fn end(&mut self, totals: &Totals, out: &mut Out) {
        let output = std::mem::take(&mut self.output);
        let body = self.response.ended(output, self.reason, totals);
        self.app.responses.keep(&self.kept, &body);
        let kind = format!(
            "response.{}",
            body["status"].as_str().unwrap_or("completed")
        );
        self.send(&kind, json!({ "response": body }), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        let mut response = self.response.begun();
        response["status"] = "failed".into();
        response["error"] = json!({
            "code": error.code.unwrap_or("server_error"),
            "message": error.message,
        });
        self.send("response.failed", json!({ "response": response }), out);
    }
}
