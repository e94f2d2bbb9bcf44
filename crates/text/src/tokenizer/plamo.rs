//! Vocabularies of PLaMo 2 and 3 (`plamo2`): of all ways to cut a text into tokens, the one with the highest sum of scores.
//!
//! A character that no chosen token has is spelled by the tokens of its bytes. Method: llama.cpp `llm_tokenizer_plamo2` and
//! PLaMo's own `tokenization_plamo.py`: the Viterbi algorithm from the end of the text, with scores rounded to four
//! decimals. Unlike there, text never becomes a control or an unused token. A byte order mark is text, as in PLaMo's own
//! tokenizer; llama.cpp drops it.
//!
//! Tokens are at most 512 bytes long, so time is linear. Memory is one id per byte of text.

use rocmforge_gguf::Metadata;

use super::detokenize::byte_of;
use super::prefixes::{MAX_BYTES, Prefixes};
use super::spm::scores;
use super::vocab::{TokenKind, Vocab};
use super::{TokenId, TokenizerError};

/// Costs are negative scores times this, rounded.
const SCALE: f64 = 1e4;
/// What it costs to spell a character by its bytes, of any number. In llama.cpp a token of just this cost also ends the
/// search for shorter ones.
const SPELLING_COST: i64 = 10_000_000;
/// A token that costs as much is never used.
const TOO_COSTLY: i32 = 20_000_000;

/// Stands for the bytes of a character; vocabularies have far fewer tokens.
const SPELLED: TokenId = TokenId::MAX;

/// At least as many positions as a token can reach.
const N_REACHED: usize = (MAX_BYTES + 1).next_power_of_two();

pub(super) struct Plamo {
    prefixes: Prefixes,
    /// Of each token of the vocabulary; 0 for those that are not used.
    costs: Vec<i32>,
    byte_tokens: [TokenId; 256],
}

impl Plamo {
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab) -> Result<Self, TokenizerError> {
        let costs: Vec<_> = scores(metadata, vocab.len())?
            .into_iter()
            .map(cost)
            .collect();
        // Tokens that are not UTF-8 occur in no text, but could end inside of a character.
        let is_used = |&(id, text): &(TokenId, &[u8])| {
            matches!(
                vocab.kind(id),
                Some(TokenKind::Normal | TokenKind::UserDefined)
            ) && costs[id as usize].is_some()
                && std::str::from_utf8(text).is_ok()
        };
        Ok(Plamo {
            prefixes: Prefixes::new(vocab.iter().filter(is_used))?,
            byte_tokens: byte_tokens(vocab)?,
            costs: costs.into_iter().map(Option::unwrap_or_default).collect(),
        })
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, ids: &mut Vec<TokenId>) {
        // The first token of the best way to cut the text from each position to the end.
        let mut first = vec![SPELLED; text.len()];
        // What this way costs, at the last positions that were visited.
        let mut costs = [0i64; N_REACHED];
        for (start, c) in text.char_indices().rev() {
            let rest = |len: usize| costs[(start + len) % N_REACHED];
            let mut best = rest(c.len_utf8()).saturating_add(SPELLING_COST);
            for (len, id) in self.prefixes.of(&text.as_bytes()[start..]) {
                let cost = rest(len).saturating_add(self.costs[id as usize].into());
                // Of equal costs, the longest token counts, which comes last.
                if cost <= best {
                    best = cost;
                    first[start] = id;
                }
            }
            costs[start % N_REACHED] = best;
        }
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let id = first[text.len() - rest.len()];
            let len = if id == SPELLED {
                let bytes = &rest.as_bytes()[..c.len_utf8()];
                ids.extend(bytes.iter().map(|&b| self.byte_tokens[usize::from(b)]));
                bytes.len()
            } else {
                ids.push(id);
                vocab.text(id).len()
            };
            rest = &rest[len..];
        }
    }
}

/// Returns what a token with this score costs; `None` if it is never used.
fn cost(score: f32) -> Option<i32> {
    let cost = (f64::from(score) * -SCALE).round() as i32;
    (score.is_finite() && cost < TOO_COSTLY).then_some(cost)
}

/// Returns the token of each byte.
fn byte_tokens(vocab: &Vocab) -> Result<[TokenId; 256], TokenizerError> {
    let mut tokens = [None; 256];
    for (id, text) in vocab.iter() {
        if vocab.kind(id) == Some(TokenKind::Byte)
            && let Some(byte) = byte_of(text)
        {
            tokens[usize::from(byte)] = Some(id);
        }
    }
    let mut found = [0; 256];
    for (byte, id) in (0..=255).zip(tokens) {
        found[usize::from(byte)] = id.ok_or(TokenizerError::MissingByteToken { byte })?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_rounded_scores() {
        for (score, expected) in [
            (0.0, Some(0)),
            (-1.5, Some(15_000)),
            (2.0, Some(-20_000)),
            // Exact in binary, and half of the last decimal.
            (-0.031_25, Some(313)),
            (0.031_25, Some(-313)),
            (-1999.5, Some(19_995_000)),
            (-2000.0, None),
            (f32::MAX, Some(i32::MIN)),
            (f32::MIN, None),
            (f32::INFINITY, None),
            (f32::NEG_INFINITY, None),
        ] {
            assert_eq!(cost(score), expected, "{score}");
        }
    }
}
