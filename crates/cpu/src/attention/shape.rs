//! Shape and inputs of an attention operation.

use std::ops::Range;

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
    /// Positions per cache block, a multiple of 16.
    pub page: usize,
    /// Factor applied to the scores, usually 1 / sqrt(k_dim).
    pub scale: f32,
    /// `Some(cap)` replaces a scaled score `x` by `cap * tanh(x / cap)`. Positive.
    pub soft_cap: Option<f32>,
    /// With `Some(w)`, a row sees itself and the w - 1 positions before it. Not 0.
    pub window: Option<u32>,
}

impl AttnShape {
    /// Query heads that share a KV head.
    #[inline]
    pub(crate) fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads
    }

    /// Positions that a row at `pos` sees.
    #[inline]
    pub(crate) fn visible(&self, pos: usize) -> Range<usize> {
        let window = self.window.map_or(usize::MAX, |w| w as usize);
        (pos + 1).saturating_sub(window)..pos + 1
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
    /// Values `[n_blocks, n_kv_heads, page, v_dim]`.
    pub v: KvSlice<'a>,
}
