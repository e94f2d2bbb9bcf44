//! Attention of prompts (`kernels/kv/attention_prefill.hip`, on Hopper `kernels/hopper/attend.hip`), and of answers of the
//! latent layers that these kernels serve.

use rocmforge_plan::Values;

use super::scratch::{AttentionScratch, LONG_GRAIN, MANY_ROWS, PREFILL_GRAIN, SPLIT_GRAIN};
use super::{Call, MAX_DECODE_ROWS};
use crate::error::GpuError;
use crate::kernel::{Kernel, kernels};
use crate::kv::KvShape;
use crate::ops::attend;
use crate::ops::attention_params::{CacheParams, PrefillParams};
use crate::ops::half_cache::HalfCache;
use crate::variant::Variant;

/// Widths of keys and values with kernels for prompts.
const PREFILL_WIDTHS: [[usize; 2]; 8] = [
    [32, 32],
    [64, 64],
    [80, 80],
    [96, 96],
    [128, 128],
    [192, 128],
    [256, 256],
    [512, 512],
];

/// The same where the values are in the keys.
const LATENT_WIDTHS: [[usize; 2]; 3] = [[576, 512], [320, 256], [288, 256]];

/// Threads per block of the kernels of `kernels/prefill_columns.h`, and the constants with their shared memory: that for
/// wide heads, then those of [`LATENT_WIDTHS`].
const COLUMN_THREADS: u32 = 256;

pub(super) const COLUMN_BYTES: [&str; 1 + LATENT_WIDTHS.len()] = [
    "prefill_512_bytes",
    "prefill_latent_576_512_bytes",
    "prefill_latent_320_256_bytes",
    "prefill_latent_288_256_bytes",
];

/// Whether some GPUs have a kernel for prompts with keys and values of these widths.
pub(super) fn has_prefill(k_dim: usize, v_dim: usize, values: Values) -> bool {
    match values {
        Values::Apart => PREFILL_WIDTHS.contains(&[k_dim, v_dim]),
        Values::InKeys => LATENT_WIDTHS.contains(&[k_dim, v_dim]),
    }
}

kernels! {
    struct PrefillKernels {
        prefill_32: PrefillParams,
        prefill_64: PrefillParams,
        prefill_80: PrefillParams,
        prefill_96: PrefillParams,
        prefill_128: PrefillParams,
        prefill_192_128: PrefillParams,
        prefill_256: PrefillParams,
        prefill_512: PrefillParams,
        prefill_latent_576_512: PrefillParams,
        prefill_latent_320_256: PrefillParams,
        prefill_latent_288_256: PrefillParams,
        combine_rows: PrefillParams,
    }
}

/// A kernel of `kernels/kv/attention_prefill.hip`, and its blocks.
struct Prefill<'k> {
    kernel: &'k Kernel<PrefillParams>,
    n_queries: usize,
    n_threads: u32,
    shared_bytes: u32,
}

impl PrefillKernels {
    /// The module that has them.
    pub(super) fn module(&self) -> &'static str {
        self.prefill_64.module
    }

    /// Returns the kernel for a shape of which [`has_prefill`] is true.
    fn of(&self, shape: &KvShape, scratch: &AttentionScratch) -> Prefill<'_> {
        // Each wave has 16 queries.
        let rows = |kernel, n_waves: u32| Prefill {
            kernel,
            n_queries: 16 * n_waves as usize,
            n_threads: n_waves * scratch.wave_size,
            shared_bytes: 0,
        };
        // All waves share the queries.
        let columns = |kernel, place: usize| Prefill {
            kernel,
            n_queries: scratch.column_queries as usize,
            n_threads: COLUMN_THREADS,
            shared_bytes: scratch.column_bytes[place],
        };
        match (shape.values, shape.k_dim) {
            (Values::InKeys, 576) => columns(&self.prefill_latent_576_512, 1),
            (Values::InKeys, 320) => columns(&self.prefill_latent_320_256, 2),
            (Values::InKeys, _) => columns(&self.prefill_latent_288_256, 3),
            (Values::Apart, 32) => rows(&self.prefill_32, 4),
            (Values::Apart, 64) => rows(&self.prefill_64, 4),
            (Values::Apart, 80) => rows(&self.prefill_80, 4),
            (Values::Apart, 96) => rows(&self.prefill_96, 4),
            (Values::Apart, 128) => rows(&self.prefill_128, 4),
            (Values::Apart, 192) => rows(&self.prefill_192_128, 2),
            (Values::Apart, 256) => rows(&self.prefill_256, 2),
            (Values::Apart, _) => columns(&self.prefill_512, 0),
        }
    }
}

/// Returns how many rows, and heads of a group of `group`, are the queries of a block that has `n_queries`: as many heads
/// as possible, unless so many places stay empty that other tiles are fewer by an eighth. `n_rows` are the most rows of a
/// sequence.
fn tile_of(group: usize, n_queries: usize, n_rows: usize) -> [usize; 2] {
    let tile = |parts: usize| {
        let heads = group.div_ceil(parts);
        [n_queries / heads, heads]
    };
    let n_tiles = |parts: usize| parts * n_rows.div_ceil(tile(parts)[0]);
    let fewest_parts = group.div_ceil(n_queries);
    let all = fewest_parts..=group;
    let fewest = all.clone().map(n_tiles).min().unwrap_or(0);
    let mut good = all.filter(|&parts| n_tiles(parts) * 8 <= fewest * 9);
    tile(good.next().unwrap_or(fewest_parts))
}

