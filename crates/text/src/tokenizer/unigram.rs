//! Unigram vocabularies (`t5`): of all ways to cut a text into tokens, the one with the highest sum of scores.
//!
//! Text is normalized first ([`super::charsmap`]), with `▁` for a space. Method: the Viterbi algorithm as in SentencePiece
//! `unigram_model.cc` and llama.cpp `llm_tokenizer_ugm_session`. Tokens are at most 512 bytes long, so time is linear;
//! memory is bounded because a text longer than [`BLOCK_BYTES`] is cut at spaces.

use rocmforge_gguf::Metadata;

use super::charsmap::Charsmap;
use super::prefixes::Prefixes;
use super::spm::scores;
use super::vocab::{TokenKind, Vocab};
use super::{TokenId, TokenizerError};

const SPACE: &str = "▁";

/// Normalized text that is cut at the next space.
const BLOCK_BYTES: usize = 1 << 20;
/// How much worse than the worst token an unknown character is.
const UNKNOWN_PENALTY: f32 = 10.0;

pub(super) struct Unigram {
    prefixes: Prefixes,
    /// Of each token of the vocabulary.
    scores: Vec<f32>,
    charsmap: Charsmap,
    unknown: Option<TokenId>,
    unknown_score: f64,
    spaces: Spaces,
}

/// How spaces are normalized.
#[derive(Clone, Copy)]
struct Spaces {
    /// Add one before the first word.
    add_prefix: bool,
    /// Make one of several, and drop those at the ends.
    merge: bool,
}

impl Unigram {
    pub(super) fn new(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<TokenId>,
        add_prefix: bool,
    ) -> Result<Self, TokenizerError> {
        let mut scores = scores(metadata, vocab.len())?;
        let mut worst = f32::MAX;
        for (id, score) in (0..).zip(&mut scores) {
            match vocab.kind(id) {
                Some(TokenKind::Normal) => worst = worst.min(*score),
                Some(TokenKind::UserDefined) => *score = 0.0,
                _ => {}
            }
        }
        let merge = metadata.opt_bool("tokenizer.ggml.remove_extra_whitespaces")?;
        Ok(Unigram {
            prefixes: Prefixes::new(vocab.iter().filter(|&(id, _)| {
                use TokenKind::{Normal, Unused, UserDefined};
                matches!(vocab.kind(id), Some(Normal | UserDefined | Unused))
            }))?,
            scores,
            charsmap: Charsmap::from_metadata(metadata)?,
            unknown,
            unknown_score: f64::from(worst - UNKNOWN_PENALTY),
            spaces: Spaces {
                add_prefix,
                merge: merge.unwrap_or(false),
            },
        })
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<TokenId>) {
        let mut block = String::new();
        let (mut has_prefix, mut in_word) = (false, false);
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (len, normalized) = self.normalized(rest, first);
            rest = &rest[len..];
            for c in normalized.chars() {
                if block.len() >= BLOCK_BYTES && (c == ' ' || block.len() >= 2 * BLOCK_BYTES) {
                    self.cut(&block, ids);
                    block.clear();
                }
                if c == ' ' {
                    in_word = false;
                    if !self.spaces.merge {
                        block.push_str(SPACE);
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if (self.spaces.add_prefix && !has_prefix) || self.spaces.merge {
                        block.push_str(SPACE);
                        has_prefix = true;
                    }
                }
                block.push(c);
            }
        }
        self.cut(&block, ids);
    }

    /// Returns how many bytes of `rest`, which begins with `first`, one rule replaces, and by what.
    fn normalized<'a>(&'a self, rest: &'a str, first: char) -> (usize, &'a str) {
        let one = (first.len_utf8(), &rest[..first.len_utf8()]);
        match self.charsmap.longest(rest.as_bytes()) {
            // A damaged rule could end inside a character, or give no text.
            Some((len, replacement)) if rest.is_char_boundary(len) => {
                std::str::from_utf8(replacement).map_or(one, |text| (len, text))
            }
            _ => one,
        }
    }

    /// Appends the tokens of normalized text.
    fn cut(&self, text: &str, ids: &mut Vec<TokenId>) {
        /// The best way to cut the text up to one position.
        #[derive(Clone, Copy)]
        struct Best {
            score: f64,
            /// Its last token, which begins at `start`.
            token: Option<TokenId>,
            start: usize,
        }
        let unreached = Best {
            score: -f64::MAX,
            token: self.unknown,
            start: 0,
        };
        let mut best = vec![unreached; text.len() + 1];
        best[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let so_far = best[start].score;
            let mut offer = |len: usize, token, score: f64| {
                let end = &mut best[start + len];
                if so_far + score > end.score {
                    let score = so_far + score;
                    *end = Best {
                        score,
                        token,
                        start,
                    };
                }
            };
            let mut has_char = false;
            for (len, id) in self.prefixes.of(&text.as_bytes()[start..]) {
                has_char |= len == c.len_utf8();
                offer(len, Some(id), self.scores[id as usize].into());
            }
            if !has_char {
                offer(c.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        let begin = ids.len();
        let mut end = text.len();
        let mut was_unknown = false;
        while end > 0 {
            let Best { token, start, .. } = best[end];
            // Neighbouring unknown tokens are one.
            let is_unknown = token == self.unknown;
            if !(was_unknown && is_unknown) {
                ids.extend(token);
            }
            was_unknown = is_unknown;
            end = start;
        }
        ids[begin..].reverse();
    }
}
