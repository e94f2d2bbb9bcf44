//! Bookkeeping of the paged KV cache: which block of the device's cache holds which page of which
//! sequence. The values themselves live with the backend.
//!
//! After PagedAttention (Kwon et al. 2023). Blocks are counted references; a full block whose tokens are
//! known can be found again by what it holds and is shared (`prefix`), and a free block keeps its content
//! until it is needed for something else.

mod block_pool;
mod block_table;
mod prefix;

use rocmforge_gguf::GgmlType;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use prefix::PrefixHash;

/// What of the cache sequences have. Pages that several share count for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvUsage {
    /// Slots for tokens in the pages that are taken.
    pub n_slots: usize,
    /// Tokens in them.
    pub n_tokens: usize,
}

/// How cached keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    F32,
    /// Codes of 8 bits in blocks of 32 values of a head, with an f16 scale.
    Q8_0,
}

impl KvType {
    /// The format of the values.
    pub fn ggml_type(self) -> GgmlType {
        match self {
            KvType::F16 => GgmlType::F16,
            KvType::F32 => GgmlType::F32,
            KvType::Q8_0 => GgmlType::Q8_0,
        }
    }

    /// Bytes of a head of `dim` values, rounded up to whole blocks.
    pub fn head_bytes(self, dim: usize) -> usize {
        let ty = self.ggml_type();
        dim.div_ceil(ty.block_len()) * ty.block_bytes()
    }
}
