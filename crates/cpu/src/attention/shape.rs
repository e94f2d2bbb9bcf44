//! Shape and inputs of an attention operation.

use std::ops::Range;

use rocmforge_plan::{Alibi, Growth, Mask};

use crate::kv_slice::KvSlice;

/// The shape of attention in one layer.
#[derive(Clone, Copy, Debug)]
pub struct AttnShape {
    /// Query heads, a multiple of `n_kv_heads`.
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Width of queries and keys.
    pub k_dim: usize,
    /// Width of values and outputs.
    pub v_dim: usize,
    /// How the stored keys and values are rotated ([`rocmforge_plan::KvType::hadamard_len`]), 1 for not at all. Queries
    /// and outputs are not rotated.
    pub k_hadamard: usize,
    pub v_hadamard: usize,
    /// Positions per cache block, a multiple of 16.
    pub page: usize,
    /// Factor applied to the scores, usually 1 / sqrt(k_dim).
    pub scale: f32,
    /// `Some(cap)` replaces a scaled score `x` by `cap * tanh(x / cap)`. Positive.
    pub soft_cap: Option<f32>,
    /// A second factor on the scores, before the soft cap.
    pub growth: Option<Growth>,
    /// What is subtracted from scores, after the soft cap.
    pub alibi: Option<Alibi>,
    /// Which positions a row sees.
    pub mask: Mask,
}

impl AttnShape {
    /// Query heads that share a KV head.
    #[inline]
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Positions that a row at `pos` sees, in a sequence of `len` positions.
    #[inline]
    pub(crate) fn visible(&self, pos: usize, len: usize) -> Range<usize> {
        self.mask.first_seen(pos)..self.mask.last_seen(pos, len) + 1
    }

    /// Factor on the dot products of a row at `pos`.
    #[inline]
    pub(crate) fn factor(&self, pos: usize) -> f32 {
        self.growth
            .map_or(self.scale, |growth| self.scale * growth.at(pos))
    }
}

/// The inputs of an attention operation. Keys and values of the rows themselves are already in the cache; slots that no
/// row sees may hold anything.
#[derive(Clone, Copy, Debug)]
pub struct AttnInputs<'a> {
    /// Queries `[n_tokens, n_heads * k_dim]`.
    pub q: &'a [f32],
    /// Keys `[n_blocks, n_kv_heads, page, k_dim]`.
    pub k: KvSlice<'a>,
    /// Values `[n_blocks, n_kv_heads, page, v_dim]`; `None` if a value is the first `v_dim` values of its key.
    pub v: Option<KvSlice<'a>>,
    /// `[n_heads]`: a score of each head that takes part in the softmax, but has no value.
    pub sinks: Option<&'a [f32]>,
}
