//! Shared experts as experts that every token chooses: which mixtures become so, and what their plans are then.

use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::{Adapter, Model};
use rocmforge_plan::{Op, Plan, SharedWeight, fuse_ops, join_shared_experts};
use rocmforge_testkit::adapters::adapter_of;
use rocmforge_testkit::models as synth;

use crate::plans::{open, rewritten};

/// The most experts that a device takes.
const MAX_EXPERTS: usize = 1024;

fn file(name: &str) -> Arc<Gguf> {
    let writer = match synth::NAMES.contains(&name) {
        true => synth::model_of(name, GgmlType::Q8_0, 3),
        false => synth::families::model_of(name, GgmlType::Q8_0, 3),
    };
    open(&writer.unwrap().unwrap())
}

fn joined(model: &Model) -> Plan {
    join_shared_experts(model.plan.clone(), &model.weights, MAX_EXPERTS)
}

/// Returns whether each mixture of a plan has its shared expert among the choices.
fn mixtures(plan: &Plan) -> Vec<bool> {
    let ops = plan.ops.iter().filter_map(|op| match op {
        Op::Route { shared, .. } => Some(shared.is_some()),
        _ => None,
    });
    ops.collect()
}

/// The operations of a layer from the norm before its mixture on.
fn second_half(plan: &Plan, layer: usize) -> Vec<&'static str> {
    let ends = plan.layers.iter().skip(1).copied().chain([plan.ops.len()]);
    let ranges = plan.layers.iter().copied().zip(ends);
    let (first, end) = ranges.into_iter().nth(layer).unwrap();
    let names: Vec<&str> = plan.ops[first..end].iter().map(Op::name).collect();
    let norm = names.iter().rposition(|name| name.contains("norm"));
    names[norm.unwrap()..].to_vec()
}

#[test]
fn shared_experts_like_the_others_join_them() {
    // All mixtures of a model, or none.
    for (name, is_joined) in [
        ("glm4moe", true),
        ("glm4_flash", true),
        ("deepseek3", true),
        ("mistral4_thirds", true),
        ("qwen2moe_sevenths", true),
        ("qwen35moe", true),
        ("qwen3next", true),
        ("bailingmoe2", true),
        ("llama4", true),
        ("granitehybrid_moe", true),
        // Wider than the others.
        ("deepseek2", false),
        ("qwen2moe", false),
        // Only its activation has a limit, or another one.
        ("step35", false),
        // Without gates.
        ("nemotron_h_moe", false),
        // None.
        ("qwen3moe", false),
    ] {
        let model = Model::load(file(name)).unwrap();
        let plan = joined(&model);
        let found = mixtures(&plan);
        assert!(!found.is_empty(), "{name}");
        assert!(found.iter().all(|it| *it == is_joined), "{name}: {found:?}");
        if !is_joined {
            assert_eq!(plan, model.plan, "{name}");
            continue;
        }
        for op in &plan.ops {
            let Op::ExpertMatMul {
                weight,
                stack,
                shared,
                out,
                ..
            } = op
            else {
                continue;
            };
            let names = [*weight, shared.unwrap()].map(|id| model.weights.tensor_name(id).unwrap());
            assert_eq!(names[0].replace("_exps", "_shexp"), names[1], "{name}");
            let router = plan.ops.iter().find_map(|op| match op {
                Op::Route { .. } => op.routing_shape(&plan.buffers),
                _ => None,
            });
            let [n_experts, n_used, n_shared] = router.unwrap();
            assert_eq!(n_shared, 1, "{name}");
            assert_eq!(n_experts, stack.n_experts + 1, "{name}");
            let rows = plan.buffers[out.0 as usize].rows;
            assert_eq!(rows.rows(10, 1), 10 * n_used, "{name}");
        }
        assert_eq!(plan.layers.len(), model.plan.layers.len(), "{name}");
        // A second pass finds nothing.
        let again = join_shared_experts(plan.clone(), &model.weights, MAX_EXPERTS);
        assert_eq!(again, plan, "{name}");
        let n_experts = plan.ops.iter().find_map(|op| match op {
            Op::ExpertMatMul { stack, .. } => Some(stack.n_experts),
            _ => None,
        });
        let n_experts = n_experts.unwrap();
        let few = join_shared_experts(model.plan.clone(), &model.weights, n_experts);
        assert_eq!(few, model.plan, "{name}: one expert too many");
    }
}

