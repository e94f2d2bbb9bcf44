//! Placements of the embedded model's plan and of an MoE plan: every operation reads what its own side has.

use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::{
    ActFormat, Activation, ExpertProjection, ExpertScores, ExpertStack, ExpertVectors,
    ExpertWeights, Fusion, KvSpec, Mask, Op, Placement, Plan, Projection, Recorder, Router,
    RowCount, Scores, Side, Split, Values, WeightId,
};
use rocmforge_testkit::data::forge_mini;
use rocmforge_testkit::models::{self, families};

fn embedded(fusion: Fusion) -> Plan {
    Model::load(forge_mini()).unwrap().compiled_plan(fusion)
}

/// A plan of two layers with four experts each, two of them used per token.
fn mixture() -> Plan {
    let mut b = Recorder::new();
    let linear = |weight| Projection::of(WeightId(weight), ActFormat::Q8x32);
    let experts = |weight| ExpertProjection {
        linear: linear(weight),
        scales: None,
        stack: ExpertStack::whole(4),
    };
    let mut x = b.embed(WeightId(0), 1.0, 32);
    for _ in 0..2 {
        b.begin_layer();
        let normed = b.rms_norm(x, WeightId(1), 1e-5);
        let [q, k, v] = [2, 3, 4].map(|weight| b.matmul(normed, linear(weight), 32));
        let kv = b.kv_layer(KvSpec {
            n_kv_heads: 1,
            k_dim: 32,
            v_dim: 32,
            mask: Mask::All,
            values: Values::Apart,
            heads: None,
        });
        b.kv_append(kv, k, v);
        let scores = Scores {
            scale: 1.0,
            soft_cap: None,
            growth: None,
            alibi: None,
        };
        let attn = b.attention(kv, (1, None), scores, q);
        x = b.add_matmul(attn, linear(5), x);
        let normed = b.rms_norm(x, WeightId(6), 1e-5);
        let router = b.matmul(normed, linear(7), 4);
        let facts = Router {
            n_used: 2,
            scores: ExpertScores::Softmax,
            weights: ExpertWeights::Normalized,
            groups: None,
            scale: 1.0,
        };
        let routing = b.route(router, ExpertVectors::NONE, facts);
        let up = b.expert_matmul(normed, routing, experts(8), 64);
        let up = b.activate(Activation::Silu, up);
        let down = b.expert_matmul(up, routing, experts(9), 32);
        let sum = b.combine_experts(down, routing);
        x = b.add(sum, x);
    }
    let logits = b.matmul(x, linear(10), 64);
    b.finish(logits)
}

/// Simulates the segments, with the index of its last writer as the value of a buffer, and compares what each
/// operation reads with what it reads if everything is on one side.
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
fn moves_the_last_layers_and_the_output_to_the_gpu() {
    for (fusion, first) in [(Fusion::On, "norm_quantize"), (Fusion::Off, "rms_norm")] {
        let plan = embedded(fusion);
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
            // Only the embedded tokens are copied over.
            assert_eq!(last.imports, plan.ops[0].writes());
            assert_eq!(plan.ops[last.ops.start].name(), first);
            let appended = plan.ops[last.ops.clone()].iter().find_map(Op::kv_layer);
            assert_eq!(appended, Some(10 - n));
        }
    }
}

#[test]
fn keeps_experts_on_the_cpu() {
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
        // The GPU has no memory for rows of experts.
        let sizes = of_gpu.plan.buffers.iter();
        let wide = sizes.filter(|b| matches!(b.rows, RowCount::Choices { .. }) && b.width > 0);
        assert_eq!(wide.count(), 0);
        // Exports: the router's logits and the experts' input. Imports: the embedded tokens and the experts' output.
        assert_eq!((of_gpu.imports.len(), of_gpu.exports.len()), (2, 2));
    }
}

