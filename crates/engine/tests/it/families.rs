//! Architectures of `rocmforge_testkit::models::families` against llama.cpp, and on a GPU against the CPU. `cargo xtask
//! arch-golden` makes the fixture with llama.cpp (llama-cpp-python 0.3.36, K and V in F32): a logit of every position of
//! each prompt, or of some positions of a long one.

use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::{Device, Engine, EngineConfig};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::{FeedForward, Model};
use rocmforge_plan::{Fusion, KvType, Op};
use rocmforge_runtime::check::{self, Coverage, Extent, OpCheck};
use rocmforge_runtime::gpu::Experts;
use rocmforge_testkit::models::families;
use rocmforge_testkit::models::prompt;

use crate::common::cases::for_each_family;
use crate::common::{device, exact_gpu, hopper, logits, read_json, test_gpu};

fn load(name: &str, ty: GgmlType, n_layers: Option<usize>) -> Model {
    let writer = match n_layers {
        Some(n) => families::model_of(name, ty, n),
        None => families::model(name, ty),
    };
    let bytes = writer.unwrap().unwrap().to_vec().unwrap();
    Model::load(Arc::new(Gguf::from_vec(bytes).unwrap())).unwrap()
}

fn config(n_ctx: usize) -> EngineConfig {
    EngineConfig {
        n_ctx: Some(n_ctx),
        kv_types: KvType::F32.into(),
        ..EngineConfig::default()
    }
}

for_each_family!(logits_of_families_match_llama_cpp);

/// Logits of every position. A router that is nearly tied may choose another expert than llama.cpp, which then changes
/// the position: at most 1 % of them, which the test prints.
fn logits_of_families_match_llama_cpp(name: &str) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let golden = read_json(&fixtures.join("families.json"));
    let model = load(name, GgmlType::F32, None);
    let layers = model.config.layers.iter();
    let has_experts = { layers }.any(|layer| matches!(layer.feed_forward, FeedForward::Mixture(_)));
    // llama.cpp computes GELU with a table of f16 values.
    let bound = match model.config.arch_name.as_str() {
        "gemma" | "gemma2" | "gemma3" | "gemma3n" => 5e-3,
        "gpt2" | "starcoder2" | "phi2" | "falcon" | "grok" => 5e-3,
        _ => 1e-3,
    };
    let (mut n_positions, mut n_other) = (0, 0);
    for &n_tokens in families::prompts(name) {
        let n_kept = families::positions(n_tokens).len();
        let expected = golden[name][n_tokens.to_string()].as_array().unwrap();
        let expected: Vec<f32> = expected
            .iter()
            .map(|logit| logit.as_f64().unwrap() as f32)
            .collect();
        let mut engine = Engine::on_cpu(&model, None, &config(n_tokens)).unwrap();
        let all = logits(&mut engine, &prompt(n_tokens, model.config.n_vocab)).concat();
        let got = families::kept(&all, n_tokens);
        assert_eq!(got.len(), expected.len());
        let reach = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let is_near = (got - expected).abs() < bound * reach;
            n_positions += usize::from(i < n_kept);
            n_other += usize::from(i < n_kept && !is_near);
            assert!(
                is_near || has_experts && i < n_kept,
                "{name}, {n_tokens} tokens, {i}: {got}, expected {expected} of {reach}"
            );
        }
    }
    if has_experts {
        println!("{name}: {n_other} of {n_positions} positions differ");
    }
    assert!(
        n_other * 100 <= n_positions,
        "{n_other} of {n_positions} positions"
    );
}

for_each_family!(
    #[ignore = "exhaustive: second shapes"]
    families_on_a_gpu_match_the_cpu
);

