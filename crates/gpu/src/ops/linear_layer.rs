//! What layers of linear attention do before and after it, in few launches (`kernels/linear_layer.hip`).

use rocmforge_plan::{Activation, ConvForm, Decay, LinearHeads, LinearInputs, StateRule};

use super::half::HalfRows;
use super::norm::{ActsOut, OCTET, acts_out, aligned, checked_len, quantize};
use super::recurrent::{
    Conv, ConvOperands, LinearShape, check_inputs, conv_operands, linear_shape, n_lanes,
};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Table, kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Acts};
use crate::step::{KeptState, SeqRows, SeqState, States, Step};

const INPUT_THREADS: usize = 256;
const CONV_THREADS: usize = 128;
/// Lanes that share a group of values.
const TEAM: usize = 32;
/// Values of a group: four for each lane.
const MAX_GROUP: usize = 4 * TEAM;
const THREADS: usize = 512;
const SKIP_THREADS: usize = 128;
/// Threads of a column of the state of `linear_decode`, and of `selective_decode`.
const MAX_LANES: usize = 8;
const MAX_SELECTIVE_LANES: usize = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    norm: Address,
    out: Address,
    first: u32,
    width: u32,
    group: u32,
    eps: f32,
}

layout!(Part {
    norm,
    out,
    first,
    width,
    group,
    eps
});

#[repr(C)]
#[derive(Clone, Copy)]
struct InputsParams {
    conv: ConvOperands,
    parts: [Part; 3],
    beta: Address,
    decay: Address,
    rate: Address,
    beta_out: Address,
    decay_out: Address,
    n_heads: u32,
    softplus_beta: u32,
}

layout!(InputsParams {
    conv,
    parts,
    beta,
    decay,
    rate,
    beta_out,
    decay_out,
    n_heads,
    softplus_beta
});

const _: () = assert!(size_of::<InputsParams>() == 224);

#[repr(C)]
#[derive(Clone, Copy)]
struct ConvSiluParams {
    conv: ConvOperands,
    out: Address,
    acts: ActsOut,
    aligned: u32,
    pad: u32,
}

layout!(ConvSiluParams {
    conv,
    out,
    acts,
    aligned,
    pad
});

const _: () = assert!(size_of::<ConvSiluParams>() == 128);

#[repr(C)]
#[derive(Clone, Copy)]
struct DecodeParams {
    q: Address,
    k: Address,
    v: Address,
    decay: Address,
    beta: Address,
    weight: Address,
    gate: Address,
    states: Address,
    out: Address,
    seqs: Table<SeqRows>,
    places: Table<SeqState>,
    kept: Table<KeptState>,
    shape: LinearShape,
    eps: f32,
    n_groups: u32,
}

layout!(DecodeParams {
    q,
    k,
    v,
    decay,
    beta,
    weight,
    gate,
    states,
    out,
    seqs,
    places,
    kept,
    shape,
    eps,
    n_groups
});

const _: () = assert!(size_of::<DecodeParams>() == 136);

#[repr(C)]
#[derive(Clone, Copy)]
struct SelectiveParams {
    decode: DecodeParams,
    rates: Address,
}

layout!(SelectiveParams { decode, rates });

const _: () = assert!(size_of::<SelectiveParams>() == 144);

kernels! {
    struct LinearLayerKernels {
        linear_inputs: InputsParams,
        conv_silu: ConvSiluParams,
        conv_silu_f32: ConvSiluParams,
        conv_silu_q8x32: ConvSiluParams,
        conv_silu_q8x256: ConvSiluParams,
        linear_decode_1: DecodeParams,
        linear_decode_2: DecodeParams,
        linear_decode_4: DecodeParams,
        linear_decode_8: DecodeParams,
        linear_skip_1: DecodeParams,
        linear_skip_2: DecodeParams,
        linear_skip_4: DecodeParams,
        linear_skip_8: DecodeParams,
        selective_decode_1: SelectiveParams,
        selective_decode_2: SelectiveParams,
    }
}

/// An RMS norm of groups of values: its weights, `[group]`, and its epsilon.
#[derive(Clone, Copy)]
pub struct GroupNorm<'a> {
    pub weight: Slice<'a, f32>,
    pub eps: f32,
}

/// What linear attention has between the outputs of its heads and their gate.
#[derive(Clone, Copy)]
pub enum AfterHeads<'a> {
    /// A norm of each head, `[v_dim]`.
    Norm(GroupNorm<'a>),
    /// The values times these, `[n_heads * v_dim]`, added.
    Skip(Slice<'a, f32>),
}

/// Neighbouring values of the output of a convolution.
#[derive(Clone, Copy)]
pub struct ConvPart<'a> {
    /// The first of them in a row.
    pub first: usize,
    pub norm: Option<GroupNorm<'a>>,
    /// `[n_rows, width]`.
    pub out: Slice<'a, f32>,
}

