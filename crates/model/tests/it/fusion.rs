//! Fusion of the embedded model's plan.

use rocmforge_model::Model;
use rocmforge_plan::{Fusion, Op, Plan};
use rocmforge_testkit::data::forge_mini;

/// Lists the operations of the first layer, and those after the last.
#[test]
fn fuses_a_layer_into_few_operations() {
    let model = Model::load(forge_mini()).unwrap();
    let plan = model.compiled_plan(Fusion::On);
    let names: Vec<&str> = plan.ops.iter().map(Op::name).collect();
    let n_layers = model.config.n_layers();
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
    // Normed rows of the output, and the products of `gate` and `up`, need no buffers any more.
    let bytes = |plan: &Plan| plan.buffer_bytes(100, 1);
    let c = &model.config;
    let n_ff = c.layers[0].feed_forward.n_ff();
    let saved = 100 * 4 * 2 * n_ff + 4 * c.n_embd;
    assert!(bytes(&model.plan) - bytes(&plan) >= saved as u64);
}
