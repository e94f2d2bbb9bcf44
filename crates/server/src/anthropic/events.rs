//! Answers in Anthropic's form: blocks of content, whole or event by event.

use rocmforge_engine::{FinishReason, StopCause};
use serde_json::{Value, json};

use super::body;
use crate::http::error::ApiError;
use crate::http::stream::{Encoder, Out};
use crate::openai::usage::Timings;
use crate::serving::choices::{Totals, Update};
use crate::serving::reader::{Parts, Piece, Reader};

/// Returns the blocks of a whole answer.
pub(super) fn content(parts: Parts) -> Value {
    let mut blocks = Vec::new();
    if let Some(thinking) = parts.reasoning {
        blocks.push(json!({ "type": "thinking", "thinking": thinking, "signature": "" }));
    }
    if let Some(text) = parts.content {
        blocks.push(json!({ "type": "text", "text": text }));
    }
    for call in parts.calls {
        let input = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        blocks
            .push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    blocks.into()
}

/// Returns Anthropic's words for why an answer ended, and the stop sequence that ended it.
pub(super) fn stop(
    reader: &Reader,
    reason: Option<FinishReason>,
    stops: &[String],
) -> (&'static str, Option<String>) {
    match reason {
        _ if reader.waits_for_tools(reason) => ("tool_use", None),
        Some(FinishReason::Stop(StopCause::Text(i))) => ("stop_sequence", stops.get(i).cloned()),
        Some(FinishReason::Length | FinishReason::Context | FinishReason::Deadline) => {
            ("max_tokens", None)
        }
        _ => ("end_turn", None),
    }
}

/// Returns the counts of tokens. Those found in the cache are not part of the input.
pub(super) fn usage(totals: &Totals) -> Value {
    json!({
        "input_tokens": totals.prompt_tokens.saturating_sub(totals.cached_tokens),
        "cache_read_input_tokens": totals.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": totals.completion_tokens,
    })
}

/// The block that is being written.
#[derive(PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    /// The call with this index.
    Call(usize),
}

/// The events of a stream.
pub(super) struct MessageEvents {
    head: Value,
    reader: Reader,
    stops: Vec<String>,
    n_prompt: usize,
    /// Blocks so far.
    n_blocks: usize,
    open: Option<Open>,
    ended: (&'static str, Option<String>),
}

impl MessageEvents {
    pub(super) fn new(
        head: Value,
        reader: Reader,
        stops: Vec<String>,
        n_prompt: usize,
    ) -> MessageEvents {
        MessageEvents {
            head,
            reader,
            stops,
            n_prompt,
            n_blocks: 0,
            open: None,
            ended: ("end_turn", None),
        }
    }

    fn pieces(&mut self, pieces: Vec<Piece>, out: &mut Out) {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => {
                    let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                    self.open(Open::Thinking, block, out);
                    self.delta(json!({ "type": "thinking_delta", "thinking": text }), out);
                }
                Piece::Content(text) => {
                    self.open(Open::Text, json!({ "type": "text", "text": "" }), out);
                    self.delta(json!({ "type": "text_delta", "text": text }), out);
                }
                Piece::Call {
                    index,
                    head,
                    arguments,
                } => {
                    if let Some((id, name)) = head {
                        let block =
                            json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                        self.open(Open::Call(index), block, out);
                    }
                    if !arguments.is_empty() {
                        let delta =
                            json!({ "type": "input_json_delta", "partial_json": arguments });
                        self.delta(delta, out);
                    }
                }
            }
        }
    }

    /// Begins a block, unless it is open.
    fn open(&mut self, open: Open, block: Value, out: &mut Out) {
        if self.open.as_ref() == Some(&open) {
            return;
        }
        self.close(out);
        let event = json!({
            "type": "content_block_start",
            "index": self.n_blocks,
            "content_block": block,
        });
        out.event("content_block_start", &event);
        self.open = Some(open);
        self.n_blocks += 1;
    }

    fn delta(&self, delta: Value, out: &mut Out) {
        let event = json!({
            "type": "content_block_delta",
            "index": self.n_blocks - 1,
            "delta": delta,
        });
        out.event("content_block_delta", &event);
    }

    fn close(&mut self, out: &mut Out) {
        if self.open.take().is_some() {
            let event = json!({ "type": "content_block_stop", "index": self.n_blocks - 1 });
            out.event("content_block_stop", &event);
        }
    }

    fn finished(&mut self, reason: Option<FinishReason>, out: &mut Out) {
        let pieces = self.reader.finish();
        self.pieces(pieces, out);
        self.close(out);
        self.ended = stop(&self.reader, reason, &self.stops);
    }
}

impl Encoder for MessageEvents {
    fn begin(&mut self, out: &mut Out) {
        let mut message = self.head.clone();
        message["content"] = json!([]);
        message["stop_reason"] = Value::Null;
        message["stop_sequence"] = Value::Null;
        message["usage"] = json!({ "input_tokens": self.n_prompt, "output_tokens": 0 });
        let event = json!({ "type": "message_start", "message": message });
        out.event("message_start", &event);
    }

