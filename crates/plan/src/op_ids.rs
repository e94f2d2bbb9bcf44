//! The ids that an operation names, for rewriting them.

use crate::op::{ActsId, BufferId, MixWeights, Op, RoutingId};
use crate::params::SharedWeight;

impl Op {
    /// Returns the float buffers this operation reads or writes.
    pub(crate) fn buffers_mut(&mut self) -> Vec<&mut BufferId> {
        match self {
            Op::Embed { out, .. }
            | Op::Import { out }
            | Op::AddPositions { out, .. }
            | Op::MatMul { out, .. }
            | Op::GatedMatMul { out, .. }
            | Op::ExpertMatMul { out, .. }
            | Op::HeadMatMul { out, .. } => vec![out],
            Op::MatMuls { products, .. } => products.iter_mut().map(|(_, out)| out).collect(),
            Op::Route { logits, shared, .. } => {
                let gate = shared.as_mut().and_then(SharedWeight::gate_mut);
                gate.into_iter().chain([logits]).collect()
            }
            Op::Quantize { x, .. }
            | Op::NormQuantize { x, .. }
            | Op::QuantizeExperts { x, .. }
            | Op::QuantizeHeads { x, .. }
            | Op::Rope { x, .. }
            | Op::Sparsify { x, .. }
            | Op::Scale { x, .. }
            | Op::SoftCap { x, .. }
            | Op::Export { x } => vec![x],
            Op::RmsNorm { x, out, .. }
            | Op::LayerNorm { x, out, .. }
            | Op::CombineExperts { x, out, .. }
            | Op::Attention { q: x, out, .. }
            | Op::Activate { x, out, .. }
            | Op::Add { x, out }
            | Op::SelectRows { x, out }
            | Op::CopyPart { x, out, .. }
            | Op::CausalConv { x, out, .. } => vec![x, out],
            Op::LinearAttention { inputs, out, .. } => {
                let inputs = inputs.as_mut().into_array();
                inputs.into_iter().chain([out]).collect()
            }
            Op::JoinHeads { x, rest, out, .. } => [Some(x), rest.as_mut(), Some(out)]
                .into_iter()
                .flatten()
                .collect(),
            Op::KvAppend { k, v, .. } => vec![k, v],
            Op::GatedActivation { gate, up, out, .. } => vec![gate, up, out],
            Op::AddGated { gate, x, out } => vec![gate, x, out],
            Op::Mix {
                weights, x, out, ..
            } => {
                let weights = match weights {
                    MixWeights::OfRows(weights) => Some(weights),
                    MixWeights::Same(_) => None,
                };
                [weights, Some(x), Some(out)]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Op::MatchLength { like, x } => vec![like, x],
        }
    }

    /// Returns the converted activations this operation reads or writes.
    pub(crate) fn acts_mut(&mut self) -> Option<&mut ActsId> {
        match self {
            Op::MatMul { x, .. }
            | Op::MatMuls { x, .. }
            | Op::GatedMatMul { x, .. }
            | Op::ExpertMatMul { x, .. }
            | Op::HeadMatMul { x, .. } => Some(x),
            Op::Quantize { out, .. }
            | Op::NormQuantize { out, .. }
            | Op::QuantizeExperts { out, .. }
            | Op::QuantizeHeads { out, .. } => Some(out),
            _ => None,
        }
    }

    /// Returns the routing this operation reads or writes.
    pub(crate) fn routing_mut(&mut self) -> Option<&mut RoutingId> {
        match self {
            Op::Route { out, .. } => Some(out),
            Op::QuantizeExperts { routing, .. }
            | Op::ExpertMatMul { routing, .. }
            | Op::CombineExperts { routing, .. } => Some(routing),
            _ => None,
        }
    }
}
