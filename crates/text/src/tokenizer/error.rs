//! Tokenizer errors. Token texts and names come from the file, so they are escaped where they are shown.

use rocmforge_gguf::shown;

use super::{pre_table, vocab};

/// Why no tokenizer could be created from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or holds another type than the tokenizer needs.
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    /// The file has no vocabulary.
    #[error(
        "the file has no vocabulary; give prompts as token ids, or use a file with a tokenizer"
    )]
    NoVocab,
    /// The kind of tokenizer is not implemented.
    #[error(
        "tokenizer model '{}' is not supported ({} are); use a model with one of these tokenizers",
        shown(model),
        vocab::MODELS.join(", ")
    )]
    UnknownModel {
        /// `tokenizer.ggml.model` of the file.
        model: String,
    },
    /// The pre-tokenizer is not in the table.
    #[error(
            "pre-tokenizer '{}' is unknown; choose the closest of: {}",
        shown(name),
        pre_table::names().collect::<Vec<_>>().join(", ")
    )]
    UnknownPre {
        /// The requested name, or that in `tokenizer.ggml.pre`.
        name: String,
    },
    /// A pre-tokenizer was requested for a vocabulary that uses none.
    #[error(
        "pre-tokenizer '{}' does not apply: tokenizer model '{model}' does not split words; do not choose one",
        shown(name)
    )]
    PreNotUsed {
        /// The requested name.
        name: String,
        /// `tokenizer.ggml.model` of the file.
        model: &'static str,
    },
    /// The vocabulary has no tokens.
    #[error("tokenizer.ggml.tokens is empty; convert the model again")]
    Empty,
    /// The vocabulary has more tokens or text than any real one.
    #[error(
        "the vocabulary is too large: {what} is {found}, the limit is {limit}; the file is damaged"
    )]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        found: usize,
        /// The largest size accepted.
        limit: usize,
    },
    /// Two arrays that must have one entry per token differ in length.
    #[error("{key} has {found} entries for {n_vocab} tokens; convert the model again")]
    WrongLength {
        /// The metadata key.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        n_vocab: usize,
    },
    /// A token has a type that GGUF does not define.
    #[error("token {id} has type {found}, expected 0 to 6; convert the model again")]
    BadTokenType {
        /// The token.
        id: usize,
        /// The value found.
        found: i32,
    },
    /// A byte token has a text other than `<0xHH>`.
    #[error(
        "token {id} is a byte token with the text '{}', expected <0x00> to <0xFF>; convert the model again",
        vocab::shown(text)
    )]
    BadByteToken {
        /// The token.
        id: usize,
        /// Its text.
        text: Vec<u8>,
    },
    /// A score is not a number.
    #[error("the score of token {id} is not a number; convert the model again")]
    BadScore {
        /// The token.
        id: usize,
    },
    /// The normalization rules are not as SentencePiece writes them.
    #[error("tokenizer.ggml.precompiled_charsmap is damaged; convert the model again")]
    BadCharsmap,
    /// Two tokens have the same text.
    #[error(
        "tokens {first} and {second} have the same text '{}'; convert the model again",
        vocab::shown(text)
    )]
    DuplicateToken {
        /// The lower id.
        first: usize,
        /// The higher id.
        second: usize,
        /// Their text.
        text: Vec<u8>,
    },
    /// A merge is not two texts with a space between them.
    #[error(
        "merge {index} is '{}', expected two tokens with a space between them; convert the model again",
        vocab::shown(text)
    )]
    BadMerge {
        /// Its index in `tokenizer.ggml.merges`.
        index: usize,
        /// The entry.
        text: Vec<u8>,
    },
    /// The id of a special token is outside the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {n_vocab} tokens; convert the model again")]
    BadSpecialId {
        /// The metadata key.
        key: &'static str,
        /// Its value.
        id: i128,
        /// The number of tokens.
        n_vocab: usize,
    },
    /// A byte has no token.
    #[error(
        "the vocabulary has no token for byte 0x{byte:02X} and no unknown token; convert the model again"
    )]
    NoByteToken {
        /// The byte.
        byte: u8,
    },
    /// A byte has no token of its own, and the vocabulary spells characters by them.
    #[error("the vocabulary has no byte token <0x{byte:02X}>; convert the model again")]
    MissingByteToken {
        /// The byte.
        byte: u8,
    },
}