/// What becomes the factors of linear attention, each `[n_rows, n_heads]`.
#[derive(Clone, Copy)]
pub struct HeadFactors<'a> {
    pub beta: Slice<'a, f32>,
    pub decay: Slice<'a, f32>,
    /// What multiplies the decay, `[n_heads]`.
    pub rate: Slice<'a, f32>,
    pub beta_out: Slice<'a, f32>,
    pub decay_out: Slice<'a, f32>,
}

/// Whether [`linear_inputs`] takes a norm of groups of `n` values.
pub fn takes_group(n: usize) -> bool {
    (1..=MAX_GROUP).contains(&n)
}

/// Whether [`linear_inputs`] computes this factor of new values.
pub fn takes_factor(activation: Activation) -> bool {
    matches!(activation, Activation::Sigmoid | Activation::Softplus)
}

/// `part.out = norm(silu(conv(x)))` for each part, and `beta_out = f(beta)`, `decay_out = rate * softplus(decay)`, where `f`
/// is sigmoid or softplus. The shapes and states are those of [`causal_conv`](super::causal_conv).
///
/// # Panics
/// If the shapes do not match, [`takes_group`] or [`takes_factor`] is false, or the convolution is not plain.
pub fn linear_inputs(
    gpu: &Gpu,
    (conv, x): (&Conv<'_>, Slice<'_, f32>),
    parts: [ConvPart<'_>; 3],
    (of_beta, factors): (Activation, HeadFactors<'_>),
    (step, places): (&Step<'_>, &States<'_>),
    states: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(conv.form, ConvForm::Plain, "each value has an output");
    assert!(takes_factor(of_beta), "{of_beta:?}");
    let n_rows = step.n_rows();
    let n_heads = factors.rate.len();
    for values in [
        factors.beta,
        factors.decay,
        factors.beta_out,
        factors.decay_out,
    ] {
        assert_eq!(values.len(), n_rows * n_heads, "factors of heads");
    }
    let norms = parts.iter().filter_map(|part| part.norm);
    let aligned: Vec<Slice<'_, f32>> = { parts.iter().map(|part| part.out) }
        .chain(norms.map(|norm| norm.weight))
        .collect();
    let mut operands = conv_operands(gpu, conv, x, (step, places), (states, &aligned));
    let parts = parts.map(|part| {
        let width = part.out.len() / n_rows.max(1);
        assert_eq!(part.out.len(), n_rows * width, "whole rows");
        assert!(
            part.first + width <= conv.width,
            "values of the convolution"
        );
        let group = part.norm.map_or(MAX_GROUP, |norm| norm.weight.len());
        assert!(takes_group(group), "groups of {group} values");
        assert!(
            part.norm.is_none() || width.is_multiple_of(group),
            "whole groups"
        );
        operands.align_to([part.first, width, group]);
        Part {
            norm: part
                .norm
                .map_or(Address::NULL, |norm| norm.weight.address()),
            out: part.out.address(),
            first: part.first as u32,
            width: width as u32,
            group: group as u32,
            eps: part.norm.map_or(0.0, |norm| norm.eps),
        }
    });
    let params = InputsParams {
        conv: operands,
        parts,
        beta: factors.beta.address(),
        decay: factors.decay.address(),
        rate: factors.rate.address(),
        beta_out: factors.beta_out.address(),
        decay_out: factors.decay_out.address(),
        n_heads: n_heads as u32,
        softplus_beta: u32::from(of_beta == Activation::Softplus),
    };
    let teams = parts.iter().map(|part| part.width.div_ceil(part.group));
    let n_teams = teams.sum::<u32>() as usize + n_heads.div_ceil(TEAM);
    let grid = [
        n_teams.div_ceil(INPUT_THREADS / TEAM) as u32,
        operands.n_row_blocks(step.max_rows_of_seq),
        step.n_seqs() as u32,
    ];
    let kernel = &gpu.kernels().linear_layer.linear_inputs;
    gpu.launch(kernel, grid, INPUT_THREADS as u32, 0, &params)
}

/// `out = silu(conv(x))` of one row per sequence, also in the form of `acts`. Gives the same bits as
/// [`causal_conv`](super::causal_conv), [`activate`](super::activate) and [`quantize`](super::quantize), except in padding rows. `out`
/// may be `x`.
///
/// # Panics
/// If the shapes do not match, a sequence may have more rows, or the convolution is not plain.
pub fn conv_silu(
    gpu: &Gpu,
    (conv, x): (&Conv<'_>, Slice<'_, f32>),
    (step, places): (&Step<'_>, &States<'_>),
    states: Slice<'_, f32>,
    (out, acts): (Slice<'_, f32>, &Acts<'_>),
) -> Result<(), GpuError> {
    assert_eq!(step.max_rows_of_seq, 1, "one row per sequence");
    assert_eq!(conv.form, ConvForm::Plain, "each value has an output");
    assert_eq!(out.len(), step.n_rows() * conv.width, "rows of the step");
    assert_eq!(out.len(), checked_len(acts), "acts has the shape of out");
    let mut operands = conv_operands(gpu, conv, x, (step, places), (states, &[out]));
    operands.aligned &= u32::from(conv.width.is_multiple_of(OCTET));
    // Another launch converts rows that products also take as f16.
    let is_apart = HalfRows::new(gpu, acts, None).is_some();
    let kernels = &gpu.kernels().linear_layer;
    let kernel = match acts.form {
        _ if is_apart => &kernels.conv_silu,
        ActFormat::F32 => &kernels.conv_silu_f32,
        ActFormat::Q8x32 => &kernels.conv_silu_q8x32,
        ActFormat::Q8x256 => &kernels.conv_silu_q8x256,
    };
    let params = ConvSiluParams {
        conv: operands,
        out: out.address(),
        acts: acts_out(acts),
        aligned: aligned(gpu, conv.width, &[acts.values.address()]),
        pad: 0,
    };
    let n_blocks = conv.width.div_ceil(CONV_THREADS * OCTET);
    let grid = [n_blocks as u32, step.n_seqs() as u32, 1];
    gpu.launch(kernel, grid, CONV_THREADS as u32, 0, &params)?;
    match is_apart {
        true => quantize(gpu, out, acts),
        false => Ok(()),
    }
}

/// Whether [`linear_decode`] takes these heads.
pub fn takes_decode(heads: &LinearHeads) -> bool {
    let n_lanes = n_lanes(heads);
    n_lanes <= MAX_LANES && columns_of(heads) <= THREADS / n_lanes
}

/// Columns of a head's state: whole blocks of the state.
fn columns_of(heads: &LinearHeads) -> usize {
    heads.v_dim.next_multiple_of(heads.columns())
}

/// `out = norm(linear_attention(inputs)) * silu(gate)` or `(linear_attention(inputs) + skip * v) * silu(gate)` of one row per
/// sequence, with a factor of each head: `gate` and `out` [n_rows, n_heads * v_dim]. The other shapes and states are those of [`linear_attention`](super::linear_attention).
///
/// # Panics
/// If the shapes do not match, a sequence may have more rows, or [`takes_decode`] is false.
pub fn linear_decode(
    gpu: &Gpu,
    (heads, rule): (&LinearHeads, StateRule),
    inputs: LinearInputs<Slice<'_, f32>>,
    (after, gate): (AfterHeads<'_>, Slice<'_, f32>),
    (step, places): (&Step<'_>, &States<'_>),
    (states, out): (Slice<'_, f32>, Slice<'_, f32>),
) -> Result<(), GpuError> {
    check_inputs((heads, Decay::Head, inputs), (step, places), (states, out));
    assert!(takes_decode(heads), "{heads:?}");
    assert_eq!(gate.len(), out.len(), "gate has the shape of out");
    let n_lanes = n_lanes(heads);
    let (weight, eps, n_threads) = match after {
        AfterHeads::Norm(norm) => {
            assert_eq!(norm.weight.len(), heads.v_dim, "norm is [v_dim]");
            (norm.weight, norm.eps, THREADS)
        }
        AfterHeads::Skip(skip) => {
            assert_eq!(skip.len(), heads.n_heads * heads.v_dim, "skip of heads");
            (skip, 0.0, SKIP_THREADS)
        }
    };
    let params = DecodeParams {
        weight: weight.address(),
        gate: gate.address(),
        eps,
        n_groups: n_groups(heads, n_threads),
        ..decode_params(gpu, (heads, rule), inputs, (step, places), (states, out))
    };
    let kernels = &gpu.kernels().linear_layer;
    let kernel = match (after, n_lanes) {
        (AfterHeads::Norm(_), 1) => &kernels.linear_decode_1,
        (AfterHeads::Norm(_), 2) => &kernels.linear_decode_2,
        (AfterHeads::Norm(_), 4) => &kernels.linear_decode_4,
        (AfterHeads::Norm(_), _) => &kernels.linear_decode_8,
        (AfterHeads::Skip(_), 1) => &kernels.linear_skip_1,
        (AfterHeads::Skip(_), 2) => &kernels.linear_skip_2,
        (AfterHeads::Skip(_), 4) => &kernels.linear_skip_4,
        (AfterHeads::Skip(_), _) => &kernels.linear_skip_8,
    };
    let grid = [
        heads.n_heads as u32 * params.n_groups,
        step.n_seqs() as u32,
        1,
    ];
    gpu.launch(kernel, grid, n_threads as u32, 0, &params)
}

/// Returns the blocks of a head.
fn n_groups(heads: &LinearHeads, n_threads: usize) -> u32 {
    columns_of(heads).div_ceil(n_threads / n_lanes(heads)) as u32
}

/// Returns what the kernels of one row have in common.
fn decode_params(
    gpu: &Gpu,
    (heads, rule): (&LinearHeads, StateRule),
    inputs: LinearInputs<Slice<'_, f32>>,
    (step, places): (&Step<'_>, &States<'_>),
    (states, out): (Slice<'_, f32>, Slice<'_, f32>),
) -> DecodeParams {
    assert_eq!(step.max_rows_of_seq, 1, "one row per sequence");
    let LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    } = inputs;
    DecodeParams {
        q: q.address(),
        k: k.address(),
        v: v.address(),
        decay: decay.address(),
        beta: beta.address(),
        weight: Address::NULL,
        gate: Address::NULL,
        states: states.address(),
        out: out.address(),
        seqs: step.seqs.table(),
        places: places.seqs.table(),
        kept: places.kept.table(),
        shape: linear_shape(gpu, (heads, rule), &[q, k]),
        eps: 0.0,
        n_groups: 0,
    }
}

/// What Mamba-1 has beside its inputs.
#[derive(Clone, Copy)]
pub struct SelectiveWeights<'a> {
    /// What steps multiply, as a state.
    pub rates: Slice<'a, f32>,
    /// The values times these, `[n_heads * v_dim]`, are added to the output.
    pub skip: Slice<'a, f32>,
}

