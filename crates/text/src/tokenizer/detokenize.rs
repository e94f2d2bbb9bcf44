//! From ids back to text: the bytes that each token stands for, and a stream
//! that gives out whole characters only.

use super::bpe::unspell;
use super::vocab::{Texts, TokenKind, Vocab};
use super::{TokenId, Tokenizer, TokenizerError};

/// How the texts of a vocabulary spell bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// The 256 printable characters of GPT-2.
    Gpt2,
    /// Themselves, with `▁` for a space.
    Blocks,
}

/// The bytes of every token. Unused tokens have none; special tokens have their
/// text.
pub(super) fn pieces(vocab: &Vocab, spelling: Spelling) -> Result<Texts, TokenizerError> {
    let mut pieces = Texts::with_capacity(vocab.len());
    for (id, text) in vocab.iter() {
        match vocab.kind(id) {
            Some(TokenKind::Normal) => pieces.push_with(|out| match spelling {
                Spelling::Gpt2 => unspell(text, out),
                Spelling::Blocks => unescape(text, out),
            }),
            Some(TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined) => {
                pieces.push(text);
            }
            Some(TokenKind::Byte) => {
                let byte = byte_of(text).ok_or_else(|| TokenizerError::BadByteToken {
                    id: id as usize,
                    text: text.to_vec(),
                })?;
                pieces.push(&[byte]);
            }
            Some(TokenKind::Undefined | TokenKind::Unused) | None => pieces.push(&[]),
        }
    }
    Ok(pieces)
}

/// Appends `text` with spaces for `▁`.
fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        match rest.strip_prefix("▁".as_bytes()) {
            Some(tail) => {
                out.push(b' ');
                rest = tail;
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
}

/// The byte of `<0xHH>`.
fn byte_of(text: &[u8]) -> Option<u8> {
    let hex = std::str::from_utf8(text.strip_prefix(b"<0x")?.strip_suffix(b">")?).ok()?;
    let is_hex = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hex {
        u8::from_str_radix(hex, 16).ok()
    } else {
        None
    }
}

/// Whether control and unknown tokens appear in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialText {
    /// They stand for nothing.
    #[default]
    Hide,
    /// They stand for their text.
    Show,
}

/// Whether the space that a SentencePiece vocabulary puts before the first word
/// appears in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeadingSpace {
    /// As the tokens say: for text that continues other text.
    #[default]
    Keep,
    /// One is left out where encoding would add it: for text that begins.
    Strip,
}

/// Turns a stream of ids into a stream of text. What it gives out is whole
/// characters: the first bytes of one wait for the rest, bytes that can never
/// become one are given as U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    special: SpecialText,
    leading_space: LeadingSpace,
    /// Something was given out.
    begun: bool,
    /// The first bytes of a character, at most 3.
    waiting: Vec<u8>,
}

impl Detokenizer {
    /// A new stream.
    pub fn new(special: SpecialText, leading_space: LeadingSpace) -> Self {
        Detokenizer {
            special,
            leading_space,
            ..Detokenizer::default()
        }
    }

    /// Takes the next token and returns the text that is now complete, which may
    /// be empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: TokenId) -> String {
        let mut bytes = match self.special {
            SpecialText::Hide if tokenizer.is_hidden(id) => &[],
            _ => tokenizer.token_bytes(id),
        };
        if !self.begun && !bytes.is_empty() {
            self.begun = true;
            if self.leading_space == LeadingSpace::Strip && tokenizer.adds_space_prefix() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.waiting.extend_from_slice(bytes);
        self.complete()
    }

    /// Ends the stream: bytes that still wait for the rest of their character
    /// are given as U+FFFD. The stream can begin again after it.
    pub fn finish(&mut self) -> String {
        self.begun = false;
        let cut_off = !std::mem::take(&mut self.waiting).is_empty();
        if cut_off {
            char::REPLACEMENT_CHARACTER.into()
        } else {
            String::new()
        }
    }

    /// Takes what is complete from `waiting`.
    fn complete(&mut self) -> String {
        let mut out = String::new();
        let mut taken = 0;
        loop {
            let rest = &self.waiting[taken..];
            let error = match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    taken = self.waiting.len();
                    break;
                }
                Err(error) => error,
            };
            let valid = std::str::from_utf8(&rest[..error.valid_up_to()]);
            out.push_str(valid.expect("valid up to there"));
            taken += error.valid_up_to();
            let Some(bad) = error.error_len() else { break };
            out.push(char::REPLACEMENT_CHARACTER);
            taken += bad;
        }
        self.waiting.drain(..taken);
        out
    }
}
