//! Files of the architectures in `rocmforge_testkit::models::families` with other metadata and without tensors: each is
//! loaded, or refused with a sentence that names the key or tensor.

use rocmforge_gguf::{GgmlType, OwnedValue};
use rocmforge_model::{LoadError, Model};
use rocmforge_testkit::models::families;

use crate::plans::{open, rewritten};

/// Keys that these families have beyond those of others.
const KEYS: [&str; 23] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_scale",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_group_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_weights_norm",
    "expert_weights_scale",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "logit_scale",
    "nextn_predict_layers",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base_swa",
    "rope.scaling.alpha",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
];

pub(crate) fn values() -> Vec<Option<OwnedValue>> {
    vec![
        None,
        Some(0u32.into()),
        Some(1u32.into()),
        Some(3u32.into()),
        Some(u32::MAX.into()),
        Some(u64::MAX.into()),
        Some((-1i32).into()),
        Some(2.5f32.into()),
        Some(f32::NAN.into()),
        Some(f32::MAX.into()),
        Some(true.into()),
        Some("text".into()),
        Some(vec![1i32, 2].into()),
        Some(vec![false; 5000].into()),
    ]
}

/// Whether an error names a key, a tensor or what is not supported.
pub(crate) fn names_its_reason(error: &LoadError, key: &str) -> bool {
    let text = error.to_string();
    let reasons = [key, "metadata key '", "tensor `", "which is not supported"];
    reasons.iter().any(|reason| text.contains(reason))
}

#[test]
fn hostile_metadata_is_refused_with_a_sentence() {
    for name in families::names() {
        let writer = families::model_of(name, GgmlType::Q4_0, 2);
        let gguf = open(&writer.unwrap().unwrap());
        let arch = gguf.metadata().str("general.architecture").unwrap();
        Model::load(gguf.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        for key in KEYS {
            let full = format!("{arch}.{key}");
            for value in values() {
                let mut changed = rewritten(&gguf, |it| it != full, |it| (it.to_string(), None));
                let what = format!("{name}: {key} = {value:?}");
                if let Some(value) = value {
                    changed.set(&full, value);
                }
                if let Err(error) = Model::load(open(&changed)) {
                    assert!(names_its_reason(&error, key), "{what}: {error}");
                }
            }
        }
    }
}

/// Each tensor of the file is needed, or is of a layer that is left out, or may be missing.
#[test]
fn files_without_a_tensor_are_refused() {
    let optional = |name: &str| {
        let suffixes = [
            ".bias",
            "exp_probs_b",
            "attn_q_norm.weight",
            "attn_k_norm.weight",
        ];
        ["output.weight", "rope_freqs.weight"].contains(&name)
            || suffixes.iter().any(|suffix| name.ends_with(suffix))
            || name.contains("attn_norm_2")
    };
    for name in families::names() {
        let writer = families::model_of(name, GgmlType::Q4_0, 2);
        let gguf = open(&writer.unwrap().unwrap());
        let n_layers = Model::load(gguf.clone()).unwrap().config.n_layers();
        for info in gguf.tensors() {
            let missing = rewritten(&gguf, |it| it != info.name, |it| (it.to_string(), None));
            let is_left_out = info.name.starts_with(&format!("blk.{n_layers}."));
            match Model::load(open(&missing)) {
                Ok(_) => assert!(
                    is_left_out || optional(&info.name) || is_choice(name, &info.name),
                    "{name} loads without {}",
                    info.name
                ),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!is_left_out, "{name} needs {}: {text}", info.name);
                    assert!(
                        text.contains("tensor `"),
                        "{name} without {}: {text}",
                        info.name
                    );
                }
            }
        }
    }
}

/// Tensors whose absence says something: a layer of StableLM without a second norm, of MiMo without sinks, of Step without
/// a gate.
fn is_choice(name: &str, tensor: &str) -> bool {
    match name {
        "stablelm" => tensor.contains("ffn_norm"),
        "mimo2" => tensor.contains("attn_sinks"),
        "step35" => tensor.contains("attn_gate"),
        _ => false,
    }
}

#[test]
fn layers_that_predict_further_tokens_are_left_out() {
    for name in ["glm4moe", "hy_v3", "step35"] {
        let writer = families::model(name, GgmlType::Q4_0);
        let model = Model::load(open(&writer.unwrap().unwrap())).unwrap();
        let n_layers = model.config.n_layers();
        assert_eq!(model.config.n_nextn, 1);
        assert_eq!(model.plan.kv.len(), n_layers);
        assert!(!model.skipped.is_empty());
        for skipped in &model.skipped {
            assert!(
                skipped.name.starts_with(&format!("blk.{n_layers}.")),
                "{skipped:?}"
            );
            assert!(skipped.reason.contains("further tokens"), "{skipped:?}");
        }
    }
}
