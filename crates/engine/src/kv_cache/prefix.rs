//! Names for what a block holds: a hash chained over all tokens from the start of the sequence.

use std::hash::{BuildHasher, RandomState};

use rocmforge_gguf::TokenId;

/// Identifies the tokens from the start of a sequence to the end of one full page.
///
/// Two independently keyed 64-bit hashes; the keys are random per process, so nobody can construct a
/// collision that would make one request read another's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixHash(u64, u64);

/// Makes [`PrefixHash`] values of one engine.
#[derive(Debug, Clone, Default)]
pub(super) struct PrefixHasher {
    keys: (RandomState, RandomState),
}

impl PrefixHasher {
    /// The hash of a page of `tokens` after the pages that `parent` names.
    pub(super) fn page(&self, parent: Option<PrefixHash>, tokens: &[TokenId]) -> PrefixHash {
        PrefixHash(
            self.keys.0.hash_one((parent, tokens)),
            self.keys.1.hash_one((parent, tokens)),
        )
    }
}
