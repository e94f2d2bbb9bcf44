//! Operations that keep a state of each sequence (`kernels/recurrent.hip`, and those of `chunks.rs`).

use rocmforge_plan::{ConvForm, Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use super::chunks;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Table, kernels, layout};
use crate::limit::{Limit, MAX_GRID};
use crate::memory::{Address, Slice};
use crate::step::{KeptState, SeqRows, SeqState, States, Step};
use crate::variant::Variant;

const CONV_THREADS: usize = 256;
/// Neighbouring values that a thread handles.
const QUAD: usize = 4;
/// Rows of a sequence per block of `causal_conv`, unless the old state has more.
const CONV_ROWS: usize = 16;
const THREADS: usize = 128;
/// Values of a column of a state that a thread of `linear_attention` holds.
const HELD: usize = 32;
/// Threads that may share a column: with a factor for each head, for each row and for each value of it.
const MAX_LANES: [usize; 3] = [32, 8, 2];

/// `Conv` in `kernels/recurrent.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConvOperands {
    x: Address,
    weight: Address,
    bias: Address,
    states: Address,
    seqs: Table<SeqRows>,
    places: Table<SeqState>,
    kept: Table<KeptState>,
    width: u32,
    pub(super) n_taps: u32,
    gated: u32,
    n_block_rows: u32,
    pub(super) aligned: u32,
    pad: u32,
}

layout!(ConvOperands {
    x,
    weight,
    bias,
    states,
    seqs,
    places,
    kept,
    width,
    n_taps,
    gated,
    n_block_rows,
    aligned,
    pad
});

/// `LinearShape` in `kernels/recurrent.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LinearShape {
    n_heads: u32,
    n_k_heads: u32,
    k_dim: u32,
    v_dim: u32,
    columns: u32,
    strided: u32,
    delta: u32,
    aligned: u32,
}

layout!(LinearShape {
    n_heads,
    n_k_heads,
    k_dim,
    v_dim,
    columns,
    strided,
    delta,
    aligned
});

#[repr(C)]
#[derive(Clone, Copy)]
struct ConvParams {
    conv: ConvOperands,
    out: Address,
}

layout!(ConvParams { conv, out });

const _: () = assert!(size_of::<ConvParams>() == 88);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LinearParams {
    q: Address,
    k: Address,
    v: Address,
    decay: Address,
    beta: Address,
    rates: Address,
    states: Address,
    out: Address,
    seqs: Table<SeqRows>,
    places: Table<SeqState>,
    kept: Table<KeptState>,
    shape: LinearShape,
    n_groups: u32,
    n_short: u32,
}

layout!(LinearParams {
    q,
    k,
    v,
    decay,
    beta,
    rates,
    states,
    out,
    seqs,
    places,
    kept,
    shape,
    n_groups,
    n_short
});

const _: () = assert!(size_of::<LinearParams>() == 128);

kernels! {
    struct RecurrentKernels {
        causal_conv: ConvParams,
        linear_attention_1: LinearParams,
        linear_attention_2: LinearParams,
        linear_attention_4: LinearParams,
        linear_attention_8: LinearParams,
        linear_attention_16: LinearParams,
        linear_attention_32: LinearParams,
        channel_decay_1: LinearParams,
        channel_decay_2: LinearParams,
        channel_decay_4: LinearParams,
        channel_decay_8: LinearParams,
        value_decay_1: LinearParams,
        value_decay_2: LinearParams,
    }
}

/// The weights of a causal convolution.
#[derive(Clone, Copy)]
pub struct Conv<'a> {
    /// `[n, width]`: row `i` is for the value `n - 1 - i` rows back.
    pub weight: Slice<'a, f32>,
    /// `[width]`.
    pub bias: Option<Slice<'a, f32>>,
    pub form: ConvForm,
    pub width: usize,
}

/// `out[t] = sum(weight[i] * x[t - n + 1 + i]) + bias` over the rows of each sequence, or `c * conv(b * x)`; see
/// [`ConvForm`]. Rows before the step are in the sequence's state. Padding rows of `out` are left as they are.
///
/// - `x` [n_rows, width], or [n_rows, 3 * width] with b, c and x
/// - `states` [n_slots, n - 1, width]
/// - `out` [n_rows, width]
///
/// # Panics
/// If the shapes do not match.
pub fn causal_conv(
    gpu: &Gpu,
    conv: &Conv<'_>,
    x: Slice<'_, f32>,
    (step, places): (&Step<'_>, &States<'_>),
    states: Slice<'_, f32>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let width = conv.width;
    let operands = conv_operands(gpu, conv, x, (step, places), (states, &[out]));
    assert_eq!(out.len(), step.n_rows() * width, "rows of the step");
    let params = ConvParams {
        conv: operands,
        out: out.address(),
    };
    let n_rows = step.max_rows_of_seq;
    let grid = [
        width.div_ceil(CONV_THREADS * QUAD) as u32,
        operands.n_row_blocks(n_rows),
        step.n_seqs() as u32,
    ];
    let kernel = &gpu.kernels().recurrent.causal_conv;
    gpu.launch(kernel, grid, CONV_THREADS as u32, 0, &params)
}

