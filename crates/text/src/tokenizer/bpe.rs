//! Byte-pair encoding (`gpt2`, `gemma4`): merges pieces of text by the ranks in the file.
//!
//! Every string that a merge names gets a number (its token id if it is a token), so that encoding compares integers
//! instead of text. Most vocabularies work on bytes, which their texts spell with the 256 printable characters of
//! GPT-2; some work on characters, with `▁` for a space. Method: GPT-2 `encoder.py`, llama.cpp
//! `llm_tokenizer_bpe_session`.

use std::borrow::Cow;
use std::collections::HashMap;

use rocmforge_gguf::Metadata;

use super::hash::FoldHash;
use super::merge::{Merge, Merger, NO_SYMBOL};
use super::pre_table::{Alphabet, PreTokenizer, Whole};
use super::pretokenize::Splitter;
use super::vocab::{Vocab, limit};
use super::word_piece::LOWERCASE;
use super::{TokenId, TokenizerError, byte_fallback};

const MERGES: &str = "tokenizer.ggml.merges";

/// Released vocabularies have up to 515k merges.
const MAX_MERGES: usize = 1 << 23;

pub(super) struct Bpe {
    splitter: Splitter,
    alphabet: Alphabet,
    whole: Whole,
    /// Only for [`Alphabet::Plain`].
    lowercase: bool,
    merges: Merges,
    /// The symbol of each byte, where merging starts; only for [`Alphabet::Bytes`].
    byte_symbols: [u32; 256],
    /// The token for each byte of a string that is not a token.
    byte_tokens: [Option<TokenId>; 256],
}

/// Merges by the numbers of their two symbols; the left one is in the high half.
struct Merges {
    ranks: HashMap<u64, Merge, FoldHash>,
    /// Strings in merges that are not tokens, numbered from `n_vocab`.
    others: HashMap<Vec<u8>, u32>,
    n_vocab: u32,
}

impl Bpe {
    pub(super) fn new(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<TokenId>,
        row: &PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let merges = Merges::from_metadata(metadata, vocab)?;
        let token = |symbol: u32| (symbol < merges.n_vocab).then_some(symbol);
        let (byte_symbols, byte_tokens) = match row.alphabet {
            Alphabet::Bytes => {
                let symbols = std::array::from_fn(|b| {
                    let mut text = [0; 4];
                    let text = BYTE_CHARS[b].encode_utf8(&mut text);
                    merges.symbol(vocab, text.as_bytes())
                });
                (symbols, symbols.map(|symbol| token(symbol).or(unknown)))
            }
            Alphabet::Chars => (
                [NO_SYMBOL; 256],
                byte_fallback(vocab).map(|id| id.or(unknown)),
            ),
            Alphabet::Plain => ([NO_SYMBOL; 256], byte_fallback(vocab)),
        };
        Ok(Bpe {
            splitter: Splitter::new(row),
            alphabet: row.alphabet,
            whole: row.whole,
            lowercase: metadata.opt_bool(LOWERCASE)?.unwrap_or(false),
            merges,
            byte_symbols,
            byte_tokens,
        })
    }

    /// Returns the bytes of valid UTF-8 without a token; encoding drops them.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        (0..=0xF4)
            .filter(|&b| self.byte_tokens[b as usize].is_none() && !matches!(b, 0xC0 | 0xC1))
            .collect()
    }

    /// Appends the tokens of `text` to `ids`.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        merger: &mut Merger,
        ids: &mut Vec<TokenId>,
    ) {
        let text = match self.alphabet {
            Alphabet::Bytes => Cow::Borrowed(text),
            Alphabet::Chars => Cow::Owned(text.replace(' ', "▁")),
            Alphabet::Plain if self.lowercase => {
                Cow::Owned(text.chars().flat_map(char::to_lowercase).collect())
            }
            Alphabet::Plain => Cow::Borrowed(text),
        };
        let mut spelt = Vec::new();
        self.splitter.split(&text, &mut |piece| {
            if let Some(id) = self.whole_piece(vocab, piece, &mut spelt) {
                ids.push(id);
                return;
            }
            for part in piece.as_bytes().chunks(Merger::MAX_PIECE_BYTES) {
                merger.clear();
                match self.alphabet {
                    Alphabet::Bytes => {
                        for &b in part {
                            merger.push(self.byte_symbols[b as usize], 1);
                        }
                    }
                    Alphabet::Chars | Alphabet::Plain => {
                        merger.push_chars(part, |c| self.merges.symbol(vocab, c))
                    }
                }
                self.merge(part, merger, ids);
            }
        });
    }

    /// Returns the token of a whole piece, if this vocabulary does not merge such pieces.
    fn whole_piece(&self, vocab: &Vocab, piece: &str, spelt: &mut Vec<u8>) -> Option<TokenId> {
        match self.whole {
            Whole::LineFeeds if piece.starts_with('\n') => vocab.plain_id(piece.as_bytes()),
            Whole::All if piece.len() <= vocab.max_token_bytes() => {
                spelt.clear();
                spell(piece.as_bytes(), spelt);
                vocab.plain_id(spelt)
            }
            _ => None,
        }
    }

    fn merge(&self, part: &[u8], merger: &mut Merger, ids: &mut Vec<TokenId>) {
        let symbols = merger.run(|left, right| self.merges.get(left.id, right.id));
        for symbol in symbols {
            if symbol.id < self.merges.n_vocab {
                ids.push(symbol.id);
            } else {
                let bytes = &part[symbol.range()];
                ids.extend(bytes.iter().filter_map(|&b| self.byte_tokens[b as usize]));
            }
        }
    }
}

