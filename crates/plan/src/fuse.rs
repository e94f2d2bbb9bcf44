//! Plan rewrites that help every backend. A model is written once; fusion is a rewrite of its plan here.

use std::collections::HashSet;

use crate::liveness::share_buffers;
use crate::op::{BufferId, Linear, Op, Plan};
use crate::params::OutMode;
use crate::weights::Weights;

/// Lets products accumulate: a product whose only use is to be added to another buffer writes there directly, and so do
/// the products that were added to it.
pub fn fuse_adds(mut plan: Plan) -> Plan {
    let mut fused: Vec<Op> = Vec::with_capacity(plan.ops.len());
    let mut layers = Layers::of(&mut plan);
    for at in 0..plan.ops.len() {
        let op = plan.ops[at].clone();
        layers.reach(at, fused.len());
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
    plan.layers = layers.after;
    share_buffers(plan)
}

/// The first operations of layers, before and after a rewrite.
pub(crate) struct Layers {
    before: std::iter::Peekable<std::vec::IntoIter<usize>>,
    pub(crate) after: Vec<usize>,
}

impl Layers {
    pub(crate) fn of(plan: &mut Plan) -> Layers {
        Layers {
            before: std::mem::take(&mut plan.layers).into_iter().peekable(),
            after: Vec::new(),
        }
    }

    /// Records that the rewrite has reached operation `at`, and has written `n_written` operations.
    pub(crate) fn reach(&mut self, at: usize, n_written: usize) {
        while self.before.next_if(|first| *first <= at).is_some() {
            self.after.push(n_written);
        }
    }
}

/// Returns the index of the product stored in `x`, if the operations after it only add products to `x` and do not
/// touch `sum`.
fn product_of(ops: &[Op], x: BufferId, sum: BufferId) -> Option<usize> {
    for (at, op) in ops.iter().enumerate().rev() {
        match op {
            Op::MatMul {
                mode: OutMode::Store,
                out,
                ..
            } if *out == x => return Some(at),
            Op::MatMul { out, .. } if *out == x => {}
            // Low-rank products of adapters may stand in between.
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

/// Whether to fuse operations that can share a pass over their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fusion {
    /// Fuse, for speed.
    #[default]
    On,
    /// Do not fuse: every value is in a buffer once, where an observer can read it.
    Off,
}

/// Fuses operations that can share one pass over their rows, with bit-identical results: a norm with the conversion of
/// its output, products of the same activations, and the two products of a gate with its activation. Some values are
/// then never stored in a buffer.
pub fn fuse_ops(mut plan: Plan, weights: &Weights) -> Plan {
    let ops = std::mem::take(&mut plan.ops);
    let mut layers = Layers::of(&mut plan);
    let mut rest = &ops[..];
    while let Some((op, after)) = rest.split_first() {
        layers.reach(ops.len() - rest.len(), plan.ops.len());
        let (fused, n) = norm_quantize(&plan, weights, rest)
            .or_else(|| products(&plan, rest))
            .unwrap_or_else(|| (op.clone(), 1));
        plan.ops.push(fused);
        rest = &after[n - 1..];
    }
    plan.layers = layers.after;
    share_buffers(plan)
}

/// Returns a norm that only a conversion reads, fused with it, and the number of operations replaced.
fn norm_quantize(plan: &Plan, weights: &Weights, ops: &[Op]) -> Option<(Op, usize)> {
    let [
        Op::RmsNorm {
            x,
            weight,
            n_groups,
            eps,
            out: normed,
        },
        Op::Quantize { x: read, out },
        rest @ ..,
    ] = ops
    else {
        return None;
    };
    let width = plan.buffers[normed.0 as usize].width;
    let is_whole_row = weights.vector(*weight).len() == width;
    let block_len = plan.acts[out.0 as usize].format.block_len();
    let are_whole_blocks = *n_groups == 1 || (width / n_groups).is_multiple_of(block_len);
    (read == normed && is_whole_row && are_whole_blocks && is_dead(rest, *normed, plan.logits))
        .then_some((
            Op::NormQuantize {
                x: *x,
                weight: *weight,
                n_groups: *n_groups,
                eps: *eps,
                out: *out,
            },
            2,
        ))
}

/// Returns consecutive products of the same activations, fused, and the number of operations replaced.
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
        && activation.joins_products()
        && plan.buffers[gate_out.0 as usize] == plan.buffers[up_out.0 as usize]
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

/// Returns whether nothing reads `buffer` before it is written again.
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
    use super::*;
    use crate::acts::ActFormat;
    use crate::op::WeightId;
    use crate::recorder::{Projection, Recorder, Value};

    fn embed(b: &mut Recorder) -> Value {
        b.embed(WeightId(0), 1.0, 32)
    }

    fn plan(read_later: bool) -> Plan {
        let mut b = Recorder::new();
        let x = embed(&mut b);
        let y = b.matmul(x, Projection::of(WeightId(1), ActFormat::F32), 32);
        let mut x = b.add(y, x);
        if read_later {
            x = b.add(y, x);
        }
        b.finish(x)
    }

    #[test]
    fn fuses_residual_add_into_product() {
        let fused = fuse_adds(plan(false));
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
    fn keeps_products_that_are_read_again() {
        assert_eq!(fuse_adds(plan(true)), plan(true));
    }

    #[test]
    fn fuses_adapter_products_of_a_residual_add() {
        let record = |reads_sum: bool| {
            let mut b = Recorder::new();
            let [x, h] = [0; 2].map(|_| embed(&mut b));
            let y = b.matmul(h, Projection::of(WeightId(1), ActFormat::Q8x32), 32);
            let from = if reads_sum { x } else { h };
            b.add_low_rank(from, [WeightId(2), WeightId(3)], 4, y);
            let x = b.add(y, x);
            b.finish(x)
        };
        let fused = fuse_adds(record(false));
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
        assert_eq!(fuse_adds(record(true)), record(true));
    }
}
