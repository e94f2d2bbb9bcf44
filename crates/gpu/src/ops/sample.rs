//! Sampling: chooses a token for each row of logits on the device (`kernels/sample.hip`, `kernels/sample_all.hip`).

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::argmax;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Table, kernels, layout};
use crate::memory::{Address, Slice};

const THREADS: u32 = 1024;
const ADJUST_THREADS: u32 = 256;
/// The most blocks that share a row of `sample_all.hip`.
const BLOCKS: usize = 16;
/// Blocks of all rows that keep most devices busy: with many rows, fewer share one.
const ENOUGH_BLOCKS: usize = 256;

/// Maximum top-k. Rows that need more candidates, but not all, must be sampled on the host.
pub const MAX_TOP_K: usize = 1024;

/// [`SampleRow::top_k`] of rows that keep all tokens.
pub const ALL_TOKENS: u32 = u32::MAX;

/// Maximum number of best tokens whose log-probabilities the device returns.
pub const MAX_LOGPROBS: usize = 20;

/// Words of a row of [`LogprobRows::host`].
pub const LOGPROB_WORDS: usize = 4 + 2 * MAX_LOGPROBS;

/// Words of [`SampleStep::scratch`] for each row: `RowScratch` of `kernels/sample_all.hip`.
pub const SCRATCH_WORDS: usize = 24832 / size_of::<u64>();

/// Sampling parameters of a row, as the kernel reads them. The order is fixed: bias, penalties, top-k, top-p, min-p,
/// temperature, one draw. Rows that need another order or other samplers must be sampled on the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct SampleRow {
    /// Random number of the draw, in `[0, 1)`.
    pub uniform: f64,
    /// Number of best tokens to keep, up to [`MAX_TOP_K`], or [`ALL_TOKENS`]. 0 takes the best logit as it is, without
    /// bias and penalties.
    pub top_k: u32,
    /// Keeps the smallest set of best tokens whose total probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// ln(min-p): the minimum probability of a token relative to the best one; negative infinity for none.
    pub ln_min_p: f32,
    /// 0 takes the best token after bias and penalties.
    pub temperature: f32,
    /// Positive. Divides positive logits of counted tokens and multiplies the others.
    pub repeat_penalty: f32,
    /// Subtracted once per occurrence.
    pub frequency_penalty: f32,
    /// Subtracted once for each token that occurs.
    pub presence_penalty: f32,
    /// Index in [`SampleStep::tokens`] of a token that counts one more than its entry says; `u32::MAX` for none.
    pub input_row: u32,
    /// The row's biases in [`SampleStep::entries`]. Their values are bits of an f32 to add.
    pub first_bias: u32,
    pub n_biases: u32,
    /// The row's token counts in [`SampleStep::entries`].
    pub first_count: u32,
    pub n_counts: u32,
    /// 1 plus the number of best tokens whose log-probabilities are wanted; 0 for none, not even the chosen token's.
    pub n_logprobs: u32,
    pub pad: u32,
}

layout!(SampleRow {
    uniform,
    top_k,
    top_p,
    ln_min_p,
    temperature,
    repeat_penalty,
    frequency_penalty,
    presence_penalty,
    input_row,
    first_bias,
    n_biases,
    first_count,
    n_counts,
    n_logprobs,
    pad
});

const _: () = assert!(size_of::<SampleRow>() == 64);

/// Which rows of a step are sampled from how many candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Candidates {
    /// All from the best ones.
    Best,
    /// All from all tokens, if they are sampled at all.
    All,
    /// Some from the best ones, some from all.
    Mixed,
}

/// A token with a bias or a count. Tokens are unique within each list of a row.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct SampleEntry {
    pub id: u32,
    pub value: u32,
}

layout!(SampleEntry { id, value });

/// Operands of [`sample`] other than logits, in device memory.
#[derive(Clone, Copy)]
pub struct SampleStep<'a> {
    /// `[n_rows]`.
    pub rows: Slice<'a, SampleRow>,
    /// The lists of all rows. Ranges past the end are ignored.
    pub entries: Slice<'a, SampleEntry>,
    /// The input tokens of the step.
    pub tokens: Slice<'a, u32>,
    /// Memory for rows that keep [`ALL_TOKENS`]: [`SCRATCH_WORDS`] for each row, of any content.
    pub scratch: Slice<'a, u64>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SampleParams {
    logits: Address,
    rows: Table<SampleRow>,
    entries: Table<SampleEntry>,
    tokens: Address,
    ids: Address,
    n_vocab: u32,
    n_entries: u32,
    n_tokens: u32,
    pad: u32,
}

layout!(SampleParams {
    logits,
    rows,
    entries,
    tokens,
    ids,
    n_vocab,
    n_entries,
    n_tokens,
    pad
});

const _: () = assert!(size_of::<SampleParams>() == 56);

#[repr(C)]
#[derive(Clone, Copy)]
struct SampleAllParams {
    logits: Address,
    rows: Table<SampleRow>,
    scratch: Address,
    ids: Address,
    n_vocab: u32,
    stage: u32,
    n_blocks: u32,
    pad: u32,
}

layout!(SampleAllParams {
    logits,
    rows,
    scratch,
    ids,
    n_vocab,
    stage,
    n_blocks,
    pad
});

const _: () = assert!(size_of::<SampleAllParams>() == 48);

kernels! {
    struct SampleKernels {
        adjust: SampleParams,
        sample: SampleParams,
        logprobs: LogprobParams,
    }
}

kernels! {
    struct SampleAllKernels {
        best: SampleAllParams,
        weigh: SampleAllParams,
        gather: SampleAllParams,
        pick: SampleAllParams,
    }
}

