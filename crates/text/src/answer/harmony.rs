//! Reads answers in harmony, the format of gpt-oss: messages such as
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`.
//!
//! After <https://cookbook.openai.com/articles/openai-harmony>. The recipient may stand before or after the channel. What
//! is sent to a built-in tool (`python`, `browser.search`) is dropped, as llama.cpp does.

use super::json::{Progress, Scanner};
use super::tools::Tools;
use super::{CallDelta, Delta};

const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";

/// What ends a message; the last two begin the next one, too.
const ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", START, CHANNEL];

/// How a header begins.
const HEADERS: [&str; 6] = [START, CHANNEL, MESSAGE, "<|constrain|>", " to=", "to="];

/// Longer headers are none.
const MAX_HEADER_BYTES: usize = 1 << 10;

pub(super) struct Harmony {
    tools: Tools,
    text: String,
    at: At,
    n_calls: usize,
}

/// What the next text is.
enum At {
    Header,
    Reasoning,
    Content,
    Arguments(Scanner),
    /// Text to drop.
    Dropped,
}

impl Harmony {
    pub(super) fn new(prompt: &str, tools: Tools) -> Self {
        let mut harmony = Harmony {
            tools,
            text: String::new(),
            at: At::Header,
            n_calls: 0,
        };
        // A prompt may begin the message.
        if let Some(before) = prompt.strip_suffix(MESSAGE) {
            let start = before.rfind(START).unwrap_or(0);
            harmony.at = harmony.message(&before[start..], &mut Vec::new());
        }
        harmony
    }

    pub(super) fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.text.push_str(text);
        while self.step(false, out) {}
    }

    pub(super) fn finish(&mut self, out: &mut Vec<Delta>) {
        while self.step(true, out) {}
        let text = std::mem::take(&mut self.text);
        match std::mem::replace(&mut self.at, At::Header) {
            At::Arguments(_) => self.end_call(false, out),
            At::Header if recipient(&text).is_some() => out.push(Delta::Unfinished(text)),
            At::Header if !text.is_empty() && !text.starts_with("<|") => {
                out.push(Delta::Content(text));
            }
            _ => {}
        }
    }

    fn step(&mut self, ended: bool, out: &mut Vec<Delta>) -> bool {
        match &mut self.at {
            At::Header => self.header(out),
            At::Arguments(scanner) => {
                if self.text.is_empty() {
                    return false;
                }
                let (len, done) = match scanner.read(self.text.as_bytes()) {
                    Progress::More => (self.text.len(), None),
                    Progress::Done(len) => (len, Some(true)),
                    Progress::Bad(at) => (at, Some(false)),
                };
                let arguments = self.take(len);
                if !arguments.is_empty() {
                    out.push(Delta::Call(CallDelta {
                        index: self.n_calls,
                        arguments,
                        ..CallDelta::default()
                    }));
                }
                if let Some(complete) = done {
                    self.end_call(complete, out);
                    self.at = At::Dropped;
                }
                true
            }
            At::Reasoning => self.body(Some(Delta::Reasoning), ended, out),
            At::Content => self.body(Some(Delta::Content), ended, out),
            At::Dropped => self.body(None, ended, out),
        }
    }

    /// Reads a header; text that is none is content.
    fn header(&mut self, out: &mut Vec<Delta>) -> bool {
        if self.text.is_empty() {
            return false;
        }
        let text = self.text.as_str();
        let begin = HEADERS.iter().find(|header| text.starts_with(**header));
        if begin.is_none() && HEADERS.iter().any(|header| header.starts_with(text)) {
            return false;
        }
        let end = text.find(MESSAGE);
        let known = end.unwrap_or(text.len().saturating_sub(MESSAGE.len()));
        match end {
            _ if begin.is_none() || known > MAX_HEADER_BYTES => {
                self.at = At::Content;
                // The mark would begin a header again.
                let mark = self.take(begin.map_or(0, |mark| mark.len()));
                if !mark.is_empty() {
                    out.push(Delta::Content(mark));
                }
            }
            None => return false,
            Some(end) => {
                let header = self.take(end + MESSAGE.len());
                self.at = self.message(&header[..end], out);
            }
        }
        true
    }

    /// Returns what the message with this header has; begins a call.
    fn message(&mut self, header: &str, out: &mut Vec<Delta>) -> At {
        let name = match recipient(header) {
            Some(to) => to.strip_prefix("functions.").ok_or(to),
            None => Err("assistant"),
        };
        let channel = header
            .rsplit_once(CHANNEL)
            .map_or("", |(_, after)| word(after));
        match name {
            Ok(name) if self.tools.has(name) => {
                out.push(Delta::Call(CallDelta {
                    index: self.n_calls,
                    name: Some(name.to_owned()),
                    ..CallDelta::default()
                }));
                At::Arguments(Scanner::new())
            }
            Err(to) if to != "assistant" => At::Dropped,
            _ if channel == "analysis" => At::Reasoning,
            _ => At::Content,
        }
    }

    /// Reads text up to the end of the message.
    fn body(
        &mut self,
        kind: Option<fn(String) -> Delta>,
        ended: bool,
        out: &mut Vec<Delta>,
    ) -> bool {
        let found = ENDS
            .iter()
            .filter_map(|end| Some((self.text.find(end)?, *end)))
            .min();
        let len = match found {
            Some((at, _)) => at,
            None if ended => self.text.len(),
            None => {
                let overlap = |end: &&str| {
                    let longest = self.text.len().min(end.len() - 1);
                    (1..=longest)
                        .rev()
                        .find(|&n| self.text.ends_with(&end[..n]))
                };
                self.text.len() - ENDS.iter().filter_map(overlap).max().unwrap_or(0)
            }
        };
        let text = self.take(len);
        if let Some(kind) = kind.filter(|_| len > 0) {
            out.push(kind(text));
        }
        if let Some((_, end)) = found {
            if end != START && end != CHANNEL {
                self.take(end.len());
            }
            self.at = At::Header;
        }
        found.is_some() || len > 0
    }

    /// Removes the first bytes of the text.
    fn take(&mut self, len: usize) -> String {
        let rest = self.text.split_off(len);
        std::mem::replace(&mut self.text, rest)
    }

    fn end_call(&mut self, complete: bool, out: &mut Vec<Delta>) {
        out.push(Delta::CallEnd {
            index: self.n_calls,
            complete,
        });
        self.n_calls += 1;
    }
}

/// Returns who a header sends the message to.
fn recipient(header: &str) -> Option<&str> {
    let (_, after) = header.split_once("to=")?;
    Some(word(after))
}

/// Returns the text up to white space or a mark.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace() || c == '<');
    &text[..end.unwrap_or(text.len())]
}
