//! Rewrites of a recorded plan that every backend profits from. A fusion is a rewrite here, never a new
//! way to write a model.

use std::collections::HashSet;

use rocmforge_cpu::OutMode;

use super::op::{BufferId, Linear, Op, Plan};
use crate::model::Weights;

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

/// Whether operations share passes over their rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Passes {
    /// Where they can, for speed.
    #[default]
    Merged,
    /// Never: every value is in a buffer once, where an observer can look at it.
    Separate,
}

/// Merges operations that can share one pass over their rows, after which some values are in no buffer: a
/// norm goes into the form that products read, products of the same activations run together, and two
/// whose rows meet in a gate become its result. The results have the same bits.
pub fn merge_passes(mut plan: Plan, weights: &Weights) -> Plan {
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
pub(crate) fn is_dead(rest: &[Op], buffer: BufferId, logits: BufferId) -> bool {
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
    use std::path::Path;
    use std::sync::Arc;

    use rocmforge_cpu::ActFormat;
    use rocmforge_gguf::{Gguf, LoadMode};

    use super::super::{PlanBuilder, RowCount, WeightId};
    use super::*;
    use crate::model::Model;

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

    #[test]
    fn adapters_of_a_residual_s_product_accumulate_too() {
        let record = |reads_sum: bool| {
            let mut b = PlanBuilder::new();
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

    /// The operations of the embedded model's first layer, and of what follows its last.
    #[test]
    fn a_layer_in_few_passes() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../models/forge-mini-Q4_K_M.gguf"
        );
        let gguf = Gguf::open(Path::new(path), LoadMode::Read).unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        let plan = model.compiled_plan(Passes::Merged);
        let names: Vec<&str> = plan.ops.iter().map(Op::name).collect();
        let n_layers = model.config.n_layers;
        let layer = [
            "norm_quantize",
            "matmuls",
            "rope",
            "rope",
            "kv_append",
            "attention",
            "quantize",
            "matmul",
            "norm_quantize",
            "gated_matmul",
            "quantize",
            "matmul",
        ];
        assert_eq!(names[0], "embed");
        assert_eq!(names[1..=layer.len()], layer);
        let end = ["select_rows", "norm_quantize", "matmul"];
        assert_eq!(names[1 + n_layers * layer.len()..], end);
        // Normed rows, gates and products of `up` have no buffers any more.
        let bytes = |plan: &Plan| plan.buffer_bytes(100, 1);
        let c = &model.config;
        let saved = 100 * 4 * (c.n_embd + 2 * c.n_ff) + 4 * c.n_embd;
        assert!(bytes(&model.plan) - bytes(&plan) >= saved as u64);
    }
}
