//! What the memory for the f16 form of activations contains at a point of the launches, so that products do not convert what
//! is there.

use std::sync::Mutex;

use crate::gpu::Gpu;
use crate::memory::Address;

/// The activations that were converted, in which order they are, and by which sequence of launches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Made {
    codes: Address,
    values: Address,
    n_rows: usize,
    /// Those of experts, or null. Rows of experts are written anew after another routing.
    tiles: Address,
    /// Whether the order is that of the GEMM of few rows.
    is_few: bool,
    sequence: u64,
}

impl Made {
    pub(super) fn new(
        gpu: &Gpu,
        [codes, values]: [Address; 2],
        n_rows: usize,
        tiles: Address,
        is_few: bool,
    ) -> Made {
        Made {
            codes,
            values,
            n_rows,
            tiles,
            is_few,
            sequence: gpu.inner.sequence(),
        }
    }
}

/// The last conversion, or nothing since the activations were written anew.
pub(super) type LastMade = Mutex<Option<Made>>;
