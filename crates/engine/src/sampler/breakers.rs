//! The sequence breakers of DRY as tokens: a breaker's text may be inside a token, or begin in one and
//! end in others. The method is llama.cpp's (`get_overlapping_token_sequences`).

use std::collections::HashMap;

use crate::tokenizer::{EncodeOptions, TokenId, Tokenizer};

/// Tokens of a breaker after its first one, at most.
const MAX_TAIL_TOKENS: usize = 20;

/// The tokens that hold or begin a breaker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakers {
    /// For each token the tokens that have to follow; none for a token that holds a whole breaker.
    tails: HashMap<TokenId, Vec<Vec<TokenId>>>,
}

impl Breakers {
    /// Finds `texts` in the vocabulary.
    pub fn new(tokenizer: &Tokenizer, texts: &[String]) -> Breakers {
        let mut breakers = Breakers::default();
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        for text in texts.iter().map(String::as_bytes).filter(|t| !t.is_empty()) {
            let mut rest_tokens: Vec<Vec<TokenId>> = (1..text.len())
                .map(|at| tokenizer.encode_bytes(&text[at..], options))
                .collect();
            for tail in &mut rest_tokens {
                tail.truncate(MAX_TAIL_TOKENS);
            }
            for id in 0..tokenizer.n_vocab() as TokenId {
                let word = tokenizer.token_bytes(id);
                if word.windows(text.len()).any(|part| part == text) {
                    breakers.add(id, Vec::new());
                    continue;
                }
                for at in 0..word.len() {
                    let end = &word[at..];
                    if end.len() < text.len() && text.starts_with(end) {
                        breakers.add(id, rest_tokens[end.len() - 1].clone());
                    }
                }
            }
        }
        breakers
    }

    fn add(&mut self, id: TokenId, tail: Vec<TokenId>) {
        let tails = self.tails.entry(id).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    /// Whether the token holds a whole breaker.
    pub(super) fn is_whole(&self, id: TokenId) -> bool {
        let tails = self.tails.get(&id);
        tails.is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// How many tokens came since the last breaker, in a text given backwards; all if there is none.
    pub(super) fn tokens_since(&self, reversed: &[TokenId]) -> usize {
        for (at, id) in reversed.iter().enumerate() {
            let after = &reversed[..at];
            let is_next =
                |tail: &&Vec<TokenId>| after.iter().rev().take(tail.len()).eq(tail.iter());
            let tails = self.tails.get(id).into_iter().flatten();
            if let Some(longest) = tails.filter(is_next).map(Vec::len).max() {
                return at - longest;
            }
        }
        reversed.len()
    }
}
