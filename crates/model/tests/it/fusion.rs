//! Fusion of the embedded model's plan.

use std::path::Path;
use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_plan::{Fusion, Op, Plan};

/// The operations of the embedded model's first layer, and of what follows its last.
#[test]
fn a_layer_takes_few_passes() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../models/forge-mini-Q4_K_M.gguf"
    );
    let gguf = Gguf::open(Path::new(path), LoadMode::Read).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let plan = model.compiled_plan(Fusion::On);
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
