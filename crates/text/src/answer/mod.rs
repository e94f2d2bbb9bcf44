//! Reads a model's answer: reasoning, content and calls of tools, from text that comes in pieces.
//!
//! Every family writes them in its own way; a file in `formats` describes each, and [`Format::of_template`] chooses by the
//! text of the chat template. An [`AnswerParser`] gives the same result for every way to cut the text, and never holds
//! more than a mark's beginning, the head of a call, or a call of [`MAX_CALL_BYTES`].
//!
//! A call is recognized when its name is known and its arguments have begun. Until then the text may turn out to be
//! content, which it stays. Arguments that are JSON are passed on as they come; others are converted when the call is
//! complete.

mod calls;
mod cursor;
mod formats;
mod json;
mod machine;
mod messages;
mod tools;

use formats::{Format as Table, Thinking};
use machine::Machine;
use messages::{MESSAGE, Messages};
use tools::Tools;

use serde_json::Value;

/// A call whose arguments must be converted is content if it is longer.
pub const MAX_CALL_BYTES: usize = 1 << 20;

/// A piece of an answer. Pieces of one kind that follow each other belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text that the model wrote for itself.
    Reasoning(String),
    /// Text for the reader.
    Content(String),
    /// A part of a call.
    Call(CallDelta),
    /// The call with this index has ended. `complete` says that its arguments are whole.
    CallEnd {
        /// Index of the call in the answer.
        index: usize,
        /// Whether the arguments are complete.
        complete: bool,
    },
    /// The answer ended in this text, which begins a call but has no name or arguments yet.
    Unfinished(String),
}

/// A part of a call. Name and id come once; the texts of arguments are to be joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallDelta {
    /// Index of the call in the answer.
    pub index: usize,
    /// The id that the model gave the call.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: Option<String>,
    /// The next part of the arguments, a JSON object.
    pub arguments: String,
}

/// How a family of models writes reasoning and calls.
#[derive(Clone, Copy)]
pub struct Format {
    reasoning: &'static Table,
    calls: &'static Table,
    /// Whether the template has marks of reasoning, so that the model may write them by itself.
    thinks: bool,
}

/// The marks of reasoning that stands, or may stand, before an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningMarks {
    /// The mark that begins it, if the answer begins so; `None` if the reasoning goes on from the prompt.
    pub open: Option<&'static str>,
    /// Marks that end it; none of them is content.
    pub ends: Vec<&'static str>,
    /// Marks that would be content, or a call, and end it, too.
    pub breaks: Vec<&'static str>,
}

impl Format {
    /// Returns the format of the models that use this chat template. If none is known, it has content only, and reasoning
    /// if the template mentions `</think>`.
    pub fn of_template(source: &str) -> Self {
        let found = formats::ALL.iter().find(|format| (format.is_of)(source));
        let plain = match source.contains("</think>") {
            true => &formats::THINKING,
            false => &formats::PLAIN,
        };
        let format = Format::of_table(found.copied().unwrap_or(plain));
        let thinking = format.reasoning.thinking.as_ref();
        let thinks = |thinking: &Thinking| {
            [thinking.open, thinking.close]
                .iter()
                .any(|mark| source.contains(mark))
        };
        Format {
            thinks: thinking.is_some_and(thinks),
            ..format
        }
    }

    fn of_table(table: &'static Table) -> Self {
        Format {
            reasoning: table,
            calls: table,
            thinks: false,
        }
    }

    /// Returns the format with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        let found = formats::ALL.iter().find(|format| format.name == name);
        found.copied().map(Format::of_table)
    }

    /// Returns the format with this one's reasoning and the calls of another.
    #[must_use]
    pub fn with_calls_of(self, other: Format) -> Self {
        Format {
            calls: other.calls,
            ..self
        }
    }

    /// Returns the marks of the reasoning before the answer to `prompt`, the rendered chat template, which may have opened
    /// it; `None` if there is none.
    pub fn reasoning_marks(self, prompt: &str) -> Option<ReasoningMarks> {
        if let Some(dialect) = self.calls.messages {
            // A prompt that begins the message leaves nothing open.
            return dialect
                .answer
                .filter(|_| !prompt.ends_with(MESSAGE))
                .map(|answer| ReasoningMarks {
                    open: None,
                    ends: answer.ends.to_vec(),
                    breaks: answer.breaks.to_vec(),
                });
        }
        let thinking = self.reasoning.thinking.as_ref()?;
        let open = match thinking.is_open(prompt) {
            true => None,
            false if self.thinks && !prompt.trim_end().ends_with(thinking.close) => {
                Some(thinking.open)
            }
            false => return None,
        };
        let is_hidden = |mark: &&&str| self.calls.hidden.contains(mark);
        let (hidden, breaks): (Vec<&str>, Vec<&str>) =
            thinking.also_ends.iter().partition(|mark| is_hidden(mark));
        let ends = [thinking.close].into_iter().chain(hidden);
        Some(ReasoningMarks {
            open,
            ends: ends.collect(),
            breaks,
        })
    }

    /// Whether answers may call tools.
    pub fn has_calls(self) -> bool {
        !self.calls.calls.is_empty() || self.calls.messages.is_some()
    }

    /// Whether answers have marks, which may be control tokens.
    pub fn has_marks(self) -> bool {
        let has_hidden = !self.calls.hidden.is_empty();
        self.has_calls() || has_hidden || self.reasoning.thinking.is_some()
    }

    /// Returns its name, `plain` for one without calls.
    pub fn name(self) -> &'static str {
        self.calls.name
    }

    /// Returns the names of all formats with calls.
    pub fn names() -> impl Iterator<Item = &'static str> {
        formats::ALL.iter().map(|format| format.name)
    }
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Format").field(&self.name()).finish()
    }
}

/// Reads one answer.
pub struct AnswerParser(Reader);

enum Reader {
    Marks(Box<Machine>),
    Messages(Box<Messages>),
}

impl AnswerParser {
    /// Creates a parser for the answer to `prompt`, the rendered chat template: it may end within the reasoning.
    ///
    /// `tools` are those of the conversation, as the template gets them. A call of another tool is content, so without
    /// tools there are no calls. Types of parameters decide what is a number in formats that do not mark strings.
    pub fn new(format: Format, prompt: &str, tools: &[Value]) -> Self {
        let tools = Tools::new(tools);
        AnswerParser(match format.calls.messages {
            Some(dialect) => Reader::Messages(Box::new(Messages::new(dialect, prompt, tools))),
            None => Reader::Marks(Box::new(Machine::new(format, prompt, tools))),
        })
    }

    /// Adds text; returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let mut out = Vec::new();
        match &mut self.0 {
            Reader::Marks(machine) => machine.push(text, &mut out),
            Reader::Messages(messages) => messages.push(text, &mut out),
        }
        out
    }

    /// Ends the answer; returns the rest.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut out = Vec::new();
        match &mut self.0 {
            Reader::Marks(machine) => machine.finish(&mut out),
            Reader::Messages(messages) => messages.finish(&mut out),
        }
        out
    }
}
