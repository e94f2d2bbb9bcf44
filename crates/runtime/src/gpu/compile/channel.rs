//! The stage of a layer of linear attention with a decay of each channel: in steps of one row per sequence, all that comes
//! between its products.

use std::ops::Range;

use rocmforge_gpu::ops;
use rocmforge_plan::{
    Activation, BufferId, ConvForm, Decay, Factor, LinearHeads, LinearInputs, Op, Plan, StateRule,
    WeightId, Weights, is_dead,
};

/// Buffers that the operations write, at most.
const N_WRITTEN: usize = 13;

/// The operands of [`Stage::ChannelDecode`](super::Stage::ChannelDecode).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ChannelDecodeOps {
    pub(crate) n_ops: usize,
    pub(crate) state: usize,
    pub(crate) heads: LinearHeads,
    /// Queries, keys and values.
    pub(crate) parts: [ChannelPart; 3],
    pub(crate) beta: BufferId,
    pub(crate) decay: BufferId,
    pub(crate) rate: WeightId,
    /// The bound of decays that are sigmoids.
    pub(crate) bound: Option<f32>,
    /// The norm of the output: its weights and epsilon.
    pub(crate) norm: (WeightId, f32),
    pub(crate) gate: BufferId,
    pub(crate) out: BufferId,
    /// Hold other results of the operations in the unfused plan. Here their contents are undefined.
    pub(crate) unwritten: [Option<BufferId>; N_WRITTEN],
}

/// What becomes the queries, the keys or the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ChannelPart {
    pub(crate) x: BufferId,
    /// Of the convolution.
    pub(crate) weight: WeightId,
    pub(crate) state: usize,
    /// Weights and epsilon.
    pub(crate) norm: Option<(WeightId, f32)>,
}

/// Matches the factors of linear attention, convolutions of queries, keys and values with their activations, norms of the
/// first two, the attention, and the norm and gate of its output.
pub(super) fn decode(
    plan: &Plan,
    weights: &Weights,
    range: Range<usize>,
) -> Option<ChannelDecodeOps> {
    let &[
        Op::Activate {
            activation: Activation::Sigmoid,
            x: beta,
            out: beta_out,
        },
        ref rest @ ..,
    ] = &plan.ops[range.clone()]
    else {
        return None;
    };
    let (rate, decay, bound, decay_out, rest) = decay_of(rest)?;
    let (q, rest) = part_of(rest)?;
    let (k, rest) = part_of(rest)?;
    let (v, rest) = part_of(rest)?;
    let &[
        Op::RmsNorm {
            x: q_in,
            weight: q_weight,
            n_groups: 1,
            eps: q_eps,
            out: q_out,
        },
        Op::RmsNorm {
            x: k_in,
            weight: k_weight,
            n_groups: 1,
            eps: k_eps,
            out: k_out,
        },
        Op::LinearAttention {
            state,
            heads,
            rule: StateRule::Delta,
            decay: Decay::Channel,
            inputs,
            out: attended,
        },
        Op::RmsNorm {
            x: normed_in,
            weight,
            n_groups: 1,
            eps,
            out: normed,
        },
        Op::GatedActivation {
            activation: Activation::Sigmoid,
            gate,
            up,
            out,
        },
        ref rest @ ..,
    ] = rest
    else {
        return None;
    };
    let wanted = LinearInputs {
        q: q_out,
        k: k_out,
        v: v.1,
        decay: decay_out,
        beta: beta_out,
    };
    let is_chain = inputs == wanted
        && [q_in, k_in, normed_in, up] == [q.1, k.1, attended, normed]
        && plan.buffers[gate.0 as usize].width == plan.buffers[out.0 as usize].width;
    let is_by_head = |weight, width| weights.vector(weight).len() == width;
    let are_by_head = is_by_head(q_weight, heads.k_dim)
        && is_by_head(k_weight, heads.k_dim)
        && is_by_head(weight, heads.v_dim);
    let n_ops = range.len() - rest.len();
    let first = range.start;
    let mut unwritten = [None; N_WRITTEN];
    let mut n = 0;
    for id in plan.ops[first..first + n_ops].iter().flat_map(Op::writes) {
        if id != out && !unwritten.contains(&Some(id)) {
            *unwritten.get_mut(n)? = Some(id);
            n += 1;
        }
    }
    let after = &plan.ops[first + n_ops..];
    let are_dead = { unwritten.iter().flatten() }.all(|id| is_dead(after, *id, plan.logits));
    // A block reads its head's values of all inputs before it writes them; factors of heads are not as wide.
    let is_apart = out != beta;
    let part = |(part, _): (ChannelPart, BufferId), norm| ChannelPart { norm, ..part };
    let is_one = is_chain && are_by_head && are_dead && is_apart && ops::takes_channels(&heads);
    is_one.then_some(ChannelDecodeOps {
        n_ops,
        state,
        heads,
        parts: [
            part(q, Some((q_weight, q_eps))),
            part(k, Some((k_weight, k_eps))),
            part(v, None),
        ],
        beta,
        decay,
        rate,
        bound,
        norm: (weight, eps),
        gate,
        out,
        unwritten,
    })
}

/// Rates, what they multiply, the bound, the result, and the operations after it.
type DecayOf<'a> = (WeightId, BufferId, Option<f32>, BufferId, &'a [Op]);

/// Matches `rate * softplus(x)` or `bound * sigmoid(rate * x)`.
fn decay_of(ops: &[Op]) -> Option<DecayOf<'_>> {
    match *ops {
        [
            Op::Activate {
                activation: Activation::Softplus,
                x,
                out,
            },
            Op::Scale {
                by: Factor::Vector(rate),
                x: scaled,
            },
            ref rest @ ..,
        ] if scaled == out => Some((rate, x, None, out, rest)),
        [
            Op::Scale {
                by: Factor::Vector(rate),
                x,
            },
            Op::Activate {
                activation: Activation::Sigmoid,
                x: activated,
                out,
            },
            Op::Scale {
                by: Factor::Constant(bound),
                x: scaled,
            },
            ref rest @ ..,
        ] if [activated, scaled] == [x, out] => Some((rate, x, Some(bound), out, rest)),
        _ => None,
    }
}

/// Matches `silu(conv(x))`; returns it with the result and the operations after it.
fn part_of(ops: &[Op]) -> Option<((ChannelPart, BufferId), &[Op])> {
    match *ops {
        [
            Op::CausalConv {
                state,
                weight,
                bias: None,
                form: ConvForm::Plain,
                x,
                out: convolved,
            },
            Op::Activate {
                activation: Activation::Silu,
                x: activated,
                out,
            },
            ref rest @ ..,
        ] if activated == convolved => {
            let part = ChannelPart {
                x,
                weight,
                state,
                norm: None,
            };
            Some(((part, out), rest))
        }
        _ => None,
    }
}