impl Call<'_> {
    /// The kernel for queries in f16, and the shared memory and queries of its blocks.
    pub(super) fn attends(&self) -> Option<(&Kernel<PrefillParams>, [u32; 2])> {
        if self.gpu.takes(Variant::AttentionExact) {
            return None;
        }
        let n_queries = match self.gpu.takes(Variant::RowsPrompt) {
            true => usize::MAX,
            false => self.group() * self.step.max_rows_of_seq,
        };
        let attends = &self.scratch.attends;
        attends.of(self.gpu, &self.kv.shape, n_queries)
    }

    /// The memory and the shape of a copy of the cache in f16, if it is to be read in place of the cache.
    pub(super) fn halves(&self) -> Option<(&HalfCache, KvShape)> {
        let forced = [Variant::RowsPrompt, Variant::RowsAnswer];
        if forced.iter().any(|&variant| self.gpu.takes(variant)) {
            return None;
        }
        let AttentionScratch {
            attends, halves, ..
        } = self.scratch;
        let halves = halves.as_ref()?;
        let layer = (&self.kv.shape, self.step);
        let shape = halves.shape_of(self.gpu, attends, layer)?;
        let n_queries = self.group() * self.step.max_rows_of_seq;
        attends.of(self.gpu, &shape, n_queries)?;
        Some((halves, shape))
    }

    /// Rows of prompts, and of latent layers in decode steps too.
    pub(super) fn prefill(&self) -> Result<(), GpuError> {
        let Some((halves, shape)) = self.halves() else {
            return self.prefill_as_stored();
        };
        let of_step = (self.step, self.scores());
        let (kv, step) = halves.copy(self.gpu, self.kv, of_step, shape)?;
        let call = Call {
            kv: &kv,
            step: &step,
            ..*self
        };
        call.prefill_as_stored()
    }

    fn prefill_as_stored(&self) -> Result<(), GpuError> {
        let kernels = self.gpu.kernels().attention_prefill.of(self.kv.shape.types);
        let Prefill {
            kernel,
            n_queries,
            n_threads,
            shared_bytes,
        } = match self.attends() {
            Some((kernel, [shared_bytes, n_queries])) => Prefill {
                kernel,
                n_queries: n_queries as usize,
                n_threads: attend::THREADS,
                shared_bytes,
            },
            None => kernels.of(&self.kv.shape, self.scratch),
        };
        let most_rows = self.step.max_rows_of_seq;
        let [tile_rows, tile_heads] = tile_of(self.group(), n_queries, most_rows);
        let n_tiles = most_rows.div_ceil(tile_rows);
        let n_blocks = self.kv.shape.n_kv_heads * self.group().div_ceil(tile_heads);
        let (n_rows, n_seqs) = (self.step.n_rows(), self.step.n_seqs());
        let (n_heads, v_dim) = (self.queries.n_heads, self.kv.shape.v_dim);
        let grain = if most_rows <= MAX_DECODE_ROWS {
            SPLIT_GRAIN
        } else if most_rows < MANY_ROWS {
            PREFILL_GRAIN
        } else {
            LONG_GRAIN
        };
        let undivided = [Variant::SplitsOff, Variant::RowsPrompt, Variant::RowsAnswer];
        let n_splits = match undivided.iter().any(|&variant| self.gpu.takes(variant)) {
            true => 1,
            false => {
                let blocks = (n_threads, shared_bytes);
                let at_once = self.gpu.n_concurrent_blocks(kernel, blocks)?;
                // At most so many tiles have rows.
                let n_tiles = n_rows.min(n_seqs + n_rows / tile_rows);
                let all = [n_tiles * n_blocks, n_rows * n_heads * (v_dim + 2)];
                let grain = (grain, self.step.longest);
                self.scratch.n_splits(all, grain, at_once)
            }
        };
        let params = PrefillParams {
            q: self.queries.q.address(),
            out: self.queries.out.address(),
            partial: self.scratch.partial.as_slice::<f32>().address(),
            seqs: self.step.seqs.table(),
            seq_of_row: self.step.seq_of_row.address(),
            cache: CacheParams::new(self.kv, self.step),
            scores: self.scores(),
            n_rows: n_rows as u32,
            n_heads: n_heads as u32,
            v_dim: v_dim as u32,
            tile_rows: tile_rows as u32,
            tile_heads: tile_heads as u32,
            n_splits: n_splits as u32,
            grain: grain as u32,
            v_hadamard: self.kv.shape.hadamard_lens()[1] as u32,
        };
        let grid = [n_blocks as u32, n_tiles as u32, (n_seqs * n_splits) as u32];
        self.gpu
            .launch(kernel, grid, n_threads, shared_bytes, &params)?;
        if n_splits == 1 {
            return Ok(());
        }
        let combine = &kernels.combine_rows;
        let grid = [n_heads as u32, n_rows as u32, 1];
        self.gpu
            .launch(combine, grid, super::decode::THREADS, 0, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::tile_of;

    #[test]
    fn tiles_leave_few_places_empty() {
        for (group, n_queries, n_rows, expected) in [
            (1, 64, 600, [64, 1]),
            (7, 64, 600, [9, 7]),
            (8, 32, 600, [4, 8]),
            (16, 32, 600, [2, 16]),
            // 20 heads of a row leave 12 places, three rows of 10 heads two.
            (20, 32, 600, [3, 10]),
            (20, 32, 1, [1, 20]),
            (128, 32, 600, [1, 32]),
            (40, 32, 600, [3, 10]),
            (3, 16, 0, [5, 3]),
        ] {
            assert_eq!(
                tile_of(group, n_queries, n_rows),
                expected,
                "{group} heads, {n_queries} queries"
            );
        }
    }
}
