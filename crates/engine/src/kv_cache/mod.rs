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

use rocmforge_gguf::quant::f8;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use forget::{Compaction, KvShift};
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

/// How cached keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    F32,
    /// Codes of 8 bits in blocks of 32 values of a head, or of all values of a smaller one, with an f16 scale.
    Q8_0,
    /// Floating point of 8 bits, 4 of them the exponent's, with a bf16 scale for each head ([`f8`]).
    F8E4M3,
}

impl KvType {
    pub const ALL: [KvType; 4] = [KvType::F16, KvType::F32, KvType::Q8_0, KvType::F8E4M3];

    /// As options and messages name it.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Q8_0 => "q8_0",
            KvType::F8E4M3 => "fp8",
        }
    }

    /// Values that share a scale, where a head of `dim` values must be whole blocks of them.
    pub fn block_len(self, dim: usize) -> usize {
        match self {
            KvType::F16 | KvType::F32 | KvType::F8E4M3 => 1,
            KvType::Q8_0 => dim.clamp(1, 32),
        }
    }

    /// Bytes of a head of `dim` values.
    pub fn head_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 => 2 * dim,
            KvType::F32 => 4 * dim,
            KvType::Q8_0 => dim + 2 * dim.div_ceil(32),
            KvType::F8E4M3 => dim + f8::SCALE_BYTES,
        }
    }
}
