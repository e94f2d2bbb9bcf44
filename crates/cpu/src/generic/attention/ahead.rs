//! Prefetches the next block.

use super::query_tile::{BLOCK, LINE, QueryTile};
use crate::attention::shape::AttnShape;
use crate::generic::simd::Simd;
use crate::kv_slice::KvSlice;

/// Prefetches the cache lines of the next block in small portions during the work on this one.
///
/// Pages are scattered, so hardware prefetchers do not follow. A core has only about a dozen buffers for pending lines,
/// so requesting a whole block at once would stall it.
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
            .inputs
            .k
            .get(next_slot.map_or(0..0, |slot| block(slot, k_dim)));
        // Values that are parts of keys come with them.
        let v = tile.inputs.v.unwrap_or(tile.inputs.k);
        let v = v.get(match (next_slot, tile.inputs.v) {
            (Some(slot), Some(_)) => block(slot, v_dim),
            _ => 0..0,
        });
        // `score` takes 2 steps per query, softmax 1, `weigh` about 1 per 8 vectors.
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
