//! Rewrites of a recorded plan that every backend profits from. A fusion is a rewrite here, never a new
//! way to write a model.

use rocmforge_cpu::OutMode;

use super::op::{BufferId, Op, Plan};

/// Applies all rewrites: a product that is only added to another buffer accumulates into it.
pub fn fuse(mut plan: Plan) -> Plan {
    let mut fused: Vec<Op> = Vec::with_capacity(plan.ops.len());
    for at in 0..plan.ops.len() {
        let op = plan.ops[at].clone();
        if let (
            Op::Add { x, out },
            Some(Op::MatMul {
                mode: mode @ OutMode::Store,
                out: product,
                ..
            }),
        ) = (&op, fused.last_mut())
            && product == x
            && out != x
            && is_dead(&plan.ops[at + 1..], *x, plan.logits)
        {
            *mode = OutMode::Add;
            *product = *out;
            continue;
        }
        fused.push(op);
    }
    plan.ops = fused;
    plan
}

/// Whether nothing reads `buffer` before it is written again.
fn is_dead(rest: &[Op], buffer: BufferId, logits: BufferId) -> bool {
    for op in rest {
        if op.reads().contains(&buffer) {
            return false;
        }
        if op.writes() == Some(buffer) {
            return true;
        }
    }
    buffer != logits
}

#[cfg(test)]
mod tests {
    use rocmforge_cpu::ActFormat;

    use super::super::{PlanBuilder, RowCount, WeightId};
    use super::*;

    fn plan(read_later: bool) -> Plan {
        let mut b = PlanBuilder::new();
        let x = b.buffer(RowCount::Tokens, 32);
        let y = b.buffer(RowCount::Tokens, 32);
        b.embed(WeightId(0), 1.0, x);
        b.matmul(x, WeightId(1), None, ActFormat::F32, y);
        b.add(y, x);
        if read_later {
            b.add(y, x);
        }
        b.finish(x)
    }

    #[test]
    fn a_residual_becomes_an_accumulating_product() {
        let fused = fuse(plan(false));
        assert_eq!(fused.ops.len(), 3);
        assert!(matches!(
            fused.ops[2],
            Op::MatMul {
                mode: OutMode::Add,
                out: BufferId(0),
                ..
            }
        ));
    }

    #[test]
    fn a_product_that_is_read_again_stays() {
        assert_eq!(fuse(plan(true)), plan(true));
    }
}
