//! Rewrites of a recorded plan that every backend profits from. A fusion is a rewrite here, never a new
//! way to write a model.

use std::collections::HashSet;

use crate::OutMode;

use super::op::{BufferId, Linear, Op, Plan};
use crate::weights::Weights;

/// Applies all rewrites: a product that is only added to another buffer accumulates into it, and so do those that were
/// added to it.
pub fn fuse(mut plan: Plan) -> Plan {
    let mut fused: Vec<Op> = Vec::with_capacity(plan.ops.len());
    for at in 0..plan.ops.len() {
        let op = plan.ops[at].clone();
        if let Op::Add { x, out } = op
            && out != x
            && is_dead(&plan.ops[at + 1..], x, plan.logits)
            && let Some(first) = product_of(&fused, x, out)
        {
            for op in &mut fused[first..] {
                if let Op::MatMul {
                    mode, out: product, ..
                } = op
                    && *product == x
                {
                    *mode = OutMode::Add;
                    *product = out;
                }
            }
            continue;
        }
        fused.push(op);
    }
    plan.ops = fused;
    plan
}

/// Where the product that is stored in `x` stands, if nothing behind it does more with `x` than adding products, and
/// nothing has to do with `sum`.
fn product_of(ops: &[Op], x: BufferId, sum: BufferId) -> Option<usize> {
    for (at, op) in ops.iter().enumerate().rev() {
        match op {
            Op::MatMul {
                mode: OutMode::Store,
                out,
                ..
            } if *out == x => return Some(at),
            Op::MatMul { out, .. } if *out == x => {}
            // What adapters need beside it.
            Op::MatMul { .. } | Op::Quantize { .. } => {
                if [op.reads(), op.writes()]
                    .concat()
                    .iter()
                    .any(|id| [x, sum].contains(id))
                {
                    return None;
                }
            }
            _ => return None,
        }
    }
    None
}

/// Whether operations that can share a pass over their rows are fused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fusion {
    /// Fuses them, for speed.
    #[default]
    On,
    /// Keeps them apart: every value is in a buffer once, where an observer can read it.
    Off,
}

/// Merges operations that can share one pass over their rows, after which some values are in no buffer: a
/// norm goes into the form that products read, products of the same activations run together, and two
/// whose rows meet in a gate become its result. The results have the same bits.
pub fn fuse_passes(mut plan: Plan, weights: &Weights) -> Plan {
    let ops = std::mem::take(&mut plan.ops);
    let mut rest = &ops[..];
    while let Some((op, after)) = rest.split_first() {
        let (merged, n) = norm_quantize(&plan, weights, rest)
            .or_else(|| products(&plan, rest))
            .unwrap_or_else(|| (op.clone(), 1));
        plan.ops.push(merged);
        rest = &after[n - 1..];
    }
    forget_unused_buffers(&mut plan);
    plan
}

/// A norm that only a conversion reads; also how many operations it stands for.
fn norm_quantize(plan: &Plan, weights: &Weights, ops: &[Op]) -> Option<(Op, usize)> {
    let [
        Op::RmsNorm {
            x,
            weight,
            eps,
            out: normed,
        },
        Op::Quantize { x: read, out },
        rest @ ..,
    ] = ops
    else {
        return None;
    };
    let is_whole_row = weights.vector(*weight).len() == plan.buffers[normed.0 as usize].width;
    (read == normed && is_whole_row && is_dead(rest, *normed, plan.logits)).then_some((
        Op::NormQuantize {
            x: *x,
            weight: *weight,
            eps: *eps,
            out: *out,
        },
        2,
    ))
}

/// Neighbouring products of the same activations.
fn products(plan: &Plan, ops: &[Op]) -> Option<(Op, usize)> {
    let stored = |op: &Op| {
        if let &Op::MatMul {
            x,
            weight,
            bias,
            mode: OutMode::Store,
            out,
        } = op
        {
            Some((x, (Linear { weight, bias }, out)))
        } else {
            None
        }
    };
    let (x, _) = stored(ops.first()?)?;
    let same = ops.iter().map_while(stored);
    let products: Vec<(Linear, BufferId)> = same
        .take_while(|(read, _)| *read == x)
        .map(|(_, product)| product)
        .collect();
    let n = products.len();
    let outs: HashSet<BufferId> = products.iter().map(|(_, out)| *out).collect();
    if n < 2 || outs.len() < n {
        return None;
    }
    if let (
        &[(gate, gate_out), (up, up_out)],
        Some(&Op::GatedActivation {
            activation,
            gate: gate_read,
            up: up_read,
            out,
        }),
    ) = (&products[..], ops.get(n))
        && (gate_read, up_read) == (gate_out, up_out)
        && [gate_out, up_out]
            .iter()
            .all(|side| *side == out || is_dead(&ops[n + 1..], *side, plan.logits))
    {
        let merged = Op::GatedMatMul {
            x,
            gate,
            up,
            activation,
            out,
        };
        return Some((merged, n + 1));
    }
    Some((Op::MatMuls { x, products }, n))
}

/// Buffers that no operation touches any more take no memory.
fn forget_unused_buffers(plan: &mut Plan) {
    let mut used: HashSet<BufferId> = HashSet::from([plan.logits]);
    for op in &plan.ops {
        used.extend(op.reads());
        used.extend(op.writes());
    }
    for (i, buffer) in plan.buffers.iter_mut().enumerate() {
        if !used.contains(&BufferId(i as u32)) {
            buffer.width = 0;
        }
    }
}

/// Whether nothing reads `buffer` before it is written again.
pub fn is_dead(rest: &[Op], buffer: BufferId, logits: BufferId) -> bool {
    for op in rest {
        if op.reads().contains(&buffer) {
            return false;
        }
        if op.writes().contains(&buffer) {
            return true;
        }
    }
    buffer != logits
}

#[cfg(test)]
mod tests {
    use crate::ActFormat;

    use super::*;
    use crate::{Recorder, RowCount, WeightId};

    fn plan(read_later: bool) -> Plan {
        let mut b = Recorder::new();
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

    #[test]
    fn adapters_of_a_residual_s_product_accumulate_too() {
        let record = |reads_sum: bool| {
            let mut b = Recorder::new();
            let [x, h, y] = [0; 3].map(|_| b.buffer(RowCount::Tokens, 32));
            b.embed(WeightId(0), 1.0, x);
            b.embed(WeightId(0), 1.0, h);
            b.matmul(h, WeightId(1), None, ActFormat::Q8x32, y);
            let from = if reads_sum { x } else { h };
            b.add_low_rank(from, [WeightId(2), WeightId(3)], 4, y);
            b.add(y, x);
            b.finish(x)
        };
        let fused = fuse(record(false));
        let to_x = fused.ops.iter().filter(|op| {
            matches!(
                op,
                Op::MatMul {
                    mode: OutMode::Add,
                    out: BufferId(0),
                    ..
                }
            )
        });
        assert_eq!(to_x.count(), 2);
        assert!(!fused.ops.iter().any(|op| matches!(op, Op::Add { .. })));
        assert_eq!(fuse(record(true)), record(true));
    }
}
