//! The table of formats: the marks that each family writes, and what reads the calls between them.

mod apertus;
mod command_r7b;
mod deepseek;
mod dsml;
mod gemma4;
mod generic;
mod glm;
mod gpt_oss;
mod granite;
mod hermes;
mod hy3;
mod invoke;
mod kimi_k2;
mod lfm2;
mod llama3;
mod minimax_m2;
mod mistral;
mod muse_glimmer;
mod nemotron_nano;
mod python;
mod qwen_xml;

use super::cursor::{Cursor, Read};
use super::messages::Dialect;
use super::tools::Tools;

/// How a family writes reasoning and calls.
pub(super) struct Format {
    pub(super) name: &'static str,
    /// Whether a chat template is of this family.
    pub(super) is_of: fn(&str) -> bool,
    pub(super) thinking: Option<Thinking>,
    /// Marks that give no text.
    pub(super) hidden: &'static [&'static str],
    pub(super) calls: &'static [Call],
    /// Where there are tools: what content begins with that is a string in JSON.
    pub(super) quoted: Option<&'static str>,
    /// How messages have headers, for which `messages.rs` reads the answer instead.
    pub(super) messages: Option<&'static Dialect>,
}

/// The marks around reasoning.
pub(super) struct Thinking {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// Marks that end it, too, and are read as content.
    pub(super) also_ends: &'static [&'static str],
    pub(super) place: Place,
}

impl Thinking {
    /// Whether a prompt ends within the reasoning, just after its first mark.
    pub(super) fn is_open(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}

/// Where the marks of reasoning count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Anywhere,
    /// Where the answer begins.
    Begin,
}

/// A mark that begins a call, and how to read the text after it.
pub(super) struct Call {
    /// Empty if the text itself begins the answer, or what is left of it after other calls.
    pub(super) mark: &'static str,
    pub(super) syntax: Syntax,
}

/// How to read a call.
pub(super) enum Syntax {
    /// `{"name": ..., "arguments": {...}}`, or a list of these, then a closing mark, which may be missing.
    Objects { close: &'static str },
    /// A head, arguments in JSON, then closing marks, each of which may be missing.
    Headed {
        head: fn(&mut Cursor<'_>) -> Read<Head>,
        close: &'static [&'static str],
    },
    /// Calls to convert, up to the end of the last one.
    Whole(fn(&mut Cursor<'_>, &Tools) -> Read<Vec<WholeCall>>),
}

/// What stands before the arguments.
#[derive(Default)]
pub(super) struct Head {
    pub(super) name: String,
    pub(super) id: Option<String>,
}

/// A call with its arguments in JSON.
pub(super) struct WholeCall {
    pub(super) name: String,
    pub(super) arguments: String,
}

/// Content only.
pub(super) const PLAIN: Format = Format {
    name: "plain",
    is_of: |_| true,
    thinking: None,
    hidden: &[],
    calls: &[],
    quoted: None,
    messages: None,
};

/// Content and reasoning.
pub(super) static THINKING: Format = Format {
    thinking: Some(THINK),
    ..PLAIN
};

/// `<think>` and `</think>` at the beginning of an answer.
const THINK: Thinking = Thinking {
    open: "<think>",
    close: "</think>",
    also_ends: &[],
    place: Place::Begin,
};

/// All formats with calls. The first one that a template is of counts, so those with rarer marks come first.
pub(super) static ALL: &[&Format] = &[
    &muse_glimmer::FORMAT,
    &gpt_oss::FORMAT,
    &gemma4::FORMAT,
    &kimi_k2::FORMAT,
    &deepseek::FORMAT,
    &dsml::FORMAT,
    &minimax_m2::FORMAT,
    &command_r7b::FORMAT,
    &apertus::FORMAT,
    &nemotron_nano::FORMAT,
    &hy3::FORMAT,
    &lfm2::FORMAT,
    &mistral::FORMAT,
    &glm::FORMAT,
    &qwen_xml::FORMAT,
    &granite::FORMAT,
    &hermes::FORMAT,
    &llama3::FORMAT,
    &generic::FORMAT,
];
