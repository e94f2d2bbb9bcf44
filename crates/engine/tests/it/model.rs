//! Model metadata: supported keys match llama.cpp's numbers, unsupported ones are rejected by name.

use rocmforge_model::LoadError;
use std::sync::Arc;

use crate::common::models;
use rocmforge_gguf::{Gguf, LoadMode, OwnedValue, Writer};
use rocmforge_model::Model;

/// Loads forge-mini under another architecture's name with `keys` added, which have no architecture prefix.
fn load(arch: &str, keys: &[(&str, OwnedValue)]) -> Result<Model, LoadError> {
    let gguf = Gguf::open(&models().join("forge-mini-Q4_K_M.gguf"), LoadMode::Read).unwrap();
    let mut writer = Writer::new(arch);
    for (key, value) in gguf.metadata().iter() {
        match key.strip_prefix("llama.") {
            Some(rest) => writer.set(&format!("{arch}.{rest}"), value),
            None if key == "general.architecture" => continue,
            None => writer.set(key, value),
        };
    }
    for (key, value) in keys {
        writer.set(&format!("{arch}.{key}"), value.clone());
    }
    for info in gguf.tensors() {
        writer
            .add_tensor(&info.name, &info.dims, info.ty, gguf.tensor_data(info))
            .unwrap();
    }
    Model::load(Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap()))
}

/// Magnitudes are from llama.cpp 0.3.36 (`llama_context`, `rope_yarn`): `attn_factor` applies to every kind of scaling,
/// and YaRN multiplies by `1 + 0.1 ln(factor)` if the factor is above 1.
#[test]
fn rope_magnitudes_match_llama_cpp() {
    /// Kind, factor, `attn_factor`, and the magnitude.
    type Case<'a> = (Option<&'a str>, Option<f32>, Option<f32>, f64);
    let cases: [Case<'_>; 8] = [
        (None, None, None, 1.0),
        (None, None, Some(2.0), 2.0),
        (Some("none"), Some(4.0), Some(2.0), 2.0),
        (Some("linear"), Some(4.0), Some(0.5), 0.5),
        (Some("yarn"), Some(4.0), None, 1.0 + 0.1 * 4f64.ln()),
        (
            Some("yarn"),
            Some(4.0),
            Some(0.5),
            0.5 * (1.0 + 0.1 * 4f64.ln()),
        ),
        (Some("yarn"), Some(0.5), None, 1.0),
        (Some("yarn"), Some(1.0), Some(2.0), 2.0),
    ];
    for (kind, factor, attn_factor, expected) in cases {
        let mut keys: Vec<(&str, OwnedValue)> = Vec::new();
        keys.extend(kind.map(|kind| ("rope.scaling.type", kind.into())));
        keys.extend(factor.map(|factor| ("rope.scaling.factor", factor.into())));
        keys.extend(attn_factor.map(|factor| ("rope.scaling.attn_factor", factor.into())));
        let model = load("llama", &keys).unwrap();
        let magnitude = model.plan.rope[0].magnitude;
        assert!(
            (magnitude - expected).abs() < 1e-9,
            "{kind:?} {factor:?} {attn_factor:?}: {magnitude}, expected {expected}"
        );
    }
}

/// Linear scaling divides every frequency; YaRN keeps the first pair's and divides the last one's.
#[test]
fn rope_scaling_changes_the_right_frequencies() {
    let plain = load("llama", &[]).unwrap().plan.rope[0].inv_freq.clone();
    let ends = |kind: &str| {
        let keys = [
            ("rope.scaling.type", kind.into()),
            ("rope.scaling.factor", 4f32.into()),
            ("rope.scaling.original_context_length", 64u32.into()),
        ];
        let scaled = load("llama", &keys).unwrap().plan.rope[0].inv_freq.clone();
        let last = plain.len() - 1;
        (plain[0] / scaled[0], plain[last] / scaled[last])
    };
    assert_eq!(ends("none"), (1.0, 1.0));
    assert_eq!(ends("linear"), (4.0, 4.0));
    assert_eq!(ends("yarn"), (1.0, 4.0));
}

#[test]
fn rejects_models_it_would_compute_wrongly() {
    let causal = |value: bool| load("llama", &[("attention.causal", value.into())]);
    assert!(causal(true).is_ok());
    let message = causal(false).err().unwrap().to_string();
    assert!(
        message.contains("computes embeddings, not text"),
        "{message}"
    );

    assert!(load("qwen2", &[]).is_ok());
    let message = load("qwen3", &[]).err().unwrap().to_string();
    assert!(
        message.contains("tensor `blk.0.attn_q_norm.weight`, which qwen3 needs"),
        "{message}"
    );
}
