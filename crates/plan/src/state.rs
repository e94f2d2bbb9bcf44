//! What layers keep of each sequence, whatever its length: the states of recurrent layers.

use crate::op::Plan;

/// What one operation keeps of each sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Number of f32 values; zeros before the first token.
    pub len: usize,
}

/// What surrounds a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvForm {
    /// `conv(x)`.
    Plain,
    /// `c * conv(b * x)`: a row of the input is b, c and x, each as wide as the output (LFM2).
    Gated,
}

/// How a new key and value change the state of linear attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateRule {
    /// What the state already has for the key is subtracted from the value (gated delta rule, Yang et al. 2024).
    Delta,
    /// The value is added as it is (Mamba-2, Dao and Gu 2024).
    Add,
}

/// What of a state each factor of linear attention multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay<W> {
    /// The state of a head.
    Head,
    /// The row of a head's state that belongs to a channel of keys (Kimi Team 2025, "Kimi Linear").
    Channel,
    /// A value of the state: `decay` is multiplied with these rates, which lie as a state does (Mamba-1, Gu and Dao 2023).
    Value(W),
}

impl<W> Decay<W> {
    /// Returns the decay with what `f` makes of the rates.
    pub fn map<U>(self, f: impl FnOnce(W) -> U) -> Decay<U> {
        match self {
            Decay::Head => Decay::Head,
            Decay::Channel => Decay::Channel,
            Decay::Value(rates) => Decay::Value(f(rates)),
        }
    }

    /// Values of a row of `decay`, and of `beta`.
    pub fn widths(&self, heads: &LinearHeads) -> [usize; 2] {
        let n_heads = heads.n_heads;
        match self {
            Decay::Head => [n_heads; 2],
            Decay::Channel => [n_heads * heads.k_dim, n_heads],
            Decay::Value(_) => [n_heads * heads.v_dim; 2],
        }
    }
}

/// Which heads of keys the heads of values use, if there are fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySharing {
    /// Neighbours use the same: head `h` of `r` times as many uses `h / r`.
    Neighbours,
    /// Head `h` uses `h mod n_k_heads`.
    Strided,
}

/// The heads of linear attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearHeads {
    /// Heads of values, each with a state.
    pub n_heads: usize,
    /// Heads of queries and keys, a divisor of `n_heads`.
    pub n_k_heads: usize,
    /// Values per head of a query or key.
    pub k_dim: usize,
    /// Values per head of a value.
    pub v_dim: usize,
    pub sharing: KeySharing,
}

/// The inputs of linear attention, a row per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearInputs<T> {
    /// `[n_k_heads * k_dim]`.
    pub q: T,
    /// `[n_k_heads * k_dim]`.
    pub k: T,
    /// `[n_heads * v_dim]`.
    pub v: T,
    /// The logarithm of the factors on the state; how many, see [`Decay`].
    pub decay: T,
    /// The factor on what is added to the state, `[n_heads]`, or `[n_heads * v_dim]` with [`Decay::Value`].
    pub beta: T,
}

impl<T> LinearInputs<T> {
    /// Returns what `f` makes of each input.
    pub fn map<U>(self, f: impl Fn(T) -> U) -> LinearInputs<U> {
        LinearInputs {
            q: f(self.q),
            k: f(self.k),
            v: f(self.v),
            decay: f(self.decay),
            beta: f(self.beta),
        }
    }

    pub(crate) fn into_array(self) -> [T; 5] {
        [self.q, self.k, self.v, self.decay, self.beta]
    }

    pub(crate) fn as_mut(&mut self) -> LinearInputs<&mut T> {
        LinearInputs {
            q: &mut self.q,
            k: &mut self.k,
            v: &mut self.v,
            decay: &mut self.decay,
            beta: &mut self.beta,
        }
    }
}

impl LinearHeads {
    /// Returns the head of keys that the head `head` of values uses.
    pub fn key_head(&self, head: usize) -> usize {
        match self.sharing {
            KeySharing::Neighbours => head / (self.n_heads / self.n_k_heads),
            KeySharing::Strided => head % self.n_k_heads,
        }
    }

    /// Columns of a block of the state. A state is `[n_heads, n_blocks, k_dim, columns]`: the matrix of each head,
    /// `[k_dim, v_dim]`, in blocks of columns that stay in the fastest cache while tokens pass; the last one is padded.
    pub fn columns(&self) -> usize {
        match self.v_dim {
            0..=16 => 16,
            _ => 32,
        }
    }

    /// Number of values of a state of one head.
    pub fn head_len(&self) -> usize {
        self.k_dim * self.v_dim.next_multiple_of(self.columns())
    }

    /// Number of values of a state.
    pub fn state_len(&self) -> usize {
        self.n_heads * self.head_len()
    }
}

impl Plan {
    /// Returns the bytes that all layers keep of one sequence, whatever its length.
    pub fn state_bytes(&self) -> u64 {
        let values = self.states.iter().map(|state| state.len as u64);
        4 * values.sum::<u64>()
    }
}
