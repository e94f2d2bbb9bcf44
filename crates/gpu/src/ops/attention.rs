//! Attention over the paged KV cache. Steps with few rows per sequence are in `attention/decode.rs`; others and, where there is a
//! kernel for them, latent layers in `attention/prefill.rs`.

mod decode;
mod prefill;
mod scratch;

use rocmforge_plan::{Alibi, Growth, Mask, Values};

pub(crate) use self::decode::DecodeExtents;
pub(super) use self::decode::DecodeKernels;
use self::decode::{FAST_WIDTHS, LATENT_K_DIM, LATENT_V_DIM};
pub(super) use self::prefill::PrefillKernels;
use self::prefill::has_prefill;
pub use self::scratch::AttentionScratch;
use super::attention_params::ScoreParams;
use super::norm::quantize;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kv::{KvLayer, KvShape};
use crate::limit::{Limit, MAX_GRID};
use crate::memory::{Address, Slice};
use crate::operands::Acts;
use crate::step::Step;
use crate::variant::Variant;

/// Up to this many rows per sequence, each row is computed on its own, spread over all processors (decode). With more,
/// rows share their loads (prefill).
const MAX_DECODE_ROWS: usize = 4;
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
