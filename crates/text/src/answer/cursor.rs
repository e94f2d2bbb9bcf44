//! A place in the text of a call, and how to read on from there.

use super::json::{Progress, Scanner};

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The text so far can be a call; more is needed.
    Incomplete,
    /// It is no call.
    NotACall,
}

pub(super) type Read<T> = Result<T, Stop>;

/// Deeper values are no arguments.
const MAX_DEPTH: usize = 64;

/// Longer names and ids are none.
const MAX_LABEL_BYTES: usize = 512;

/// A place in a text.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Cursor {
            text,
            at: 0,
            depth: 0,
        }
    }

    /// Returns how many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// Returns the text read since `start`.
    pub(super) fn since(&self, start: usize) -> &'t str {
        &self.text[start..self.at]
    }

    pub(super) fn skip(&mut self, n_bytes: usize) {
        self.at += n_bytes;
    }

    /// Skips white space.
    pub(super) fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Returns the next character without reading it.
    pub(super) fn peek(&self) -> Read<char> {
        self.rest().chars().next().ok_or(Stop::Incomplete)
    }

    /// Returns whether the next characters are `literal`; reads them if they are.
    pub(super) fn take(&mut self, literal: &str) -> Read<bool> {
        let rest = self.rest();
        if rest.starts_with(literal) {
            self.at += literal.len();
            return Ok(true);
        }
        match literal.starts_with(rest) {
            true => Err(Stop::Incomplete),
            false => Ok(false),
        }
    }

    /// Reads `literal`.
    pub(super) fn expect(&mut self, literal: &str) -> Read<()> {
        match self.take(literal)? {
            true => Ok(()),
            false => Err(Stop::NotACall),
        }
    }

    /// Returns the text before the first of `ends`, which is not read.
    pub(super) fn until(&mut self, ends: &[&str]) -> Read<&'t str> {
        let rest = self.rest();
        let first = ends.iter().filter_map(|end| rest.find(end)).min();
        let len = first.ok_or(Stop::Incomplete)?;
        self.at += len;
        Ok(&rest[..len])
    }

    /// As [`Cursor::until`], for names and ids, which are short.
    pub(super) fn label(&mut self, ends: &[&str]) -> Read<&'t str> {
        let long = self.rest().len() > MAX_LABEL_BYTES;
        match self.until(ends) {
            Ok(label) if label.len() <= MAX_LABEL_BYTES => Ok(label.trim()),
            Err(Stop::Incomplete) if !long => Err(Stop::Incomplete),
            _ => Err(Stop::NotACall),
        }
    }

    /// Reads a JSON value; returns its text.
    pub(super) fn json(&mut self) -> Read<&'t str> {
        let start = self.at;
        match Scanner::new().read(self.rest().as_bytes()) {
            Progress::More => Err(Stop::Incomplete),
            Progress::Bad(_) => Err(Stop::NotACall),
            Progress::Done(len) => {
                self.at += len;
                Ok(self.since(start))
            }
        }
    }

    /// Reads a JSON string; returns its value.
    pub(super) fn string(&mut self) -> Read<String> {
        if self.peek()? != '"' {
            return Err(Stop::NotACall);
        }
        serde_json::from_str(self.json()?).map_err(|_| Stop::NotACall)
    }

    /// Reads what `read` reads, unless it is too deep inside other values.
    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        self.depth += 1;
        let result = match self.depth > MAX_DEPTH {
            true => Err(Stop::NotACall),
            false => read(self),
        };
        self.depth -= 1;
        result
    }

    /// Reads values between commas up to `close`, after the opening character. Spaces and a comma before `close` are
    /// skipped.
    pub(super) fn list(
        &mut self,
        close: char,
        mut value: impl FnMut(&mut Self) -> Read<()>,
    ) -> Read<()> {
        loop {
            self.space();
            if self.peek()? == close {
                self.at += close.len_utf8();
                return Ok(());
            }
            self.deeper(&mut value)?;
            self.space();
            match self.peek()? {
                ',' => self.at += 1,
                c if c == close => {}
                _ => return Err(Stop::NotACall),
            }
        }
    }
}

/// Adds a member to the text of a JSON object without its closing brace.
pub(super) fn add_member(object: &mut String, key: &str, json: &str) {
    object.push(if object.is_empty() { '{' } else { ',' });
    object.push_str(&serde_json::Value::from(key).to_string());
    object.push(':');
    object.push_str(json);
}

/// Ends the text of a JSON object.
pub(super) fn end_object(mut object: String) -> String {
    if object.is_empty() {
        object.push('{');
    }
    object.push('}');
    object
}
