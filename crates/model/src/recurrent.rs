//! What the metadata says about layers that keep a state of each sequence in place of a KV cache.

use rocmforge_plan::{KeySharing, LinearHeads};

use crate::error::LoadError;
use crate::facts::ModelConfig;
use crate::keys::{Keys, MAX_DIM};

/// What a layer has in place of attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recurrent {
    /// A gated convolution over this number of tokens (LFM2).
    ShortConv(usize),
    /// A gated delta net (Yang et al. 2024): Qwen3-Next, Qwen 3.5.
    GatedDelta(LinearLayer),
    /// A gated delta net with a decay of each channel of keys (Kimi Team 2025, "Kimi Linear").
    ChannelDelta(LinearLayer, ChannelDecay),
    /// A scan whose keys, queries and steps are computed from its values (Mamba-1, Gu and Dao 2023).
    Selective(Selective),
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

/// How the decay of a channel is computed from a projection `f`, whose rate `a` is of the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChannelDecay {
    /// `a * softplus(f)`.
    Softplus,
    /// `bound * sigmoid(a * f)`.
    Bounded(f32),
}

/// A layer whose keys, queries and steps are projections of its values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selective {
    pub linear: LinearLayer,
    /// Width of the vector from which steps are computed.
    pub dt_rank: usize,
    pub form: SelectiveForm,
    /// Norms of keys, queries and this vector.
    pub norms: SelectiveNorms,
}

/// The norms of the projections of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectiveNorms {
    None,
    /// Without weights (Falcon Mamba).
    Plain,
    Weighed,
}

/// Whose scan it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelectiveForm {
    /// Mamba-1: values before gates, a step of each value, and a rate of each value of the state. The heads mean nothing.
    Values,
    /// PLaMo 2: gates and values by head, steps and rates of heads; keys and queries come before what steps are made of.
    Heads,
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
    let n_k_heads = keys.size("ssm.group_count", MAX_HEADS)?;
    linear_layer_of(keys, n_k_heads, sharing)
}

/// As [`linear_layer`], with this number of heads of keys.
fn linear_layer_of(
    keys: &Keys<'_>,
    n_k_heads: usize,
    sharing: KeySharing,
) -> Result<LinearLayer, LoadError> {
    const INNER: &str = "ssm.inner_size";
    const HEADS: &str = "ssm.time_step_rank";
    let n_inner = keys.size(INNER, MAX_DIM)?;
    let n_heads = keys.size(HEADS, MAX_HEADS)?;
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

/// Reads a layer with heads of keys for each head of values, as many as there are heads of attention.
pub(crate) fn channel_layer(keys: &Keys<'_>, n_heads: usize) -> Result<LinearLayer, LoadError> {
    const HEAD_DIM: &str = "kda.head_dim";
    let head_dim = keys.size(HEAD_DIM, MAX_STATE_DIM)?;
    if n_heads > MAX_HEADS {
        return Err(keys.bad("attention.head_count", n_heads, "at most 4096"));
    }
    Ok(LinearLayer {
        n_conv: n_conv(keys, "ssm.conv_kernel")?,
        heads: LinearHeads {
            n_heads,
            n_k_heads: n_heads,
            k_dim: head_dim,
            v_dim: head_dim,
            sharing: KeySharing::Neighbours,
        },
    })
}

/// Values of Mamba-1 that are computed together; they do not depend on each other.
const TOGETHER: usize = 128;
/// States are padded to so many of them.
const LEAST_TOGETHER: usize = 16;

/// Reads a Mamba-1 layer, whose values are divided among heads of a convenient size.
pub(crate) fn mamba1(keys: &Keys<'_>, norms: SelectiveNorms) -> Result<Selective, LoadError> {
    let n_inner = keys.size("ssm.inner_size", MAX_DIM)?;
    let v_dim = gcd(n_inner, TOGETHER);
    if v_dim < LEAST_TOGETHER {
        return Err(keys.bad("ssm.inner_size", n_inner, "a multiple of 16"));
    }
    let linear = LinearLayer {
        n_conv: n_conv(keys, "ssm.conv_kernel")?,
        heads: LinearHeads {
            n_heads: n_inner / v_dim,
            n_k_heads: 1,
            k_dim: keys.size("ssm.state_size", MAX_STATE_DIM)?,
            v_dim,
            sharing: KeySharing::Neighbours,
        },
    };
    Ok(Selective {
        linear,
        dt_rank: keys.size("ssm.time_step_rank", MAX_DIM)?,
        form: SelectiveForm::Values,
        norms,
    })
}

/// Reads PLaMo 2's scan, whose heads share keys and queries.
pub(crate) fn plamo2(keys: &Keys<'_>) -> Result<Selective, LoadError> {
    const GROUPS: &str = "ssm.group_count";
    let n_groups = keys.opt_count(GROUPS, MAX_HEADS)?.unwrap_or(0);
    if n_groups != 0 {
        return Err(keys.bad(GROUPS, n_groups, "0"));
    }
    let n_embd = keys.size("embedding_length", MAX_DIM)?;
    Ok(Selective {
        linear: linear_layer_of(keys, 1, KeySharing::Neighbours)?,
        dt_rank: (n_embd / 16).max(64),
        form: SelectiveForm::Heads,
        norms: SelectiveNorms::Weighed,
    })
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
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
