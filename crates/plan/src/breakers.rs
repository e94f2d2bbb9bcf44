//! The sequence breakers of DRY sampling, as tokens.

use std::collections::HashMap;

use rocmforge_gguf::TokenId;

/// The tokens that hold or begin a breaker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakers {
    /// For each token the tokens that have to follow; none for a token that holds a whole breaker.
    tails: HashMap<TokenId, Vec<Vec<TokenId>>>,
}

impl Breakers {
    /// Creates breakers from the token sequences that hold or begin each text.
    pub fn new(tails: HashMap<TokenId, Vec<Vec<TokenId>>>) -> Breakers {
        Breakers { tails }
    }

    /// Whether the token holds a whole breaker.
    pub fn is_whole(&self, id: TokenId) -> bool {
        let tails = self.tails.get(&id);
        tails.is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// How many tokens came since the last breaker, in a text given backwards; all if there is none.
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
