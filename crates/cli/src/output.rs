//! Writes to stdout and stderr without panics: a closed stdout is [`Early::PipeClosed`], another failure of stdout is
//! an error, and failures of stderr are ignored.

use std::fs;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
pub use rocmforge_hub::display::size;
use serde::Serialize;

use crate::exit::Early;
use crate::wrap::{self, Wrap};

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

    /// Writes and flushes generated text. On a terminal, control characters are escaped, so that the text cannot move
    /// the cursor or change the title; a pipe gets the text unchanged.
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

    /// Writes a line.
    pub fn line(&mut self, line: &str) -> Result<()> {
        checked(writeln!(self.stdout, "{line}"))
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        checked(self.stdout.write_all(bytes))
    }

    /// Writes a JSON value, indented on a terminal and on one line elsewhere.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = match self.is_terminal {
            true => serde_json::to_string_pretty(value),
            false => serde_json::to_string(value),
        };
        self.line(&escape_json(&text.context("cannot write JSON")?))
    }

    /// Flushes what was written so far.
    pub fn flush(&mut self) -> Result<()> {
        checked(self.stdout.flush())
    }

    /// Flushes at the end of a command.
    pub fn finish(mut self) -> Result<()> {
        checked(self.stdout.flush())
    }
}

/// Escapes the control characters that JSON allows in strings (U+007F to U+009F), since terminals may interpret them.
/// They occur nowhere else in JSON.
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

/// Converts the result of a write to stdout.
pub fn checked(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Early::PipeClosed.into()),
        other => other.context("cannot write the output"),
    }
}

/// Returns whether stdout and stderr are the same file or pipe, as after `2>&1`.
pub fn are_one() -> bool {
    let id = |name: &str| {
        let file = fs::metadata(format!("/proc/self/fd/{name}")).ok()?;
        Some((file.dev(), file.ino()))
    };
    id("1").is_some_and(|of_stdout| Some(of_stdout) == id("2"))
}

static QUIET: AtomicBool = AtomicBool::new(false);

/// Makes [`note`] print nothing from now on, and hides progress.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Returns whether notes and progress are hidden.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes a line to stderr, unless told to be quiet, and ignores failures.
pub fn note(line: &str) {
    if !is_quiet() {
        say(line);
    }
}

/// Writes a line to stderr in any case, such as an error or what the user asked for, and ignores failures.
pub fn say(line: &str) {
    let width = wrap::terminal_width(&io::stderr());
    let mut wrap = Wrap::default();
    let line = wrap.push(line, width) + &wrap.end(width);
    let _ = writeln!(io::stderr(), "{line}");
}

/// Escapes control characters except line breaks and tabs.
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
    fn escapes_control_characters_for_terminals() {
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
    fn escaping_keeps_json_values() {
        let value = serde_json::json!({"a\u{9b}": "\u{7f}\n\u{1b}é"});
        let text = escape_json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }
}
