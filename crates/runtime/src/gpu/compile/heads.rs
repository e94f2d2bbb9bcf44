//! Matches products of heads with what puts them into rows of tokens, and the queries and keys of latent attention.

use std::ops::Range;

use super::Stage;
use rocmforge_gpu::ops::LatentHeads;
use rocmforge_plan::{
    ActsId, BufferId, Mask, Op, Plan, RopeId, RopeStyle, Values, WeightId, Weights, is_dead,
};

/// The operands of [`super::Stage::HeadProducts`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HeadProductsOps {
    pub(crate) x: ActsId,
    pub(crate) weight: WeightId,
    pub(crate) n_heads: usize,
    pub(crate) out: BufferId,
    /// Holds the products sorted by head in the unfused plan.
    pub(crate) unwritten: BufferId,
}

/// The operands of [`super::Stage::LatentQueries`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatentQueriesOps {
    /// The first values of the queries; its output is the queries.
    pub(crate) product: HeadProductsOps,
    /// Ends with the last values of each query.
    pub(crate) q_tail: BufferId,
    /// The keys before their norm, and their last values.
    pub(crate) k: BufferId,
    pub(crate) k_tail: BufferId,
    pub(crate) norm: (WeightId, f32),
    pub(crate) layer: usize,
    pub(crate) table: RopeId,
    pub(crate) style: RopeStyle,
    /// The first rotated value of a head.
    pub(crate) start: usize,
    /// Hold the normalized keys, and those with their ends, in the unfused plan.
    pub(crate) unwritten: [BufferId; 2],
}

/// The operands of [`super::Stage::AttendToHeads`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AttendToHeadsOps {
    pub(crate) queries: LatentQueriesOps,
    /// The index of the attention.
    pub(crate) attention: usize,
    pub(crate) values: HeadProductsOps,
    /// Holds the output of the attention in the plan.
    pub(crate) unwritten: BufferId,
}

/// Matches the stages of latent attention: of queries that nothing else reads, and of an output that only the products with
/// the heads' matrices of values read.
pub(super) fn attend_to_heads(plan: &Plan, stages: &[Stage]) -> Option<Stage> {
    let &[
        Stage::One(first),
        Stage::LatentQueries { ops: queries, .. },
        Stage::One(attention),
        Stage::One(conversion),
        Stage::HeadProducts { ops: values, .. },
        ..,
    ] = stages
    else {
        return None;
    };
    let (
        &Op::QuantizeHeads {
            x: q,
            start: 0,
            out: of_keys,
        },
        &Op::Attention {
            layer,
            n_heads,
            q: attending,
            sinks: None,
            out: attended,
            ..
        },
        &Op::QuantizeHeads {
            x: converted,
            start: 0,
            out: of_values,
        },
    ) = (
        &plan.ops[first],
        &plan.ops[attention],
        &plan.ops[conversion],
    )
    else {
        return None;
    };
    let is_chain = (q, attending, converted) == (queries.q_tail, queries.product.out, attended)
        && (of_keys, of_values) == (queries.product.x, values.x)
        && [queries.product.n_heads, values.n_heads] == [n_heads; 2]
        && (layer, plan.kv[layer].mask) == (queries.layer, Mask::All);
    let after = &plan.ops[conversion + 3..];
    let are_dead = [queries.product.out, attended]
        .iter()
        .all(|id| is_dead(after, *id, plan.logits));
    // The queries are rotated where the plan has the wider ones.
    let width = |id: BufferId| plan.buffers[id.0 as usize].width;
    let is_apart =
        ![q, values.out].contains(&queries.product.out) && width(q) <= width(queries.product.out);
    let ops = AttendToHeadsOps {
        queries,
        attention,
        values,
        unwritten: attended,
    };
    (is_chain && are_dead && is_apart).then_some(Stage::AttendToHeads { first, ops })
}

