//! The token table of a file: texts, kinds, and the lookup from text to id.
//!
//! Texts are copied once into one arena, and the index holds ids and hash tags. A table of 256k tokens is built in
//! milliseconds and takes little more memory than its bytes in the file. The hash has a random key per table, so that
//! no file can cause collisions.

use rocmforge_gguf::{Metadata, Strings, TokenId};

use super::error::TokenizerError;
use super::hash::FoldHash;

/// The values of `tokenizer.ggml.model` that are supported.
pub(super) const MODELS: [&str; 8] = [
    "llama",
    "gpt2",
    "gemma4",
    "whitespace",
    "bert",
    "t5",
    "rwkv",
    "plamo2",
];

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";

/// Released vocabularies have up to 262k tokens.
const MAX_TOKENS: usize = 1 << 22;
/// The longest token of released vocabularies has 256 bytes.
const MAX_TOKEN_BYTES: usize = 1 << 13;
/// Released vocabularies have up to 6 MB of text.
const MAX_TEXT_BYTES: usize = 1 << 28;

/// The kind of a token, from `tokenizer.ggml.token_type`. Tokens known by name as control tokens are control tokens
/// here, whatever the file says (see `special.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    /// No kind; gives no text.
    Undefined = 0,
    /// Ordinary text.
    Normal = 1,
    /// Stands for text that the vocabulary cannot spell.
    Unknown = 2,
    /// Marks structure; parsed only on request and normally not shown.
    Control = 3,
    /// Added to the vocabulary; always parsed as one token.
    UserDefined = 4,
    /// A reserved id; gives no text.
    Unused = 5,
    /// One byte, written `<0xHH>`.
    Byte = 6,
}

