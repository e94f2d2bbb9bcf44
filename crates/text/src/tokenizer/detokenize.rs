//! Turns ids back into text: the bytes of each token, and a stream of whole characters.

use super::bpe::unspell;
use super::rwkv::unescape as unescape_bytes;
use super::vocab::{Texts, TokenKind, Vocab};
use super::{TokenId, Tokenizer, TokenizerError};

/// How the token texts of a vocabulary spell bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// The 256 printable characters of GPT-2.
    Gpt2,
    /// As they are, with `▁` for a space.
    Blocks,
    /// As they are.
    Plain,
    /// With escapes, as Python writes bytes; special tokens, too.
    Escaped,
}

/// Returns the bytes of every token: none for unused tokens, the text of special tokens.
pub(super) fn pieces(vocab: &Vocab, spelling: Spelling) -> Result<Texts, TokenizerError> {
    let mut pieces = Texts::with_capacity(vocab.len());
    for (id, text) in vocab.iter() {
        let spells = !matches!(
            vocab.kind(id),
            None | Some(TokenKind::Undefined | TokenKind::Unused)
        );
        if spelling == Spelling::Escaped && spells {
            pieces.push_with(|out| unescape_bytes(text, out));
            continue;
        }
        match vocab.kind(id) {
            Some(TokenKind::Normal) => pieces.push_with(|out| match spelling {
                Spelling::Gpt2 => unspell(text, out),
                Spelling::Blocks => unescape(text, out),
                Spelling::Plain | Spelling::Escaped => out.extend_from_slice(text),
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

/// Appends `text` with `▁` replaced by spaces.
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

/// Parses `<0xHH>`.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
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
    /// They give no text.
    #[default]
    Hide,
    /// They give their text.
    Show,
}

/// Whether the space that a SentencePiece vocabulary adds before the first word appears in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeadingSpace {
    /// Keep all spaces: for text that continues other text.
    #[default]
    Keep,
    /// Remove one space where encoding would have added it: for the beginning of a text.
    Strip,
}

/// Turns a stream of ids into a stream of text. The output has whole characters only: the first bytes of a character
/// wait for the rest, and bytes that can never become one are replaced by U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    special: SpecialText,
    leading_space: LeadingSpace,
    /// Whether there was any output.
    begun: bool,
    /// The first bytes of an incomplete character, at most 3.
    waiting: Vec<u8>,
}

impl Detokenizer {
    /// Creates a stream.
    pub fn new(special: SpecialText, leading_space: LeadingSpace) -> Self {
        Detokenizer {
            special,
            leading_space,
            ..Detokenizer::default()
        }
    }

    /// Adds a token; returns the text that is now complete, which may be empty.
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
        if tokenizer.joins_punctuation() && matches!(bytes, b" ." | b" ," | b" ?" | b" !") {
            bytes = &bytes[1..];
        }
        self.waiting.extend_from_slice(bytes);
        self.complete()
    }

    /// Ends the stream; an incomplete character becomes U+FFFD. The stream can then be used again.
    pub fn finish(&mut self) -> String {
        self.begun = false;
        let cut_off = !std::mem::take(&mut self.waiting).is_empty();
        if cut_off {
            char::REPLACEMENT_CHARACTER.into()
        } else {
            String::new()
        }
    }

    /// Removes complete characters from `waiting` and returns them.
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
