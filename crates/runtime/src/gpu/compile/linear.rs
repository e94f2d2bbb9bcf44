//! Stages of layers of linear attention: what comes before it in one launch, and in steps of one row per sequence the
//! attention with the norm and gate after it in another.

use std::ops::Range;

use rocmforge_gpu::ops;
use rocmforge_plan::{
    Activation, BufferId, ConvForm, Decay, Factor, LinearHeads, LinearInputs, Op, Plan, StateRule,
    WeightId, Weights, is_dead,
};

/// The operands of [`Stage::LinearInputs`](super::Stage::LinearInputs).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LinearInputsOps {
    pub(crate) n_ops: usize,
    pub(crate) state: usize,
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
    /// The input of the convolution.
    pub(crate) x: BufferId,
    pub(crate) parts: [PartOps; 3],
    pub(crate) of_beta: Activation,
    pub(crate) beta: BufferId,
    pub(crate) decay: BufferId,
    pub(crate) rate: WeightId,
    pub(crate) beta_out: BufferId,
    pub(crate) decay_out: BufferId,
    /// Hold the output of the convolution, before and after its activation, and parts before their norms in the unfused
    /// plan. This stage does not write them.
    pub(crate) unwritten: [Option<BufferId>; 4],
}

/// A part of the output of the convolution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PartOps {
    pub(crate) first: usize,
    /// Weights and epsilon.
    pub(crate) norm: Option<(WeightId, f32)>,
    pub(crate) out: BufferId,
}

/// The operands of [`Stage::LinearDecode`](super::Stage::LinearDecode).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LinearDecodeOps {
    pub(crate) state: usize,
    pub(crate) heads: LinearHeads,
    pub(crate) rule: StateRule,
    pub(crate) inputs: LinearInputs<BufferId>,
    pub(crate) after: AfterHeads,
    pub(crate) gate: BufferId,
    pub(crate) out: BufferId,
    /// Hold the results of attention and what comes after it in the unfused plan. Here their contents are undefined.
    pub(crate) unwritten: [Option<BufferId>; 2],
}

/// What linear attention has between its heads and their gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum AfterHeads {
    /// A norm of each head: its weights and epsilon.
    Norm(WeightId, f32),
    /// The values times these, added.
    Skip(WeightId),
}

impl LinearDecodeOps {
    pub(crate) fn n_ops(&self) -> usize {
        match self.after {
            AfterHeads::Norm(..) => 3,
            AfterHeads::Skip(_) => 4,
        }
    }
}

