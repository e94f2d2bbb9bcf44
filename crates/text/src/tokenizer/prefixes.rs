//! The tokens that begin where a text begins: a sorted list, searched byte by byte.
//!
//! A trie of a hostile vocabulary takes many times its bytes in the file. The list takes as much as the texts, and a
//! step is a binary search in the part that still agrees. Tokens are at most [`MAX_BYTES`] long, so the work for a text
//! is linear in its length for any vocabulary.

use std::cmp::Reverse;

use rocmforge_gguf::TokenId;

use super::error::TokenizerError;
use super::vocab::{Texts, limit};

/// The longest token of released vocabularies of these kinds has 128 bytes (RWKV).
pub(super) const MAX_BYTES: usize = 512;

/// Tokens by their texts.
pub(super) struct Prefixes {
    /// In ascending order.
    texts: Texts,
    /// The token of each text.
    ids: Vec<TokenId>,
    /// Where the texts with each first byte begin.
    starts: [u32; 257],
}

impl Prefixes {
    /// Of equal texts, the token with the highest id counts. Empty texts are left out.
    ///
    /// # Errors
    /// If a text is longer than in any released vocabulary.
    pub(super) fn new<'t>(
        tokens: impl Iterator<Item = (TokenId, &'t [u8])>,
    ) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<_> = tokens.filter(|(_, text)| !text.is_empty()).collect();
        tokens.sort_unstable_by_key(|&(id, text)| (text, Reverse(id)));
        tokens.dedup_by_key(|&mut (_, text)| text);
        let mut texts = Texts::with_capacity(tokens.len());
        let mut counts = [0u32; 257];
        for (_, text) in &tokens {
            limit("the length of a token", text.len(), MAX_BYTES)?;
            texts.push(text);
            counts[usize::from(text[0]) + 1] += 1;
        }
        let mut sum = 0;
        Ok(Prefixes {
            texts,
            ids: tokens.iter().map(|&(id, _)| id).collect(),
            starts: counts.map(|n| {
                sum += n;
                sum
            }),
        })
    }

    /// Returns length and id of every token that `text` begins with, the shortest first.
    pub(super) fn of<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, TokenId)> + 'a {
        let range = text.first().map_or(0..0, |&b| {
            let at = |i: usize| self.starts[i] as usize;
            at(usize::from(b))..at(usize::from(b) + 1)
        });
        Walk {
            prefixes: self,
            text,
            low: range.start,
            high: range.end,
            depth: 1,
        }
    }

    /// Returns length and id of the longest token that `text` begins with.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, TokenId)> {
        self.of(text).last()
    }
}

/// A search for ever longer tokens.
struct Walk<'a> {
    prefixes: &'a Prefixes,
    text: &'a [u8],
    /// The texts from `low` to `high` agree with the first `depth` bytes.
    low: usize,
    high: usize,
    depth: usize,
}

impl Walk<'_> {
    /// Returns the first text in the range that `is_past` says is past the wanted ones.
    fn bound(&self, mut low: usize, is_past: impl Fn(Option<&u8>) -> bool) -> usize {
        let mut high = self.high;
        while low < high {
            let middle = low + (high - low) / 2;
            match is_past(self.prefixes.texts.get(middle).get(self.depth)) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low
    }
}

impl Iterator for Walk<'_> {
    type Item = (usize, TokenId);

    fn next(&mut self) -> Option<(usize, TokenId)> {
        while self.low < self.high {
            let found = (self.prefixes.texts.get(self.low).len() == self.depth)
                .then(|| (self.depth, self.prefixes.ids[self.low]));
            match self.text.get(self.depth) {
                None => self.high = self.low,
                Some(next) => {
                    self.low = self.bound(self.low, |b| b >= Some(next));
                    self.high = self.bound(self.low, |b| b > Some(next));
                    self.depth += 1;
                }
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_the_definition_says() {
        let texts: [&[u8]; 9] = [
            b"a", b"ab", b"abab", b"b", b"", b"ba", b"\xff", b"a\0", b"ab",
        ];
        let prefixes = Prefixes::new((0..).zip(texts)).unwrap();
        let letters = [b'a', b'b', 0, 0xff];
        for n in 0..4usize.pow(5) {
            let text: Vec<u8> = (0..5).map(|i| letters[n / 4usize.pow(i) % 4]).collect();
            for len in 0..=5 {
                let text = &text[..len];
                let found: Vec<_> = prefixes.of(text).collect();
                let expected: Vec<_> = (1..=len)
                    .filter_map(|len| {
                        let last = texts.iter().rposition(|t| *t == &text[..len])?;
                        Some((len, last as TokenId))
                    })
                    .collect();
                assert_eq!(found, expected, "{text:?}");
                assert_eq!(prefixes.longest(text), expected.last().copied());
            }
        }
    }

    #[test]
    fn refuses_long_tokens() {
        let long = vec![b'x'; MAX_BYTES + 1];
        assert!(Prefixes::new([(0, &long[..])].into_iter()).is_err());
        assert!(Prefixes::new([(0, &long[1..])].into_iter()).is_ok());
    }
}
