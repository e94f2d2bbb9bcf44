//! Errors of this crate.

/// Why a source is no grammar, or a vocabulary cannot be used. Each message says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    #[error("the {what} has {n_bytes} bytes, more than the {limit} that are allowed; shorten it")]
    TooLong {
        what: &'static str,
        n_bytes: usize,
        limit: usize,
    },
    #[error("the JSON schema is not JSON: {0}")]
    Json(serde_json::Error),
    #[error("a JSON schema is an object, true or false, not {found}")]
    NotASchema { found: &'static str },
    /// The keywords, separated by commas.
    #[error("the JSON schema uses {keywords}, which is not supported; remove it")]
    Keyword { keywords: String },
    #[error(
        "the JSON schema refers to {reference:?}; only references into the schema itself, such as #/$defs/name, are followed"
    )]
    Reference { reference: String },
    #[error("a choice needs at least one text")]
    NoChoice,
    #[error("line {line} of the GBNF grammar: {message}")]
    Gbnf { line: usize, message: String },
    /// A source that llguidance does not accept, in its words.
    #[error("the {what} cannot be used: {message}")]
    Invalid { what: &'static str, message: String },
    #[error("the vocabulary cannot be used for structured output: {message}")]
    Vocabulary { message: String },
    #[error("the {what} takes too long to compile; simplify it")]
    TooSlow { what: &'static str },
    #[error("other grammars that take long are being compiled; try again later")]
    Busy,
    #[error("no thread could be started: {0}")]
    Thread(std::io::Error),
}

/// Returns the part of llguidance's message that is about the source.
pub(crate) fn told(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    let end = ["\n<state>", "\n<backtrace>", "\n<non-verbose/>"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min();
    let text = &text[..end.unwrap_or(text.len())];
    // One line.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = match text.as_str() {
        "NoExtension" | "NoExtensionBias" => "it allows no text",
        "LexerTooComplex" | "ParserTooComplex" => "it has too many states",
        text => text,
    };
    rocmforge_gguf::shown_message(text)
}
