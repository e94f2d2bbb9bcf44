//! Memory for the partial results of rows whose contexts are split, and into how many parts.

use super::decode::{FAST_WIDTHS, ORDERS_NAMES, Orders};
use super::prefill::COLUMN_BYTES;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kv::{KvShape, KvTypes};
use crate::memory::Buffer;
use crate::ops::attend::AttendBlocks;
use crate::ops::half_cache::HalfCache;
use crate::variant::{MAX_ANSWER_ROWS, Variant};

/// Lengths of splits are multiples of this: of few rows per sequence (`GRAIN` of `kernels/decode.h`), of more, and of
/// [`MANY_ROWS`], which fill most of a device anyway.
pub(super) const SPLIT_GRAIN: usize = 64;
pub(super) const PREFILL_GRAIN: usize = 256;
pub(super) const LONG_GRAIN: usize = 1024;
pub(super) const MANY_ROWS: usize = 256;
/// `MAX_SPLITS` of `kernels/parts.h`.
const MAX_SPLITS: usize = 128;
/// Partial results that fit the scratch memory at least, and its bytes if more of them fit into these; more rows than that
/// are not split.
const MIN_PARTS: usize = 512;
const PARTS_BYTES: usize = 32 << 20;

/// Memory for the partial results of rows whose context is split.
pub struct AttentionScratch {
    pub(super) partial: Buffer,
    pub(super) n_ctx: usize,
    /// The most rows whose contexts [`Variant::RowsAnswer`] divides, and into how many splits at most. The latter depends on
    /// neither `n_ctx` nor up to [`MAX_ANSWER_ROWS`] sequences.
    pub(super) max_answer_rows: usize,
    pub(super) max_answer_splits: usize,
    /// Threads per wave of this GPU.
    pub(super) wave_size: u32,
    /// Maximum width of keys of the prefill kernels. Wider heads use the decode kernels.
    pub(super) widest_prefill: u32,
    /// Queries of a block of the kernels of `kernels/prefill_columns.h`, and its bytes of shared memory; 0 where there are
    /// none.
    pub(super) column_queries: u32,
    pub(super) column_bytes: [u32; COLUMN_BYTES.len()],
    /// Summation orders of the decode kernel of each of [`FAST_WIDTHS`].
    pub(super) orders: [Orders; FAST_WIDTHS.len()],
    pub(super) attends: AttendBlocks,
    pub(super) halves: Option<HalfCache>,
}

impl AttentionScratch {
    /// Allocates scratch for steps of up to `max_seqs` rows (more are computed without splits if they do not fit) and
    /// sequences of up to `n_ctx` positions, for KV caches of these types.
    pub fn new(
        gpu: &Gpu,
        types: KvTypes,
        max_seqs: usize,
        n_heads: usize,
        v_dim: usize,
        n_ctx: usize,
    ) -> Result<AttentionScratch, GpuError> {
        let most_splits = MAX_SPLITS.min(n_ctx.div_ceil(SPLIT_GRAIN)).max(1);
        let floats = n_heads * (v_dim + 2);
        let long_parts = match floats {
            0 => MIN_PARTS,
            _ => MIN_PARTS.max(PARTS_BYTES / (floats * size_of::<f32>())),
        };
        let max_answer_rows = max_seqs.max(MAX_ANSWER_ROWS);
        let max_answer_splits = (long_parts / max_answer_rows).clamp(1, MAX_SPLITS);
        let parts = match most_splits {
            1 => max_seqs,
            // Contexts of many rows are split if they are longer than this.
            _ if n_ctx > LONG_GRAIN => long_parts.max(MIN_PARTS + max_seqs),
            _ => MIN_PARTS + max_seqs,
        };
        let parts = parts.max(max_answer_rows * max_answer_splits.min(most_splits));
        let decode = gpu.kernels().attention_decode.of(types).module();
        let prefill = gpu.kernels().attention_prefill.of(types).module();
        let mut orders = [Orders(0); FAST_WIDTHS.len()];
        for (orders, name) in orders.iter_mut().zip(ORDERS_NAMES) {
            *orders = Orders(gpu.constant(decode, name)?);
        }
        let column_queries = gpu.constant(prefill, "column_queries")?;
        let mut column_bytes = [0; COLUMN_BYTES.len()];
        if column_queries > 0 {
            for (bytes, name) in column_bytes.iter_mut().zip(COLUMN_BYTES) {
                *bytes = gpu.constant(prefill, name)?;
            }
        }
        Ok(AttentionScratch {
            partial: gpu.alloc::<f32>(parts * floats)?,
            n_ctx,
            max_answer_rows,
            max_answer_splits,
            wave_size: gpu.constant(prefill, "wave_size")?,
            widest_prefill: gpu.constant(prefill, "widest")?,
            column_queries,
            column_bytes,
            orders,
            attends: AttendBlocks::new(gpu)?,
            halves: None,
        })
    }

