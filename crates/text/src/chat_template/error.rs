//! Why a template could not be used or a conversation not be rendered. What a
//! template says comes from the file, so it is escaped where it is shown.

use rocmforge_gguf::escape_control;
use serde::{Deserialize, Serialize};

/// Why there is no template, or no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A key holds another type than a template.
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    /// No template of this name.
    #[error(
        "the file has no chat template '{}'; it has: {}",
        escape_control(name),
        escape_control(available)
    )]
    UnknownName {
        /// The name asked for.
        name: String,
        /// The names in the file, separated by commas.
        available: String,
    },
    /// The source is larger than any real template.
    #[error("the chat template has {bytes} bytes, the limit is {limit}; use another template")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The largest length accepted.
        limit: usize,
    },
    /// Rendering failed.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The process that renders could not be run.
    #[error("cannot run the process that renders chat templates: {0}")]
    Process(std::io::Error),
    /// The process that renders was stopped by its limits, or crashed.
    #[error(
        "the chat template was stopped: it needs more than {memory_mib} MiB of memory or {seconds} s of computing; use another template"
    )]
    Stopped {
        /// Memory that the process may use.
        memory_mib: u64,
        /// Computing time that it may use.
        seconds: u64,
    },
}

/// Why a template gave no text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The source is not a template.
    #[error("the chat template is damaged, {}; use another template", place(*line, message))]
    Syntax {
        /// Line of the source, from 1.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The template called `raise_exception`: it does not accept such a
    /// conversation.
    #[error(
        "the chat template refuses this conversation: {}",
        escape_control(message)
    )]
    Refused {
        /// What it says.
        message: String,
    },
    /// The template used a value in a way that its type does not allow.
    #[error("the chat template cannot render this conversation, {}", place(*line, message))]
    Failed {
        /// Line of the source, from 1.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The template took more steps than the limit.
    #[error("the chat template was stopped after {steps} steps; use another template")]
    TooManySteps {
        /// The limit.
        steps: u64,
    },
    /// The template wrote more than the limit.
    #[error("the chat template was stopped after {bytes} bytes of text; use another template")]
    TooMuchText {
        /// The limit.
        bytes: usize,
    },
}

fn place(line: Option<usize>, message: &str) -> String {
    let message = escape_control(message);
    match line {
        Some(line) => format!("line {line}: {message}"),
        None => message.into_owned(),
    }
}
