//! Costs of forge-mini's plan, compared with sums computed by hand from its shape: 10 layers, width 256, 4 heads
//! and 2 KV heads of 64 values, feed-forward width 1024, 4096 tokens; Q4_K and Q6_K, so every product is int8.

use rocmforge_model::Model;
use rocmforge_plan::{BatchShape, Fusion, KvType, OpCost, Plan, PlanCost, Roofline, SeqShape};
use rocmforge_testkit::data::forge_mini;

fn model() -> Model {
    Model::load(forge_mini()).unwrap()
}

fn step(model: &Model, shape: &BatchShape) -> OpCost {
    let cost = PlanCost {
        plan: &model.plan,
        weights: &model.weights,
        kv_types: KvType::F16.into(),
    };
    model.plan.ops.iter().map(|op| cost.op(op, shape)).sum()
}

fn shape(seqs: &[(usize, usize)], n_logits: usize) -> BatchShape {
    let shape = |&(first_pos, n_rows): &(usize, usize)| SeqShape { first_pos, n_rows };
    BatchShape {
        seqs: seqs.iter().map(shape).collect(),
        n_logits,
    }
}

/// Bytes of all tensors, of the embedding (which is also the output matrix), and of one of its rows.
const ALL_WEIGHTS: u64 = 6_791_424;
const EMBEDDING: u64 = 860_160;
const EMBEDDING_ROW: u64 = 210;
/// Two KV heads of 64 + 64 values of two bytes in 10 layers.
const KV_TOKEN: u64 = 5120;
const LAYER_PRODUCTS: u64 = 2 * 10 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 1024);
const OUTPUT_PRODUCTS: u64 = 2 * 256 * 4096;
/// Norms, conversions (three of 256 values and one of 1024), RoPE and activations of a token in all layers.
const SMALL_OPS: u64 = 10 * (2 * 4 * 256 + 3 * (3 * 256 + 1024) + 3 * (256 + 128) + 5 * 1024);
/// The last norm and the conversion after it.
const OUTPUT_SMALL_OPS: u64 = 4 * 256 + 3 * 256;
/// Two dot products of 64 values for each of 4 heads in 10 layers, per visible position.
const ATTENTION: u64 = 10 * 4 * 2 * (64 + 64);

#[test]
fn decode_step_reads_everything_once() {
    let cost = step(&model(), &shape(&[(10, 1)], 1));
    assert_eq!(cost.weight_bytes, ALL_WEIGHTS + EMBEDDING_ROW);
    assert_eq!(cost.kv_bytes, KV_TOKEN + 11 * KV_TOKEN);
    assert_eq!(cost.i8_ops, LAYER_PRODUCTS + OUTPUT_PRODUCTS);
    assert_eq!(cost.f32_ops, SMALL_OPS + OUTPUT_SMALL_OPS + 11 * ATTENTION);
}

#[test]
fn batch_reads_weights_once() {
    // Five rows that see 3 to 7 positions, one that sees 101.
    let cost = step(&model(), &shape(&[(2, 5), (100, 1)], 2));
    assert_eq!(cost.weight_bytes, ALL_WEIGHTS + 6 * EMBEDDING_ROW);
    assert_eq!(cost.kv_bytes, 6 * KV_TOKEN + (7 + 101) * KV_TOKEN);
    assert_eq!(cost.i8_ops, 6 * LAYER_PRODUCTS + 2 * OUTPUT_PRODUCTS);
    let pairs = 3 + 4 + 5 + 6 + 7 + 101;
    assert_eq!(
        cost.f32_ops,
        6 * SMALL_OPS + 2 * OUTPUT_SMALL_OPS + pairs * ATTENTION
    );
}

#[test]
fn output_costs_nothing_without_logits() {
    let cost = step(&model(), &shape(&[(0, 4)], 0));
    let output_norm = 4 * 256;
    assert_eq!(
        cost.weight_bytes,
        ALL_WEIGHTS - EMBEDDING - output_norm + 4 * EMBEDDING_ROW
    );
    assert_eq!(cost.i8_ops, 4 * LAYER_PRODUCTS);
    assert_eq!(cost.f32_ops, 4 * SMALL_OPS + (1 + 2 + 3 + 4) * ATTENTION);
}

#[test]
fn counts_buffer_bytes_separately() {
    let model = model();
    let cost = PlanCost {
        plan: &model.plan,
        weights: &model.weights,
        kv_types: KvType::F16.into(),
    };
    let shape = shape(&[(0, 3)], 1);
    let of = |name: &str| {
        let op = model.plan.ops.iter().find(|op| op.name() == name).unwrap();
        cost.op(op, &shape).buffer_bytes
    };
    assert_eq!(of("embed"), 3 * 256 * 4);
    assert_eq!(of("rms_norm"), 3 * 256 * (4 + 4));
    assert_eq!(of("quantize"), 3 * 256 * (4 + 1));
    // The first product is Q.
    assert_eq!(of("matmul"), 3 * 256 * (1 + 4));
    assert_eq!(of("rope"), 3 * 256 * (4 + 4));
    assert_eq!(of("kv_append"), 3 * 2 * (64 + 64) * 4);
    assert_eq!(of("attention"), 3 * 256 * (4 + 4));
    assert_eq!(of("gated_activation"), 3 * 1024 * (4 + 4 + 4));
    assert_eq!(of("select_rows"), 256 * (4 + 4));
}

#[test]
fn time_is_that_of_the_slower_resource() {
    let roofline = Roofline {
        read_bytes_per_s: 100.0,
        f32_ops_per_s: 10.0,
        i8_ops_per_s: 40.0,
    };
    let cost = OpCost {
        weight_bytes: 300,
        kv_bytes: 100,
        buffer_bytes: 1_000_000,
        f32_ops: 10,
        i8_ops: 40,
    };
    assert_eq!(cost.seconds(&roofline), 4.0);
    let more = OpCost {
        f32_ops: 50,
        ..cost
    };
    assert_eq!(more.seconds(&roofline), 6.0);
}

#[test]
fn fused_plan_computes_the_same_and_moves_less() {
    let model = model();
    let fused = model.compiled_plan(Fusion::On);
    let shape = shape(&[(0, 3), (7, 1)], 1);
    let total = |plan: &Plan| -> OpCost {
        let cost = PlanCost {
            plan,
            weights: &model.weights,
            kv_types: KvType::F16.into(),
        };
        plan.ops.iter().map(|op| cost.op(op, &shape)).sum()
    };
    let (separate, fused) = (total(&model.plan), total(&fused));
    assert!(fused.buffer_bytes < separate.buffer_bytes);
    let buffer_bytes = separate.buffer_bytes;
    assert_eq!(
        OpCost {
            buffer_bytes,
            ..fused
        },
        separate
    );
}
