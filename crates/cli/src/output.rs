//! Writing to stdout and stderr without panics: a closed pipe is [`Early::PipeClosed`], any other
//! failure of stdout an error, and stderr is best effort.

use std::io::{self, ErrorKind, IsTerminal as _, Write};

use anyhow::{Context as _, Result};
pub use rocmforge_hub::display::size;
use serde::Serialize;

use crate::exit::Early;

/// The program's stdout.
pub struct Out {
    stdout: io::StdoutLock<'static>,
    is_terminal: bool,
}

impl Out {
    pub fn new() -> Out {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Out {
            stdout: stdout.lock(),
            is_terminal,
        }
    }

    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes text that a model made and shows it at once. A terminal gets control characters escaped, so
    /// that a text cannot move the cursor or change the title; a pipe gets the text as it is.
    pub fn stream(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let written = match self.is_terminal {
            true => self.stdout.write_all(for_terminal(text).as_bytes()),
            false => self.stdout.write_all(text.as_bytes()),
        };
        checked(written.and_then(|()| self.stdout.flush()))
    }

    /// Writes a line of our own.
    pub fn line(&mut self, line: &str) -> Result<()> {
        checked(writeln!(self.stdout, "{line}"))
    }

    /// Writes what is of our own making and has its line breaks.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        checked(self.stdout.write_all(bytes))
    }

    /// Writes one JSON value, on lines of its own for a person and on one line for a program.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = match self.is_terminal {
            true => serde_json::to_string_pretty(value),
            false => serde_json::to_string(value),
        };
        self.line(&escape_json(&text.context("cannot write JSON")?))
    }

    /// What was written so far must arrive now.
    pub fn flush(&mut self) -> Result<()> {
        checked(self.stdout.flush())
    }

    /// Everything written so far must arrive; call it at the end.
    pub fn finish(mut self) -> Result<()> {
        checked(self.stdout.flush())
    }
}

/// `json` with those control characters escaped too that JSON allows in strings (U+007F to U+009F): a
/// terminal may obey them. They occur nowhere else in it.
pub fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => out.push(c),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// Turns the failure of a write to stdout into the program's error.
pub fn checked(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Early::PipeClosed.into()),
        other => other.context("cannot write the output"),
    }
}

/// Writes a line to stderr. Who closed it does not want to know.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Escapes what a terminal would obey, except line breaks and tabs.
pub fn for_terminal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_not_commanded() {
        for (text, expected) in [
            ("plain\n\ttext", "plain\n\ttext"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("a\rb\u{9b}2J", "a\\rb\\u{9b}2J"),
            ("é 模型", "é 模型"),
        ] {
            assert_eq!(for_terminal(text), expected);
        }
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({"a\u{9b}": "\u{7f}\n\u{1b}é"});
        let text = escape_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }
}
