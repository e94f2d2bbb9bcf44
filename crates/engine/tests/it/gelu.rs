//! Why deep random models with GELU differ from llama.cpp: it reads GELU from a table in f16, and many layers of sharp
//! attention amplify that. `cargo xtask gelu-golden` computes the logits in f64, with GELU and with that table, and
//! records llama.cpp 0.3.36's.

use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_testkit::models::model_of;

use crate::common::{error, ids, logits, read_json};

#[test]
fn gemma2_with_46_layers_differs_from_llama_cpp_by_its_table_of_gelu() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&folder.join("gelu.json"));
    let row = |name: &str| -> Vec<f64> {
        let row = golden[name].as_array().unwrap();
        row.iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (exact, table, llama_cpp) = (row("exact"), row("table"), row("llama_cpp"));
    // The table explains llama.cpp's difference.
    assert!(error(&llama_cpp, &exact) > 1e-3);
    assert!(error(&llama_cpp, &table) < error(&llama_cpp, &exact) / 20.0);

    let mut writer = model_of("gemma2", GgmlType::F32, 46).unwrap().unwrap();
    writer
        .set("gemma2.rope.scaling.attn_factor", 3f32)
        .set("gemma2.attn_logit_softcapping", 50f32);
    let gguf = Gguf::from_vec(writer.to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let config = EngineConfig {
        n_ctx: Some(64),
        kv_type: KvType::F32,
        ..EngineConfig::default()
    };
    let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
    let rows = logits(&mut engine, &ids(&golden["ids"]));
    let last: Vec<f64> = rows.last().unwrap().iter().map(|&x| f64::from(x)).collect();
    let found = error(&last[..exact.len()], &exact);
    assert!(found < 1e-6, "{found:e}");
}
