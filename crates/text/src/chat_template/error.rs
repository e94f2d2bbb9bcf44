//! Errors of chat templates. Texts from a template come from the file, so they are escaped where they are shown.

use rocmforge_gguf::{shown, shown_message};
use serde::{Deserialize, Serialize};

/// Why there is no template, or why it gave no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A metadata key holds something else than a template.
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    /// There is no template with this name.
    #[error(
        "the file has no chat template '{}'; it has: {}",
        shown(name),
        shown_message(available)
    )]
    UnknownName {
        /// The requested name.
        name: String,
        /// The names in the file, separated by commas.
        available: String,
    },
    /// The source is larger than that of any real template.
    #[error(
        "the chat template has {bytes} bytes, above the limit of {limit}; use another template"
    )]
    TooLarge {
        /// Length of the source.
        bytes: usize,
        /// The largest length accepted.
        limit: usize,
    },
    /// Rendering failed.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The rendering process could not be run.
    #[error("cannot run the process that renders chat templates: {0}")]
    Process(std::io::Error),
    /// The rendering process was stopped by the limits of this process, which are below those of rendering.
    #[error(
        "the chat template was stopped: this program may use only {memory_mib} MiB of memory and {seconds} s of CPU time; raise its limits (ulimit -v, ulimit -t)"
    )]
    OwnLimits {
        /// Memory limit in force.
        memory_mib: u64,
        /// CPU time limit in force.
        seconds: u64,
    },
    /// The rendering process was stopped by its limits, or crashed.
    #[error(
        "the chat template was stopped: it needs more than {memory_mib} MiB of memory or {seconds} s of CPU time; use another template"
    )]
    Stopped {
        /// Memory limit of the process.
        memory_mib: u64,
        /// CPU time limit of the process.
        seconds: u64,
    },
}

/// Why rendering a template failed. Messages have at most 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// The source has a syntax error.
    #[error("the chat template is damaged, {}; use another template", place(*line, message))]
    Syntax {
        /// Line of the source, from 1.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The template called `raise_exception`: it does not accept this conversation.
    #[error(
        "the chat template refuses this conversation: {}",
        shown_message(message)
    )]
    Refused {
        /// The template's message.
        message: String,
    },
    /// The template used a value in a way its type does not allow.
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
    /// The template wrote more text than the limit.
    #[error("the chat template was stopped after {bytes} bytes of text; use another template")]
    TooMuchText {
        /// The limit.
        bytes: usize,
    },
}

fn place(line: Option<usize>, message: &str) -> String {
    let message = shown_message(message);
    match line {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    }
}