#[test]
#[should_panic(expected = "activations of its side")]
fn rejects_copies_of_converted_activations() {
    let plan = mixture();
    let mut sides = vec![Side::Cpu; plan.ops.len()];
    let quantize = plan.ops.iter().position(|op| op.acts_written().is_some());
    sides[quantize.unwrap()] = Side::Gpu;
    Placement::new(&plan, sides);
}

fn family(name: &str) -> Model {
    let writer = families::model(name, GgmlType::Q8_0).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    Model::load(Arc::new(gguf)).unwrap()
}

/// Layers are those of the file, whatever they have; each can be the first on the GPU.
#[test]
fn any_layer_of_a_family_may_be_the_first_on_the_gpu() {
    for name in families::names() {
        let model = family(name);
        for fusion in [Fusion::On, Fusion::Off] {
            let plan = model.compiled_plan(fusion);
            let n_layers = model.config.n_layers();
            assert_eq!(plan.layers.len(), n_layers, "{name}");
            for n_gpu_layers in 1..=n_layers {
                let split = Split {
                    n_gpu_layers,
                    experts: Side::Gpu,
                };
                let placement = Placement::split(&plan, split);
                check(&plan, &placement);
                assert_eq!(placement.segments().len(), 2, "{name}");
                let n = placement.n_layers(&plan, Side::Gpu);
                // A layer of no operations begins where the next one does, and is on its side.
                let first = |n: usize| plan.layers[n_layers - n];
                assert!(n >= n_gpu_layers, "{name}");
                assert_eq!(first(n), first(n_gpu_layers), "{name}");
                let part = placement.part(&plan, Side::Gpu).plan;
                let starts = |plan: &Plan| -> Vec<Op> {
                    let layers = plan.layers.iter();
                    layers.map(|first| plan.ops[*first].clone()).collect()
                };
                let all = starts(&plan);
                assert_eq!(starts(&part), all[n_layers - n..], "{name}");
            }
        }
    }
}

/// Layers that use the caches of earlier ones take these along.
#[test]
fn layers_that_share_a_cache_stay_together() {
    let writer = models::model("gemma3n", GgmlType::Q8_0).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let plan = model.compiled_plan(Fusion::On);
    let (n_layers, n_caches) = (model.config.n_layers(), plan.kv.len());
    assert!(n_caches < n_layers);
    for n_gpu_layers in 1..=n_layers {
        let split = Split {
            n_gpu_layers,
            experts: Side::Gpu,
        };
        let placement = Placement::split(&plan, split);
        check(&plan, &placement);
        let n = placement.n_layers(&plan, Side::Gpu);
        // The last two layers with a cache of their own, one of each kind, serve all that have none.
        let needed = n_gpu_layers.max(n_layers - n_caches + 1);
        assert!(n >= needed && n <= needed + n_caches, "{n_gpu_layers}: {n}");
        if n_gpu_layers > needed + n_caches {
            assert_eq!(n, n_gpu_layers);
        }
    }
}

/// States are where their layers are.
#[test]
fn states_are_on_the_side_of_their_layer() {
    for name in ["lfm2", "qwen35", "mamba2", "falcon_h1", "nemotron_h"] {
        let plan = family(name).plan;
        let n_layers = plan.layers.len();
        for n_gpu_layers in 1..=n_layers {
            let split = Split {
                n_gpu_layers,
                experts: Side::Gpu,
            };
            let placement = Placement::split(&plan, split);
            let first = plan.layers[n_layers - n_gpu_layers];
            let keeps = |(at, op): (usize, &Op)| op.state().is_some() && at >= first;
            let expected = plan.ops.iter().enumerate().filter(|op| keeps(*op)).count();
            let part = placement.part(&plan, Side::Gpu).plan;
            let n_states = part.states.iter().filter(|state| state.len > 0).count();
            assert_eq!(n_states, expected, "{name}, {n_gpu_layers} layers");
            if n_gpu_layers == n_layers {
                assert_eq!(n_states, plan.states.len(), "{name}");
            }
        }
    }
}
