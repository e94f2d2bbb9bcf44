//! The complete GPU path on the CPU that plays a GPU, against the CPU backend: logits of prompts and ids of generated
//! text, with several sequences, chunks of prompts and pages of the cache.

use rocmforge_testkit::models as synth;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::common::device::{config, difference, generate, model};
use crate::common::{greedy, load as load_file, logits, models, test_gpu};
use rocmforge_engine::{Device, Engine, EngineConfig, Event, Request, RequestId};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::Fusion;
use rocmforge_plan::KvType;
use rocmforge_plan::SamplingParams;
use rocmforge_runtime::check;
use rocmforge_runtime::check::{Coverage, OpCheck, PassedChecks, SelfCheck};
use rocmforge_runtime::gpu::{GpuConfig, Graphs};

fn engines(model: &Model, gpu: &Device) -> [Engine; 2] {
    [&Device::Cpu, gpu].map(|device| Engine::start(model, None, &config(device)).unwrap())
}

/// The first two layers of a model.
fn short_model(name: &str, ty: GgmlType) -> Model {
    let writer = synth::model_of(name, ty, 2).unwrap().unwrap();
    Model::load(Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())).unwrap()
}

/// Every wiring that has no experts, in a format of its own, and every format once at least.
const CASES: [(&str, GgmlType, f64); 17] = {
    use GgmlType::*;
    // A value between two of F16's may become either in the cache, and one between two codes where activations
    // are quantized.
    [
        ("llama", F32, 1e-5),
        ("gemma2", F16, 1e-5),
        ("gpt2", BF16, 1e-5),
        ("qwen2", Q4_0, 1e-3),
        ("qwen3", Q4_1, 1e-3),
        ("granite", Q5_0, 1e-3),
        ("phi3", Q5_1, 1e-3),
        ("gemma3", Q8_0, 1e-3),
        ("llama", Q2_K, 5e-3),
        ("smollm3", Q3_K, 5e-3),
        ("olmo2", Q4_K, 5e-3),
        ("olmo3", Q5_K, 5e-3),
        ("starcoder2", Q6_K, 5e-3),
        ("llama", IQ4_NL, 1e-3),
        ("qwen2", IQ4_XS, 5e-3),
        ("llama", MXFP4, 1e-3),
        ("uneven", F16, 1e-5),
    ]
};

/// Those with experts.
const MIXTURES: [(&str, GgmlType, f64); 3] = [
    ("mixtral", GgmlType::Q4_K, 5e-3),
    ("qwen2moe", GgmlType::Q8_0, 1e-3),
    ("qwen3moe", GgmlType::F16, 1e-5),
];

#[test]
fn logits_are_the_cpu_backends() {
    assert_logits(model, &CASES, &[1, 17, 40]);
}

#[test]
fn logits_of_mixtures_are_the_cpu_backends() {
    // The longer one has more rows than a mat-vec takes.
    assert_logits(short_model, &MIXTURES, &[1, 11]);
}

fn assert_logits(
    model: fn(&str, GgmlType) -> Model,
    cases: &[(&str, GgmlType, f64)],
    lengths: &[usize],
) {
    let Some(gpu) = test_gpu() else { return };
    let gpu = Device::Gpu(gpu);
    for &(name, ty, bound) in cases {
        let model = model(name, ty);
        let [mut cpu, mut gpu] = engines(&model, &gpu);
        for &n_tokens in lengths {
            let prompt = synth::prompt(n_tokens, model.config.n_vocab);
            let expected = logits(&mut cpu, &prompt);
            let got = logits(&mut gpu, &prompt);
            let d = difference(&got.concat(), &expected.concat());
            assert!(d <= bound, "{name} {ty:?}, {n_tokens} tokens: {d:e}");
        }
        gpu.check_integrity().unwrap();
    }
}