/// Whether [`selective_decode`] takes these heads.
pub fn takes_selective(heads: &LinearHeads) -> bool {
    n_lanes(heads) <= MAX_SELECTIVE_LANES
}

/// `out = (linear_attention(q, k, v, t, t) + skip * v) * silu(gate)` with a factor for each value of the state, of one row per
/// sequence, where `t` is `softplus(dt)`. The shapes and states are those of [`linear_attention`](super::linear_attention), which
/// with the operations around it gives the same bits. `out` may be `v`, `dt` or `gate`.
///
/// # Panics
/// If the shapes do not match, a sequence may have more rows, or [`takes_selective`] is false.
pub fn selective_decode(
    gpu: &Gpu,
    (heads, weights): (&LinearHeads, SelectiveWeights<'_>),
    ([q, k, v], dt): ([Slice<'_, f32>; 3], Slice<'_, f32>),
    gate: Slice<'_, f32>,
    (step, places): (&Step<'_>, &States<'_>),
    (states, out): (Slice<'_, f32>, Slice<'_, f32>),
) -> Result<(), GpuError> {
    let SelectiveWeights { rates, skip } = weights;
    let inputs = LinearInputs {
        q,
        k,
        v,
        decay: dt,
        beta: dt,
    };
    check_inputs(
        (heads, Decay::Value(rates), inputs),
        (step, places),
        (states, out),
    );
    assert!(takes_selective(heads), "{heads:?}");
    assert_eq!(rates.len(), heads.state_len(), "rates of all values");
    assert_eq!(gate.len(), out.len(), "gate has the shape of out");
    assert_eq!(skip.len(), heads.n_heads * heads.v_dim, "skip of values");
    let how = (heads, StateRule::Add);
    let decode = DecodeParams {
        weight: skip.address(),
        gate: gate.address(),
        n_groups: n_groups(heads, SKIP_THREADS),
        ..decode_params(gpu, how, inputs, (step, places), (states, out))
    };
    let params = SelectiveParams {
        decode,
        rates: rates.address(),
    };
    let kernels = &gpu.kernels().linear_layer;
    let kernel = match n_lanes(heads) {
        1 => &kernels.selective_decode_1,
        _ => &kernels.selective_decode_2,
    };
    let grid = [
        heads.n_heads as u32 * decode.n_groups,
        step.n_seqs() as u32,
        1,
    ];
    gpu.launch(kernel, grid, SKIP_THREADS as u32, 0, &params)
}
