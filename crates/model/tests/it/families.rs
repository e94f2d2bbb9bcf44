//! Files of the architectures in `rocmforge_testkit::models::families` without tensors: each is loaded, or refused with a
//! sentence that names the tensor.

use rocmforge_gguf::{GgmlType, OwnedValue};
use rocmforge_model::Model;
use rocmforge_testkit::models::families;

use crate::plans::{open, rewritten};

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
/// a gate, of Falcon-H1 without a norm of its states' outputs.
fn is_choice(name: &str, tensor: &str) -> bool {
    match name {
        "stablelm" => tensor.contains("ffn_norm"),
        "mimo2" | "mimo2_sevenths" => tensor.contains("attn_sinks"),
        "step35" => tensor.contains("attn_gate"),
        "falcon_h1" => tensor.contains("ssm_norm"),
        _ => false,
    }
}

/// What these files may ask for and is not computed.
#[test]
fn unknown_computations_are_refused() {
    let cases: [(&str, &str, OwnedValue, &str); 4] = [
        (
            "olmo",
            "olmo.attention.clamp_kqv",
            8f32.into(),
            "queries, keys and values limited to 8",
        ),
        (
            "deci",
            "deci.feed_forward_length",
            vec![0i32, 256].into(),
            "attention without a network (layer 0)",
        ),
        (
            "grok",
            "grok.attention.temperature_length",
            1024u32.into(),
            "scores that grow with the position",
        ),
        (
            "plm",
            "plm.attention.kv_lora_rank",
            0u32.into(),
            "a sensible positive number",
        ),
    ];
    for (name, key, value, wanted) in cases {
        let mut writer = families::model_of(name, GgmlType::F32, 2).unwrap().unwrap();
        writer.set(key, value);
        let error = Model::load(open(&writer)).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
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
