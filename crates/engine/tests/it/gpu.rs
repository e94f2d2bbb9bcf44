//! The complete GPU path on an emulated GPU, against the CPU backend: logits of prompts and generated tokens, with
//! several sequences, prompt chunks and KV-cache blocks.

use rocmforge_testkit::models as synth;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::common::cases::{for_each_model, test_cases};
use crate::common::device::{Passed, config, difference, generate, model, short_model};
use crate::common::{apart, greedy, load as load_file, logits, models, test_gpu};
use rocmforge_engine::{Device, Engine, EngineConfig, Event, Request, RequestId};
use rocmforge_gguf::GgmlType;
use rocmforge_model::Model;
use rocmforge_plan::Fusion;
use rocmforge_plan::Op;
use rocmforge_plan::SamplingParams;
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_runtime::check;
use rocmforge_runtime::check::{Coverage, Extent, OpCheck, PassedChecks, SelfCheck};
use rocmforge_runtime::gpu::{GpuConfig, Graphs};
use rocmforge_testkit::sweep::first;

fn engines(model: &Model, gpu: &Device) -> [Engine; 2] {
    [&Device::Cpu, gpu].map(|device| Engine::start(model, None, &config(device)).unwrap())
}

// Every architecture without experts, each in another format, and every format at least once. An F16 cache may store
// either neighbour of a value between two of its numbers, and a quantized activation either of two codes.
test_cases! {
    dense_logits_match_cpu:
    llama_f32("llama", GgmlType::F32, 1e-5),
    gemma2_f16("gemma2", GgmlType::F16, 1e-5),
    gpt2_bf16("gpt2", GgmlType::BF16, 1e-5),
    qwen2_q4_0("qwen2", GgmlType::Q4_0, 1e-3),
    #[ignore = "exhaustive: formats like others"]
    qwen3_q4_1("qwen3", GgmlType::Q4_1, 1e-3),
    #[ignore = "exhaustive: formats like others"]
    granite_q5_0("granite", GgmlType::Q5_0, 1e-3),
    phi3_q5_1("phi3", GgmlType::Q5_1, 1e-3),
    gemma3_q8_0("gemma3", GgmlType::Q8_0, 1e-3),
    #[ignore = "exhaustive: formats like others"]
    llama_q2_k("llama", GgmlType::Q2_K, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    smollm3_q3_k("smollm3", GgmlType::Q3_K, 5e-3),
    olmo2_q4_k("olmo2", GgmlType::Q4_K, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    olmo3_q5_k("olmo3", GgmlType::Q5_K, 5e-3),
    starcoder2_q6_k("starcoder2", GgmlType::Q6_K, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    llama_iq4_nl("llama", GgmlType::IQ4_NL, 1e-3),
    qwen2_iq4_xs("qwen2", GgmlType::IQ4_XS, 5e-3),
    llama_mxfp4("llama", GgmlType::MXFP4, 1e-3),
    #[ignore = "exhaustive: formats like others"]
    llama_q1_0("llama", GgmlType::Q1_0, 1e-3),
    #[ignore = "exhaustive: formats like others"]
    qwen2_q2_0("qwen2", GgmlType::Q2_0, 1e-3),
    qwen3_nvfp4("qwen3", GgmlType::NVFP4, 1e-3),
    granite_tq1_0("granite", GgmlType::TQ1_0, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    smollm3_tq2_0("smollm3", GgmlType::TQ2_0, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    llama_iq1_s("llama", GgmlType::IQ1_S, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    llama_iq1_m("llama", GgmlType::IQ1_M, 5e-3),
    olmo2_iq2_xxs("olmo2", GgmlType::IQ2_XXS, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    llama_iq2_xs("llama", GgmlType::IQ2_XS, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    gemma3_iq2_s("gemma3", GgmlType::IQ2_S, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    phi3_iq3_xxs("phi3", GgmlType::IQ3_XXS, 5e-3),
    #[ignore = "exhaustive: formats like others"]
    qwen2_iq3_s("qwen2", GgmlType::IQ3_S, 5e-3),
    uneven_f16("uneven", GgmlType::F16, 1e-5),
}

fn dense_logits_match_cpu(name: &str, ty: GgmlType, bound: f64) {
    // Codes that are points of a lattice are searched for, which takes most of the time, and products in F32 are slow. Their
    // architectures are compared whole in other formats.
    let is_searched = ty.name().starts_with("IQ") && !ty.name().starts_with("IQ4");
    let model = match is_searched || ty == GgmlType::F32 {
        true => short_model(name, ty, 2),
        false => model(name, ty),
    };
    assert_logits(&model, &format!("{name} {ty:?}"), bound, &[1, 17, 40]);
}

test_cases! {
    moe_logits_match_cpu:
    mixtral_q4_k("mixtral", GgmlType::Q4_K, 5e-3),
    qwen2moe_q8_0("qwen2moe", GgmlType::Q8_0, 1e-3),
    qwen3moe_f16("qwen3moe", GgmlType::F16, 1e-5),
    #[ignore = "exhaustive: formats like others"]
    mixtral_nvfp4("mixtral", GgmlType::NVFP4, 1e-3),
}

/// docs/MODELS.md is made from this list.
#[test]
fn the_listed_types_are_compared() {
    let cases = dense_logits_match_cpu::ARGUMENTS.iter();
    let mut cases: Vec<String> = { cases.chain(moe_logits_match_cpu::ARGUMENTS) }
        .map(|case| case.rsplit_once(", ").unwrap().0.to_string())
        .collect();
    cases.sort();
    let listed = synth::ON_GPU.iter();
    let mut listed: Vec<String> = listed
        .map(|(name, ty)| format!("\"{name}\", GgmlType::{ty:?}"))
        .collect();
    listed.sort();
    assert_eq!(cases, listed);
}

fn moe_logits_match_cpu(name: &str, ty: GgmlType, bound: f64) {
    // The longer prompt has more rows than a GEMV takes.
    assert_logits(
        &short_model(name, ty, 2),
        &format!("{name} {ty:?}"),
        bound,
        &[1, 11],
    );
}

fn assert_logits(model: &Model, label: &str, bound: f64, lengths: &[usize]) {
    let Some(gpu) = test_gpu() else { return };
    let [mut cpu, mut gpu] = engines(model, &Device::Gpu(gpu));
    for &n_tokens in lengths {
        let prompt = synth::prompt(n_tokens, model.config.n_vocab);
        let expected = logits(&mut cpu, &prompt);
        let got = logits(&mut gpu, &prompt);
        let d = difference(&got.concat(), &expected.concat());
        assert!(d <= bound, "{label}, {n_tokens} tokens: {d:e}");
    }
    gpu.check_integrity().unwrap();
}

for_each_model!(generated_logprobs_match_cpu);

/// Tokens generated on the GPU, by four sequences at once and by one alone, have the log-probabilities that the CPU
/// backend computes for the same text.
fn generated_logprobs_match_cpu(name: &str) {
    const N: usize = 2;
    const N_TOP: usize = 16;
    let Some(gpu) = test_gpu() else { return };
    let gpu = Device::Gpu(gpu);
    let model = short_model(name, GgmlType::F16, 2);
    let [mut cpu, mut gpu] = engines(&model, &gpu);
    let prompts = [4, 1, 2, 3].map(|n| synth::prompt(n, model.config.n_vocab));
    let (mut got, mut expected) = (Vec::new(), Vec::new());
    for prompts in [&prompts[..], &prompts[1..2]] {
        for (prompt, texts) in prompts.iter().zip(likeliest(&mut gpu, prompts, N, N_TOP)) {
            let ids = texts.iter().map(|top| top[0].0);
            let text: Vec<u32> = prompt.iter().copied().chain(ids).collect();
            let rows = logits(&mut cpu, &text);
            for (top, row) in texts.iter().zip(&rows[prompt.len() - 1..]) {
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = row.iter().map(|x| (x - largest).exp()).sum();
                let logprob = |id: u32| row[id as usize] - largest - sum.ln();
                got.extend(top.iter().map(|(_, logprob)| *logprob));
                expected.extend(top.iter().map(|(id, _)| logprob(*id)));
            }
        }
    }
    assert_eq!(got.len(), (4 + 1) * N * N_TOP, "{name}");
    let d = difference(&got, &expected);
    assert!(d <= 1e-5, "{name}: {d:e}");
    gpu.check_integrity().unwrap();
}

/// Returns the `n_top` likeliest tokens with their log-probabilities, best first, for each prompt and generated token.
fn likeliest(
    engine: &mut Engine,
    prompts: &[Vec<u32>],
    n: usize,
    n_top: usize,
) -> Vec<Vec<Vec<(u32, f32)>>> {
    let requests = prompts.iter().map(|prompt| Request {
        ignore_eos: true,
        logprobs: Some(n_top),
        ..Request::greedy(prompt.clone(), n)
    });
    let ids: Vec<RequestId> = requests.map(|r| engine.submit(r).unwrap()).collect();
    let mut all: HashMap<RequestId, Vec<Vec<(u32, f32)>>> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { request, top, .. } = event {
                let top = top.iter().map(|top| (top.id, top.logprob));
                all.entry(request).or_default().push(top.collect());
            }
        }
    }
    ids.iter().map(|id| all.remove(id).unwrap()).collect()
}

test_cases! {
    batched_generation_matches_cpu:
    llama_f16("llama", GgmlType::F16),
    #[ignore = "exhaustive: another model"]
    qwen2_q4_k("qwen2", GgmlType::Q4_K),
}

fn batched_generation_matches_cpu(name: &str, ty: GgmlType) {
    let Some(gpu) = test_gpu() else { return };
    let model = short_model(name, ty, 2);
    let [mut cpu, mut gpu] = engines(&model, &Device::Gpu(gpu));
    let prompts: Vec<Vec<u32>> = [1, 30, 9, 16]
        .map(|n| synth::prompt(n, model.config.n_vocab))
        .to_vec();
    let expected = generate(&mut cpu, &prompts, 8);
    assert_eq!(generate(&mut gpu, &prompts, 8), expected, "{name}");
    for (prompt, expected) in prompts.iter().zip(&expected) {
        assert_eq!(&greedy(&mut gpu, prompt, 8), expected, "{name} alone");
    }
    gpu.check_integrity().unwrap();
}

test_cases! {
    kv_cache_type_matches_cpu:
    f16(KvType::F16.into(), [1e-5, 5e-3]),
    q8_0(KvType::Q8_0.into(), [1e-2, 2e-2]),
    f8e4m3(KvType::F8E4M3.into(), [1e-2, 2e-2]),
    q5_1(KvType::Q5_1.into(), [1e-2, 5e-2]),
    q4_0(KvType::Q4_0.into(), [1e-2, 0.1]),
    f16_q8_0(apart(KvType::F16, KvType::Q8_0), [1e-2, 2e-2]),
    q8_0_q4_0(apart(KvType::Q8_0, KvType::Q4_0), [1e-2, 0.1]),
}

/// Checks a KV-cache type of the GPU, with and without graphs. A key may round to another code than on the CPU, which
/// changes the codes of later activations, and matrix units take Q8_0 values rounded to f16.
fn kv_cache_type_matches_cpu(kv_types: KvTypes, bounds: [f64; 2]) {
    let Some(gpu) = test_gpu() else { return };
    let forge_mini = load_file(&models().join("forge-mini-Q4_K_M.gguf")).model;
    let qwen3 = short_model("qwen3", GgmlType::F32, 1);
    // Of a whole model, keys and values of one and of two types.
    let is_usual = [KvType::F16.into(), apart(KvType::Q8_0, KvType::Q4_0)].contains(&kv_types);
    let n_models = 1 + usize::from(is_usual);
    let start = |model: &Model, graphs| {
        let gpu = Device::Gpu(GpuConfig {
            graphs,
            ..gpu.clone()
        });
        [Device::Cpu, gpu].map(|device| {
            let config = EngineConfig {
                kv_types,
                ..config(&device)
            };
            Engine::start(model, None, &config).unwrap()
        })
    };
    for ((model, n_tokens), bound) in first(
        n_models,
        [(&qwen3, 40), (&forge_mini, 10)].into_iter().zip(bounds),
    ) {
        let [mut cpu, mut gpu] = start(model, Graphs::Off);
        let prompt = synth::prompt(n_tokens, model.config.n_vocab);
        let expected = logits(&mut cpu, &prompt);
        let d = difference(&logits(&mut gpu, &prompt).concat(), &expected.concat());
        println!("{kv_types}, {n_tokens} tokens: {d:.1e}");
        assert!(d <= bound, "{kv_types}, {n_tokens} tokens: {d:e}");
        let n_bytes = 256 * model.kv_bytes_per_token(kv_types);
        assert_eq!(gpu.backend_info().kv_bytes, n_bytes);
    }
    let prompts = [synth::prompt(7, qwen3.config.n_vocab)];
    let [launched, recorded] = [Graphs::Off, Graphs::On].map(|graphs| {
        let [_, mut gpu] = start(&qwen3, graphs);
        logprobs(&mut gpu, &prompts, 4)
    });
    assert_eq!(recorded, launched, "{kv_types}");
}

/// Returns generated tokens with the bits of their log-probabilities, which depend on every bit of a step's logits.
fn logprobs(engine: &mut Engine, prompts: &[Vec<u32>], n: usize) -> Vec<(u32, u32)> {
    for prompt in prompts {
        let request = Request {
            ignore_eos: true,
            logprobs: Some(1),
            ..Request::greedy(prompt.clone(), n)
        };
        engine.submit(request).unwrap();
    }
    let mut all = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { id, top, .. } = event {
                all.push((id, top[0].logprob.to_bits()));
            }
        }
    }
    all
}

test_cases! {
    graphs_and_launches_are_bit_identical:
    qwen3_q8_0("qwen3", GgmlType::Q8_0, 2, &[(Graphs::On, 2), (Graphs::On, 1), (Graphs::Off, 2)]),
    qwen2moe_q4_k("qwen2moe", GgmlType::Q4_K, 1, &[(Graphs::On, 2)]),
}

/// Compares graphs with single launches, one and two steps in flight, sampled on the host and on the GPU.
fn graphs_and_launches_are_bit_identical(
    name: &str,
    ty: GgmlType,
    n_layers: usize,
    others: &[(Graphs, usize)],
) {
    let Some(gpu) = test_gpu() else { return };
    let model = short_model(name, ty, n_layers);
    let run = |graphs, steps_in_flight| {
        let device = Device::Gpu(GpuConfig {
            graphs,
            ..gpu.clone()
        });
        let config = EngineConfig {
            steps_in_flight,
            ..config(&device)
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        // Three sequences are padded to four; the third ends before the others.
        let prompts = [5, 20, 1].map(|n| synth::prompt(n, model.config.n_vocab));
        let bits = logprobs(&mut engine, &prompts, 6);
        (bits, generate(&mut engine, &prompts, 6))
    };
    let expected = run(Graphs::Off, 1);
    for &(graphs, steps_in_flight) in first(1, others) {
        let got = run(graphs, steps_in_flight);
        assert_eq!(
            got, expected,
            "{name}, {graphs:?}, {steps_in_flight} steps in flight"
        );
    }
}

/// 70 sequences are padded to 96.
#[test]
fn many_sequences_decode_in_graphs() {
    let Some(gpu) = test_gpu() else { return };
    let model = short_model("qwen3", GgmlType::Q8_0, 1);
    let n_vocab = model.config.n_vocab;
    let prompts: Vec<_> = (0..70).map(|n| synth::prompt(1 + n % 3, n_vocab)).collect();
    let run = |graphs| {
        let device = Device::Gpu(GpuConfig {
            graphs,
            ..gpu.clone()
        });
        let config = EngineConfig {
            max_seqs: prompts.len(),
            ..config(&device)
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        generate(&mut engine, &prompts, 4)
    };
    assert_eq!(run(Graphs::On), run(Graphs::Off));
}

/// Returns sampling parameters of every kind that the GPU samples. It leaves the fifth to the host.
fn samplings() -> Vec<SamplingParams> {
    let default = |seed| SamplingParams {
        seed,
        ..SamplingParams::default()
    };
    vec![
        default(1),
        SamplingParams {
            temperature: 1.5,
            top_k: 200,
            top_p: 0.99,
            min_p: 0.0,
            repeat_penalty: 1.3,
            frequency_penalty: 0.5,
            penalty_last_n: 4,
            ..default(2)
        },
        SamplingParams::greedy(),
        SamplingParams {
            presence_penalty: 2.0,
            // Two biases of one token add up.
            logit_bias: vec![(9, 1.0), (3, f32::NEG_INFINITY), (9, 0.5)],
            ..SamplingParams::greedy()
        },
        SamplingParams {
            typical_p: 0.9,
            ..default(3)
        },
        default(4),
    ]
}

/// Generates `n` tokens after `prompt` with each of `samplings`, in one batch.
fn sampled(
    engine: &mut Engine,
    prompt: &[u32],
    samplings: &[SamplingParams],
    n: usize,
) -> Vec<Vec<u32>> {
    let requests = samplings.iter().map(|sampling| Request {
        sampling: Arc::new(sampling.clone()),
        ignore_eos: true,
        ..Request::greedy(prompt.to_vec(), n)
    });
    let ids: Vec<RequestId> = requests.map(|r| engine.submit(r).unwrap()).collect();
    let mut texts: HashMap<RequestId, Vec<u32>> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { request, id, .. } = event {
                texts.entry(request).or_default().push(id);
            }
        }
    }
    ids.iter().map(|id| texts.remove(id).unwrap()).collect()
}

#[test]
fn sampled_tokens_match_cpu() {
    let variants = [(Graphs::Off, 1), (Graphs::On, 2)];
    let model = short_model("llama", GgmlType::F32, 1);
    assert_sampled(&model, 6, &[1..2, 0..4, 2..6], &variants);
}

#[test]
fn sampled_tokens_of_forge_mini_match_cpu() {
    let model = load_file(&models().join("forge-mini-Q4_K_M.gguf")).model;
    // One sequence only: a GEMM rounds differently, which may change a draw.
    assert_sampled(&model, 4, std::slice::from_ref(&(1..2)), &[(Graphs::On, 2)]);
}

/// Compares tokens sampled on the GPU with the CPU backend, for batches of [`samplings`]. Penalties include tokens that
/// the host does not have yet.
fn assert_sampled(model: &Model, n: usize, batches: &[Range<usize>], variants: &[(Graphs, usize)]) {
    let Some(gpu) = test_gpu() else { return };
    let all = samplings();
    let prompt = synth::prompt(5, model.config.n_vocab);
    let mut cpu = Engine::start(model, None, &config(&Device::Cpu)).unwrap();
    let mut expected: Vec<Vec<u32>> = Vec::new();
    for sampling in &all {
        let one = std::slice::from_ref(sampling);
        expected.extend(sampled(&mut cpu, &prompt, one, n));
    }
    for &(graphs, steps_in_flight) in variants {
        let config = EngineConfig {
            steps_in_flight,
            ..config(&Device::Gpu(GpuConfig {
                graphs,
                ..gpu.clone()
            }))
        };
        let mut engine = Engine::start(model, None, &config).unwrap();
        for rows in batches {
            let got = sampled(&mut engine, &prompt, &all[rows.clone()], n);
            assert_eq!(
                got,
                expected[rows.clone()],
                "{rows:?}, {graphs:?}, {steps_in_flight} steps in flight"
            );
        }
        engine.check_integrity().unwrap();
    }
}

test_cases! {
    every_operation_passes_the_check:
    llama("llama", GgmlType::Q4_K, &["gated_matmul"]),
    gemma3("gemma3", GgmlType::F16, &["gated_matmul", "rms_norm"]),
    gpt2("gpt2", GgmlType::Q8_0, &["add_positions", "layer_norm", "activate"]),
    qwen2moe(
        "qwen2moe",
        GgmlType::Q4_K,
        &[
            "route",
            "quantize_experts",
            // Of gate and up, and of the down projection.
            "gated_activation",
            "expert_matmul",
            "combine_experts",
            "add_gated",
        ]
    ),
}

/// Checks every operation of a model, `ops` among them, against the CPU.
fn every_operation_passes_the_check(name: &str, ty: GgmlType, ops: &[&str]) {
    let Some(gpu) = test_gpu() else { return };
    let model = model(name, ty);
    let tokens = synth::prompt(30, model.config.n_vocab);
    let config = config(&Device::Gpu(gpu));
    let report = check::check(
        &model,
        &config,
        &tokens,
        &Extent::after(16, Coverage::Distinct),
    )
    .unwrap();
    let failures: Vec<&OpCheck> = report.failures().collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
    let names: Vec<&str> = report.checks.iter().map(|check| check.op).collect();
    for op in ["embed", "attention", "kv_append"].iter().chain(ops) {
        assert!(names.contains(op), "{name}: {op} of {names:?}");
    }
}

test_cases! {
    fused_operations_share_a_launch:
    qwen3("qwen3", 5, [0, 0]),
    gemma3("gemma3", 5, [0, 0]),
    llama("llama", 3, [0, 0]),
    olmo2("olmo2", 3, [0, 0]),
    mixtral("mixtral", 3, [6, 1]),
    // Gate and up are in one tensor, and the sum of the experts has a norm.
    gemma4_moe("gemma4_moe", 5, [2, 0]),
}

/// Counts the launches of fused operations: the norms of query and key heads, both rotations and the append
/// (`n_together` operations per layer); in mixture-of-experts layers also gate, up and activation, the sum of the experts
/// and its addition, and the router with the norm before it (`n_of_experts` launches fewer per such layer), and
/// the norm of the next layer (`n_with_next` launches fewer per such layer but the last). Gate and up are converted with them.
fn fused_operations_share_a_launch(
    name: &str,
    n_together: usize,
    [n_of_experts, n_with_next]: [usize; 2],
) {
    let Some(gpu) = test_gpu() else { return };
    let n_passes = |model: &Model, variants: &str| {
        let mut gpu = gpu.clone();
        if !variants.is_empty() {
            gpu.open.variants = variants.parse().unwrap();
        }
        let tokens = synth::prompt(30, model.config.n_vocab);
        let config = config(&Device::Gpu(gpu));
        let report = check::check(
            model,
            &config,
            &tokens,
            &Extent::after(16, Coverage::Distinct),
        )
        .unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{variants}: {failures:#?}");
        // A prefill, and decode steps of one to three rows.
        report.n_ops / 4
    };
    let model = short_model(name, GgmlType::Q4_0, 2);
    let ops = model.compiled_plan(Fusion::On).ops;
    let n_mixtures = ops.iter().filter(|op| op.name() == "route").count();
    let n_with_next = n_mixtures.saturating_sub(1) * n_with_next;
    let converted = |pair: &&[Op]| matches!(pair, [Op::GatedMatMul { .. }, Op::Quantize { .. }]);
    let n_converted = ops.windows(2).filter(converted).count();
    let n_ops = ops.len() - n_mixtures * n_of_experts - n_with_next - n_converted;
    let n_saved = model.config.n_layers() * (n_together - 1);
    assert_eq!(n_passes(&model, ""), n_ops - n_saved, "{name}");
    assert_eq!(n_passes(&model, "rope=separate"), n_ops, "{name}");
}

test_cases! {
    forced_variants_match_cpu:
    qwen3_q4_k("qwen3", GgmlType::Q4_K, 5e-3),
    gemma2_f16("gemma2", GgmlType::F16, 1e-5),
    qwen3moe_q8_0("qwen3moe", GgmlType::Q8_0, 1e-3),
}

fn forced_variants_match_cpu(name: &str, ty: GgmlType, bound: f64) {
    let Some(gpu) = test_gpu() else { return };
    let model = short_model(name, ty, 2);
    let mut cpu = Engine::start(&model, None, &config(&Device::Cpu)).unwrap();
    // The longer prompt has more rows than a GEMV takes.
    let prompts = [1, 12].map(|n| synth::prompt(n, model.config.n_vocab));
    let expected = prompts.each_ref().map(|prompt| logits(&mut cpu, prompt));
    for variants in ["plain", "products=matmul,tiles=large,attention=prefill"] {
        let mut gpu = gpu.clone();
        gpu.open.variants = variants.parse().unwrap();
        let mut engine = Engine::start(&model, None, &config(&Device::Gpu(gpu))).unwrap();
        for (prompt, expected) in prompts.iter().zip(&expected) {
            let got = logits(&mut engine, prompt);
            let d = difference(&got.concat(), &expected.concat());
            assert!(d <= bound, "{name} {variants}: {d:e}");
        }
    }
}

#[test]
fn forge_mini_matches_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let gpu = Device::Gpu(gpu);
    let loaded = load_file(&models().join("forge-mini-Q4_K_M.gguf"));
    let [mut cpu, mut gpu] = engines(&loaded.model, &gpu);
    let prompt: Vec<u32> = loaded.tokenizer.encode_bytes(
        b"The ship had been at sea",
        rocmforge_text::tokenizer::EncodeOptions {
            add_special: true,
            parse_special: false,
        },
    );
    let expected = greedy(&mut cpu, &prompt, 8);
    assert_eq!(greedy(&mut gpu, &prompt, 8), expected);
}

#[test]
fn rejects_unsupported_kv_cache_types_at_start() {
    let Some(gpu) = test_gpu() else { return };
    let gpu = Device::Gpu(gpu);
    let start = |model: &Model, config: &EngineConfig| {
        let error = Engine::start(model, None, config).err();
        error.map(|error| error.to_string()).unwrap()
    };
    let known = "f16, q8_0, fp8, q5_1, q4_0, f16/q8_0, q8_0/q4_0";
    for (kv_types, name) in [
        (KvType::F32.into(), "not f32;"),
        (apart(KvType::Q4_0, KvType::Q8_0), "not q4_0/q8_0;"),
        (apart(KvType::F32, KvType::F16), "not f32/f16;"),
    ] {
        let config = EngineConfig {
            kv_types,
            ..config(&gpu)
        };
        let message = start(&model("llama", GgmlType::F32), &config);
        for part in [known, name] {
            assert!(message.contains(part), "{message}");
        }
    }
    let latent = EngineConfig {
        kv_types: apart(KvType::Q8_0, KvType::Q4_0),
        ..config(&gpu)
    };
    let message = start(&model("deepseek2", GgmlType::F32), &latent);
    assert!(message.contains("has one type, but q8_0/q4_0"), "{message}");
}

#[test]
fn checks_the_first_use_of_a_gpu_once() {
    let Some(gpu) = test_gpu() else { return };
    let passed = Arc::new(Passed::default());
    let keys = || passed.0.lock().unwrap().clone();
    let start_with = |model: &Model, graphs, kv_types| {
        let checks: Arc<dyn PassedChecks> = Arc::clone(&passed) as _;
        let gpu = GpuConfig {
            self_check: SelfCheck::FirstUse(checks),
            graphs,
            ..gpu.clone()
        };
        let config = EngineConfig {
            n_ctx: Some(16),
            kv_types,
            ..config(&Device::Gpu(gpu))
        };
        Engine::start(model, None, &config).unwrap()
    };
    let start = |model: &Model, graphs| start_with(model, graphs, KvType::F16.into());
    let llama = short_model("llama", GgmlType::Q4_K, 1);
    let engine = start(&llama, Graphs::On);
    assert_eq!(engine.backend_info().notices, [] as [String; 0]);
    assert_eq!(keys().len(), 1);
    assert!(!keys()[0].contains('\n'), "{:?}", keys());
    // The same model again is not checked.
    assert_eq!(engine.backend_info().graphs, Graphs::On);
    drop(engine);
    let graphs = start(&llama, Graphs::On).backend_info().graphs;
    assert_eq!(graphs, Graphs::On);
    assert_eq!(keys().len(), 1);
    // A check that found launches to be faster: one sequence has no graph.
    passed.insert(&format!("{}; launches", keys()[0]));
    let mut engine = start(&llama, Graphs::On);
    assert_eq!(engine.backend_info().graphs, Graphs::OfSeveral);
    let prompts = [synth::prompt(4, llama.config.n_vocab)];
    let launched = generate(&mut engine, &prompts, 6);
    drop(engine);
    passed.0.lock().unwrap().pop();
    assert_eq!(
        generate(&mut start(&llama, Graphs::On), &prompts, 6),
        launched
    );
    // Other formats, other cache types and unchecked graphs are checked.
    let other = short_model("llama", GgmlType::Q8_0, 1);
    drop(start(&other, Graphs::Off));
    drop(start(&llama, Graphs::Off));
    for kv_types in [
        KvType::Q8_0.into(),
        KvType::F8E4M3.into(),
        KvType::Q5_1.into(),
        KvType::Q4_0.into(),
        apart(KvType::Q8_0, KvType::Q4_0),
    ] {
        drop(start_with(&llama, Graphs::Off, kv_types));
    }
    let distinct: std::collections::HashSet<String> = keys().into_iter().collect();
    assert_eq!((keys().len(), distinct.len()), (8, 8));
}

#[test]
fn self_check_does_not_change_results() {
    let Some(gpu) = test_gpu() else { return };
    let llama = short_model("llama", GgmlType::Q4_0, 1);
    let prompts = [synth::prompt(20, llama.config.n_vocab)];
    let run = |self_check| {
        let gpu = GpuConfig {
            self_check,
            ..gpu.clone()
        };
        let mut engine = Engine::start(&llama, None, &config(&Device::Gpu(gpu))).unwrap();
        generate(&mut engine, &prompts, 6)
    };
    assert_eq!(run(SelfCheck::Always), run(SelfCheck::Never));
}
