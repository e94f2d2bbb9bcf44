//! All that a layer of linear attention with a decay of each channel does between its products, in one launch
//! (`kernels/channel_layer.hip`).

use rocmforge_plan::{ConvForm, Decay, LinearHeads, LinearInputs, StateRule};

use super::linear_layer::GroupNorm;
use super::recurrent::{Conv, LinearShape, check_inputs, conv_operands, linear_shape, n_lanes};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Table, kernels, layout};
use crate::memory::{Address, Slice};
use crate::step::{KeptState, SeqRows, SeqState, States, Step};

/// Values of a head's keys, or values: four for each of 32 lanes.
const ROW: usize = 128;
/// Values of a head that a lane has.
const QUAD: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    x: Address,
    weight: Address,
    norm: Address,
    states: Address,
    eps: f32,
    pad: u32,
}

layout!(Part {
    x,
    weight,
    norm,
    states,
    eps,
    pad
});

#[repr(C)]
#[derive(Clone, Copy)]
struct ChannelParams {
    parts: [Part; 3],
    decay: Address,
    beta: Address,
    rate: Address,
    weight: Address,
    gate: Address,
    states: Address,
    out: Address,
    seqs: Table<SeqRows>,
    places: Table<SeqState>,
    kept: Table<KeptState>,
    shape: LinearShape,
    eps: f32,
    n_taps: u32,
    bounded: u32,
    bound: f32,
    aligned: u32,
    pad: u32,
}

layout!(ChannelParams {
    parts,
    decay,
    beta,
    rate,
    weight,
    gate,
    states,
    out,
    seqs,
    places,
    kept,
    shape,
    eps,
    n_taps,
    bounded,
    bound,
    aligned,
    pad
});

const _: () = assert!(size_of::<ChannelParams>() == 256);

kernels! {
    struct ChannelLayerKernels {
        channel_decode_1: ChannelParams,
        channel_decode_2: ChannelParams,
        channel_decode_4: ChannelParams,
    }
}

/// What becomes the queries, the keys or the values: `norm(silu(conv(x)))`.
#[derive(Clone, Copy)]
pub struct ChannelInput<'a> {
    pub x: Slice<'a, f32>,
    /// `[n_taps, width]`.
    pub conv: Slice<'a, f32>,
    /// Of the convolution, `[n_slots, n_taps - 1, width]`.
    pub states: Slice<'a, f32>,
    /// Of each head.
    pub norm: Option<GroupNorm<'a>>,
}

/// What becomes the factors on the state and on new values.
#[derive(Clone, Copy)]
pub struct ChannelFactors<'a> {
    /// `[n_rows, n_heads]`.
    pub beta: Slice<'a, f32>,
    /// `[n_rows, n_heads * k_dim]`.
    pub decay: Slice<'a, f32>,
    /// `[n_heads * k_dim]`.
    pub rate: Slice<'a, f32>,
    /// The decay is `bound * sigmoid(rate * decay)`, or else `rate * softplus(decay)`.
    pub bound: Option<f32>,
}

/// Whether [`channel_decode`] takes these heads.
pub fn takes_channels(heads: &LinearHeads) -> bool {
    heads.n_k_heads == heads.n_heads && heads.k_dim <= ROW && heads.v_dim <= ROW
}

/// `out = norm(linear_attention(q, k, v, e^decay, sigmoid(beta))) * sigmoid(gate)` of one row per sequence, by the delta rule
/// with a factor for each row of the state: `gate` and `out` [n_rows, n_heads * v_dim], `states` as in
/// [`linear_attention`](super::linear_attention). `out` may be one of the inputs of its width.
///
/// # Panics
/// If the shapes do not match, a sequence may have more rows, or [`takes_channels`] is false.
pub fn channel_decode(
    gpu: &Gpu,
    heads: &LinearHeads,
    (parts, factors): ([ChannelInput<'_>; 3], ChannelFactors<'_>),
    (norm, gate): (GroupNorm<'_>, Slice<'_, f32>),
    (step, places): (&Step<'_>, &States<'_>),
    (states, out): (Slice<'_, f32>, Slice<'_, f32>),
) -> Result<(), GpuError> {
    assert_eq!(step.max_rows_of_seq, 1, "one row per sequence");
    assert!(takes_channels(heads), "{heads:?}");
    let [q, k, v] = parts.map(|part| part.x);
    let ChannelFactors {
        beta,
        decay,
        rate,
        bound,
    } = factors;
    let inputs = LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    };
    check_inputs(
        (heads, Decay::Channel, inputs),
        (step, places),
        (states, out),
    );
    let LinearHeads { k_dim, v_dim, .. } = *heads;
    assert_eq!(rate.len(), heads.n_heads * k_dim, "rates of channels");
    assert_eq!(norm.weight.len(), v_dim, "norm is [v_dim]");
    assert_eq!(gate.len(), out.len(), "gate has the shape of out");
    let convs = parts.map(|part| {
        let conv = Conv {
            weight: part.conv,
            bias: None,
            form: ConvForm::Plain,
            width: part.x.len() / step.n_rows().max(1),
        };
        let of_norm = part.norm.map(|norm| norm.weight);
        assert!(
            of_norm.is_none_or(|weight| weight.len() == k_dim),
            "norms are [k_dim]"
        );
        let aligned: Vec<_> = of_norm.into_iter().chain([decay, rate]).collect();
        let mut operands =
            conv_operands(gpu, &conv, part.x, (step, places), (part.states, &aligned));
        operands.align_to([k_dim, v_dim, QUAD]);
        operands
    });
    let n_taps = convs[0].n_taps;
    assert!(
        convs.iter().all(|conv| conv.n_taps == n_taps),
        "convolutions of the same rows"
    );
    let params = ChannelParams {
        parts: parts.map(|part| Part {
            x: part.x.address(),
            weight: part.conv.address(),
            norm: part
                .norm
                .map_or(Address::NULL, |norm| norm.weight.address()),
            states: part.states.address(),
            eps: part.norm.map_or(0.0, |norm| norm.eps),
            pad: 0,
        }),
        decay: decay.address(),
        beta: beta.address(),
        rate: rate.address(),
        weight: norm.weight.address(),
        gate: gate.address(),
        states: states.address(),
        out: out.address(),
        seqs: step.seqs.table(),
        places: places.seqs.table(),
        kept: places.kept.table(),
        shape: linear_shape(gpu, (heads, StateRule::Delta), &[]),
        eps: norm.eps,
        n_taps,
        bounded: u32::from(bound.is_some()),
        bound: bound.unwrap_or(0.0),
        aligned: u32::from(convs.iter().all(|conv| conv.aligned == 1)),
        pad: 0,
    };
    let kernels = &gpu.kernels().channel_layer;
    let n_lanes = n_lanes(heads);
    let kernel = match n_lanes {
        1 => &kernels.channel_decode_1,
        2 => &kernels.channel_decode_2,
        _ => &kernels.channel_decode_4,
    };
    let grid = [heads.n_heads as u32, step.n_seqs() as u32, 1];
    gpu.launch(kernel, grid, (ROW * n_lanes) as u32, 0, &params)
}
