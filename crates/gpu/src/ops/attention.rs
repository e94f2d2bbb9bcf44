//! Attention over the paged KV cache: `kernels/kv/attention_decode.hip` for steps with few rows per sequence,
//! `kernels/kv/attention_prefill.hip` for others and, where it has a kernel for them, for latent layers. On Hopper,
//! `attend.rs` has kernels for prompts.

use rocmforge_plan::{Alibi, Growth, Mask, Values};

use super::attend::{self, AttendBlocks};
use super::attention_params::{
    CacheParams, CombineActsParams, DecodeParams, PrefillParams, ScoreParams,
};
use super::half::HalfRows;
use super::half_cache::HalfCache;
use super::norm::{acts_out, quantize};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels};
use crate::kv::{KvLayer, KvShape, KvTypes};
use crate::limit::{Limit, MAX_GRID};
use crate::memory::{Address, Buffer, Slice};
use crate::operands::{ActFormat, Acts};
use crate::step::Step;
use crate::tuning::{Choice, Shape};
use crate::variant::{MAX_ANSWER_ROWS, Variant};

/// Threads per block of the decode kernels.
const THREADS: u32 = 128;
/// Up to this many rows per sequence, each row is computed on its own, spread over all processors (decode). With more,
/// rows share their loads (prefill).
const MAX_DECODE_ROWS: usize = 4;
/// Lengths of splits are multiples of this: of few rows per sequence (`GRAIN` of `kernels/decode.h`), of more, and of
/// [`MANY_ROWS`], which fill most of a device anyway.
const SPLIT_GRAIN: usize = 64;
const PREFILL_GRAIN: usize = 256;
const LONG_GRAIN: usize = 1024;
const MANY_ROWS: usize = 256;
/// `MAX_SPLITS` of `kernels/parts.h`.
const MAX_SPLITS: usize = 128;
/// Partial results that fit the scratch memory at least, and its bytes if more of them fit into these; more rows than that
/// are not split.
const MIN_PARTS: usize = 512;
const PARTS_BYTES: usize = 32 << 20;
/// Widths of keys and values with specialized kernels for few rows.
const FAST_WIDTHS: [[usize; 2]; 7] = [
    [64, 64],
    [80, 80],
    [96, 96],
    [128, 128],
    [192, 128],
    [256, 256],
    [512, 512],
];
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
const COLUMN_BYTES: [&str; 1 + LATENT_WIDTHS.len()] = [
    "prefill_512_bytes",
    "prefill_latent_576_512_bytes",
    "prefill_latent_320_256_bytes",
    "prefill_latent_288_256_bytes",
];
/// Returns the maximum number of query heads per block. Those of a block of wide heads would not fit into registers.
fn max_heads([k_dim, v_dim]: [usize; 2]) -> usize {
    if k_dim > 256 || k_dim != v_dim { 4 } else { 8 }
}
/// Query heads and positions that a block of the kernel of latent layers keeps in shared memory, and its widest keys:
/// `QUERIES`, `KEYS` and `MAX_K_DIM` of `kernels/decode_latent.h`. A thread has four values.
const LATENT_HEADS: usize = 8;
const LATENT_KEYS: usize = 8;
const LATENT_K_DIM: usize = 640;
const LATENT_V_DIM: usize = 4 * THREADS as usize;
/// Positions after a row's own beyond all contexts: 32-bit sums with a position do not overflow.
const MAX_AHEAD: u32 = 1 << 30;
/// Values that the generic kernel keeps in shared memory.
const MAX_GENERIC_DIMS: usize = 8192;

/// How the dot product of a query and a key becomes a score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Factor on the dot product, usually 1 / sqrt(k_dim).
    pub scale: f32,
    /// `Some(cap)` maps a scaled product `x` to `cap * tanh(x / cap)`. Must be positive.
    pub soft_cap: Option<f32>,
    /// A second factor on the dot product.
    pub growth: Option<Growth>,
    /// What is subtracted from scores, after the soft cap.
    pub alibi: Option<Alibi>,
    /// Which positions a row sees.
    pub mask: Mask,
}

