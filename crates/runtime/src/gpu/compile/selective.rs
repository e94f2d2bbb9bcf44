//! Stages of layers of Mamba-1, between their products: the convolution with its activation, the norms of projections, and the
//! scan. All but the norms are of steps with one row per sequence.

use std::ops::Range;

use rocmforge_gpu::ops;
use rocmforge_plan::{
    Activation, ActsId, BufferId, ConvForm, Decay, Factor, LinearHeads, LinearInputs, Op, Plan,
    StateRule, WeightId, Weights, is_dead,
};

/// The operands of [`Stage::ConvSilu`](super::Stage::ConvSilu).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ConvSiluOps {
    pub(crate) state: usize,
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
    pub(crate) x: BufferId,
    pub(crate) out: BufferId,
    pub(crate) acts: ActsId,
    /// Holds the output of the convolution in the unfused plan. Here its contents are undefined.
    pub(crate) unwritten: Option<BufferId>,
}

impl ConvSiluOps {
    pub(crate) const N_OPS: usize = 3;
}

/// The operands of [`Stage::Norms`](super::Stage::Norms).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NormsOps {
    pub(crate) norms: [(RowNorm, BufferId); 2],
    /// The one whose result is converted.
    pub(crate) last: (RowNorm, ActsId),
}

impl NormsOps {
    pub(crate) const N_OPS: usize = 3;
}

/// A norm of whole rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowNorm {
    pub(crate) x: BufferId,
    pub(crate) weight: WeightId,
    pub(crate) eps: f32,
}

/// The operands of [`Stage::SelectiveDecode`](super::Stage::SelectiveDecode).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SelectiveDecodeOps {
    pub(crate) state: usize,
    pub(crate) heads: LinearHeads,
    /// Queries, keys and values.
    pub(crate) inputs: [BufferId; 3],
    /// What steps are computed from.
    pub(crate) dt: BufferId,
    pub(crate) rates: WeightId,
    pub(crate) skip: WeightId,
    pub(crate) gate: BufferId,
    pub(crate) out: BufferId,
    /// Hold the steps, the result of the scan and the scaled values in the unfused plan. Here their contents are undefined.
    pub(crate) unwritten: [Option<BufferId>; 3],
}

impl SelectiveDecodeOps {
    pub(crate) const N_OPS: usize = 5;
}

/// Matches a convolution, its activation and the conversion of that.
pub(super) fn conv_silu(plan: &Plan, range: Range<usize>) -> Option<ConvSiluOps> {
    let &[
        Op::CausalConv {
            state,
            weight,
            bias,
            form: ConvForm::Plain,
            x,
            out: convolved,
        },
        Op::Activate {
            activation: Activation::Silu,
            x: activated,
            out,
        },
        Op::Quantize {
            x: converted,
            out: acts,
        },
        ref rest @ ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let unwritten = Some(convolved).filter(|id| *id != out);
    let is_chain = [activated, converted] == [convolved, out];
    let are_dead = { unwritten.iter() }.all(|id| is_dead(rest, *id, plan.logits));
    (is_chain && are_dead).then_some(ConvSiluOps {
        state,
        weight,
        bias,
        x,
        out,
        acts,
        unwritten,
    })
}

/// Matches norms of rows of three values, of which the last is converted.
pub(super) fn norms(plan: &Plan, weights: &Weights, range: Range<usize>) -> Option<NormsOps> {
    let [first, second, last, ..] = &plan.ops[range] else {
        return None;
    };
    let is_of_rows =
        |norm: &RowNorm| weights.vector(norm.weight).len() == plan.buffers[norm.x.0 as usize].width;
    let to_f32 = |op: &Op| match *op {
        Op::RmsNorm {
            x,
            weight,
            n_groups: 1,
            eps,
            out,
        } => Some((RowNorm { x, weight, eps }, out)),
        _ => None,
    };
    let &Op::NormQuantize {
        x,
        weight,
        n_groups: 1,
        eps,
        out,
    } = last
    else {
        return None;
    };
    let norms = [to_f32(first)?, to_f32(second)?];
    let last = (RowNorm { x, weight, eps }, out);
    // The inputs are those before the norms.
    let [(_, first_out), (second, second_out)] = norms;
    let is_apart =
        first_out != second_out && first_out != second.x && ![first_out, second_out].contains(&x);
    let are_of_rows = [norms[0].0, second, last.0].iter().all(is_of_rows);
    (is_apart && are_of_rows).then_some(NormsOps { norms, last })
}

/// Matches the steps of a scan with a factor for each value of the state, the scan, the values added, and the gate of that.
pub(super) fn decode(plan: &Plan, range: Range<usize>) -> Option<SelectiveDecodeOps> {
    let &[
        Op::Activate {
            activation: Activation::Softplus,
            x: dt,
            out: step,
        },
        Op::LinearAttention {
            state,
            heads,
            rule: StateRule::Add,
            decay: Decay::Value(rates),
            inputs,
            out: attended,
        },
        Op::Scale {
            by: Factor::Vector(skip),
            x: scaled,
        },
        Op::Add { x: added, out: sum },
        Op::GatedActivation {
            activation: Activation::Silu,
            gate,
            up,
            out,
        },
        ref rest @ ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    } = inputs;
    let width = |id: BufferId| plan.buffers[id.0 as usize].width;
    let is_chain = [decay, beta, scaled, added, sum, up] == [step, step, v, v, attended, attended]
        && width(gate) == width(out);
    // Values have the same keys.
    let is_apart = ![q, k].contains(&out);
    let unwritten = [step, attended, scaled].map(|id| Some(id).filter(|id| *id != out));
    let are_dead = { unwritten.iter().flatten() }.all(|id| is_dead(rest, *id, plan.logits));
    let is_one = is_chain && is_apart && are_dead && ops::takes_selective(&heads);
    is_one.then_some(SelectiveDecodeOps {
        state,
        heads,
        inputs: [q, k, v],
        dt,
        rates,
        skip,
        gate,
        out,
        unwritten,
    })
}
