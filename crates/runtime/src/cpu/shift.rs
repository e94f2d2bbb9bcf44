//! Context shift in the CPU's KV cache: moves cached tokens and rotates their keys to the new positions.

use rocmforge_cpu as cpu;
use rocmforge_cpu::KvLayout;
use rocmforge_plan::SlotRun;

use super::buffers::CacheData;
use super::{CpuBackend, LayerCache};
use crate::shared_cache;
use rocmforge_plan::{KeyTurn, KvShift, Values};

/// Tokens whose keys are rotated at once.
const TURN_ROWS: usize = 256;

impl CpuBackend {
    /// Applies a context shift to all layers.
    pub(crate) fn shift(&mut self, shift: &KvShift) {
        for layer in 0..self.cache.len() {
            let LayerCache {
                spec,
                hadamard: [of_k, of_v],
                k,
                v,
            } = &mut *shared_cache::write(&self.cache[layer]);
            // The cache of some layers may be on another device.
            if spec.n_kv_heads == 0 {
                continue;
            }
            let layout = |dim, hadamard| KvLayout {
                n_kv_heads: spec.n_kv_heads,
                dim,
                page: self.options.page,
                hadamard,
            };
            let keys = layout(spec.k_dim, *of_k);
            if spec.values == Values::Apart {
                for runs in [&shift.copied, &shift.turned] {
                    cpu::kv_copy(&layout(spec.v_dim, *of_v), runs, v.as_mut());
                }
            }
            cpu::kv_copy(&keys, &shift.copied, k.as_mut());
            match self.key_turns[layer] {
                None => cpu::kv_copy(&keys, &shift.turned, k.as_mut()),
                Some(turn) => self.turn(turn, (&keys, k), shift),
            }
        }
    }

    /// Rotates the keys of the shift's runs by its distance and writes them back.
    fn turn(&self, turn: KeyTurn, (layout, cache): (&KvLayout, &mut CacheData), shift: &KvShift) {
        let (isa, pool) = (self.options.isa, &self.pool);
        let table = &self.plan.rope[turn.table.0 as usize];
        let mut angles = vec![0.0; table.n_rot()];
        table.fill_back(shift.back_by, &mut angles);
        let angles = angles.repeat(TURN_ROWS);
        let slots = |first: fn(&SlotRun) -> u32| {
            let runs = shift.turned.iter();
            runs.flat_map(move |run| first(run)..first(run) + run.n_tokens)
                .collect::<Vec<u32>>()
        };
        let (from, to) = (slots(|run| run.from), slots(|run| run.to));
        let mut rows = Vec::new();
        for (from, to) in from.chunks(TURN_ROWS).zip(to.chunks(TURN_ROWS)) {
            rows.resize(from.len() * layout.n_kv_heads * layout.dim, 0.0);
            cpu::kv_read(isa, pool, layout, from, cache.as_ref(), &mut rows);
            cpu::rope(
                isa,
                pool,
                from.len(),
                &cpu::Rotation {
                    style: turn.style,
                    head_dim: layout.dim,
                    n_rot: table.n_rot(),
                    start: turn.start,
                    cos_sin: &angles[..from.len() * table.n_rot()],
                },
                &mut rows,
            );
            cpu::kv_append(isa, pool, layout, &rows, to, cache.as_mut());
        }
    }
}

#[cfg(test)]
#[path = "shift/tests.rs"]
mod tests;