    fn update(&mut self, update: Update, out: &mut Out) -> Option<usize> {
        match update {
            Update::PromptScores { .. } => None,
            Update::Tokens { choice, text, .. } => {
                let pieces = self.reader.push(&text);
                self.pieces(pieces, out);
                if !self.reader.is_over() {
                    return None;
                }
                self.finished(None, out);
                Some(choice)
            }
            Update::Finished { reason, text, .. } => {
                let pieces = self.reader.push(&text);
                self.pieces(pieces, out);
                self.finished(Some(reason), out);
                None
            }
        }
    }

    fn end(&mut self, totals: &Totals, out: &mut Out) {
        let (reason, sequence) = &self.ended;
        let event = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(totals),
            "timings": Timings::new(totals),
        });
        out.event("message_delta", &event);
        out.event("message_stop", &json!({ "type": "message_stop" }));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Out) {
        out.event("error", &body(error));
    }
}

#[cfg(test)]
mod tests {
    use rocmforge_text::answer::{AnswerParser, Format};

    use super::*;
    use crate::serving::reader::Calls;

    /// Returns the names and data of the events of an answer that comes in pieces of `n` characters.
    fn stream(text: &str, n: usize, reason: FinishReason) -> Vec<(String, Value)> {
        let tools = [json!({"type": "function", "function": {"name": "weather"}})];
        let parser = AnswerParser::new(Format::by_name("hermes").unwrap(), "", &tools);
        let reader = Reader::new(parser, Calls::Any);
        let mut events = MessageEvents::new(json!({"id": "msg_1"}), reader, vec!["END".into()], 7);
        let mut out = Out::default();
        events.begin(&mut out);
        let chars: Vec<char> = text.chars().collect();
        for text in chars.chunks(n) {
            let update = Update::Tokens {
                choice: 0,
                tokens: Vec::new(),
                text: text.iter().collect(),
            };
            assert_eq!(events.update(update, &mut out), None);
        }
        let text = String::new();
        let update = Update::Finished {
            choice: 0,
            reason,
            text,
        };
        events.update(update, &mut out);
        let totals = Totals {
            prompt_tokens: 7,
            cached_tokens: 4,
            completion_tokens: 9,
            ..Totals::default()
        };
        events.end(&totals, &mut out);
        let bytes = out.take();
        let text = std::str::from_utf8(&bytes).unwrap();
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            (name.strip_prefix("event: ").unwrap().to_string(), data)
        };
        text.trim_end().split("\n\n").map(event).collect()
    }

    /// Joins the texts of the blocks, in order.
    fn blocks(events: &[(String, Value)]) -> Vec<(String, String)> {
        let mut blocks: Vec<(String, String)> = Vec::new();
        for (name, data) in events {
            match name.as_str() {
                "content_block_start" => {
                    assert_eq!(data["index"], blocks.len());
                    let kind = data["content_block"]["type"].as_str().unwrap();
                    blocks.push((kind.to_string(), String::new()));
                }
                "content_block_delta" => {
                    assert_eq!(data["index"], blocks.len() - 1);
                    let delta = &data["delta"];
                    let text = ["text", "thinking", "partial_json"]
                        .iter()
                        .find_map(|name| delta[*name].as_str());
                    blocks.last_mut().unwrap().1.push_str(text.unwrap());
                }
                _ => {}
            }
        }
        blocks
    }

    #[test]
    fn blocks_follow_each_other_however_the_text_is_cut() {
        let text = "<think>Look it up.</think>I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
        let eog = FinishReason::Stop(StopCause::Eog(2));
        for n in [1, 3, 1000] {
            let events = stream(text, n, eog);
            let kinds: Vec<(String, String)> = blocks(&events);
            let expected = [
                ("thinking", "Look it up."),
                ("text", "I look."),
                ("tool_use", "{\"city\": \"Paris\"}"),
            ];
            let expected = expected.map(|(kind, text)| (kind.to_string(), text.to_string()));
            assert_eq!(kinds, expected, "{n}");
            let n_of = |name: &str| events.iter().filter(|(other, _)| other == name).count();
            assert_eq!(n_of("content_block_start"), n_of("content_block_stop"));
            assert_eq!(events[0].0, "message_start");
            let [.., (_, delta), (last, _)] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!(last, "message_stop");
            assert_eq!(delta["delta"]["stop_reason"], "tool_use");
            assert_eq!(delta["usage"]["input_tokens"], 3);
            assert_eq!(delta["usage"]["output_tokens"], 9);
        }
    }

    #[test]
    fn the_stop_sequence_is_named() {
        let stopped = |reason| {
            let events = stream("Hello", 2, reason);
            events[events.len() - 2].1["delta"].clone()
        };
        let by_text = stopped(FinishReason::Stop(StopCause::Text(0)));
        assert_eq!(
            by_text,
            json!({"stop_reason": "stop_sequence", "stop_sequence": "END"})
        );
        let by_length = stopped(FinishReason::Length);
        assert_eq!(
            by_length,
            json!({"stop_reason": "max_tokens", "stop_sequence": null})
        );
    }
}
