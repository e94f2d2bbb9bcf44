//! Bookkeeping of the paged KV cache: which block of the device's cache holds which page of which
//! sequence. The values themselves live with the backend.
//!
//! After PagedAttention (Kwon et al. 2023). Blocks are counted references; a full block whose tokens are
//! known can be found again by what it holds and is shared (`prefix`), and a free block keeps its content
//! until it is needed for something else.

mod block_pool;
mod block_table;
mod forget;
mod prefix;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use forget::Compaction;
pub use prefix::PrefixHash;

/// What of the cache sequences have. Pages that several share count for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvUsage {
    /// Slots for tokens in the pages that are taken.
    pub n_slots: usize,
    /// Tokens in them.
    pub n_tokens: usize,
}

impl KvUsage {
    /// The share of slots without a token.
    pub fn fragmentation(&self) -> f64 {
        let n_empty = self.n_slots - self.n_tokens.min(self.n_slots);
        n_empty as f64 / self.n_slots.max(1) as f64
    }
}

/// How often sequences forgot tokens so far, and what became of their pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextShifts {
    pub n_shifts: usize,
    /// Tokens that were forgotten.
    pub n_tokens: usize,
    /// Of the last time.
    pub compaction: Compaction,
}