/// Memory for the partial results of rows whose context is split.
pub struct AttentionScratch {
    partial: Buffer,
    n_ctx: usize,
    /// The most rows whose contexts [`Variant::RowsAnswer`] divides, and into how many splits at most. The latter depends on
    /// neither `n_ctx` nor up to [`MAX_ANSWER_ROWS`] sequences.
    max_answer_rows: usize,
    max_answer_splits: usize,
    /// Threads per wave of this GPU.
    wave_size: u32,
    /// Maximum width of keys of the prefill kernels. Wider heads use the decode kernels.
    widest_prefill: u32,
    /// Queries of a block of the kernels of `kernels/prefill_columns.h`, and its bytes of shared memory; 0 where there are
    /// none.
    column_queries: u32,
    column_bytes: [u32; COLUMN_BYTES.len()],
    /// Summation orders of the decode kernel of each of [`FAST_WIDTHS`].
    orders: [Orders; FAST_WIDTHS.len()],
    attends: AttendBlocks,
    halves: Option<HalfCache>,
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
        let decode = gpu.kernels().attention_decode.of(types);
        let prefill = gpu.kernels().attention_prefill.of(types).prefill_64.module;
        let mut orders = [Orders(0); FAST_WIDTHS.len()];
        for (orders, name) in orders.iter_mut().zip(ORDERS_NAMES) {
            *orders = Orders(gpu.constant(decode.generic.module, name)?);
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
    fn n_splits(
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
    fn n_splits_of_rows(
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

/// What the kernels must know of the rows of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// They see positions up to their own.
    Plain,
    /// They see positions after their own, or scores have biases of distance. Only the kernels of prompts and the generic
    /// one know these.
    Wide,
}

impl RowKind {
    /// Returns the kind of rows with this mask and these biases.
    pub fn of(mask: Mask, alibi: Option<Alibi>) -> RowKind {
        match mask.looks_ahead() || alibi.is_some() {
            true => RowKind::Wide,
            false => RowKind::Plain,
        }
    }
}

/// Whether heads of these dimensions have specialized kernels. Others use a slow generic kernel.
pub fn is_fast(k_dim: usize, v_dim: usize, values: Values, rows: RowKind) -> bool {
    match values {
        Values::Apart if rows == RowKind::Wide => has_prefill(k_dim, v_dim, values),
        Values::Apart => FAST_WIDTHS.contains(&[k_dim, v_dim]),
        Values::InKeys if rows == RowKind::Wide => false,
        Values::InKeys => {
            k_dim.is_multiple_of(8)
                && v_dim.is_multiple_of(4)
                && k_dim <= LATENT_K_DIM
                && v_dim <= LATENT_V_DIM
        }
    }
}

/// Whether some GPUs have a kernel for prompts with keys and values of these widths.
fn has_prefill(k_dim: usize, v_dim: usize, values: Values) -> bool {
    match values {
        Values::Apart => PREFILL_WIDTHS.contains(&[k_dim, v_dim]),
        Values::InKeys => LATENT_WIDTHS.contains(&[k_dim, v_dim]),
    }
}

/// Checks that attention supports heads of these dimensions.
pub(crate) fn check_heads(k_dim: usize, v_dim: usize) -> Result<(), Limit> {
    let dims = k_dim.saturating_add(v_dim);
    Limit::check(dims <= MAX_GENERIC_DIMS, dims, || {
        format!("a key and a value with at most {MAX_GENERIC_DIMS} values together")
    })
}

/// Checks that steps may have this many rows.
pub fn check_rows(n_rows: usize) -> Result<(), Limit> {
    Limit::check(n_rows <= MAX_GRID, n_rows, || {
        format!("at most {MAX_GRID} rows in a step")
    })
}

/// `ORDERS` of a head dimension in attention_decode.hip: one byte for each number of query heads per block. Equal bytes
/// mean equal bits of the result.
#[derive(Clone, Copy)]
struct Orders(u32);

impl Orders {
    /// Whether blocks of `heads` query heads sum in the same order as blocks of `most`.
    fn are_equal(self, heads: usize, most: usize) -> bool {
        let order = |heads: usize| self.0.to_le_bytes()[heads.trailing_zeros() as usize];
        order(heads) == order(most)
    }
}

/// The constants with the [`Orders`] of each of [`FAST_WIDTHS`].
const ORDERS_NAMES: [&str; FAST_WIDTHS.len()] = [
    "orders_64",
    "orders_80",
    "orders_96",
    "orders_128",
    "orders_192_128",
    "orders_256",
    "orders_512",
];

kernels! {
    struct DecodeKernels {
        decode_64_1: DecodeParams,
        decode_64_2: DecodeParams,
        decode_64_4: DecodeParams,
        decode_64_8: DecodeParams,
        decode_80_1: DecodeParams,
        decode_80_2: DecodeParams,
        decode_80_4: DecodeParams,
        decode_80_8: DecodeParams,
        decode_96_1: DecodeParams,
        decode_96_2: DecodeParams,
        decode_96_4: DecodeParams,
        decode_96_8: DecodeParams,
        decode_128_1: DecodeParams,
        decode_128_2: DecodeParams,
        decode_128_4: DecodeParams,
        decode_128_8: DecodeParams,
        decode_192_128_1: DecodeParams,
        decode_192_128_2: DecodeParams,
        decode_192_128_4: DecodeParams,
        decode_256_1: DecodeParams,
        decode_256_2: DecodeParams,
        decode_256_4: DecodeParams,
        decode_256_8: DecodeParams,
        decode_512_1: DecodeParams,
        decode_512_2: DecodeParams,
        decode_512_4: DecodeParams,
        decode_latent: DecodeParams,
        generic: DecodeParams,
        combine: DecodeParams,
        combine_q8x32: CombineActsParams,
        combine_q8x256_1: CombineActsParams,
        combine_q8x256_2: CombineActsParams,
        combine_q8x256_4: CombineActsParams,
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

impl DecodeKernels {
    /// Returns the kernel for a width of keys and a number of query heads per block.
    fn of(&self, k_dim: usize, heads: usize) -> &Kernel<DecodeParams> {
        let of_dim: &[&Kernel<DecodeParams>] = match k_dim {
            64 => &[
                &self.decode_64_1,
                &self.decode_64_2,
                &self.decode_64_4,
                &self.decode_64_8,
            ],
            80 => &[
                &self.decode_80_1,
                &self.decode_80_2,
                &self.decode_80_4,
                &self.decode_80_8,
            ],
            96 => &[
                &self.decode_96_1,
                &self.decode_96_2,
                &self.decode_96_4,
                &self.decode_96_8,
            ],
            128 => &[
                &self.decode_128_1,
                &self.decode_128_2,
                &self.decode_128_4,
                &self.decode_128_8,
            ],
            192 => &[
                &self.decode_192_128_1,
                &self.decode_192_128_2,
                &self.decode_192_128_4,
            ],
            512 => &[&self.decode_512_1, &self.decode_512_2, &self.decode_512_4],
            _ => &[
                &self.decode_256_1,
                &self.decode_256_2,
                &self.decode_256_4,
                &self.decode_256_8,
            ],
        };
        of_dim[heads.trailing_zeros() as usize]
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

/// The queries of an attention operation, and the memory for its results.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// `[n_rows, n_heads * k_dim]`.
    pub q: Slice<'a, f32>,
    pub n_heads: usize,
    pub scores: Scores,
    /// `[n_heads]`: a score of each head that takes part in the softmax, but has no value.
    pub sinks: Option<Slice<'a, f32>>,
    /// `[n_rows, n_heads * v_dim]`.
    pub out: Slice<'a, f32>,
}

/// Computes attention for all rows of a step. Row t attends to the positions of its sequence up to its own, limited by
/// the window. `kv` must already contain the keys and values of the rows themselves; slots that no row sees may hold
/// anything. Padding rows are skipped.
///
/// # Panics
/// If lengths do not match, or `n_heads` is not a multiple of `n_kv_heads`.
pub fn attention(
    gpu: &Gpu,
    queries: &Queries<'_>,
    kv: &KvLayer<'_>,
    step: &Step<'_>,
    scratch: &AttentionScratch,
) -> Result<(), GpuError> {
    Call::new(gpu, queries, kv, step, scratch).run()
}

/// [`attention`], whose results are also converted to the form of `acts`. Gives the same bits as [`quantize`] of them. Rows
/// without a sequence are not converted.
///
/// # Panics
/// As both.
pub fn attention_quantize(
    gpu: &Gpu,
    queries: &Queries<'_>,
    kv: &KvLayer<'_>,
    step: &Step<'_>,
    (scratch, acts): (&AttentionScratch, &Acts<'_>),
) -> Result<(), GpuError> {
    let call = Call::new(gpu, queries, kv, step, scratch);
    match call.combine_acts(acts) {
        Some(combine) => call.decode_to(acts, combine),
        None => {
            call.run()?;
            quantize(gpu, queries.out, acts)
        }
    }
}

/// Whether [`attention`] rounds queries and weights to f16.
///
/// # Panics
/// As [`attention`].
pub fn attends_in_halves(
    gpu: &Gpu,
    queries: &Queries<'_>,
    kv: &KvLayer<'_>,
    step: &Step<'_>,
    scratch: &AttentionScratch,
) -> bool {
    let call = Call::new(gpu, queries, kv, step, scratch);
    call.way() == Way::Prefill && (call.attends().is_some() || call.halves().is_some())
}

/// The kernels of an attention operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Generic,
    Latent,
    Decode,
    Prefill,
}

/// The properties that determine the blocks of a decode launch.
#[derive(Clone, Copy)]
pub(crate) struct DecodeExtents {
    pub(crate) n_rows: usize,
    pub(crate) n_heads: usize,
    pub(crate) kv: KvShape,
}

impl DecodeExtents {
    fn group(&self) -> usize {
        self.n_heads / self.kv.n_kv_heads
    }

    /// Maximum number of query heads per block for this shape: the fewest loads.
    fn most_heads(&self) -> usize {
        self.group()
            .next_power_of_two()
            .min(max_heads([self.kv.k_dim, self.kv.v_dim]))
    }

    /// Blocks per row and split.
    fn n_blocks(&self, heads: usize) -> usize {
        self.kv.n_kv_heads * self.group().div_ceil(heads)
    }

    /// Returns into how many splits the context of each row is divided. The ends of splits determine the order of
    /// additions, so the number follows from the default block shape even if another is used.
    fn n_splits(&self, gpu: &Gpu, scratch: &AttentionScratch) -> Result<usize, GpuError> {
        let heads = self.most_heads();
        let at_once = gpu.n_concurrent_blocks(self.kernel(gpu, heads), (THREADS, 0))?;
        let of_row = [self.n_blocks(heads), self.n_heads * (self.kv.v_dim + 2)];
        let grain = (SPLIT_GRAIN, scratch.n_ctx);
        Ok(scratch.n_splits_of_rows(gpu, (self.n_rows, of_row), grain, at_once))
    }

    fn kernel<'g>(&self, gpu: &'g Gpu, heads: usize) -> &'g Kernel<DecodeParams> {
        let kernels = gpu.kernels().attention_decode.of(self.kv.types);
        kernels.of(self.kv.k_dim, heads)
    }

    fn shape(&self) -> Shape {
        Shape::Attention {
            types: self.kv.types,
            n_heads: self.n_heads,
            n_kv_heads: self.kv.n_kv_heads,
            dim: self.kv.k_dim,
            n_rows: self.n_rows.next_power_of_two(),
        }
    }

    /// Returns the query heads per block: the tuned number, else the maximum.
    fn heads(&self, gpu: &Gpu, scratch: &AttentionScratch) -> usize {
        match gpu.tuned(|| self.shape()) {
            Some(Choice::Attention { heads }) if self.gives_equal_bits(heads, scratch) => heads,
            _ => self.most_heads(),
        }
    }

    /// Whether blocks of `heads` query heads, at most the default number, give the same bits.
    fn gives_equal_bits(&self, heads: usize, scratch: &AttentionScratch) -> bool {
        let most = self.most_heads();
        let widths = [self.kv.k_dim, self.kv.v_dim];
        let place = FAST_WIDTHS.iter().position(|&fast| fast == widths);
        let orders = scratch.orders[place.expect("the widths have a specialized kernel")];
        heads.is_power_of_two() && heads <= most && orders.are_equal(heads, most)
    }

    /// Returns the shape of the launch and its candidate choices, the default first; no choices if the dimension has no
    /// specialized kernel.
    pub(crate) fn ways(&self, scratch: &AttentionScratch) -> (Shape, Vec<Choice>) {
        if self.kv.values == Values::InKeys
            || !is_fast(self.kv.k_dim, self.kv.v_dim, self.kv.values, RowKind::Plain)
        {
            return (self.shape(), Vec::new());
        }
        let fewer = std::iter::successors(Some(self.most_heads()), |heads| Some(heads / 2));
        let alike = fewer
            .take_while(|&heads| heads > 0)
            .filter(|&heads| self.gives_equal_bits(heads, scratch));
        let ways = alike.map(|heads| Choice::Attention { heads });
        (self.shape(), ways.collect())
    }
}

/// The arguments of [`attention`].
struct Call<'a> {
    gpu: &'a Gpu,
    queries: &'a Queries<'a>,
    kv: &'a KvLayer<'a>,
    step: &'a Step<'a>,
    scratch: &'a AttentionScratch,
}

impl<'a> Call<'a> {
    /// # Panics
    /// As [`attention`].
    fn new(
        gpu: &'a Gpu,
        queries: &'a Queries<'a>,
        kv: &'a KvLayer<'a>,
        step: &'a Step<'a>,
        scratch: &'a AttentionScratch,
    ) -> Call<'a> {
        let call = Call {
            gpu,
            queries,
            kv,
            step,
            scratch,
        };
        call.check();
        call
    }

    fn run(&self) -> Result<(), GpuError> {
        match self.way() {
            Way::Generic => self.generic(),
            Way::Latent => self.latent(),
            Way::Decode => self.decode(),
            Way::Prefill => self.prefill(),
        }
    }
}

impl Call<'_> {
    fn way(&self) -> Way {
        let (gpu, scratch) = (self.gpu, self.scratch);
        let KvShape {
            k_dim,
            v_dim,
            values,
            ..
        } = self.kv.shape;
        let is_for_prefill =
            has_prefill(k_dim, v_dim, values) && k_dim <= scratch.widest_prefill as usize;
        let of_prompts = [Variant::AttentionPrefill, Variant::RowsPrompt];
        let of_each = [Variant::AttentionDecode, Variant::RowsAnswer];
        let takes = |any: [Variant; 2]| any.into_iter().any(|variant| gpu.takes(variant));
        let is_short = self.step.max_rows_of_seq <= MAX_DECODE_ROWS && !takes(of_prompts);
        let rows = RowKind::of(self.queries.scores.mask, self.queries.scores.alibi);
        if !is_fast(k_dim, v_dim, values, rows) || gpu.takes(Variant::AttentionGeneric) {
            Way::Generic
        } else if rows == RowKind::Wide {
            match is_for_prefill {
                true => Way::Prefill,
                false => Way::Generic,
            }
        } else if values == Values::InKeys {
            match is_for_prefill && !takes(of_each) {
                true => Way::Prefill,
                false => Way::Latent,
            }
        } else if is_short || !is_for_prefill || takes(of_each) {
            Way::Decode
        } else {
            Way::Prefill
        }
    }

    fn scores(&self) -> ScoreParams {
        let scores = self.queries.scores;
        let (window, chunk_bits, ahead) = match scores.mask {
            Mask::All => (0, 0, 0),
            Mask::Window(window) => (window, 0, 0),
            Mask::Chunk(chunk) => (0, !(chunk - 1), 0),
            Mask::Both => (0, 0, MAX_AHEAD),
            Mask::Near(reach) => {
                let reach = reach.min(MAX_AHEAD);
                (reach + 1, 0, reach)
            }
        };
        // The largest power of two of the heads.
        let alibi_heads = 1 << self.queries.n_heads.ilog2();
        let growth = scores.growth.unwrap_or(Growth {
            slope: 0.0,
            step: 0,
            offset: 0,
        });
        ScoreParams {
            sinks: self
                .queries
                .sinks
                .map_or(Address::NULL, |sinks| sinks.address()),
            scale: scores.scale,
            soft_cap: scores.soft_cap.unwrap_or(0.0),
            window,
            chunk_bits,
            slope: growth.slope,
            step: growth.step,
            offset: growth.offset,
            ahead,
            alibi: scores
                .alibi
                .map_or(0.0, |alibi| alibi.max_bias / alibi_heads as f32),
            alibi_heads,
        }
    }

    fn group(&self) -> usize {
        self.queries.n_heads / self.kv.shape.n_kv_heads
    }

    fn decode_params(&self, n_splits: usize) -> DecodeParams {
        DecodeParams {
            q: self.queries.q.address(),
            out: self.queries.out.address(),
            partial: self.scratch.partial.as_slice::<f32>().address(),
            positions: self.step.positions.address(),
            seq_of_row: self.step.seq_of_row.address(),
            seqs: self.step.seqs.table(),
            cache: CacheParams::new(self.kv, self.step),
            scores: self.scores(),
            n_rows: self.step.n_rows() as u32,
            n_heads: self.queries.n_heads as u32,
            n_splits: n_splits as u32,
            k_dim: self.kv.shape.k_dim as u32,
            v_dim: self.kv.shape.v_dim as u32,
            v_row: match self.kv.shape.values {
                Values::Apart => self.kv.shape.v_dim as u32,
                Values::InKeys => self.kv.shape.k_dim as u32,
            },
        }
    }

    fn kernels(&self) -> &DecodeKernels {
        let all = &self.gpu.kernels().attention_decode;
        all.of(self.kv.shape.types)
    }

    fn decode(&self) -> Result<(), GpuError> {
        let params = self.decode_parts()?;
        if params.n_splits == 1 {
            return Ok(());
        }
        let grid = [params.n_heads, params.n_rows, 1];
        let combine = &self.kernels().combine;
        self.gpu.launch(combine, grid, THREADS, 0, &params)
    }

    /// Returns the kernel that combines the splits of decode rows and converts the results to the form of `acts`, and the heads
    /// of its blocks, if there is one.
    fn combine_acts(&self, acts: &Acts<'_>) -> Option<(&Kernel<CombineActsParams>, usize)> {
        let (kernels, v_dim) = (self.kernels(), self.kv.shape.v_dim);
        let combine = match (acts.form, v_dim) {
            (ActFormat::Q8x32, 32..=256) if v_dim.is_multiple_of(32) => (&kernels.combine_q8x32, 1),
            (ActFormat::Q8x256, 256) => (&kernels.combine_q8x256_1, 1),
            (ActFormat::Q8x256, 128) => (&kernels.combine_q8x256_2, 2),
            (ActFormat::Q8x256, 64) => (&kernels.combine_q8x256_4, 4),
            _ => return None,
        };
        let [_, v_hadamard] = self.kv.shape.hadamard_lens();
        let is_taken = self.way() == Way::Decode
            && v_hadamard == 1
            && self.queries.n_heads.is_multiple_of(combine.1)
            && HalfRows::new(self.gpu, acts, None).is_none();
        is_taken.then_some(combine)
    }

    fn decode_to(
        &self,
        acts: &Acts<'_>,
        (combine, heads): (&Kernel<CombineActsParams>, usize),
    ) -> Result<(), GpuError> {
        let shape = (
            self.step.n_rows(),
            self.queries.n_heads * self.kv.shape.v_dim,
        );
        assert_eq!(
            (acts.n_rows, acts.width),
            shape,
            "acts have the shape of the results"
        );
        let decode = self.decode_parts()?;
        if decode.n_splits == 1 {
            return quantize(self.gpu, self.queries.out, acts);
        }
        let grid = [decode.n_heads / heads as u32, decode.n_rows, 1];
        let acts = acts_out(acts);
        let n_threads = heads as u32 * THREADS;
        let params = CombineActsParams { decode, acts };
        self.gpu.launch(combine, grid, n_threads, 0, &params)
    }

    /// Computes the parts of the results of decode rows, or the results if there is one part.
    fn decode_parts(&self) -> Result<DecodeParams, GpuError> {
        let n_rows = self.step.n_rows();
        let extents = DecodeExtents {
            n_rows,
            n_heads: self.queries.n_heads,
            kv: self.kv.shape,
        };
        let n_splits = extents.n_splits(self.gpu, self.scratch)?;
        let heads = extents.heads(self.gpu, self.scratch);
        let n_blocks = extents.n_blocks(heads);
        let params = self.decode_params(n_splits);
        let kernel = extents.kernel(self.gpu, heads);
        let grid = [n_blocks as u32, n_splits as u32, n_rows as u32];
        self.gpu.launch(kernel, grid, THREADS, 0, &params)?;
        Ok(params)
    }

    /// Shared memory of a block of `decode_latent`.
    fn latent_bytes(&self) -> u32 {
        let floats = (LATENT_HEADS + LATENT_KEYS) * self.kv.shape.k_dim;
        (floats * size_of::<f32>()) as u32
    }

    /// Rows of decode steps and of prompts alike.
    fn latent(&self) -> Result<(), GpuError> {
        let kernel = &self.kernels().decode_latent;
        let (n_rows, n_heads) = (self.step.n_rows(), self.queries.n_heads);
        let n_blocks = self.kv.shape.n_kv_heads * self.group().div_ceil(LATENT_HEADS);
        let blocks = (THREADS, self.latent_bytes());
        let at_once = self.gpu.n_concurrent_blocks(kernel, blocks)?;
        let of_row = [n_blocks, n_heads * (self.kv.shape.v_dim + 2)];
        let grain = (SPLIT_GRAIN, self.step.longest);
        let n_splits =
            { self.scratch }.n_splits_of_rows(self.gpu, (n_rows, of_row), grain, at_once);
        let params = self.decode_params(n_splits);
        let grid = [n_blocks as u32, n_splits as u32, n_rows as u32];
        self.gpu
            .launch(kernel, grid, THREADS, self.latent_bytes(), &params)?;
        if n_splits == 1 {
            return Ok(());
        }
        let grid = [n_heads as u32, n_rows as u32, 1];
        let combine = &self.kernels().combine;
        self.gpu.launch(combine, grid, THREADS, 0, &params)
    }

    fn generic(&self) -> Result<(), GpuError> {
        let grid = [self.queries.n_heads as u32, self.step.n_rows() as u32, 1];
        let n_sums = self.kv.shape.v_dim.max(THREADS as usize);
        let shared_bytes = (self.kv.shape.k_dim + n_sums) * size_of::<f32>();
        let kernel = &self.kernels().generic;
        self.gpu.launch(
            kernel,
            grid,
            THREADS,
            shared_bytes as u32,
            &self.decode_params(1),
        )
    }

    /// The kernel for queries in f16, and the shared memory and queries of its blocks.
    fn attends(&self) -> Option<(&Kernel<PrefillParams>, [u32; 2])> {
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
    fn halves(&self) -> Option<(&HalfCache, KvShape)> {
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
    fn prefill(&self) -> Result<(), GpuError> {
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
        self.gpu.launch(combine, grid, THREADS, 0, &params)
    }

    fn check(&self) {
        let Queries {
            q,
            n_heads,
            scores,
            sinks,
            out,
        } = *self.queries;
        let (kv, step, n_rows) = (self.kv.shape, self.step, self.step.n_rows());
        assert!(
            n_heads.is_multiple_of(kv.n_kv_heads),
            "{n_heads} query heads cannot share {} KV heads evenly",
            kv.n_kv_heads
        );
        assert_eq!(check_heads(kv.k_dim, kv.v_dim), Ok(()));
        assert_eq!(check_rows(n_rows), Ok(()));
        assert_eq!(q.len(), n_rows * n_heads * kv.k_dim, "length of queries");
        assert_eq!(out.len(), n_rows * n_heads * kv.v_dim, "length of outputs");
        assert_eq!(step.seq_of_row.len(), n_rows, "one sequence per row");
        assert_eq!(
            step.block_tables.len(),
            step.n_seqs() * step.max_pages,
            "length of block tables"
        );
        scores.mask.check();
        assert!(
            sinks.is_none_or(|sinks| sinks.len() == n_heads),
            "a sink for each head"
        );
        assert!(
            scores.soft_cap.is_none_or(|cap| cap > 0.0),
            "the soft cap must be positive"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{splits_of, tile_of};

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