/// The operations of a mixture and its shared expert become those of the mixture.
#[test]
fn a_joined_mixture_has_the_operations_of_one_without_a_shared_expert() {
    let model = Model::load(file("glm4moe")).unwrap();
    let fused = fuse_ops(joined(&model), &model.weights);
    let without = [
        "rms_norm",
        "quantize",
        "matmul",
        "route",
        "quantize_experts",
        "expert_matmul",
        "expert_matmul",
        "gated_activation",
        "quantize_experts",
        "expert_matmul",
        "combine_experts",
        "add",
    ];
    assert_eq!(second_half(&fused, 1), without);
    // The gate is computed with the router's logits, from the same activations.
    let model = Model::load(file("qwen2moe_sevenths")).unwrap();
    let fused = fuse_ops(joined(&model), &model.weights);
    let mut with_gate = without;
    with_gate[2] = "matmuls";
    assert_eq!(second_half(&fused, 1), with_gate);
    // A gate of another format has a conversion and a product of its own.
    let model = Model::load(file("qwen3next")).unwrap();
    let fused = fuse_ops(joined(&model), &model.weights);
    let apart = ["matmul", "quantize", "matmul"];
    let with_gate = [&without[..2], &apart[..], &without[3..]].concat();
    assert_eq!(second_half(&fused, 1), with_gate);
    let gates = fused.ops.iter().filter_map(|op| match op {
        Op::Route { shared, .. } => shared.and_then(SharedWeight::gate),
        _ => None,
    });
    for gate in gates {
        assert_eq!(fused.buffers[gate.0 as usize].width, 1);
    }
}

/// Shared experts in other formats, with biases and with adapters stay apart.
#[test]
fn shared_experts_unlike_the_others_stay_apart() {
    for name in ["glm4moe", "qwen2moe_sevenths"] {
        let gguf = file(name);
        let mixture = |change: &dyn Fn(&mut Writer<'_>), ty: Option<(&str, GgmlType)>| {
            let same = |it: &str| {
                let ty = ty.filter(|(tensor, _)| it == *tensor).map(|(_, ty)| ty);
                (it.to_string(), ty)
            };
            let mut writer = rewritten(&gguf, |_| true, same);
            change(&mut writer);
            Model::load(open(&writer)).unwrap()
        };
        let kept = |_: &mut Writer<'_>| {};
        let only_last_apart = |model: &Model, what: &str| {
            let found = mixtures(&joined(model));
            let (last, others) = found.split_last().unwrap();
            let are_joined = others.iter().all(|it| *it);
            assert!(are_joined && !last, "{name}, {what}: {found:?}");
        };
        assert!(
            mixtures(&joined(&mixture(&kept, None)))
                .iter()
                .all(|it| *it)
        );
        let mut matrices = vec!["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
        for &matrix in &matrices {
            let tensor = format!("blk.2.{matrix}.weight");
            let other = mixture(&kept, Some((&tensor, GgmlType::F16)));
            only_last_apart(&other, &format!("{matrix} in F16"));
            let n_out = gguf.tensor(&tensor).unwrap().dims[1];
            let add_bias = |writer: &mut Writer<'_>| {
                let name = format!("blk.2.{matrix}.bias");
                let values = vec![1.0; n_out as usize];
                let added = writer.add_tensor_f32(&name, &[n_out], GgmlType::F32, &values);
                added.unwrap();
            };
            only_last_apart(&mixture(&add_bias, None), &format!("bias of {matrix}"));
        }
        if name == "qwen2moe_sevenths" {
            matrices.push("attn_output");
        }
        for matrix in matrices {
            let of_matrix = |it: &str| it == format!("blk.2.{matrix}.weight");
            let adapter = adapter_of(&gguf, "one", of_matrix).unwrap();
            let adapter = Adapter::new("one", open(&adapter), 1.0).unwrap();
            let model = Model::load_with(gguf.clone(), &[adapter]).unwrap();
            match matrix {
                "attn_output" => assert!(mixtures(&joined(&model)).iter().all(|it| *it)),
                _ => only_last_apart(&model, &format!("adapter of {matrix}")),
            }
        }
    }
}