    /// Adds memory for copies of one of these layers at a time in f16, where prompts are faster with them.
    pub fn with_halves(self, gpu: &Gpu, layers: &[KvShape]) -> Result<AttentionScratch, GpuError> {
        Ok(AttentionScratch {
            halves: HalfCache::new(gpu, &self.attends, layers)?,
            ..self
        })
    }

    /// Returns into how many splits, of at least `grain` positions, contexts of up to `longest` positions are divided.
    /// Each split has `blocks` blocks and `floats` floats of partial results; the device runs `at_once` blocks at once.
    /// Those that no sequence has positions for are left out: `longest` does not change the bits of a result.
    pub(super) fn n_splits(
        &self,
        [blocks, floats]: [usize; 2],
        (grain, longest): (usize, usize),
        at_once: usize,
    ) -> usize {
        let fit = self.partial.n_bytes() / size_of::<f32>() / floats.max(1);
        let most = self.n_ctx.div_ceil(grain).min(MAX_SPLITS).min(fit);
        let n_splits = splits_of(blocks.max(1), most, at_once);
        n_splits.min(longest.div_ceil(grain)).max(1)
    }

    /// [`n_splits`](AttentionScratch::n_splits) of `n_rows` rows that are computed each by itself, of which each split has
    /// so many blocks and floats.
    pub(super) fn n_splits_of_rows(
        &self,
        gpu: &Gpu,
        (n_rows, [blocks, floats]): (usize, [usize; 2]),
        grain: (usize, usize),
        at_once: usize,
    ) -> usize {
        let are_answers = gpu.takes(Variant::RowsAnswer);
        if gpu.takes(Variant::SplitsOff)
            || gpu.takes(Variant::RowsPrompt)
            || are_answers && n_rows > self.max_answer_rows
        {
            return 1;
        }
        if are_answers {
            let n_splits = splits_of(blocks.max(1), self.max_answer_splits, at_once);
            let (grain, longest) = grain;
            // Further splits would be empty.
            return n_splits.min(longest.div_ceil(grain)).max(1);
        }
        self.n_splits([n_rows * blocks, n_rows * floats], grain, at_once)
    }
}

/// Returns into how many splits, at most `most`, the work of `blocks` blocks is divided on a device that runs `at_once`
/// blocks at once: enough to fill the device or, with more blocks than that, enough to shorten the tail.
fn splits_of(blocks: usize, most: usize, at_once: usize) -> usize {
    let enough = (at_once / blocks).max(4).min(most).max(1);
    // Splitting a round into n parts makes it n times shorter.
    let rounds = |n_splits: usize| (blocks * n_splits).div_ceil(at_once);
    let shorter = |a: &usize, b: &usize| (rounds(*a) * b).cmp(&(rounds(*b) * a));
    (1..=enough).min_by(shorter).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::splits_of;

    #[test]
    fn splits_fill_the_device() {
        // 132 units with two blocks each.
        for (blocks, most, expected) in [
            (8, 128, 33),
            (8, 20, 20),
            (64, 128, 4),
            (264, 128, 1),
            // Two rounds of two thirds each are shorter than one full round.
            (160, 128, 3),
            (300, 128, 4),
            (1000, 128, 1),
            (8, 0, 1),
        ] {
            assert_eq!(splits_of(blocks, most, 264), expected, "{blocks} blocks");
        }
        assert_eq!(splits_of(32, 128, 1), 1);
    }
}