impl TokenKind {
    fn from_id(id: i32) -> Option<Self> {
        Some(match id {
            0 => TokenKind::Undefined,
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }
}

/// An indexed list of byte strings in one buffer.
#[derive(Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Texts {
    pub(super) fn with_capacity(n: usize) -> Self {
        Texts {
            bytes: Vec::with_capacity(8 * n),
            ends: Vec::with_capacity(n),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns text `i`; empty if out of range.
    pub(super) fn get(&self, i: usize) -> &[u8] {
        let Some(&end) = self.ends.get(i) else {
            return &[];
        };
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }

    pub(super) fn push(&mut self, text: &[u8]) {
        self.push_with(|bytes| bytes.extend_from_slice(text));
    }

    /// Appends one text: what `write` appends to the arena.
    pub(super) fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends
            .push(u32::try_from(self.bytes.len()).expect("texts are limited to MAX_TEXT_BYTES"));
    }
}

/// The tokens of a file.
pub(super) struct Vocab {
    /// Texts as spelt in the file: `Ġthe`, `▁the`, `<0x0A>`.
    texts: Texts,
    pub(super) kinds: Vec<TokenKind>,
    /// Hash tag and id + 1 of each slot; 0 means free. Linear probing.
    slots: Vec<(u32, u32)>,
    hash: FoldHash,
    max_token_bytes: usize,
}

impl Vocab {
    pub(super) fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let strings = metadata.strings(TOKENS)?;
        let n_vocab = strings.len();
        if n_vocab == 0 {
            return Err(TokenizerError::Empty);
        }
        limit("the number of tokens", n_vocab, MAX_TOKENS)?;
        let kinds = match metadata.opt_i32s(TYPES)? {
            Some(types) => kinds(&types, n_vocab)?,
            None => vec![TokenKind::Normal; n_vocab],
        };
        let mut vocab = Vocab {
            texts: Texts::with_capacity(n_vocab),
            kinds,
            slots: vec![(0, 0); (2 * n_vocab).next_power_of_two()],
            hash: FoldHash::new(),
            max_token_bytes: 0,
        };
        vocab.insert_all(strings)?;
        Ok(vocab)
    }

    fn insert_all(&mut self, strings: Strings<'_>) -> Result<(), TokenizerError> {
        let mut total = 0;
        for (id, text) in strings.iter().enumerate() {
            limit("the length of a token", text.len(), MAX_TOKEN_BYTES)?;
            total += text.len();
            limit("the text of all tokens", total, MAX_TEXT_BYTES)?;
            if text.is_empty() {
                // A padded vocabulary. llama.cpp gives such tokens this name.
                self.texts.push(format!("[EMPTY_{id}]").as_bytes());
            } else {
                self.texts.push(text);
            }
            let text = self.texts.get(id);
            let tag = self.hash.bytes(text);
            let slot = match self.probe(tag, text) {
                Err(free) => free,
                Ok(first) => {
                    let text = text.to_vec();
                    return Err(TokenizerError::DuplicateToken {
                        first: first as usize,
                        second: id,
                        text,
                    });
                }
            };
            self.max_token_bytes = self.max_token_bytes.max(text.len());
            self.slots[slot] = (
                tag,
                u32::try_from(id + 1).expect("tokens are limited to MAX_TOKENS"),
            );
        }
        // A mapped file that was truncated meanwhile reads as fewer strings.
        wrong_length(TOKENS, self.texts.len(), self.kinds.len())
    }

    /// Returns the id of `text`, or the slot where it would be inserted.
    fn probe(&self, tag: u32, text: &[u8]) -> Result<TokenId, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = tag as usize & mask;
        loop {
            match self.slots[slot] {
                (_, 0) => return Err(slot),
                (t, id) if t == tag && self.texts.get(id as usize - 1) == text => return Ok(id - 1),
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    /// Returns the text of a token as spelt in the file; empty for ids out of range.
    pub(super) fn text(&self, id: TokenId) -> &[u8] {
        self.texts.get(id as usize)
    }

    pub(super) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Returns the token of any kind whose text is exactly `text`.
    pub(super) fn id(&self, text: &[u8]) -> Option<TokenId> {
        if text.len() > self.max_token_bytes {
            return None;
        }
        self.probe(self.hash.bytes(text), text).ok()
    }

    /// As [`Vocab::id`], for plain text: never returns a control, unknown or byte token, whatever a user types.
    pub(super) fn plain_id(&self, text: &[u8]) -> Option<TokenId> {
        self.id(text).filter(|&id| self.is_plain(id))
    }

    pub(super) fn is_plain(&self, id: TokenId) -> bool {
        !matches!(
            self.kind(id),
            None | Some(TokenKind::Control | TokenKind::Unknown | TokenKind::Byte)
        )
    }

    /// Returns ids and texts in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TokenId, &[u8])> {
        (0..).zip(self.texts.iter())
    }
}

fn kinds(types: &[i32], n_vocab: usize) -> Result<Vec<TokenKind>, TokenizerError> {
    wrong_length(TYPES, types.len(), n_vocab)?;
    let kind =
        |(id, &found)| TokenKind::from_id(found).ok_or(TokenizerError::BadTokenType { id, found });
    types.iter().enumerate().map(kind).collect()
}

/// Returns an error if an array does not have one entry per token.
pub(super) fn wrong_length(
    key: &'static str,
    found: usize,
    n_vocab: usize,
) -> Result<(), TokenizerError> {
    if found == n_vocab {
        Ok(())
    } else {
        Err(TokenizerError::WrongLength {
            key,
            found,
            n_vocab,
        })
    }
}

/// Returns an error if a size exceeds its limit.
pub(super) fn limit(what: &'static str, found: usize, limit: usize) -> Result<(), TokenizerError> {
    if found <= limit {
        Ok(())
    } else {
        Err(TokenizerError::TooLarge { what, found, limit })
    }
}

/// More than an error message shows of a text.
const MAX_SHOWN_BYTES: usize = 1000;

/// Formats text of a file for an error message.
pub(super) fn shown(text: &[u8]) -> String {
    rocmforge_gguf::shown(&String::from_utf8_lossy(
        &text[..text.len().min(MAX_SHOWN_BYTES)],
    ))
}
