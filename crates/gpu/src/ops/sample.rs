//! Choosing a token of each row of logits on the device (`kernels/sample.hip`).

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::argmax;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::launch::Params;
use crate::memory::Slice;

const THREADS: u32 = 1024;
const ADJUST_THREADS: u32 = 256;

/// The most candidates that a row may keep. A row that wants more, or all, is not for this operation.
pub const MAX_TOP_K: usize = 1024;

/// How to choose a token of a row, as the kernel reads it. The order is fixed: bias, penalties, top-k, top-p, min-p,
/// temperature, one draw. A row that needs another order or other samplers is not for this operation.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
pub struct SampleRow {
    /// The random number in `[0, 1)` of the draw.
    pub uniform: f64,
    /// How many of the best may be chosen, up to [`MAX_TOP_K`]. 0: the best logit as it is, without bias and penalties.
    pub top_k: u32,
    /// The smallest set of best tokens whose probability reaches this; 1 for all.
    pub top_p: f32,
    /// The natural logarithm of the share of the best one's probability that a token needs; negative infinity for none.
    pub ln_min_p: f32,
    /// 0 takes the best, after bias and penalties.
    pub temperature: f32,
    /// Above 0; divides positive logits of counted tokens and multiplies others.
    pub repeat_penalty: f32,
    /// Subtracted once for each occurrence.
    pub frequency_penalty: f32,
    /// Subtracted once.
    pub presence_penalty: f32,
    /// Which of [`SampleStep::tokens`] occurs once more than its count says; `u32::MAX` for none.
    pub input_row: u32,
    /// The row's biases among [`SampleStep::entries`]: values are the bits of an f32 to add.
    pub first_bias: u32,
    pub n_biases: u32,
    /// The row's counts: values say how often a token occurs.
    pub first_count: u32,
    pub n_counts: u32,
}

const _: () = assert!(size_of::<SampleRow>() == 56);

/// A token and what is to be known of it; in each list of a row no token occurs twice.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct SampleEntry {
    pub id: u32,
    pub value: u32,
}

/// What [`sample`] takes besides logits, in device memory.
#[derive(Clone, Copy)]
pub struct SampleStep<'a> {
    /// `[n_rows]`.
    pub rows: Slice<'a, SampleRow>,
    /// The lists of all rows. What a row says of entries past the end is ignored.
    pub entries: Slice<'a, SampleEntry>,
    /// The tokens of the step's input.
    pub tokens: Slice<'a, u32>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct SampleParams {
    logits: u64,
    rows: u64,
    entries: u64,
    tokens: u64,
    ids: u64,
    n_vocab: u32,
    n_entries: u32,
    n_tokens: u32,
    _pad: u32,
}

const _: () = assert!(size_of::<SampleParams>() == 56);

// SAFETY: as `SampleParams` in sample.hip.
unsafe impl Params for SampleParams {}

/// Chooses a token of each row of `logits` [n_rows, n_vocab], which biases and penalties change. `out_ids` `[n_rows]`:
/// `u32::MAX` for a row whose best logit is not a finite number.
///
/// # Panics
/// If there are not as many rows of logits and of `step` as ids.
pub fn sample(
    gpu: &Gpu,
    logits: Slice<'_, f32>,
    step: &SampleStep<'_>,
    out_ids: Slice<'_, u32>,
) -> Result<(), GpuError> {
    let n_rows = out_ids.len();
    assert_eq!(step.rows.len(), n_rows, "a row of parameters for each id");
    argmax(gpu, logits, out_ids)?;
    let params = SampleParams {
        logits: logits.ptr(),
        rows: step.rows.ptr(),
        entries: step.entries.ptr(),
        tokens: step.tokens.ptr(),
        ids: out_ids.ptr(),
        n_vocab: (logits.len() / n_rows.max(1)) as u32,
        n_entries: step.entries.len() as u32,
        n_tokens: step.tokens.len() as u32,
        _pad: 0,
    };
    let grid = [n_rows as u32, 1, 1];
    gpu.launch(("sample", "adjust"), grid, ADJUST_THREADS, 0, &params)?;
    gpu.launch(("sample", "sample"), grid, THREADS, 0, &params)
}