/// Logits of models with few layers, so that each kind of layer is there, of a short prompt and of one with a chunk of
/// more rows than a GEMV takes, and a row after it, which windows do not show all positions.
fn families_on_a_gpu_match_the_cpu(name: &str) {
    let Some(gpu) = exact_gpu() else { return };
    let n_layers = match name {
        "muse_glimmer" | "cohere2" | "llama4" | "llama4_long" => 4,
        "exaone_moe" | "afmoe" | "mellum" | "qwen35_wide" => 4,
        "nemotron_h" | "nemotron_h_moe" | "nemotron_h_latent" | "nemotron_h_fifths" => 4,
        "smollm3_single" | "nemotron_h_moe_halves" => 4,
        "cohere2moe" | "cohere2moe_softmax" | "deci" => 5,
        "glm4moe_wide" | "openelm" | "openelm_wide" | "step35_single" => 3,
        "deci_ninths" | "lfm2_thirds" => 3,
        _ => 2,
    };
    let model = load(name, GgmlType::F16, Some(n_layers));
    let engine = |device: &Device| Engine::start(&model, None, &device::config(device)).unwrap();
    let [mut on_cpu, mut on_gpu] = [engine(&Device::Cpu), engine(&Device::Gpu(gpu))];
    let info = on_gpu.backend_info();
    assert!(info.parts.is_empty(), "{name}: {:?}", info.parts);
    for n_tokens in [1, 25] {
        let prompt = prompt(n_tokens, model.config.n_vocab);
        let [expected, got] = [&mut on_cpu, &mut on_gpu].map(|engine| logits(engine, &prompt));
        let d = device::difference(&got.concat(), &expected.concat());
        assert!(d <= 1e-5, "{name}, {n_tokens} tokens: {d:e}");
    }
    on_gpu.check_integrity().unwrap();
}

/// On a GPU that runs the whole model, a shared expert is one of the chosen ones; it is not on a CPU, nor where the CPU runs
/// the chosen ones, nor if operations are not fused. Its products pass the check.
#[test]
fn shared_experts_are_chosen_on_a_gpu() {
    let Some(gpu) = test_gpu() else { return };
    for (name, ty) in [
        ("glm4_flash", GgmlType::Q8_0),
        ("glm4moe", GgmlType::Q4_K),
        ("qwen3next", GgmlType::F16),
    ] {
        let model = load(name, ty, Some(2));
        let mixtures = |device: Device, fusion| {
            let config = EngineConfig {
                fusion,
                ..device::config(&device)
            };
            let engine = Engine::start(&model, None, &config).unwrap();
            let plan = engine.running_plan(&model);
            let shared = plan.ops.iter().filter_map(|op| match op {
                Op::Route { shared, .. } => Some(shared.is_some()),
                _ => None,
            });
            shared.collect::<Vec<bool>>()
        };
        let mut split = gpu.clone();
        split.offload.experts = Experts::OnCpu;
        let apart = mixtures(Device::Cpu, Fusion::On);
        assert!(!apart.is_empty() && apart.iter().all(|it| !it), "{name}");
        assert_eq!(mixtures(Device::Gpu(split), Fusion::On), apart, "{name}");
        let whole = Device::Gpu(gpu.clone());
        assert_eq!(mixtures(whole.clone(), Fusion::Off), apart, "{name}");
        let chosen = mixtures(whole.clone(), Fusion::On);
        assert_eq!(chosen, vec![true; apart.len()], "{name}");

        let tokens = prompt(30, model.config.n_vocab);
        let config = device::config(&whole);
        let report = check::check(
            &model,
            &config,
            &tokens,
            &Extent::after(16, Coverage::Distinct),
        )
        .unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:#?}");
        let mut checks = report.checks.iter();
        assert!(checks.any(|check| check.shape.contains("and a shared one")));
    }
}

/// Attention that a Hopper GPU computes in f16 has a bound of its own.
#[test]
fn attention_in_f16_passes_the_check() {
    let Some(hopper) = hopper() else { return };
    let model = load("laguna", GgmlType::F16, Some(2));
    let tokens = prompt(30, model.config.n_vocab);
    let config = device::config(&Device::Gpu(hopper));
    let report = check::check(
        &model,
        &config,
        &tokens,
        &Extent::after(16, Coverage::Distinct),
    )
    .unwrap();
    let failures: Vec<&OpCheck> = report.failures().collect();
    assert!(failures.is_empty(), "{failures:#?}");
    let mut checks = report.checks.iter();
    assert!(checks.any(|check| check.bound == check::HALF_ATTENTION_BOUND));
}
