//! Bookkeeping of the paged KV cache: which block of the device's cache holds which page of which
//! sequence. The values themselves live with the backend.
//!
//! After PagedAttention (Kwon et al. 2023). Blocks are counted references; a full block whose tokens are
//! known can be found again by what it holds and is shared (`prefix`), and a free block keeps its content
//! until it is needed for something else.

mod block_pool;
mod block_table;
mod prefix;

pub use block_pool::{BlockId, BlockPool};
pub use block_table::BlockTable;
pub use prefix::PrefixHash;

/// How cached keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    F32,
}

impl KvType {
    pub fn value_bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
        }
    }
}