impl ConvOperands {
    /// Moves values in quads only if they also begin and end with quads.
    pub(super) fn align_to(&mut self, values: [usize; 3]) {
        self.aligned &= u32::from(values.iter().all(|n| n.is_multiple_of(QUAD)));
    }

    /// The blocks for the rows of a sequence of `n_rows`.
    pub(super) fn n_row_blocks(&self, n_rows: usize) -> u32 {
        (n_rows as u32).div_ceil(self.n_block_rows)
    }
}

/// Returns the operands of a convolution whose results are in `outs`.
///
/// # Panics
/// If the shapes do not match.
pub(super) fn conv_operands(
    gpu: &Gpu,
    conv: &Conv<'_>,
    x: Slice<'_, f32>,
    (step, places): (&Step<'_>, &States<'_>),
    (states, outs): (Slice<'_, f32>, &[Slice<'_, f32>]),
) -> ConvOperands {
    let width = conv.width;
    assert!(
        width > 0 && !conv.weight.is_empty() && conv.weight.len().is_multiple_of(width),
        "weights are [n, width]"
    );
    let n_taps = conv.weight.len() / width;
    assert!(
        conv.bias.is_none_or(|bias| bias.len() == width),
        "bias is [width]"
    );
    let n_parts = match conv.form {
        ConvForm::Plain => 1,
        ConvForm::Gated => 3,
    };
    assert_eq!(x.len(), step.n_rows() * n_parts * width, "rows of the step");
    check_places(step, places, states.len(), (n_taps - 1) * width);
    let bias = conv.bias.map_or(Address::NULL, |bias| bias.address());
    let pointers = [x.address(), conv.weight.address(), bias, states.address()];
    let pointers = pointers
        .into_iter()
        .chain(outs.iter().map(|out| out.address()));
    let can_quads = width.is_multiple_of(QUAD) && { pointers }.all(|it| it.is_aligned_to(16));
    ConvOperands {
        x: x.address(),
        weight: conv.weight.address(),
        bias,
        states: states.address(),
        seqs: step.seqs.table(),
        places: places.seqs.table(),
        kept: places.kept.table(),
        width: width as u32,
        n_taps: n_taps as u32,
        gated: u32::from(conv.form == ConvForm::Gated),
        n_block_rows: CONV_ROWS.max(n_taps - 1) as u32,
        aligned: u32::from(can_quads && !gpu.takes(Variant::LoadsNarrow)),
        pad: 0,
    }
}

/// `S <- e^decay S + k d^T; out = S^T q` for each row of each sequence and each head, where `d` is `beta (v - e^decay S^T k)`
/// or `beta v`, by the rule. The last of the three says what each factor multiplies. Padding rows of `out` are left as they
/// are. Sequences of many rows are computed in chunks ([`chunks::is_in_chunks`]), whose bits are others.
///
/// - `inputs`: see [`LinearInputs`], each [n_rows, ..]
/// - `states` [n_slots, heads.state_len()]; see [`LinearHeads::columns`]
/// - rates [heads.state_len()]
/// - `out` [n_rows, n_heads * v_dim]
///
/// # Panics
/// If the shapes do not match, the keys are longer than [`check_linear_heads`] allows, or each value has a factor of its own
/// in the delta rule.
pub fn linear_attention(
    gpu: &Gpu,
    (heads, rule, of): (&LinearHeads, StateRule, Decay<Slice<'_, f32>>),
    inputs: LinearInputs<Slice<'_, f32>>,
    (step, places): (&Step<'_>, &States<'_>),
    states: Slice<'_, f32>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    check_inputs((heads, of, inputs), (step, places), (states, out));
    let (rates, keys) = match of {
        Decay::Head => (Address::NULL, vec![inputs.q, inputs.k]),
        Decay::Channel => (Address::NULL, vec![inputs.q, inputs.k, inputs.decay]),
        Decay::Value(rates) => {
            assert_eq!(rates.len(), heads.state_len(), "rates of all values");
            assert_eq!(rule, StateRule::Add, "values decay on their own");
            (rates.address(), vec![inputs.q, inputs.k])
        }
    };
    let LinearHeads { n_heads, v_dim, .. } = *heads;
    let LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    } = inputs;
    let shape = linear_shape(gpu, (heads, rule), &keys);
    let in_chunks = match shape.aligned {
        0 => None,
        _ => chunks::kernel(gpu, (heads, rule, of), step.max_rows_of_seq)?,
    };
    let n_lanes = n_lanes(heads);
    let padded = v_dim.next_multiple_of(heads.columns());
    let n_groups = padded.div_ceil(THREADS / n_lanes);
    let params = LinearParams {
        q: q.address(),
        k: k.address(),
        v: v.address(),
        decay: decay.address(),
        beta: beta.address(),
        rates,
        states: states.address(),
        out: out.address(),
        seqs: step.seqs.table(),
        places: places.seqs.table(),
        kept: places.kept.table(),
        shape,
        n_groups: n_groups as u32,
        n_short: match in_chunks {
            Some(_) => chunks::CHUNK_ROWS as u32 - 1,
            None => u32::MAX,
        },
    };
    if let Some(chunks) = in_chunks {
        let n_groups = v_dim.div_ceil(chunks.n_columns) as u32;
        let is_alone = step.n_seqs() == 1;
        let params = LinearParams {
            n_groups,
            n_short: if is_alone { 0 } else { params.n_short },
            ..params
        };
        let grid = [n_heads as u32 * n_groups, step.n_seqs() as u32, 1];
        gpu.launch(chunks.kernel, grid, chunks.n_threads, 0, &params)?;
        if is_alone {
            return Ok(());
        }
    }
    let kernels = &gpu.kernels().recurrent;
    let kernel = match (of, n_lanes) {
        (Decay::Head, 1) => &kernels.linear_attention_1,
        (Decay::Head, 2) => &kernels.linear_attention_2,
        (Decay::Head, 4) => &kernels.linear_attention_4,
        (Decay::Head, 8) => &kernels.linear_attention_8,
        (Decay::Head, 16) => &kernels.linear_attention_16,
        (Decay::Head, _) => &kernels.linear_attention_32,
        (Decay::Channel, 1) => &kernels.channel_decay_1,
        (Decay::Channel, 2) => &kernels.channel_decay_2,
        (Decay::Channel, 4) => &kernels.channel_decay_4,
        (Decay::Channel, _) => &kernels.channel_decay_8,
        (Decay::Value(_), 1) => &kernels.value_decay_1,
        (Decay::Value(_), _) => &kernels.value_decay_2,
    };
    let grid = [(n_heads * n_groups) as u32, step.n_seqs() as u32, 1];
    gpu.launch(kernel, grid, THREADS as u32, 0, &params)
}

