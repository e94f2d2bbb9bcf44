//! Prefix hashes: identify a block's content by a hash chained over the request's salt and all tokens from the start of
//! the sequence.

use std::hash::{BuildHasher, RandomState};

use rocmforge_gguf::TokenId;

/// Identifies the tokens from the start of a sequence to the end of one full block.
///
/// Two 64-bit hashes with independent keys. The keys are random per process, so a request cannot construct a collision
/// to read another request's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixHash(u64, u64);

/// Computes the [`PrefixHash`] values of one engine.
#[derive(Debug, Clone, Default)]
pub(super) struct PrefixHasher {
    keys: (RandomState, RandomState),
}

impl PrefixHasher {
    /// Returns the hash that the chain of a salted sequence begins with. Only sequences with the same salt share blocks.
    pub(super) fn salted(&self, salt: &str) -> PrefixHash {
        PrefixHash(self.keys.0.hash_one(salt), self.keys.1.hash_one(salt))
    }

    /// Returns a hash of two.
    pub(super) fn joined(&self, a: PrefixHash, b: PrefixHash) -> PrefixHash {
        PrefixHash(self.keys.0.hash_one((a, b)), self.keys.1.hash_one((a, b)))
    }

    /// Hashes a block of `tokens` that follows the blocks of `parent`.
    pub(super) fn block(&self, parent: Option<PrefixHash>, tokens: &[TokenId]) -> PrefixHash {
        PrefixHash(
            self.keys.0.hash_one((parent, tokens)),
            self.keys.1.hash_one((parent, tokens)),
        )
    }
}
