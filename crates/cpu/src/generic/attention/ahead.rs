//! Prefetch of the next block.

use super::{BLOCK, LINE, QueryTile};
use crate::attention::{AttnShape, KvSlice};
use crate::generic::simd::Simd;

/// The cache lines of the next block, asked for in small portions during the work on this one.
///
/// Pages are scattered and hardware prefetchers do not follow. A core has a dozen or so buffers for
/// lines on their way, so asking for a whole block at once would stall it.
pub(super) struct Ahead {
    k: *const u8,
    v: *const u8,
    k_lines_per_step: usize,
    v_lines_per_step: usize,
    steps_left: usize,
}

impl Ahead {
    pub(super) fn new(tile: &QueryTile<'_>, next_slot: Option<usize>, n_queries: usize) -> Ahead {
        let AttnShape { k_dim, v_dim, .. } = tile.shape;
        let block = |slot: usize, dim: usize| slot * dim..(slot + BLOCK) * dim;
        let k = tile
            .k
            .get(next_slot.map_or(0..0, |slot| block(slot, k_dim)));
        let v = tile
            .v
            .get(next_slot.map_or(0..0, |slot| block(slot, v_dim)));
        // `score` takes 2 steps a query, softmax 1, `weigh` about 1 for 8 vectors.
        let n_steps = n_queries * (3 + tile.v_pad().div_ceil(64));
        let lines_per_step = |cache: KvSlice<'_>| cache.n_bytes().div_ceil(LINE * n_steps);
        let k_lines_per_step = lines_per_step(k);
        Ahead {
            k: k.as_ptr(),
            v: v.as_ptr(),
            k_lines_per_step,
            v_lines_per_step: lines_per_step(v),
            steps_left: k.n_bytes().div_ceil(LINE * k_lines_per_step.max(1)),
        }
    }

    #[inline(always)]
    pub(super) fn step<S: Simd>(&mut self, s: S) {
        if self.steps_left == 0 {
            return;
        }
        self.steps_left -= 1;
        for _ in 0..self.k_lines_per_step {
            s.prefetch(self.k);
            self.k = self.k.wrapping_add(LINE);
        }
        for _ in 0..self.v_lines_per_step {
            s.prefetch(self.v);
            self.v = self.v.wrapping_add(LINE);
        }
    }
}
