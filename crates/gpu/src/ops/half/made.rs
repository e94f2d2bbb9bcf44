//! What the memory for the f16 form of activations contains at a point of the launches, so that products do not convert what
//! is there.

use std::sync::Mutex;

use crate::gpu::Gpu;
use crate::memory::Address;

/// The orders of values of f16 activations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Orders {
    /// That of the GEMM of few rows.
    pub(super) few: bool,
    /// That of `B` of wgmma.
    pub(super) wide: bool,
}

impl Orders {
    pub(super) fn one(is_few: bool) -> Orders {
        Orders {
            few: is_few,
            wide: !is_few,
        }
    }

    pub(super) fn are_both(self) -> bool {
        self.few && self.wide
    }
}

/// The activations that were converted, and by which sequence of launches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Made {
    codes: Address,
    values: Address,
    n_rows: usize,
    /// Those of experts, or null. Rows of experts are written anew after another routing.
    tiles: Address,
    orders: Orders,
    sequence: u64,
}

impl Made {
    pub(super) fn new(
        gpu: &Gpu,
        [codes, values]: [Address; 2],
        n_rows: usize,
        tiles: Address,
        orders: Orders,
    ) -> Made {
        Made {
            codes,
            values,
            n_rows,
            tiles,
            orders,
            sequence: gpu.inner.sequence(),
        }
    }

    /// Whether this has the activations of `other` in all of its orders.
    pub(super) fn has(self, other: Made) -> bool {
        let Orders { few, wide } = other.orders;
        let same = Made {
            orders: self.orders,
            ..other
        };
        self == same && (self.orders.few || !few) && (self.orders.wide || !wide)
    }
}

/// The last conversion, or nothing since the activations were written anew.
pub(super) type LastMade = Mutex<Option<Made>>;
