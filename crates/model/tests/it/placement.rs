//! Placements of the embedded model's plan and of a mixture: every operation finds what it reads on its side.

use std::path::Path;
use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_plan::{ActFormat, Activation, ExpertWeights, Router};

use rocmforge_model::Model;
use rocmforge_plan::*;
use rocmforge_plan::{Fusion, KvSpec, Recorder, Scores, WeightId};

fn embedded(fusion: Fusion) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
    let gguf = Gguf::open(&path, LoadMode::Mmap).unwrap();
    Model::load(Arc::new(gguf)).unwrap().compiled_plan(fusion)
}

/// Two layers with two of four experts each.
fn mixture() -> Plan {
    let mut b = Recorder::new();
    let [x, normed, q, k, v, attn, product, logits, router] =
        [32, 32, 32, 32, 32, 32, 32, 64, 4].map(|width| b.buffer(RowCount::Tokens, width));
    let [up, down] = [64, 32].map(|width| b.buffer(RowCount::Choices { n_used: 2 }, width));
    let routing = b.routing();
    let format = ActFormat::Q8x32;
    b.embed(WeightId(0), 1.0, x);
    for _ in 0..2 {
        b.rms_norm(x, WeightId(1), 1e-5, normed);
        for (weight, out) in [(2, q), (3, k), (4, v)] {
            b.matmul(normed, WeightId(weight), None, format, out);
        }
        let kv = b.kv_layer(KvSpec {
            n_kv_heads: 1,
            k_dim: 32,
            v_dim: 32,
            window: None,
        });
        b.kv_append(kv, k, v);
        let scores = Scores {
            scale: 1.0,
            soft_cap: None,
        };
        b.attention(kv, 1, scores, q, attn);
        b.matmul_add(attn, WeightId(5), format, x);
        b.rms_norm(x, WeightId(6), 1e-5, normed);
        b.matmul(normed, WeightId(7), None, format, router);
        let facts = Router {
            n_used: 2,
            weights: ExpertWeights::Normalized,
            scale: 1.0,
        };
        b.route(router, facts, routing);
        b.expert_matmul(normed, routing, (WeightId(8), 4), format, up);
        b.activate(Activation::Silu, up, up);
        b.expert_matmul(up, routing, (WeightId(9), 4), format, down);
        b.combine_experts(down, routing, product);
        b.add(product, x);
    }
    b.matmul(x, WeightId(10), None, format, logits);
    b.finish(logits)
}

/// Plays the segments with the number of its last writer for the values of a buffer, and compares what each operation
/// reads with what it reads where everything is on one side.
fn check(plan: &Plan, placement: &Placement) {
    let mut whole = vec![usize::MAX; plan.buffers.len()];
    let mut own = [whole.clone(), whole.clone()];
    let mut next = 0;
    for segment in placement.segments() {
        assert_eq!(segment.ops.start, next);
        next = segment.ops.end;
        let side = segment.side as usize;
        for id in &segment.imports {
            own[side][id.0 as usize] = own[1 - side][id.0 as usize];
        }
        for at in segment.ops.clone() {
            assert_eq!(placement.sides()[at], segment.side);
            for id in plan.ops[at].reads() {
                let id = id.0 as usize;
                assert_eq!(own[side][id], whole[id], "operation {at}, buffer {id}");
            }
            for id in plan.ops[at].writes() {
                own[side][id.0 as usize] = at;
                whole[id.0 as usize] = at;
            }
        }
    }
    assert_eq!(next, plan.ops.len());
    let parts = [Side::Cpu, Side::Gpu].map(|side| placement.part(plan, side));
    let n_ops: usize = parts.iter().map(|part| part.plan.ops.len()).sum();
    assert_eq!(n_ops, plan.ops.len());
    for (part, side) in parts.iter().zip([Side::Cpu, Side::Gpu]) {
        let segments = placement.segments().iter();
        for (own, segment) in part
            .segments
            .iter()
            .zip(segments.filter(|s| s.side == side))
        {
            assert_eq!(part.plan.ops[own.clone()], plan.ops[segment.ops.clone()]);
        }
    }
    let kv = |plan: &Plan| plan.kv.iter().map(|kv| kv.n_kv_heads).sum::<usize>();
    assert_eq!(
        parts.iter().map(|part| kv(&part.plan)).sum::<usize>(),
        kv(plan)
    );
}

#[test]
fn the_last_layers_and_the_output_go() {
    for (passes, first) in [(Fusion::On, "norm_quantize"), (Fusion::Off, "rms_norm")] {
        let plan = embedded(passes);
        for n in 0..=10 {
            let split = Split {
                n_gpu_layers: n,
                experts: Side::Gpu,
            };
            let placement = Placement::split(&plan, split);
            check(&plan, &placement);
            assert_eq!(placement.n_layers(&plan, Side::Gpu), n);
            let [.., last] = placement.segments() else {
                panic!("there are segments");
            };
            if n == 0 {
                assert_eq!((last.side, placement.output()), (Side::Cpu, Side::Cpu));
                continue;
            }
            assert_eq!((last.side, placement.output()), (Side::Gpu, Side::Gpu));
            assert_eq!(placement.segments().len(), 2);
            // Of the embeddings the stream of the tokens comes over, and nothing else.
            assert_eq!(last.imports, plan.ops[0].writes());
            assert_eq!(plan.ops[last.ops.start].name(), first);
            let appended = plan.ops[last.ops.clone()].iter().find_map(Op::kv_layer);
            assert_eq!(appended, Some(10 - n));
        }
    }
}

#[test]
fn experts_go_their_own_way() {
    let plan = mixture();
    for n in 1..=2 {
        let split = Split {
            n_gpu_layers: n,
            experts: Side::Cpu,
        };
        let placement = Placement::split(&plan, split);
        check(&plan, &placement);
        let names: Vec<&str> = placement
            .segments()
            .iter()
            .filter(|segment| segment.side == Side::Cpu)
            .skip(1)
            .map(|segment| plan.ops[segment.ops.start].name())
            .collect();
        assert_eq!(names, vec!["route"; n]);
        let of_gpu = placement.part(&plan, Side::Gpu);
        assert!(!of_gpu.plan.ops.iter().any(|op| op.routing().is_some()));
        // Rows of experts take no memory there.
        let sizes = of_gpu.plan.buffers.iter();
        let wide = sizes.filter(|b| matches!(b.rows, RowCount::Choices { .. }) && b.width > 0);
        assert_eq!(wide.count(), 0);
        // The router's logits and what the experts read go, what they come to returns.
        assert_eq!((of_gpu.imports.len(), of_gpu.exports.len()), (2, 2));
    }
}

#[test]
#[should_panic(expected = "activations of its side")]
fn converted_activations_stay() {
    let plan = mixture();
    let mut sides = vec![Side::Cpu; plan.ops.len()];
    let quantize = plan.ops.iter().position(|op| op.acts_written().is_some());
    sides[quantize.unwrap()] = Side::Gpu;
    Placement::new(&plan, sides);
}
