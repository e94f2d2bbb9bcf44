//! Reads answers of messages with headers, such as
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>`. What headers mean, a [`Dialect`]
//! says.

use super::cursor::{Cursor, Read, Stop};
use super::formats::WholeCall;
use super::json::{Progress, Scanner};
use super::tools::Tools;
use super::{CallDelta, Delta, MAX_CALL_BYTES};

/// The end of a header.
pub(super) const MESSAGE: &str = "<|message|>";
/// The beginning of a message after another one.
pub(super) const START: &str = "<|start|>";

/// Longer headers are none.
const MAX_HEADER_BYTES: usize = 1 << 10;

/// How a family writes messages.
pub(super) struct Dialect {
    /// How a header may begin.
    pub(super) headers: &'static [&'static str],
    /// What ends a message and belongs to it.
    pub(super) ends: &'static [&'static str],
    /// What ends a message and begins the next one.
    pub(super) begins: &'static [&'static str],
    /// What stands before an answer of a given structure.
    pub(super) answer: Option<&'static BeforeAnswer>,
    /// What the message with this header has.
    pub(super) body: fn(&str, &Tools) -> Body,
}

/// The text before the message that is the answer.
pub(super) struct BeforeAnswer {
    /// How the header of that message may end.
    pub(super) ends: &'static [&'static str],
    /// What begins a message to a tool.
    pub(super) breaks: &'static [&'static str],
}

/// What a message has.
pub(super) enum Body {
    Reasoning,
    Content,
    /// Text to drop.
    Dropped,
    /// The arguments of a call of this tool, in JSON.
    Arguments(String),
    /// Calls to convert.
    Calls(ReadCalls),
}

type ReadCalls = fn(&mut Cursor<'_>, &Tools) -> Read<Vec<WholeCall>>;

pub(super) struct Messages {
    dialect: &'static Dialect,
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
    /// Calls to convert; they are tried again when the text has this length.
    Calls {
        read: ReadCalls,
        retry: usize,
    },
    /// Text to drop.
    Dropped,
}

impl Messages {
    pub(super) fn new(dialect: &'static Dialect, prompt: &str, tools: Tools) -> Self {
        let mut messages = Messages {
            dialect,
            tools,
            text: String::new(),
            at: At::Header,
            n_calls: 0,
        };
        // A prompt may begin the message.
        if let Some(before) = prompt.strip_suffix(MESSAGE) {
            let start = before.rfind(START).unwrap_or(0);
            messages.at = messages.message(&before[start..], &mut Vec::new());
        }
        messages
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
            At::Calls { .. } if !text.is_empty() => out.push(Delta::Unfinished(text)),
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
            At::Calls { read, retry } => {
                let (read, retry) = (*read, *retry);
                let is_due = ended || self.text.len() >= retry;
                is_due && self.calls(read, out)
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
        let mut headers = self.dialect.headers.iter();
        let begin = headers.clone().find(|header| text.starts_with(**header));
        if begin.is_none() && headers.any(|header| header.starts_with(text)) {
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
        match (self.dialect.body)(header, &self.tools) {
            Body::Reasoning => At::Reasoning,
            Body::Content => At::Content,
            Body::Dropped => At::Dropped,
            Body::Calls(read) => At::Calls { read, retry: 0 },
            Body::Arguments(name) => {
                out.push(Delta::Call(CallDelta {
                    index: self.n_calls,
                    name: Some(name),
                    ..CallDelta::default()
                }));
                At::Arguments(Scanner::new())
            }
        }
    }

    /// Reads the calls of a message, which must be complete before it ends.
    fn calls(&mut self, read: ReadCalls, out: &mut Vec<Delta>) -> bool {
        if self.text.is_empty() {
            return false;
        }
        let end = self.end().map(|(at, _)| at);
        let mut text = Cursor::new(&self.text[..end.unwrap_or(self.text.len())]);
        let is_long = self.text.len() > MAX_CALL_BYTES;
        match read(&mut text, &self.tools) {
            Ok(calls) if text.at() <= MAX_CALL_BYTES => {
                let len = text.at();
                self.take(len);
                for call in calls {
                    out.push(Delta::Call(CallDelta {
                        index: self.n_calls,
                        id: None,
                        name: Some(call.name),
                        arguments: call.arguments,
                    }));
                    self.end_call(true, out);
                }
                self.at = At::Dropped;
                true
            }
            Err(Stop::Incomplete) if end.is_none() && !is_long => {
                // Long calls are not read again for every piece of text.
                let retry = self.text.len() + self.text.len() / 8;
                self.at = At::Calls { read, retry };
                false
            }
            _ => {
                self.at = At::Content;
                true
            }
        }
    }

    /// Returns the place and the text of the first end of the message.
    fn end(&self) -> Option<(usize, &'static str)> {
        let found = self.ends();
        let found = found.filter_map(|end| Some((self.text.find(end)?, end)));
        found.min()
    }

    fn ends(&self) -> impl Iterator<Item = &'static str> + use<> {
        let Dialect { ends, begins, .. } = self.dialect;
        ends.iter().chain(begins.iter()).copied()
    }

    /// Reads text up to the end of the message.
    fn body(
        &mut self,
        kind: Option<fn(String) -> Delta>,
        ended: bool,
        out: &mut Vec<Delta>,
    ) -> bool {
        let found = self.end();
        let len = match found {
            Some((at, _)) => at,
            None if ended => self.text.len(),
            None => {
                let overlap = |end: &str| {
                    let longest = self.text.len().min(end.len() - 1);
                    (1..=longest)
                        .rev()
                        .find(|&n| self.text.ends_with(&end[..n]))
                };
                self.text.len() - self.ends().filter_map(overlap).max().unwrap_or(0)
            }
        };
        let text = self.take(len);
        if let Some(kind) = kind.filter(|_| len > 0) {
            out.push(kind(text));
        }
        if let Some((_, end)) = found {
            if !self.dialect.begins.contains(&end) {
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
pub(super) fn recipient(header: &str) -> Option<&str> {
    let (_, after) = header.split_once("to=")?;
    Some(word(after))
}

/// Returns the text up to white space or a mark.
pub(super) fn word(text: &str) -> &str {
    let end = text.find(|c: char| c.is_whitespace() || c == '<');
    &text[..end.unwrap_or(text.len())]
}