/// What the device generates, four sequences at once and one alone, has the log-probabilities that the CPU backend
/// gives to the same text.
#[test]
fn generated_tokens_are_as_likely_as_on_the_cpu() {
    let is_mixture = |name: &&str| MIXTURES.iter().any(|(mixture, ..)| mixture == name);
    synth::NAMES
        .iter()
        .filter(|name| !is_mixture(name))
        .for_each(|name| assert_generated(name));
}

#[test]
fn tokens_of_mixtures_are_as_likely_as_on_the_cpu() {
    MIXTURES
        .iter()
        .for_each(|(name, ..)| assert_generated(name));
}

fn assert_generated(name: &str) {
    const N: usize = 2;
    const N_TOP: usize = 16;
    let Some(gpu) = test_gpu() else { return };
    let gpu = Device::Gpu(gpu);
    let model = short_model(name, GgmlType::F16);
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

/// Of each prompt and token generated after it, the likeliest tokens with their log-probabilities, best first.
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

#[test]
fn sequences_together_go_on_as_on_the_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let gpu = Device::Gpu(gpu);
    for (name, ty) in [("llama", GgmlType::F16), ("qwen2", GgmlType::Q4_K)] {
        let model = model(name, ty);
        let [mut cpu, mut gpu] = engines(&model, &gpu);
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
}

/// Every type of the cache that a GPU has, alone and as graphs. What the GPU computes of a key may lie on the other
/// side of the middle between two codes, which is seen in the codes of activations behind it; and the matrix units take
/// values of Q8_0 rounded to f16.
#[test]
fn every_type_of_cache_gives_the_logits_of_the_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let forge_mini = load_file(&models().join("forge-mini-Q4_K_M.gguf")).model;
    let qwen3 = model("qwen3", GgmlType::F32);
    for (kv_type, bounds) in [
        (KvType::F16, [5e-3, 1e-5]),
        (KvType::Q8_0, [2e-2, 1e-2]),
        (KvType::F8E4M3, [2e-2, 1e-2]),
    ] {
        let start = |model: &Model, graphs| {
            let gpu = Device::Gpu(GpuConfig {
                graphs,
                ..gpu.clone()
            });
            [Device::Cpu, gpu].map(|device| {
                let config = EngineConfig {
                    kv_type,
                    ..config(&device)
                };
                Engine::start(model, None, &config).unwrap()
            })
        };
        for ((model, n_tokens), bound) in [(&forge_mini, 10), (&qwen3, 40)].into_iter().zip(bounds)
        {
            let [mut cpu, mut gpu] = start(model, Graphs::Off);
            let prompt = synth::prompt(n_tokens, model.config.n_vocab);
            let expected = logits(&mut cpu, &prompt);
            let d = difference(&logits(&mut gpu, &prompt).concat(), &expected.concat());
            println!("{kv_type:?}, {n_tokens} tokens: {d:.1e}");
            assert!(d <= bound, "{kv_type:?}, {n_tokens} tokens: {d:e}");
            let n_bytes = 256 * model.kv_bytes_per_token(kv_type);
            assert_eq!(gpu.backend_info().kv_bytes, n_bytes);
        }
        let prompts = [synth::prompt(7, qwen3.config.n_vocab)];
        let [launched, recorded] = [Graphs::Off, Graphs::On].map(|graphs| {
            let [_, mut gpu] = start(&qwen3, graphs);
            logprobs(&mut gpu, &prompts, 4)
        });
        assert_eq!(recorded, launched, "{kv_type:?}");
    }
}

/// Log-probabilities of generated tokens, which a step's logits decide to the last bit, and the tokens.
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

