//! Input of a chat: a line editor on a terminal, plain lines from a pipe, with messages of several lines in both.

use std::env;
use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Behavior, Config, Editor};

use crate::output;

/// A source of messages.
pub enum Lines {
    Editor {
        editor: Box<Editor<(), FileHistory>>,
        history: Option<PathBuf>,
    },
    Plain,
}

/// One input.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    Message(String),
    /// Ctrl-C at the prompt: the line is discarded.
    GivenUp,
    /// Ctrl-D or end of file.
    End,
}

/// Whether the input history is saved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Remember {
    Yes,
    No,
}

const FIRST: &str = "> ";
const NEXT: &str = ". ";
/// Starts and ends a message of several lines.
const FENCE: &str = "\"\"\"";

impl Lines {
    /// Opens stdin, with line editing if it is a terminal.
    pub fn open(remember: Remember) -> Result<Lines> {
        if !io::stdin().is_terminal() {
            return Ok(Lines::Plain);
        }
        // The editor opens the terminal itself, as stdout may be a file.
        let config = Config::builder()
            .behavior(Behavior::PreferTerm)
            .auto_add_history(false)
            .build();
        let mut editor: Editor<(), FileHistory> =
            Editor::with_config(config).context("cannot use the terminal for line editing")?;
        let history = if remember == Remember::Yes {
            history_file()
        } else {
            None
        };
        if let Some(path) = &history
            && path.exists()
            && let Err(error) = editor.load_history(path)
        {
            output::note(&format!(
                "notice: cannot read the history {}: {error}",
                path.display()
            ));
        }
        Ok(Lines::Editor {
            editor: Box::new(editor),
            history,
        })
    }

    pub fn is_interactive(&self) -> bool {
        matches!(self, Lines::Editor { .. })
    }

    /// Reads the next message.
    pub fn next(&mut self) -> Result<Input> {
        let input = assemble(&mut |prompt| self.line(prompt))?;
        if let (Lines::Editor { editor, history }, Input::Message(message)) = (&mut *self, &input) {
            // A full disk or a read-only home directory must not end the chat.
            let _ = editor.add_history_entry(message.as_str());
            if let Some(path) = history {
                let _ = editor.append_history(path);
            }
        }
        Ok(input)
    }

    /// Asks a question; only y and yes agree.
    pub fn confirm(&mut self, question: &str) -> Result<bool> {
        match self.line(question)? {
            Input::Message(answer) => Ok(matches!(answer.trim(), "y" | "Y" | "yes")),
            Input::GivenUp | Input::End => Ok(false),
        }
    }

    fn line(&mut self, prompt: &str) -> Result<Input> {
        match self {
            Lines::Editor { editor, .. } => match editor.readline(prompt) {
                Ok(line) => Ok(Input::Message(line)),
                Err(ReadlineError::Interrupted) => Ok(Input::GivenUp),
                Err(ReadlineError::Eof) => Ok(Input::End),
                Err(error) => Err(anyhow!(error).context("cannot read from the terminal")),
            },
            Lines::Plain => {
                let mut bytes = Vec::new();
                let n = io::stdin()
                    .lock()
                    .take(MAX_LINE_BYTES)
                    .read_until(b'\n', &mut bytes)
                    .context("cannot read stdin")?;
                if n == 0 {
                    return Ok(Input::End);
                }
                if n as u64 == MAX_LINE_BYTES {
                    return Err(anyhow!(
                        "a chat line is longer than 16 MiB; use generate -f"
                    ));
                }
                let mut line =
                    String::from_utf8(bytes).context("a chat line is not valid UTF-8")?;
                let end = line.trim_end_matches(['\n', '\r']).len();
                line.truncate(end);
                Ok(Input::Message(line))
            }
        }
    }
}

/// Longest line of a piped chat.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Joins lines that end with a backslash, and lines between fences, into a message.
fn assemble(line: &mut dyn FnMut(&str) -> Result<Input>) -> Result<Input> {
    let first = match line(FIRST)? {
        Input::Message(first) => first,
        other => return Ok(other),
    };
    if let Some(rest) = first.trim_start().strip_prefix(FENCE) {
        if let Some(whole) = rest.trim_end().strip_suffix(FENCE) {
            return Ok(Input::Message(whole.to_string()));
        }
        let mut message = rest.to_string();
        loop {
            match line(NEXT)? {
                Input::Message(next) => {
                    if !message.is_empty() {
                        message.push('\n');
                    }
                    if let Some(last) = next.trim_end().strip_suffix(FENCE) {
                        message.push_str(last);
                        return Ok(Input::Message(message.trim_end_matches('\n').to_string()));
                    }
                    message.push_str(&next);
                }
                Input::GivenUp => return Ok(Input::GivenUp),
                Input::End => return Ok(Input::Message(message)),
            }
        }
    }
    let mut message = first;
    while message.ends_with('\\') {
        message.pop();
        match line(NEXT)? {
            Input::Message(next) => {
                message.push('\n');
                message.push_str(&next);
            }
            Input::GivenUp => return Ok(Input::GivenUp),
            Input::End => break,
        }
    }
    Ok(Input::Message(message))
}

/// Returns the history file in the XDG state directory: `~/.local/state/rocmforge/chat_history`.
fn history_file() -> Option<PathBuf> {
    let state = match env::var_os("XDG_STATE_HOME").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(env::var_os("HOME").filter(|home| !home.is_empty())?).join(".local/state")
        }
    };
    let dir = state.join("rocmforge");
    fs::create_dir_all(&dir).ok()?;
    Some(dir.join("chat_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lines: &[&str]) -> Vec<String> {
        let mut rest = lines.iter();
        let mut line = |_: &str| {
            Ok(rest
                .next()
                .map_or(Input::End, |line| Input::Message(line.to_string())))
        };
        let mut messages = Vec::new();
        while let Input::Message(message) = assemble(&mut line).unwrap() {
            messages.push(message);
        }
        messages
    }

    #[test]
    fn joins_lines_into_messages() {
        let cases: [(&[&str], &[&str]); 8] = [
            (&["one", "two"], &["one", "two"]),
            (&["one\\", "two", "three"], &["one\ntwo", "three"]),
            (&["one\\"], &["one"]),
            (&["\"\"\"", "a", "", "b", "\"\"\"", "c"], &["a\n\nb", "c"]),
            (&["\"\"\"a", "b\"\"\""], &["a\nb"]),
            (&["\"\"\"a\"\"\""], &["a"]),
            (&["\"\"\"a", "b"], &["a\nb"]),
            (&["", "x"], &["", "x"]),
        ];
        for (lines, expected) in cases {
            assert_eq!(all(lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn ctrl_c_discards_the_whole_message() {
        let mut inputs = [Input::Message("a\\".into()), Input::GivenUp].into_iter();
        let input = assemble(&mut |_| Ok(inputs.next().unwrap())).unwrap();
        assert_eq!(input, Input::GivenUp);
        assert_eq!(
            assemble(&mut |_| Ok(Input::GivenUp)).unwrap(),
            Input::GivenUp
        );
    }
}
