//! SentencePiece vocabularies (`llama`): merges characters to the tokens with the best scores; text that is no token is
//! encoded byte by byte.
//!
//! Spaces are written `▁`. If no token has a `▁` after another character, merging never crosses from a word into the
//! following space. Text is then cut there, which gives the same result with many short loops instead of one as long as
//! the text. Method: llama.cpp `llm_tokenizer_spm_session`.

use rocmforge_gguf::Metadata;

use super::merge::{Merge, Merger, NO_SYMBOL, Symbol};
use super::vocab::{Vocab, wrong_length};
use super::{TokenId, TokenizerError, byte_fallback};

const SCORES: &str = "tokenizer.ggml.scores";

/// U+2581, which stands for a space.
const BLOCK: &[u8] = "▁".as_bytes();

pub(super) struct Spm {
    /// Rank of each token; lower is better.
    ranks: Vec<u32>,
    byte_tokens: [TokenId; 256],
    cut_at_spaces: bool,
}

impl Spm {
    pub(super) fn new(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<TokenId>,
    ) -> Result<Self, TokenizerError> {
        let scores = scores(metadata, vocab.len())?;
        let mut byte_tokens = [0; 256];
        for (byte, id) in (0..=255).zip(byte_fallback(vocab)) {
            byte_tokens[usize::from(byte)] =
                id.or(unknown).ok_or(TokenizerError::NoByteToken { byte })?;
        }
        let mut plain = vocab.iter().filter(|&(id, _)| vocab.is_plain(id));
        let cut_at_spaces = plain.all(|(_, text)| next_word(text, 0) == text.len());
        Ok(Spm {
            ranks: scores.into_iter().map(rank).collect(),
            byte_tokens,
            cut_at_spaces,
        })
    }

    /// Appends the tokens of `text`, preceded by a space if `space_first`.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &[u8],
        space_first: bool,
        merger: &mut Merger,
        ids: &mut Vec<TokenId>,
    ) {
        let mut escaped = Vec::with_capacity(text.len() + text.len() / 2 + BLOCK.len());
        if space_first {
            escaped.extend_from_slice(BLOCK);
        }
        for &b in text {
            match b {
                b' ' => escaped.extend_from_slice(BLOCK),
                b => escaped.push(b),
            }
        }
        let mut start = 0;
        while start < escaped.len() {
            let end = if self.cut_at_spaces {
                next_word(&escaped, start)
            } else {
                escaped.len()
            };
            let end = end.min(start + Merger::MAX_PIECE_BYTES);
            self.merge(vocab, &escaped[start..end], merger, ids);
            start = end;
        }
    }

    fn merge(&self, vocab: &Vocab, text: &[u8], merger: &mut Merger, ids: &mut Vec<TokenId>) {
        merger.clear();
        merger.push_chars(text, |c| vocab.plain_id(c).unwrap_or(NO_SYMBOL));
        let joined = |left: &Symbol, right: &Symbol| {
            let id = vocab.plain_id(&text[left.range().start..right.range().end])?;
            Some(Merge {
                rank: self.ranks[id as usize],
                id,
            })
        };
        for symbol in merger.run(joined) {
            if symbol.id == NO_SYMBOL {
                let bytes = &text[symbol.range()];
                ids.extend(bytes.iter().map(|&b| self.byte_tokens[b as usize]));
            } else {
                ids.push(symbol.id);
            }
        }
    }
}

/// Returns the score of each token.
pub(super) fn scores(metadata: &Metadata, n_vocab: usize) -> Result<Vec<f32>, TokenizerError> {
    let scores = metadata.f32s(SCORES)?;
    wrong_length(SCORES, scores.len(), n_vocab)?;
    match scores.iter().position(|s| s.is_nan()) {
        Some(id) => Err(TokenizerError::BadScore { id }),
        None => Ok(scores),
    }
}

/// Maps scores to integers in reverse order, so that the best score has the lowest rank.
fn rank(score: f32) -> u32 {
    // Adding 0 turns -0 into 0, which must compare equal.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    !ascending
}

/// Returns the position of the first `▁` after another character, searching from `start`.
fn next_word(text: &[u8], start: usize) -> usize {
    let mut at = start;
    while text[at..].starts_with(BLOCK) {
        at += BLOCK.len();
    }
    let mut from = at;
    while let Some(i) = text[from..].iter().position(|&b| b == BLOCK[0]) {
        from += i;
        if text[from..].starts_with(BLOCK) {
            return from;
        }
        from += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_scores_have_lower_ranks() {
        let descending = [f32::INFINITY, 1e9, 0.5, 0.0, -0.25, -1e9, f32::NEG_INFINITY];
        assert!(descending.windows(2).all(|w| rank(w[0]) < rank(w[1])));
        assert_eq!(rank(-0.0), rank(0.0));
    }

    #[test]
    fn words_begin_at_the_space_after_text() {
        for (text, ends) in [
            ("▁a▁b", &[4, 8][..]),
            ("a▁▁b▁", &[1, 8, 11]),
            ("▁▁", &[6]),
            ("é", &[2]),
            ("▂▁", &[3, 6]),
        ] {
            let mut at = 0;
            let mut found = Vec::new();
            while at < text.len() {
                at = next_word(text.as_bytes(), at);
                found.push(at);
            }
            assert_eq!(found, ends, "{text}");
        }
    }
}
