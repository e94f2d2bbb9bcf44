//! Why a vocabulary was refused. Token texts and names come from the file, so
//! they are escaped where they are shown.

use rocmforge_gguf::escape_control;

use super::{pre_table, vocab};

/// Why no tokenizer could be made from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or holds another type than the tokenizer needs.
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    /// The file says that it has no vocabulary.
    #[error(
        "the file has no vocabulary; give prompts as token ids, or use a file with a tokenizer"
    )]
    NoVocab,
    /// A kind of tokenizer that is not implemented.
    #[error(
        "tokenizer model '{}' is not supported (llama, gpt2 and gemma4 are); use a model with one of these tokenizers",
        escape_control(model)
    )]
    UnknownModel {
        /// `tokenizer.ggml.model` of the file.
        model: String,
    },
    /// A pre-tokenizer that is not in the table.
    #[error(
        "pre-tokenizer '{}' is not known; choose the closest with --pre NAME, one of: {}",
        escape_control(name),
        pre_table::names().collect::<Vec<_>>().join(", ")
    )]
    UnknownPre {
        /// The name given or found in `tokenizer.ggml.pre`.
        name: String,
    },
    /// `--pre` for a vocabulary that has no pre-tokenizer.
    #[error(
        "--pre {} does not apply: tokenizer model '{model}' splits no words; leave --pre out",
        escape_control(name)
    )]
    PreNotUsed {
        /// The name given.
        name: String,
        /// `tokenizer.ggml.model` of the file.
        model: &'static str,
    },
    /// A vocabulary without tokens.
    #[error("tokenizer.ggml.tokens is empty; convert the model again")]
    Empty,
    /// More tokens or text than any real vocabulary has.
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
    /// A token type that GGUF does not define.
    #[error(
        "token {id} has type {found}, which GGUF does not define (0 to 6 are); convert the model again"
    )]
    BadTokenType {
        /// The token.
        id: usize,
        /// The value found.
        found: i32,
    },
    /// A token of type byte whose text is not `<0xHH>`.
    #[error(
        "token {id} is a byte token with the text '{}', <0x00> to <0xFF> are valid; convert the model again",
        vocab::shown(text)
    )]
    BadByteToken {
        /// The token.
        id: usize,
        /// Its text.
        text: Vec<u8>,
    },
    /// A score that is not a number.
    #[error("the score of token {id} is not a number; convert the model again")]
    BadScore {
        /// The token.
        id: usize,
    },
    /// The same text twice.
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
    /// A merge that is not two texts with a space between them.
    #[error(
        "merge {index} is '{}', two tokens and a space between them are needed; convert the model again",
        vocab::shown(text)
    )]
    BadMerge {
        /// Its place in `tokenizer.ggml.merges`.
        index: usize,
        /// The entry.
        text: Vec<u8>,
    },
    /// The id of a special token is outside the vocabulary.
    #[error("{key} is {id}, the vocabulary has {n_vocab} tokens; convert the model again")]
    BadSpecialId {
        /// The metadata key.
        key: &'static str,
        /// Its value.
        id: i128,
        /// The number of tokens.
        n_vocab: usize,
    },
    /// Nothing stands for a byte.
    #[error(
        "the vocabulary has no token for byte 0x{byte:02X} and no unknown token; convert the model again"
    )]
    NoByteToken {
        /// The byte.
        byte: u8,
    },
}