/// Steps that are chosen on the host, in which nothing is in flight, and the others; as graphs and as launches.
#[test]
fn graphs_and_launches_agree_to_the_last_bit() {
    let Some(gpu) = test_gpu() else { return };
    for (name, ty) in [("qwen3", GgmlType::Q8_0), ("qwen2moe", GgmlType::Q4_K)] {
        let model = short_model(name, ty);
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
            // Three sequences run as four; the third ends before the others.
            let prompts = [5, 20, 1].map(|n| synth::prompt(n, model.config.n_vocab));
            let bits = logprobs(&mut engine, &prompts, 6);
            (bits, generate(&mut engine, &prompts, 6))
        };
        let expected = run(Graphs::Off, 1);
        assert_eq!(run(Graphs::On, 1), expected, "{name}");
        assert_eq!(run(Graphs::On, 2), expected, "{name}");
        assert_eq!(run(Graphs::Off, 2), expected, "{name}");
    }
}

/// Sampling of every kind that the device does, and in the last two rows one that it leaves to the host.
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
            // The second of the same token adds to the first.
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

/// What each of `samplings` makes of `prompt`, together.
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

/// Tokens drawn on the device are the CPU backend's, alone and together, with penalties that look at tokens the host
/// does not know yet.
#[test]
fn sampled_texts_are_the_cpu_backends() {
    let Some(gpu) = test_gpu() else { return };
    let loaded = load_file(&models().join("forge-mini-Q4_K_M.gguf"));
    let synthetic = model("llama", GgmlType::F32);
    let all = samplings();
    for (model, n, together, variants) in [
        (
            &synthetic,
            6,
            &[1..2, 0..4, 2..6][..],
            &[
                (Graphs::Off, 1),
                (Graphs::Off, 2),
                (Graphs::On, 1),
                (Graphs::On, 2),
            ][..],
        ),
        // Alone: the products of many rows round otherwise, and a draw may turn on that.
        (
            &loaded.model,
            4,
            std::slice::from_ref(&(1..2)),
            &[(Graphs::On, 2)],
        ),
    ] {
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
            for rows in together {
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
}

#[test]
fn every_operation_passes_the_check() {
    let Some(gpu) = test_gpu() else { return };
    for (name, ty, ops) in [
        ("llama", GgmlType::Q4_K, &["gated_matmul"][..]),
        ("gemma3", GgmlType::F16, &["gated_matmul", "rms_norm"]),
        (
            "gpt2",
            GgmlType::Q8_0,
            &["add_positions", "layer_norm", "activate"],
        ),
        (
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
            ],
        ),
    ] {
        let model = model(name, ty);
        let tokens = synth::prompt(30, model.config.n_vocab);
        let config = config(&Device::Gpu(gpu.clone()));
        let report = check::check(&model, &config, &tokens, 16, Coverage::Distinct).unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:#?}");
        let names: Vec<&str> = report.checks.iter().map(|check| check.op).collect();
        for op in ["embed", "attention", "kv_append"].iter().chain(ops) {
            assert!(names.contains(op), "{name}: {op} of {names:?}");
        }
    }
}

/// Launches that stand for several operations: the norms of the heads of queries and keys, both rotations and the
/// append; in mixtures gate, up and activation, and the sum of what experts give and its addition.
#[test]
fn operations_run_in_one_pass() {
    let Some(gpu) = test_gpu() else { return };
    let n_passes = |model: &Model, variants: &str| {
        let mut gpu = gpu.clone();
        if !variants.is_empty() {
            gpu.open.variants = variants.parse().unwrap();
        }
        let tokens = synth::prompt(30, model.config.n_vocab);
        let config = config(&Device::Gpu(gpu));
        let report = check::check(model, &config, &tokens, 16, Coverage::Distinct).unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{variants}: {failures:#?}");
        // A prompt and a step of generation.
        report.n_ops / 2
    };
    // Operations of a layer that run in one pass; norms of whole rows are not among them.
    for (name, n_together, n_of_experts) in [
        ("qwen3", 5, 0),
        ("gemma3", 5, 0),
        ("llama", 3, 0),
        ("olmo2", 3, 0),
        ("mixtral", 3, 3),
    ] {
        let model = model(name, GgmlType::Q4_0);
        let n_ops = model.compiled_plan(Fusion::On).ops.len();
        let n_ops = n_ops - model.config.n_layers * n_of_experts;
        let n_saved = model.config.n_layers * (n_together - 1);
        assert_eq!(n_passes(&model, ""), n_ops - n_saved, "{name}");
        assert_eq!(n_passes(&model, "rope=separate"), n_ops, "{name}");
    }
}

#[test]
fn other_kernels_stay_within_the_bounds() {
    let Some(gpu) = test_gpu() else { return };
    for (name, ty, bound) in [
        ("qwen3", GgmlType::Q4_K, 5e-3),
        ("gemma2", GgmlType::F16, 1e-5),
        ("qwen3moe", GgmlType::Q8_0, 1e-3),
    ] {
        let model = model(name, ty);
        let mut cpu = Engine::start(&model, None, &config(&Device::Cpu)).unwrap();
        // The longer one has more rows than a mat-vec takes.
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
}

#[test]
fn the_embedded_model_on_the_gpu() {
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
fn what_a_gpu_cannot_do_is_said_at_the_start() {
    let Some(gpu) = test_gpu() else { return };
    let gpu = Device::Gpu(gpu);
    let start = |model: &Model, config: &EngineConfig| {
        let error = Engine::start(model, None, config).err();
        error.map(|error| error.to_string()).unwrap()
    };
    let wide = EngineConfig {
        kv_type: KvType::F32,
        ..config(&gpu)
    };
    let message = start(&model("llama", GgmlType::F32), &wide);
    for part in ["f16, q8_0 or fp8", "not in f32"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Keys that were inserted.
#[derive(Debug, Default)]
struct Passed(Mutex<Vec<String>>);

impl PassedChecks for Passed {
    fn contains(&self, key: &str) -> bool {
        self.0.lock().unwrap().iter().any(|known| known == key)
    }

    fn insert(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_string());
    }
}

#[test]
fn the_first_use_of_a_gpu_is_checked_once() {
    let Some(gpu) = test_gpu() else { return };
    let passed = Arc::new(Passed::default());
    let keys = || passed.0.lock().unwrap().clone();
    let start_with = |model: &Model, graphs, kv_type| {
        let checks: Arc<dyn PassedChecks> = Arc::clone(&passed) as _;
        let gpu = GpuConfig {
            self_check: SelfCheck::FirstUse(checks),
            graphs,
            ..gpu.clone()
        };
        let config = EngineConfig {
            n_ctx: Some(16),
            kv_type,
            ..config(&Device::Gpu(gpu))
        };
        Engine::start(model, None, &config).unwrap()
    };
    let start = |model: &Model, graphs| start_with(model, graphs, KvType::F16);
    let llama = model("llama", GgmlType::Q4_K);
    let engine = start(&llama, Graphs::On);
    assert_eq!(engine.backend_info().notices, [] as [String; 0]);
    assert_eq!(keys().len(), 1);
    assert!(!keys()[0].contains('\n'), "{:?}", keys());
    // The same again is known.
    drop(engine);
    drop(start(&llama, Graphs::On));
    assert_eq!(keys().len(), 1);
    // Other formats, other types of the cache, or graphs that were not looked at, are not.
    drop(start(&model("llama", GgmlType::Q8_0), Graphs::Off));
    drop(start(&llama, Graphs::Off));
    for kv_type in [KvType::Q8_0, KvType::F8E4M3] {
        drop(start_with(&llama, Graphs::Off, kv_type));
    }
    let distinct: std::collections::HashSet<String> = keys().into_iter().collect();
    assert_eq!((keys().len(), distinct.len()), (5, 5));
}

#[test]
fn a_checked_engine_computes_as_before() {
    let Some(gpu) = test_gpu() else { return };
    let llama = model("llama", GgmlType::Q4_0);
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
