//! From a plan to launches: what a GPU runs in one, and what it cannot run at all.

use std::ops::Range;

use rocmforge_gpu::{Variant, Variants};

use crate::error::EngineError;
use crate::model::Weights;
use crate::plan::{BufferId, Op, Plan, PlanPart, RopeId, WeightId, is_dead};

/// Operations of a plan that one call runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Stage {
    /// An operation by itself.
    One(usize),
    /// The rotations of queries and keys, after the norms of their heads where there are any, and the append of keys and
    /// values.
    RopeKv { first: usize, ops: RopeKvOps },
}

/// The operands of [`Stage::RopeKv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RopeKvOps {
    pub(super) q: BufferId,
    /// Where the rotated queries go; `q`, if there are no norms.
    pub(super) q_out: BufferId,
    pub(super) k: BufferId,
    pub(super) v: BufferId,
    pub(super) layer: usize,
    pub(super) table: RopeId,
    pub(super) style: rocmforge_cpu::RopeStyle,
    pub(super) norms: Option<HeadNorms>,
    /// What the plan's operations make of the keys: here they go to the cache and to no buffer.
    pub(super) k_unwritten: BufferId,
}

/// Weights of the norms of heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeadNorms {
    pub(super) q: WeightId,
    pub(super) k: WeightId,
    pub(super) eps: f32,
}

impl Stage {
    /// The operations' places in the plan.
    pub(super) fn ops(&self) -> Range<usize> {
        match *self {
            Stage::One(index) => index..index + 1,
            Stage::RopeKv { first, ops } => first..first + if ops.norms.is_some() { 5 } else { 3 },
        }
    }
}

/// Operations that run one after the other.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Segment {
    /// Their places.
    pub(super) ops: Range<usize>,
    pub(super) stages: Vec<Stage>,
}

/// The segments of `part`, in order.
///
/// # Errors
/// If it has operations that no GPU runs.
pub(super) fn segments(
    part: &PlanPart,
    weights: &Weights,
    variants: Variants,
) -> Result<Vec<Segment>, EngineError> {
    let segments = part.segments.iter().map(|ops| {
        let mut stages = Vec::new();
        let mut at = ops.start;
        while at < ops.end {
            refuse_unknown(&part.plan.ops[at])?;
            let merged = match variants.contains(Variant::RopeSeparate) {
                true => None,
                false => rope_kv(&part.plan, weights, at..ops.end),
            };
            // What the other device reads is in its buffer.
            let merged = merged.filter(|merged| !part.exports.contains(&merged.k_unwritten));
            let stage = match merged {
                Some(ops) => Stage::RopeKv { first: at, ops },
                None => Stage::One(at),
            };
            at = stage.ops().end;
            stages.push(stage);
        }
        let ops = ops.clone();
        Ok(Segment { ops, stages })
    });
    segments.collect()
}

/// What mixtures of experts need.
fn refuse_unknown(op: &Op) -> Result<(), EngineError> {
    match op {
        Op::Route { .. }
        | Op::QuantizeExperts { .. }
        | Op::ExpertMatMul { .. }
        | Op::CombineExperts { .. } => Err(EngineError::NotOnGpu {
            what: "mixtures of experts",
        }),
        _ => Ok(()),
    }
}

/// The operations at `range` begin with norms of the heads of queries and keys, if any, rotations of both alike, and the append of those
/// keys.
fn rope_kv(plan: &Plan, weights: &Weights, range: Range<usize>) -> Option<RopeKvOps> {
    let end = range.end;
    let ops = &plan.ops[range];
    let (norms, after) = match ops {
        [q @ Op::RmsNorm { .. }, k @ Op::RmsNorm { .. }, after @ ..] => (Some((q, k)), after),
        _ => (None, ops),
    };
    let &[
        Op::Rope {
            x: q,
            head_dim,
            table,
            style,
        },
        Op::Rope {
            x: rotated,
            head_dim: k_dim,
            table: k_table,
            style: k_style,
        },
        Op::KvAppend { layer, k, v },
        ref rest @ ..,
    ] = after
    else {
        return None;
    };
    // The rotated keys go to the cache and to no buffer.
    let is_of_cache = rotated == k && q != k && plan.kv[layer].k_dim == k_dim;
    let k_is_read = !is_dead(&plan.ops[end - rest.len()..], k, plan.logits);
    let alike = (head_dim, table, style) == (k_dim, k_table, k_style);
    if !alike || !is_of_cache || k_is_read {
        return None;
    }
    let mut found = RopeKvOps {
        q,
        q_out: q,
        k,
        v,
        layer,
        table,
        style,
        norms: None,
        k_unwritten: k,
    };
    if let Some((
        &Op::RmsNorm {
            x: q_in,
            weight: q_weight,
            eps,
            out: q_normed,
        },
        &Op::RmsNorm {
            x: k_in,
            weight: k_weight,
            eps: k_eps,
            out: k_normed,
        },
    )) = norms
    {
        let is_by_head = |weight| weights.vector(weight).len() == head_dim;
        // Nothing that is read later is written before it, and nothing twice.
        let inputs = [q_in, k_in, v];
        let apart = !inputs.contains(&q_normed) && !inputs.contains(&k_normed);
        if (q_normed, k_normed, eps) != (q, k, k_eps)
            || !apart
            || !is_by_head(q_weight)
            || !is_by_head(k_weight)
        {
            return None;
        }
        (found.q, found.k) = (q_in, k_in);
        found.norms = Some(HeadNorms {
            q: q_weight,
            k: k_weight,
            eps,
        });
    }
    Some(found)
}
