//! Views of the keys or values that one layer keeps in the paged KV cache.

use std::ops::Range;

use rocmforge_gguf::quant::legacy::{Q8_0, QK};

use crate::head_code::HeadCode;

/// Keys or values of one layer, `[n_blocks, n_kv_heads, page, dim]`: f16 bits, f32, blocks of 32 values (`dim` is then
/// a multiple of 32), or heads in bytes.
#[derive(Clone, Copy, Debug)]
pub enum KvSlice<'a> {
    F16(&'a [u16]),
    F32(&'a [f32]),
    Q8_0(&'a [Q8_0]),
    Heads {
        code: HeadCode,
        heads: &'a [u8],
        dim: usize,
    },
}

/// Mutable keys or values of one layer; see [`KvSlice`].
#[derive(Debug)]
pub enum KvSliceMut<'a> {
    F16(&'a mut [u16]),
    F32(&'a mut [f32]),
    Q8_0(&'a mut [Q8_0]),
    Heads {
        code: HeadCode,
        heads: &'a mut [u8],
        dim: usize,
    },
}

impl<'a> KvSlice<'a> {
    /// The values of `range`, whole blocks or heads.
    pub(crate) fn get(self, range: Range<usize>) -> KvSlice<'a> {
        match self {
            KvSlice::F16(x) => KvSlice::F16(&x[range]),
            KvSlice::F32(x) => KvSlice::F32(&x[range]),
            KvSlice::Q8_0(x) => KvSlice::Q8_0(&x[range.start / QK..range.end / QK]),
            KvSlice::Heads { code, heads, dim } => {
                let head = code.head_bytes(dim);
                let heads = &heads[range.start / dim * head..range.end / dim * head];
                KvSlice::Heads { code, heads, dim }
            }
        }
    }

    pub(crate) fn as_ptr(self) -> *const u8 {
        match self {
            KvSlice::F16(x) => x.as_ptr().cast(),
            KvSlice::F32(x) => x.as_ptr().cast(),
            KvSlice::Q8_0(x) => x.as_ptr().cast(),
            KvSlice::Heads { heads, .. } => heads.as_ptr(),
        }
    }

    pub(crate) fn n_bytes(self) -> usize {
        match self {
            KvSlice::F16(x) => size_of_val(x),
            KvSlice::F32(x) => size_of_val(x),
            KvSlice::Q8_0(x) => size_of_val(x),
            KvSlice::Heads { heads, .. } => heads.len(),
        }
    }

    /// Values that share a scale.
    pub(crate) fn block_len(self) -> usize {
        match self {
            KvSlice::F16(_) | KvSlice::F32(_) => 1,
            KvSlice::Q8_0(_) => QK,
            KvSlice::Heads { dim, .. } => dim,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            KvSlice::F16(x) => x.len(),
            KvSlice::F32(x) => x.len(),
            KvSlice::Q8_0(x) => x.len() * QK,
            KvSlice::Heads { code, heads, dim } => heads.len() / code.head_bytes(*dim) * dim,
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Layout of the cache of one layer: per token `n_kv_heads` heads of `dim` values, in blocks of `page` tokens.
#[derive(Clone, Copy, Debug)]
pub struct KvLayout {
    pub n_kv_heads: usize,
    pub dim: usize,
    pub page: usize,
    /// Values that a Hadamard matrix rotates together before they are stored, 1 for none
    /// ([`rocmforge_plan::KvType::hadamard_len`]).
    pub hadamard: usize,
}

impl KvLayout {
    /// Indices of the heads of the token at `slot`, counted in heads of the cache `[n_blocks, n_kv_heads, page]`.
    pub(crate) fn heads(&self, slot: u32) -> impl Iterator<Item = usize> {
        let (block, offset) = (slot as usize / self.page, slot as usize % self.page);
        let (first, page) = (block * self.n_kv_heads * self.page + offset, self.page);
        (0..self.n_kv_heads).map(move |head| first + head * page)
    }
}
