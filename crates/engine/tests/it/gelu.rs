//! Why random models with GELU differ from llama.cpp: it reads GELU from a table in f16, and many layers (Gemma 2) or
//! gates between them (Gemma 4) amplify that. `cargo xtask gelu-golden` computes the logits in f64, with GELU and with that table, and records llama.cpp 0.3.36's.

use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::{Engine, EngineConfig};
use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::Model;
use rocmforge_plan::KvType;
use rocmforge_testkit::models::{model, model_of};

use crate::common::cases::test_cases;
use crate::common::{error, ids, logits, read_json};

#[test]
fn gemma2_with_46_layers_differs_from_llama_cpp_by_its_table_of_gelu() {
    let mut writer = model_of("gemma2", GgmlType::F32, 46).unwrap().unwrap();
    writer
        .set("gemma2.rope.scaling.attn_factor", 3f32)
        .set("gemma2.attn_logit_softcapping", 50f32);
    table_explains("gemma2", &writer, [1e-3, 1e-6], 20.0);
}

test_cases! { differs_by_the_table_of_gelu: gemma4("gemma4", 2.0), gemma4_moe("gemma4_moe", 4.0) }

/// Here rounding errors that choose a neighbour in the table matter as well.
fn differs_by_the_table_of_gelu(name: &str, ratio: f64) {
    let writer = model(name, GgmlType::F32).unwrap().unwrap();
    table_explains(name, &writer, [1e-7, 1e-9], ratio);
}

/// Checks that llama.cpp's logits differ from the exact ones by more than `theirs`, and by `ratio` times as much as from
/// those with its table; and that ours differ from the exact ones by less than `ours`.
fn table_explains(name: &str, writer: &Writer<'_>, [theirs, ours]: [f64; 2], ratio: f64) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&folder.join("gelu.json"));
    let golden = &golden[name];
    let row = |name: &str| -> Vec<f64> {
        let row = golden[name].as_array().unwrap();
        row.iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let (exact, table, llama_cpp) = (row("exact"), row("table"), row("llama_cpp"));
    println!(
        "{name}: llama.cpp {:.1e}, and {:.1e} with the table",
        error(&llama_cpp, &exact),
        error(&llama_cpp, &table)
    );
    assert!(error(&llama_cpp, &exact) > theirs);
    assert!(error(&llama_cpp, &table) < error(&llama_cpp, &exact) / ratio);

    let model = Model::load(Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())).unwrap();
    let config = EngineConfig {
        n_ctx: Some(64),
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    };
    let mut engine = Engine::on_cpu(&model, None, &config).unwrap();
    let rows = logits(&mut engine, &ids(&golden["ids"]));
    let last: Vec<f64> = rows.last().unwrap().iter().map(|&x| f64::from(x)).collect();
    let found = error(&last[..exact.len()], &exact);
    println!("{name}: {found:.1e}");
    assert!(found < ours, "{found:e}");
}