/// Threads that share a column of a state.
pub(super) fn n_lanes(heads: &LinearHeads) -> usize {
    heads.k_dim.div_ceil(HELD).next_power_of_two()
}

/// Returns the heads as kernels read them.
pub(super) fn linear_shape(
    gpu: &Gpu,
    (heads, rule): (&LinearHeads, StateRule),
    keys: &[Slice<'_, f32>],
) -> LinearShape {
    let k_dim = heads.k_dim;
    let can_quads =
        k_dim.is_multiple_of(QUAD) && keys.iter().all(|keys| keys.address().is_aligned_to(16));
    LinearShape {
        n_heads: heads.n_heads as u32,
        n_k_heads: heads.n_k_heads as u32,
        k_dim: k_dim as u32,
        v_dim: heads.v_dim as u32,
        columns: heads.columns() as u32,
        strided: u32::from(heads.sharing == KeySharing::Strided),
        delta: u32::from(rule == StateRule::Delta),
        aligned: u32::from(can_quads && !gpu.takes(Variant::LoadsNarrow)),
    }
}

/// Checks the shapes of linear attention.
///
/// # Panics
/// If they do not match.
pub(super) fn check_inputs(
    (heads, of, inputs): (
        &LinearHeads,
        Decay<Slice<'_, f32>>,
        LinearInputs<Slice<'_, f32>>,
    ),
    (step, places): (&Step<'_>, &States<'_>),
    (states, out): (Slice<'_, f32>, Slice<'_, f32>),
) {
    let LinearHeads {
        n_heads,
        n_k_heads,
        k_dim,
        v_dim,
        ..
    } = *heads;
    let limit = check_linear_heads(heads, of);
    assert!(limit.is_ok(), "{limit:?}");
    assert!(n_heads.is_multiple_of(n_k_heads), "heads share keys");
    let LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    } = inputs;
    let [n_k, n_v] = [n_k_heads * k_dim, n_heads * v_dim];
    let [n_decay, n_beta] = of.widths(heads);
    let found = [q, k, v, decay, beta, out].map(|values| values.len());
    let expected = [n_k, n_k, n_v, n_decay, n_beta, n_v].map(|width| step.n_rows() * width);
    assert_eq!(found, expected, "rows of heads");
    check_places(step, places, states.len(), heads.state_len());
}

/// Checks that [`linear_attention`] supports these heads.
///
/// # Errors
/// The exceeded limit.
pub fn check_linear_heads<W>(heads: &LinearHeads, of: Decay<W>) -> Result<(), Limit> {
    let [head, channel, value] = MAX_LANES;
    let most = HELD
        * match of {
            Decay::Head => head,
            Decay::Channel => channel,
            Decay::Value(_) => value,
        };
    Limit::check(heads.k_dim <= most, heads.k_dim, || {
        format!("keys of linear attention with at most {most} values")
    })
}

/// Checks that each sequence has a place, and that `states`, of `n_values` values, are whole slots of `len`.
fn check_places(step: &Step<'_>, places: &States<'_>, n_values: usize, len: usize) {
    assert_eq!(
        places.seqs.len(),
        step.n_seqs(),
        "a place for each sequence"
    );
    assert!(step.n_seqs() <= MAX_GRID, "{} sequences", step.n_seqs());
    let is_whole = match len {
        0 => n_values == 0,
        len => n_values.is_multiple_of(len),
    };
    assert!(is_whole, "states are [n_slots, {len}]");
}
