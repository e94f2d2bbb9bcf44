//! Sequence breakers of DRY sampling, as tokens.

use std::collections::HashMap;

use rocmforge_gguf::TokenId;

/// Tokens that contain a breaker or begin one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakers {
    /// For each token, the token sequences that complete a breaker; an empty one if the token contains a whole breaker.
    tails: HashMap<TokenId, Vec<Vec<TokenId>>>,
}

impl Breakers {
    /// Creates breakers from a map of tokens to the token sequences that complete a breaker.
    pub fn new(tails: HashMap<TokenId, Vec<Vec<TokenId>>>) -> Breakers {
        Breakers { tails }
    }

    /// Returns whether the token contains a whole breaker.
    pub fn is_whole(&self, id: TokenId) -> bool {
        let tails = self.tails.get(&id);
        tails.is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// Returns the number of tokens since the last breaker in a reversed token sequence, or its length if there is
    /// none.
    pub fn tokens_since(&self, reversed: &[TokenId]) -> usize {
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