impl Merges {
    fn from_metadata(metadata: &Metadata, vocab: &Vocab) -> Result<Self, TokenizerError> {
        let list = metadata.strings(MERGES)?;
        limit("the number of merges", list.len(), MAX_MERGES)?;
        let n_vocab = u32::try_from(vocab.len()).expect("tokens are limited in vocab.rs");
        let ranks = HashMap::with_capacity_and_hasher(list.len(), FoldHash::new());
        let mut merges = Merges {
            ranks,
            others: HashMap::new(),
            n_vocab,
        };
        let mut joined = Vec::new();
        for (index, entry) in list.iter().enumerate() {
            // The first character may itself be a space.
            let space = entry
                .iter()
                .skip(1)
                .position(|&b| b == b' ')
                .map(|at| at + 1);
            let (left, right) = match space {
                Some(at) if at + 1 < entry.len() => (&entry[..at], &entry[at + 1..]),
                _ => {
                    return Err(TokenizerError::BadMerge {
                        index,
                        text: entry.to_vec(),
                    });
                }
            };
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let left = merges.number(vocab, left);
            let right = merges.number(vocab, right);
            let id = merges.number(vocab, &joined);
            let rank = u32::try_from(index).expect("merges are limited to MAX_MERGES");
            merges
                .ranks
                .entry(pair(left, right))
                .or_insert(Merge { rank, id });
        }
        Ok(merges)
    }

    /// Returns the number of a string, assigning one if needed.
    fn number(&mut self, vocab: &Vocab, text: &[u8]) -> u32 {
        let known = self.symbol(vocab, text);
        if known != NO_SYMBOL {
            return known;
        }
        let number = self.n_vocab + u32::try_from(self.others.len()).expect("at most 3 per merge");
        self.others.insert(text.to_vec(), number);
        number
    }

    /// Returns the number of a string, or [`NO_SYMBOL`].
    fn symbol(&self, vocab: &Vocab, text: &[u8]) -> u32 {
        let other = || self.others.get(text).copied();
        vocab.plain_id(text).or_else(other).unwrap_or(NO_SYMBOL)
    }

    fn get(&self, left: u32, right: u32) -> Option<Merge> {
        self.ranks.get(&pair(left, right)).copied()
    }
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The character that spells each byte: the byte itself if printable, otherwise the next unused one from U+0100.
const BYTE_CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut next = 0x100;
    let mut b = 0;
    while b < 256 {
        chars[b] = match b {
            0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => b as u8 as char,
            _ => {
                next += 1;
                char::from_u32(next - 1).expect("68 characters from U+0100")
            }
        };
        b += 1;
    }
    chars
};

/// Appends the spelling of `bytes`.
fn spell(bytes: &[u8], out: &mut Vec<u8>) {
    for &b in bytes {
        let c = BYTE_CHARS[b as usize];
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

/// Appends the bytes that `text` spells; characters that spell no byte are copied.
pub(super) fn unspell(text: &[u8], out: &mut Vec<u8>) {
    /// The byte that each character below U+0144 spells.
    const BYTES: [Option<u8>; 0x144] = {
        let mut bytes = [None; 0x144];
        let mut b = 0;
        while b < 256 {
            bytes[BYTE_CHARS[b] as usize] = Some(b as u8);
            b += 1;
        }
        bytes
    };
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match BYTES.get(c as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spells_bytes_as_gpt2_does() {
        // From the published vocabulary: Ġ is a space, Ċ a line feed.
        for (byte, c) in [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (b'!', '!'),
            (0xFF, 'ÿ'),
            (0xAD, 'Ń'),
            (0x7F, 'ġ'),
        ] {
            assert_eq!(BYTE_CHARS[byte as usize], c);
        }
    }

    #[test]
    fn spelling_round_trips() {
        let all: Vec<u8> = (0..=255).collect();
        let (mut spelt, mut back) = (Vec::new(), Vec::new());
        spell(&all, &mut spelt);
        unspell(&spelt, &mut back);
        assert_eq!(back, all);
    }
}
