//! Finds conversions of activations that the products of experts or heads after them do themselves, in steps of one token.

use super::Stage;
use rocmforge_gpu::SourceRows;
use rocmforge_plan::{ActsId, BufferId, Op, Plan, RowsOf};

/// A conversion whose only readers are the products of the next stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OwnConversion {
    /// The operation that converts, and the first one of the products.
    pub(crate) conversion: usize,
    pub(crate) products: usize,
    pub(crate) x: BufferId,
    pub(crate) rows: SourceRows,
    pub(crate) out: ActsId,
}

/// Returns the conversions of a segment that products can do themselves, in order.
pub(super) fn conversions(plan: &Plan, stages: &[Stage]) -> Vec<OwnConversion> {
    let pairs = stages.windows(2);
    pairs
        .filter_map(|pair| of_pair(plan, &pair[0], &pair[1]))
        .collect()
}

fn of_pair(plan: &Plan, first: &Stage, next: &Stage) -> Option<OwnConversion> {
    let &Stage::One(conversion) = first else {
        return None;
    };
    let (x, rows, out) = match plan.ops[conversion] {
        Op::QuantizeExperts {
            x,
            rows_of: RowsOf::Tokens,
            out,
            ..
        } => (x, SourceRows::One, out),
        Op::QuantizeExperts {
            x,
            rows_of: RowsOf::Choices,
            out,
            ..
        } => (x, SourceRows::Each, out),
        Op::QuantizeHeads { x, start, out } => (x, SourceRows::Heads { start }, out),
        _ => return None,
    };
    let products = next.ops();
    let is_read = match plan.ops[products.start] {
        Op::ExpertMatMul { x, .. } | Op::HeadMatMul { x, .. } => x == out,
        _ => false,
    };
    let stays = { plan.ops[products.clone()].iter() }.all(|op| !op.writes().contains(&x));
    (is_read && stays && is_read_no_more(&plan.ops[products.end..], out)).then_some(OwnConversion {
        conversion,
        products: products.start,
        x,
        rows,
        out,
    })
}

/// Whether the operations write the activations before any of them reads them.
pub(super) fn is_read_no_more(ops: &[Op], acts: ActsId) -> bool {
    let mut uses = ops
        .iter()
        .filter(|op| [op.acts_read(), op.acts_written()].contains(&Some(acts)));
    uses.next().is_none_or(|op| op.acts_read() != Some(acts))
}
