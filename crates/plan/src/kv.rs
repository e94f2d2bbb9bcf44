//! The KV cache as plans and batches describe it: how values are stored, what each layer keeps, and moves
//! of cached tokens.

use rocmforge_gguf::quant::f8;

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

/// What one layer keeps in the KV cache for each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvSpec {
    pub n_kv_heads: usize,
    /// Values of one head's key.
    pub k_dim: usize,
    /// Values of one head's value.
    pub v_dim: usize,
    /// Only the last `window` positions are visible; `None` means all.
    pub window: Option<u32>,
}

impl KvSpec {
    /// Bytes (K and V) that one token adds to this layer's cache.
    pub fn bytes_per_token(&self, kv_type: KvType) -> u64 {
        let head = kv_type.head_bytes(self.k_dim) + kv_type.head_bytes(self.v_dim);
        (self.n_kv_heads * head) as u64
    }
}

/// Tokens that follow each other in the cache, and where they go. Neither side leaves its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// The first slots: `block * page + offset`.
    pub from: u32,
    pub to: u32,
    pub n_tokens: u32,
}

/// What a device does to its cache when a sequence forgets tokens, in any order: no slot is read that another run
/// writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvShift {
    /// Tokens that keep their positions.
    pub copied: Vec<SlotRun>,
    /// Tokens that take positions lower by `back_by`: their keys turn back. A run may stay where it is.
    pub turned: Vec<SlotRun>,
    pub back_by: u32,
}
