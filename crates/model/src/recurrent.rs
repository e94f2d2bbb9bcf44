//! What the metadata says about layers that keep a state of each sequence in place of a KV cache.

use rocmforge_plan::{KeySharing, LinearHeads};

use crate::error::LoadError;
use crate::facts::ModelConfig;
use crate::keys::{Keys, MAX_DIM};

/// What a layer has in place of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrent {
    /// A gated convolution over this number of tokens (LFM2).
    ShortConv(usize),
    /// A gated delta net (Yang et al. 2024): Qwen3-Next, Qwen 3.5.
    GatedDelta(LinearLayer),
    /// A Mamba-2 layer (Dao and Gu 2024).
    Mamba2(LinearLayer),
    /// A Mamba-2 layer whose output is added to that of attention.
    BesideAttention(LinearLayer),
}

/// A layer of linear attention behind a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearLayer {
    /// Tokens that the convolution sees.
    pub n_conv: usize,
    pub heads: LinearHeads,
}

impl LinearLayer {
    /// Width of queries, or of keys.
    pub(crate) fn n_k(&self) -> usize {
        self.heads.n_k_heads * self.heads.k_dim
    }

    /// Width of values.
    pub(crate) fn n_v(&self) -> usize {
        self.heads.n_heads * self.heads.v_dim
    }
}

/// Above those of any real model: a state has the product of a key's and a value's length.
const MAX_STATE_DIM: usize = 1024;
/// Tokens that a convolution sees.
const MAX_CONV: usize = 64;
const MAX_HEADS: usize = 1 << 12;

/// Reads the number of tokens that a convolution sees.
pub(crate) fn n_conv(keys: &Keys<'_>, key: &str) -> Result<usize, LoadError> {
    keys.size(key, MAX_CONV)
}

/// Reads the heads of linear attention; `sharing` says which of them have the same keys.
pub(crate) fn linear_layer(keys: &Keys<'_>, sharing: KeySharing) -> Result<LinearLayer, LoadError> {
    const INNER: &str = "ssm.inner_size";
    const HEADS: &str = "ssm.time_step_rank";
    let n_inner = keys.size(INNER, MAX_DIM)?;
    let n_heads = keys.size(HEADS, MAX_HEADS)?;
    let n_k_heads = keys.size("ssm.group_count", MAX_HEADS)?;
    if !n_heads.is_multiple_of(n_k_heads) {
        return Err(keys.bad(HEADS, n_heads, "a multiple of the group count"));
    }
    if !n_inner.is_multiple_of(n_heads) || n_inner / n_heads > MAX_STATE_DIM {
        let wanted = "a multiple of the number of heads, at most 1024 values for each";
        return Err(keys.bad(INNER, n_inner, wanted));
    }
    Ok(LinearLayer {
        n_conv: n_conv(keys, "ssm.conv_kernel")?,
        heads: LinearHeads {
            n_heads,
            n_k_heads,
            k_dim: keys.size("ssm.state_size", MAX_STATE_DIM)?,
            v_dim: n_inner / n_heads,
            sharing,
        },
    })
}

/// Gives the layers that `is_recurrent` selects `recurrent` in place of attention.
pub(crate) fn set_recurrent(
    config: &mut ModelConfig,
    recurrent: Recurrent,
    is_recurrent: impl Fn(usize) -> bool,
) {
    let layers = config.layers.iter_mut().enumerate();
    for (_, layer) in layers.filter(|(index, _)| is_recurrent(*index)) {
        layer.recurrent = Some(recurrent);
        layer.rope = None;
    }
}
