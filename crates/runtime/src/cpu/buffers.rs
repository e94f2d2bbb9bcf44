//! Memory of the CPU backend: KV cache and converted activations.

use rocmforge_cpu::{Acts, ExpertActs, HeadCode};
use rocmforge_plan::{ActsInfo, KvSpec, RowCount};

/// K and V of one layer, each `[n_blocks, n_kv_heads, page, dim]`; V is empty if the values are in the keys.
#[derive(Clone)]
pub(crate) struct LayerCache {
    pub(super) spec: KvSpec,
    /// How keys and values are rotated ([`KvSpec::hadamard_lens`]).
    pub(super) hadamard: [usize; 2],
    pub(super) k: CacheData,
    pub(super) v: CacheData,
}

impl LayerCache {
    pub(crate) fn n_kv_heads(&self) -> usize {
        self.spec.n_kv_heads
    }
}

/// Keys or values of one layer. F16 values are stored as bits.
#[derive(Clone, PartialEq)]
pub(super) enum CacheData {
    F16(Vec<u16>),
    F32(Vec<f32>),
    /// `Q8_0` blocks, as bytes so that the system provides them zeroed.
    Q8_0(Vec<u8>),
    /// Heads of `dim` values, each with its scales.
    Heads {
        code: HeadCode,
        heads: Vec<u8>,
        dim: usize,
    },
}

/// Activations in the format that GEMV and GEMM kernels read.
#[derive(Clone)]
pub(crate) enum ActsBuffer {
    Rows(Acts),
    ByExpert(ExpertActs),
}

impl ActsBuffer {
    pub(super) fn new(info: &ActsInfo) -> ActsBuffer {
        match info.rows {
            RowCount::Choices { .. } | RowCount::Heads { .. } => {
                ActsBuffer::ByExpert(ExpertActs::new())
            }
            RowCount::Tokens | RowCount::Logits => ActsBuffer::Rows(Acts::new()),
        }
    }

    /// Returns the rows, grouped by expert.
    pub(crate) fn groups(&self) -> &[Acts] {
        match self {
            ActsBuffer::Rows(acts) => std::slice::from_ref(acts),
            ActsBuffer::ByExpert(acts) => acts.groups(),
        }
    }
}