/// Matches the factors of linear attention, a convolution with its activation and its parts, and norms of these.
pub(super) fn inputs(
    plan: &Plan,
    weights: &Weights,
    range: Range<usize>,
) -> Option<LinearInputsOps> {
    let &[
        Op::Activate {
            activation: of_beta,
            x: beta,
            out: beta_out,
        },
        Op::Activate {
            activation: Activation::Softplus,
            x: decay,
            out: decay_out,
        },
        Op::Scale {
            by: Factor::Vector(rate),
            x: scaled,
        },
        Op::CausalConv {
            state,
            weight,
            bias,
            form: ConvForm::Plain,
            x,
            out: conv,
        },
        Op::Activate {
            activation: Activation::Silu,
            x: activated,
            out: whole,
        },
        ref first_part @ Op::CopyPart { .. },
        ref second_part @ Op::CopyPart { .. },
        ref third_part @ Op::CopyPart { .. },
        ref rest @ ..,
    ] = &plan.ops[range.clone()]
    else {
        return None;
    };
    let is_chain = scaled == decay_out && activated == conv && ops::takes_factor(of_beta);
    let part = |op: &Op| match *op {
        Op::CopyPart {
            x,
            n_groups: 1,
            first,
            out,
        } if x == whole => Some(PartOps {
            first,
            norm: None,
            out,
        }),
        _ => None,
    };
    let mut parts = [part(first_part)?, part(second_part)?, part(third_part)?];
    let mut n_ops = 8;
    let mut unwritten = vec![conv, whole];
    for op in rest.iter().take(2) {
        let Op::RmsNorm {
            x,
            weight,
            n_groups: 1,
            eps,
            out,
        } = *op
        else {
            break;
        };
        let is_taken = ops::takes_group(weights.vector(weight).len());
        let of_part = parts
            .iter_mut()
            .find(|part| part.out == x && part.norm.is_none());
        let Some(part) = of_part.filter(|_| is_taken) else {
            break;
        };
        unwritten.push(part.out);
        (part.norm, part.out) = (Some((weight, eps)), out);
        n_ops += 1;
    }
    let written = parts.map(|part| part.out);
    let written = [written[0], written[1], written[2], beta_out, decay_out];
    // Blocks read what others write, except the factors of a head and row, which one thread reads and writes.
    let is_apart = !written.contains(&x)
        && parts.iter().all(|part| ![beta, decay].contains(&part.out))
        && (1..written.len()).all(|i| !written[..i].contains(&written[i]));
    unwritten.retain(|id| !written.contains(id));
    let after = &plan.ops[range.start + n_ops..];
    let is_dead = |id: &BufferId| is_dead(after, *id, plan.logits);
    if !is_chain || !is_apart || !unwritten.iter().all(is_dead) {
        return None;
    }
    Some(LinearInputsOps {
        n_ops,
        state,
        weight,
        bias,
        x,
        parts,
        of_beta,
        beta,
        decay,
        rate,
        beta_out,
        decay_out,
        unwritten: std::array::from_fn(|i| unwritten.get(i).copied()),
    })
}

/// Matches linear attention with a factor for each head, a norm of each head or the values added, and the gate of that.
pub(super) fn decode(
    plan: &Plan,
    weights: &Weights,
    range: Range<usize>,
) -> Option<LinearDecodeOps> {
    let &[
        Op::LinearAttention {
            state,
            heads,
            rule,
            decay: Decay::Head,
            inputs,
            out: attended,
        },
        ref rest @ ..,
    ] = &plan.ops[range.clone()]
    else {
        return None;
    };
    let (after, changed, gated) = match *rest {
        [
            Op::RmsNorm {
                x,
                weight,
                n_groups: 1,
                eps,
                out: normed,
            },
            ref gated,
            ..,
        ] if x == attended && weights.vector(weight).len() == heads.v_dim => {
            (AfterHeads::Norm(weight, eps), normed, gated)
        }
        [
            Op::Scale {
                by: Factor::Vector(skip),
                x: scaled,
            },
            Op::Add { x, out: sum },
            ref gated,
            ..,
        ] if [scaled, x] == [inputs.v; 2] && sum == attended => {
            (AfterHeads::Skip(skip), scaled, gated)
        }
        _ => return None,
    };
    let up_of_gate = match after {
        AfterHeads::Norm(..) => changed,
        AfterHeads::Skip(_) => attended,
    };
    let Op::GatedActivation {
        activation: Activation::Silu,
        gate,
        up,
        out,
    } = *gated
    else {
        return None;
    };
    let width = |id: BufferId| plan.buffers[id.0 as usize].width;
    let is_chain = up == up_of_gate && width(gate) == width(out);
    let LinearInputs {
        q, k, decay, beta, ..
    } = inputs;
    // Heads share keys, and a block has the whole head.
    let is_apart = ![q, k, decay, beta].contains(&out);
    let unwritten = [attended, changed].map(|id| Some(id).filter(|id| *id != out));
    let ops = LinearDecodeOps {
        state,
        heads,
        rule,
        inputs,
        after,
        gate,
        out,
        unwritten,
    };
    let rest = &plan.ops[range.start + ops.n_ops()..];
    let are_dead = { unwritten.iter().flatten() }.all(|id| is_dead(rest, *id, plan.logits));
    (is_chain && is_apart && are_dead && ops::takes_decode(&heads)).then_some(ops)
}