/// The heads of a stage of latent attention.
pub(super) fn heads_of(plan: &Plan, ops: &AttendToHeadsOps) -> LatentHeads {
    let (n_heads, start) = (ops.values.n_heads, ops.queries.start);
    let width = |id: BufferId| plan.buffers[id.0 as usize].width / n_heads;
    LatentHeads {
        n_heads,
        k_dim: width(ops.queries.q_tail),
        n_rot: plan.kv[ops.queries.layer].k_dim - start,
        v_dim: width(ops.values.out),
        rank: start,
    }
}

/// Matches a product of heads whose only use is to be put into rows of tokens.
pub(super) fn products(plan: &Plan, range: Range<usize>) -> Option<HeadProductsOps> {
    let first = range.start;
    let &[
        Op::HeadMatMul {
            x,
            weight,
            n_heads,
            out: sorted,
        },
        Op::JoinHeads {
            n_heads: joined_heads,
            x: joined,
            rest: None,
            out,
        },
        ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let is_one = (joined, joined_heads) == (sorted, n_heads)
        && is_dead(&plan.ops[first + 2..], sorted, plan.logits);
    is_one.then_some(HeadProductsOps {
        x,
        weight,
        n_heads,
        out,
        unwritten: sorted,
    })
}

/// Matches the first values of latent queries, the norm of keys, the joining of both with their ends, the rotation of
/// these, and the append of the keys to the KV cache.
pub(super) fn latent_queries(
    plan: &Plan,
    weights: &Weights,
    range: Range<usize>,
) -> Option<LatentQueriesOps> {
    let after = range.start + LATENT_QUERIES;
    let &[
        Op::HeadMatMul {
            x,
            weight,
            n_heads,
            out: sorted,
        },
        Op::RmsNorm {
            x: k,
            weight: norm,
            n_groups: 1,
            eps,
            out: normed,
        },
        Op::JoinHeads {
            n_heads: 1,
            x: k_head,
            rest: Some(k_tail),
            out: keys,
        },
        Op::JoinHeads {
            n_heads: joined_heads,
            x: q_head,
            rest: Some(q_tail),
            out: queries,
        },
        Op::Rope {
            x: q_rotated,
            head_dim,
            start,
            table,
            style,
        },
        Op::Rope {
            x: k_rotated,
            head_dim: k_dim,
            start: k_start,
            table: k_table,
            style: k_style,
        },
        Op::KvAppend {
            layer, k: appended, ..
        },
        ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let cache = plan.kv[layer];
    let n_rot = plan.rope[table.0 as usize].n_rot();
    let is_chain = (k_head, q_head) == (normed, sorted)
        && (q_rotated, k_rotated, appended) == (queries, keys, keys)
        && joined_heads == n_heads;
    let are_alike = (head_dim, start, table, style) == (k_dim, k_start, k_table, k_style);
    let width = |id: BufferId| plan.buffers[id.0 as usize].width;
    let is_latent = (cache.n_kv_heads, cache.values, cache.k_dim)
        == (1, Values::InKeys, start + n_rot)
        && [width(k), width(k_tail), weights.vector(norm).len()] == [start, n_rot, start]
        && head_dim == cache.k_dim;
    // The queries are written before the norm of the keys is.
    let is_apart = ![k, k_tail, q_tail].contains(&queries);
    let are_dead = [sorted, normed, keys]
        .iter()
        .all(|id| is_dead(&plan.ops[after..], *id, plan.logits));
    (is_chain && are_alike && is_latent && is_apart && are_dead).then_some(LatentQueriesOps {
        product: HeadProductsOps {
            x,
            weight,
            n_heads,
            out: queries,
            unwritten: sorted,
        },
        q_tail,
        k,
        k_tail,
        norm: (norm, eps),
        layer,
        table,
        style,
        start,
        unwritten: [normed, keys],
    })
}

/// The number of operations of [`latent_queries`].
pub(super) const LATENT_QUERIES: usize = 7;
