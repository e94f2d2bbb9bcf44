//! Context shifts on a GPU. The moves in the KV cache are queued before the step they come with. The host writes them
//! to pinned memory that the device reads, one part for each step in flight.

use rocmforge_gpu::ops::{self, KvMoves, Rotation, SlotRun};
use rocmforge_gpu::{Gpu, GpuError, Pinned};

use super::GpuBackend;
use super::step::N_SLOTS;
use rocmforge_plan::KvShift;

/// The KV cache moves of the steps in flight.
pub(crate) struct ShiftMemory {
    /// `[N_SLOTS, part_len]`.
    runs: Pinned<SlotRun>,
    part_len: usize,
}

impl ShiftMemory {
    /// Allocates space for two shifted sequences of `max_pages` blocks per step. Further sequences wait until the
    /// device has read the space. A block is assembled from at most two others, the first block from one more.
    pub(crate) fn new(gpu: &Gpu, max_pages: usize) -> Result<ShiftMemory, GpuError> {
        let part_len = 2 * (2 * max_pages + 1);
        Ok(ShiftMemory {
            runs: Pinned::new(gpu, N_SLOTS * part_len)?,
            part_len,
        })
    }
}

impl GpuBackend {
    /// Queues the context shifts of the step in `slot`.
    pub(crate) fn shift(&mut self, shifts: &[KvShift], slot: usize) -> Result<(), GpuError> {
        let part_len = self.memory.shifts.part_len;
        let first = slot * part_len;
        let mut n_used = 0;
        for shift in shifts {
            let both = shift.copied.iter().chain(&shift.turned);
            let runs = both.map(|run| SlotRun {
                first: run.from,
                first_to: run.to,
                n_tokens: run.n_tokens,
            });
            let runs: Vec<SlotRun> = runs.collect();
            if n_used + runs.len() > part_len {
                self.gpu.synchronize()?;
                n_used = 0;
            }
            let at = first + n_used;
            n_used += runs.len();
            self.memory.shifts.runs.write_at(at, &runs);
            let moves = KvMoves {
                runs: self.memory.shifts.runs.device().part(at..at + runs.len()),
                n_copied: shift.copied.len(),
                back_by: shift.back_by,
            };
            for (layer, turn) in self.key_turns.iter().enumerate() {
                // Layers on the other device have no cache here.
                if self.plan.kv[layer].n_kv_heads == 0 {
                    continue;
                }
                let turn = turn.map(|turn| {
                    let (table, n_rot) = self.memory.rope(turn.table);
                    ops::KeyTurn {
                        rotation: Rotation {
                            style: turn.style,
                            table,
                            n_rot,
                            start: turn.start,
                        },
                        magnitude: self.plan.rope[turn.table.0 as usize].magnitude as f32,
                    }
                });
                ops::kv_move(&self.gpu, &self.memory.layer(layer), &moves, turn.as_ref())?;
            }
        }
        Ok(())
    }
}
