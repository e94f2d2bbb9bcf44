//! KV-cache accounting: which blocks of the device's cache hold the tokens of which sequence. The values themselves
//! are in the backend.
//!
//! The method is PagedAttention (Kwon et al. 2023). Blocks are reference-counted. A full block is indexed by a hash of
//! its tokens and all tokens before them, so that sequences with the same prefix share it (`prefix`). A free block
//! keeps its content until it is reused.

mod block_pool;
mod block_table;
mod forget;
mod prefix;
mod state_table;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use forget::Compaction;
pub use prefix::PrefixHash;
pub use state_table::{Rows, StateTable};

/// KV-cache usage of the running sequences. A shared block counts once for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvUsage {
    /// Token slots in the blocks in use.
    pub n_slots: usize,
    /// Tokens in these slots.
    pub n_tokens: usize,
}

impl KvUsage {
    /// Returns the share of slots without a token, from 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        let n_empty = self.n_slots - self.n_tokens.min(self.n_slots);
        n_empty as f64 / self.n_slots.max(1) as f64
    }
}

/// Statistics of context shifts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ContextShifts {
    pub n_shifts: usize,
    /// Dropped tokens.
    pub n_tokens: usize,
    /// KV-cache usage before and after the last shift.
    pub compaction: Compaction,
}