/// Samples a token for each row of `logits` [n_rows, n_vocab]. `candidates` has to cover the rows' `top_k`. Biases and
/// penalties modify the logits. `out_ids` `[n_rows]` is `u32::MAX` for rows whose best logit is not finite.
///
/// # Panics
/// If the numbers of logit rows, of `step.rows` and of ids differ, or `step.scratch` is too small.
pub fn sample(
    gpu: &Gpu,
    logits: Slice<'_, f32>,
    step: &SampleStep<'_>,
    candidates: Candidates,
    out_ids: Slice<'_, u32>,
) -> Result<(), GpuError> {
    let n_rows = out_ids.len();
    assert_eq!(step.rows.len(), n_rows, "one row of parameters per id");
    argmax(gpu, logits, out_ids)?;
    let params = SampleParams {
        logits: logits.address(),
        rows: step.rows.table(),
        entries: step.entries.table(),
        tokens: step.tokens.address(),
        ids: out_ids.address(),
        n_vocab: (logits.len() / n_rows.max(1)) as u32,
        n_entries: step.entries.len() as u32,
        n_tokens: step.tokens.len() as u32,
        pad: 0,
    };
    let grid = [n_rows as u32, 1, 1];
    let kernels = &gpu.kernels().sample;
    gpu.launch(&kernels.adjust, grid, ADJUST_THREADS, 0, &params)?;
    if candidates != Candidates::All {
        gpu.launch(&kernels.sample, grid, THREADS, 0, &params)?;
    }
    if candidates != Candidates::Best {
        sample_all(gpu, logits, step, out_ids)?;
    }
    Ok(())
}

/// Samples the rows that keep all tokens.
fn sample_all(
    gpu: &Gpu,
    logits: Slice<'_, f32>,
    step: &SampleStep<'_>,
    out_ids: Slice<'_, u32>,
) -> Result<(), GpuError> {
    let n_rows = out_ids.len();
    assert!(step.scratch.len() >= n_rows * SCRATCH_WORDS, "no scratch");
    let n_blocks = ENOUGH_BLOCKS.div_ceil(n_rows.max(1)).min(BLOCKS) as u32;
    let of_stage = |stage| SampleAllParams {
        logits: logits.address(),
        rows: step.rows.table(),
        scratch: step.scratch.address(),
        ids: out_ids.address(),
        n_vocab: (logits.len() / n_rows.max(1)) as u32,
        stage,
        n_blocks,
        pad: 0,
    };
    let kernels = &gpu.kernels().sample_all;
    let (slices, whole) = ([n_rows as u32, n_blocks, 1], [n_rows as u32, 1, 1]);
    gpu.launch(&kernels.best, slices, THREADS, 0, &of_stage(0))?;
    for stage in [0, 1] {
        gpu.launch(&kernels.weigh, slices, THREADS, 0, &of_stage(stage))?;
        gpu.launch(&kernels.gather, slices, THREADS, 0, &of_stage(stage))?;
        gpu.launch(&kernels.pick, whole, THREADS, 0, &of_stage(stage))?;
    }
    Ok(())
}

/// Where [`logprobs`] writes, in memory that the host reads.
#[derive(Clone, Copy)]
pub struct LogprobRows<'a> {
    /// `[n_slots, rows, LOGPROB_WORDS]`. Words of a row: the sum of exp(logit - best) over all tokens as the two words of
    /// an f64, the best logit, the logit of the row's id, then id (`u32::MAX` for none) and logit of each of the best
    /// tokens, best first. Logits are the bits of an f32.
    pub host: Slice<'a, u32>,
    pub n_slots: usize,
    /// Number of steps so far, `[1]`. Step `n` writes to slot `n % n_slots`.
    pub n_steps: Slice<'a, u32>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LogprobParams {
    logits: Address,
    rows: Table<SampleRow>,
    ids: Address,
    n_steps: Address,
    host: Address,
    n_vocab: u32,
    n_slots: u32,
    slot_rows: u32,
    pad: u32,
}

layout!(LogprobParams {
    logits,
    rows,
    ids,
    n_steps,
    host,
    n_vocab,
    n_slots,
    slot_rows,
    pad
});

const _: () = assert!(size_of::<LogprobParams>() == 56);

/// Computes what the log-probabilities of the rows with `n_logprobs` need, from `logits` [n_rows, n_vocab] and the sampled
/// `ids` [n_rows]. Such rows must have no biases and no penalties, which modify the logits.
///
/// # Panics
/// If a slot has fewer rows, or the numbers of rows differ.
pub fn logprobs(
    gpu: &Gpu,
    logits: Slice<'_, f32>,
    rows: Slice<'_, SampleRow>,
    ids: Slice<'_, u32>,
    to: &LogprobRows<'_>,
) -> Result<(), GpuError> {
    let n_rows = ids.len();
    let slot_rows = to.host.len() / to.n_slots / LOGPROB_WORDS;
    assert!(rows.len() == n_rows && n_rows <= slot_rows, "{n_rows} rows");
    let params = LogprobParams {
        logits: logits.address(),
        rows: rows.table(),
        ids: ids.address(),
        n_steps: to.n_steps.address(),
        host: to.host.address(),
        n_vocab: (logits.len() / n_rows.max(1)) as u32,
        n_slots: to.n_slots as u32,
        slot_rows: slot_rows as u32,
        pad: 0,
    };
    let grid = [n_rows as u32, 1, 1];
    gpu.launch(&gpu.kernels().sample.logprobs, grid, THREADS, 0, &params)
}
