//! Why mixtures of experts differ from llama.cpp at a few positions, where experts are nearly tied. In Q5_1, llama.cpp
//! rounds the sums of activations to f16, which decides between them; in F32, the order of additions does. `cargo xtask
//! routing-golden` computes the logits in f64 with both roundings and both experts, and records llama.cpp 0.3.36's.

use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_testkit::models::model;

use crate::common::{error, ids, logits, read_json};

#[test]
fn qwen3moe_in_q5_1_differs_from_llama_cpp_by_its_rounding_of_sums() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&folder.join("routing.json"));
    let row = |name: &str| -> Vec<f64> {
        let row = golden[name].as_array().unwrap();
        row.iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (scaled, rounded) = (row("scaled_sums"), row("rounded_sums"));
    let llama_cpp = row("llama_cpp");
    assert!(error(&llama_cpp, &scaled) > 3e-2);
    // The rounding of sums explains it,
    assert!(error(&llama_cpp, &rounded) < 1e-3);
    // mostly by one expert that is chosen instead of another.
    assert_ne!(golden["experts"], golden["other_experts"]);
    assert!(error(&llama_cpp, &row("scaled_sums_other_experts")) < 2e-3);

    let last = last_logits(("qwen3moe", GgmlType::Q5_1), &ids(&golden["ids"]));
    let found = error(&last[..scaled.len()], &scaled);
    assert!(found < 1e-3, "{found:e}");
}

#[test]
fn deepseek2_differs_from_llama_cpp_where_experts_are_tied() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&folder.join("latent.json"));
    let row = |name: &str| -> Vec<f64> {
        let row = golden[name].as_array().unwrap();
        row.iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (chosen, llama_cpp) = (row("chosen"), row("llama_cpp"));
    // llama.cpp has the other expert, whose share of the softmax is this much smaller.
    assert!(golden["margin"].as_f64().unwrap() < 2e-6);
    assert!(error(&llama_cpp, &chosen) > 1e-2);
    assert!(error(&llama_cpp, &row("other")) < 1e-9);

    let last = last_logits(("deepseek2", GgmlType::F32), &ids(&golden["ids"]));
    let found = error(&last[..chosen.len()], &chosen);
    assert!(found < 1e-9, "{found:e}");
}

/// Returns the logits after the last token.
fn last_logits((name, ty): (&str, GgmlType), ids: &[u32]) -> Vec<f64> {
    let writer = model(name, ty).unwrap().unwrap();
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let config = EngineConfig {
        n_ctx: Some(ids.len()),
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    };
    let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
    let rows = logits(&mut engine, ids);
    rows.last().unwrap().iter().map(|&x| f64::from(x)).collect()
}
