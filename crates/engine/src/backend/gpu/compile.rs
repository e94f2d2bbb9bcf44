//! From a plan to launches: what a GPU runs in one, and what it cannot run at all.

use std::ops::Range;

use crate::error::EngineError;
use crate::plan::{BufferId, Op, Plan, RopeId, is_dead};

/// Operations of a plan that one call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// An operation by itself.
    One(usize),
    /// The rotations of queries and keys and the append of keys and values, from this operation on.
    RopeKv(usize),
}

impl Stage {
    /// The operations' places in the plan.
    pub(super) fn ops(self) -> Range<usize> {
        match self {
            Stage::One(index) => index..index + 1,
            Stage::RopeKv(first) => first..first + 3,
        }
    }
}

/// The stages of `plan`, in order.
pub(super) fn stages(plan: &Plan) -> Result<Vec<Stage>, EngineError> {
    let mut stages = Vec::new();
    let mut at = 0;
    while at < plan.ops.len() {
        refuse_unknown(&plan.ops[at])?;
        let stage = match rope_kv(plan, &plan.ops[at..]) {
            Some(_) => Stage::RopeKv(at),
            None => Stage::One(at),
        };
        stages.push(stage);
        at = stage.ops().end;
    }
    Ok(stages)
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

/// The operands of [`Stage::RopeKv`].
pub(super) struct RopeKvOps {
    pub(super) q: BufferId,
    pub(super) k: BufferId,
    pub(super) v: BufferId,
    pub(super) layer: usize,
    pub(super) table: RopeId,
    pub(super) style: rocmforge_cpu::RopeStyle,
}

/// `ops` begin with rotations of queries and keys alike, and the append of those keys.
pub(super) fn rope_kv(plan: &Plan, ops: &[Op]) -> Option<RopeKvOps> {
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
    ] = ops
    else {
        return None;
    };
    // The rotated keys go to the cache and to no buffer.
    let is_of_cache = rotated == k && q != k && plan.kv[layer].k_dim == k_dim;
    let k_is_read = !is_dead(rest, k, plan.logits);
    let alike = (head_dim, table, style) == (k_dim, k_table, k_style);
    (alike && is_of_cache && !k_is_read).then_some(RopeKvOps {
        q,
        k,
        v,
        layer,
        table,
        style,
    })
}
