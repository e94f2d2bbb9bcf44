//! Renders a template, with Jinja2 configured as in Hugging Face transformers: `trim_blocks`, `lstrip_blocks`, loop
//! controls, `raise_exception`, `strftime_now`, its `tojson`, and Python's methods of strings, lists and mappings.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use regex_automata::meta::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::error::RenderError;
use super::python::JsonLimits;
use super::{Clock, filters, python, strftime};

/// Maximum interpreter steps; a conversation of 1000 turns takes about a million.
const MAX_STEPS: u64 = 20_000_000;

/// Maximum bytes of a prompt; a million tokens are about 4 MB.
pub(super) const MAX_TEXT_BYTES: usize = 32 << 20;

/// Maximum bytes of an error's message.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// Maximum macro recursion.
const MAX_RECURSION: usize = 100;

/// A template and its input.
#[derive(Serialize, Deserialize)]
pub(super) struct Job<'a> {
    pub(super) source: Cow<'a, str>,
    pub(super) bos_token: Cow<'a, str>,
    pub(super) eos_token: Cow<'a, str>,
    pub(super) messages: Cow<'a, [serde_json::Value]>,
    pub(super) tools: Cow<'a, [serde_json::Value]>,
    pub(super) add_generation_prompt: bool,
    pub(super) variables: Cow<'a, Map<String, serde_json::Value>>,
    pub(super) clock: Cow<'a, Clock>,
    /// Characters that stand for ASCII characters.
    pub(super) marks: String,
}

impl Job<'_> {
    pub(super) fn borrowed(&self) -> Job<'_> {
        Job {
            source: Cow::Borrowed(&self.source),
            bos_token: Cow::Borrowed(&self.bos_token),
            eos_token: Cow::Borrowed(&self.eos_token),
            messages: Cow::Borrowed(&self.messages),
            tools: Cow::Borrowed(&self.tools),
            add_generation_prompt: self.add_generation_prompt,
            variables: Cow::Borrowed(&self.variables),
            clock: Cow::Borrowed(&self.clock),
            marks: self.marks.clone(),
        }
    }
}

/// Returns the text that the template makes of the conversation.
pub(super) fn render(job: &Job<'_>) -> Result<String, RenderError> {
    let source = plain_blocks(&job.source);
    let environment = environment(&job.clock, &job.marks);
    let template = environment
        .template_from_named_str("chat template", &source)
        .map_err(|error| describe(&error, Stage::Compile))?;
    let mut text = Capped(Vec::new());
    let rendered = template
        .render_captured_to(context(job), &mut text)
        .map(drop);
    match rendered {
        Ok(()) => Ok(String::from_utf8(text.0).expect("templates write text")),
        Err(_) if text.0.len() > MAX_TEXT_BYTES => Err(RenderError::TooMuchText {
            bytes: MAX_TEXT_BYTES,
        }),
        Err(error) => Err(describe(&error, Stage::Run)),
    }
}

fn context(job: &Job<'_>) -> Value {
    // As transformers: names that no one sets are there, and none.
    let mut variables = vec![("documents".to_owned(), Value::from(()))];
    variables.extend(
        job.variables
            .iter()
            .map(|(k, v)| (k.clone(), Value::from(Serde(v)))),
    );
    let mut set = |name: &str, value: Value| variables.push((name.into(), value));
    set("messages", Value::from(Serde(&job.messages)));
    let tools = match &*job.tools {
        [] => Value::from(()),
        tools => Value::from(Serde(tools)),
    };
    set("tools", tools);
    set("add_generation_prompt", job.add_generation_prompt.into());
    set("bos_token", (&*job.bos_token).into());
    set("eos_token", (&*job.eos_token).into());
    Value::from_pairs(variables)
}

fn environment<'s>(clock: &Clock, marks: &str) -> Environment<'s> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    env.set_syntax(syntax.expect("the delimiters are Jinja's own"));
    env.set_fuel(Some(MAX_STEPS));
    env.set_recursion_limit(MAX_RECURSION);
    env.set_unknown_method_callback(python::method);
    env.set_formatter(filters::write);
    filters::add(&mut env);
    env.remove_global("debug");
    let marks = marks.to_owned();
    env.add_filter(
        "tojson",
        move |value: &Value, ensure_ascii: Option<bool>, options: Kwargs| {
            let limits = JsonLimits {
                max_bytes: MAX_TEXT_BYTES,
                unescaped: &marks,
            };
            python::tojson(value, ensure_ascii, &options, limits)
        },
    );
    env.add_function(
        "raise_exception",
        |message: &Value| -> Result<Value, Error> {
            let mut text = Message(String::new());
            // Stops at the limit.
            let _ = write!(text, "{message}");
            let message = text.0;
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception")
                .with_source(Refusal(message)))
        },
    );
    let clock = clock.clone();
    env.add_function("strftime_now", move |format: &str| match &clock {
        Clock::System => strftime::strftime(format, unix_seconds()),
        Clock::At { unix_seconds } => strftime::strftime(format, *unix_seconds),
        Clock::Text(text) => text.clone(),
    });
    env
}

pub(super) fn unix_seconds() -> i64 {
    // A clock before 1970 is broken.
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Replaces `{% generation %}`, which transformers adds to mark the model's own words and which has no effect on the
/// text, by a block that is always taken.
fn plain_blocks(source: &str) -> Cow<'_, str> {
    if !source.contains("endgeneration") {
        return Cow::Borrowed(source);
    }
    let tag = Regex::new(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}").expect("a constant");
    let mut out = String::with_capacity(source.len());
    let mut pos = 0;
    for m in tag.find_iter(source) {
        let (plain, name) = match &source[m.range()] {
            end if end.contains("endgeneration") => ("endif", "endgeneration"),
            _ => ("if true", "generation"),
        };
        out.push_str(&source[pos..m.start()]);
        out.push_str(&source[m.range()].replace(name, plain));
        pos = m.end();
    }
    out.push_str(&source[pos..]);
    Cow::Owned(out)
}

/// A text with a limit. Bytes beyond it are dropped, except that one shows that the limit was exceeded.
struct Capped(Vec<u8>);

impl Write for Capped {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let left = (MAX_TEXT_BYTES + 1).saturating_sub(self.0.len());
        self.0.extend_from_slice(&text[..text.len().min(left)]);
        if self.0.len() > MAX_TEXT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of a message, at most [`MAX_MESSAGE_BYTES`].
struct Message(String);

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MAX_MESSAGE_BYTES - self.0.len();
        self.0.push_str(&text[..text.floor_char_boundary(left)]);
        match text.len() <= left {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

/// The message that a template passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)]
}

enum Stage {
    Compile,
    Run,
}

fn describe(error: &Error, stage: Stage) -> RenderError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return RenderError::Refused {
                message: message.clone(),
            };
        }
        let out_of_fuel = |e: &Error| e.kind() == ErrorKind::OutOfFuel;
        if error.downcast_ref().is_some_and(out_of_fuel) {
            return RenderError::TooManySteps { steps: MAX_STEPS };
        }
        cause = error.source();
    }
    let line = error.line();
    let message = match error.detail() {
        // A detail may quote a value of the template.
        Some(detail) => format!("{}: {}", error.kind(), cut(detail)),
        None => error.kind().to_string(),
    };
    match stage {
        Stage::Compile => RenderError::Syntax { line, message },
        Stage::Run => RenderError::Failed { line, message },
    }
}
