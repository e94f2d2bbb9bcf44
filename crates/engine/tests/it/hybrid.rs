//! Models split between an emulated GPU and the CPU: for every split, logits match the CPU backend within the bounds of
//! a GPU, and generated texts are equal.

use rocmforge_engine::ConfigError;
use rocmforge_testkit::models as synth;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::common::cases::test_cases;
use crate::common::device::{config, difference, generate, model, short_model};
use crate::common::{greedy, hopper, load as load_file, logits, models, test_gpu};
use rocmforge_engine::{Device, Engine, EngineConfig, EngineError, Event, PrefixSharing, Request};
use rocmforge_gguf::GgmlType;
use rocmforge_model::Model;
use rocmforge_plan::SamplingParams;
use rocmforge_plan::{Fusion, Side};
use rocmforge_runtime::check;
use rocmforge_runtime::check::{Coverage, Extent, OpCheck, SelfCheck, Step};
use rocmforge_runtime::gpu::{Experts, GpuConfig, GpuLayers, Graphs, Offload};
use rocmforge_runtime::times::{StepObserver, StepPart, StepTimes};

fn with(gpu: &GpuConfig, layers: GpuLayers, experts: Experts) -> Device {
    Device::Gpu(GpuConfig {
        offload: Offload { layers, experts },
        ..gpu.clone()
    })
}

fn layers(gpu: &GpuConfig, n: usize) -> Device {
    with(gpu, GpuLayers::Count(n), Experts::WithTheirLayer)
}

fn start(model: &Model, device: &Device) -> Engine {
    Engine::start(model, None, &config(device)).unwrap()
}

/// Compares logits of chunked prompts, and the text of several sequences in one batch.
fn compare(model: &Model, device: &Device, bound: f64, what: &str) {
    let [mut cpu, mut hybrid] = [&Device::Cpu, device].map(|device| start(model, device));
    for n_tokens in [1, 40] {
        let prompt = synth::prompt(n_tokens, model.config.n_vocab);
        let expected = logits(&mut cpu, &prompt);
        let got = logits(&mut hybrid, &prompt);
        let d = difference(&got.concat(), &expected.concat());
        assert!(d <= bound, "{what}, {n_tokens} tokens: {d:e}");
    }
    let prompts: Vec<Vec<u32>> = [1, 30, 9, 16]
        .map(|n| synth::prompt(n, model.config.n_vocab))
        .to_vec();
    let expected = generate(&mut cpu, &prompts, 6);
    assert_eq!(generate(&mut hybrid, &prompts, 6), expected, "{what}");
    assert_eq!(greedy(&mut hybrid, &prompts[1], 6), expected[1], "{what}");
    hybrid.check_integrity().unwrap();
}

// Norms before and after blocks, windows, soft caps, tied embeddings, learned positions.
test_cases! {
    layer_splits_match_cpu:
    llama_0_layers("llama", GgmlType::F16, 1e-5, 0),
    #[ignore = "exhaustive: other numbers of layers"]
    llama_1_layer("llama", GgmlType::F16, 1e-5, 1),
    llama_3_layers("llama", GgmlType::F16, 1e-5, 3),
    #[ignore = "exhaustive: other numbers of layers"]
    llama_4_layers("llama", GgmlType::F16, 1e-5, 4),
    llama_5_layers("llama", GgmlType::F16, 1e-5, 5),
    qwen3_2_layers("qwen3", GgmlType::Q4_K, 5e-3, 2),
    gemma2_1_layer("gemma2", GgmlType::Q8_0, 1e-3, 1),
    olmo2_2_layers("olmo2", GgmlType::F16, 1e-5, 2),
}

/// Checks a model with `n` layers on the GPU.
fn layer_splits_match_cpu(name: &str, ty: GgmlType, bound: f64, n: usize) {
    let Some(gpu) = test_gpu() else { return };
    let model = model(name, ty);
    let n_layers = model.config.n_layers();
    let device = layers(&gpu, n);
    let engine = start(&model, &device);
    let info = engine.backend_info();
    match n {
        0 => {
            assert!(info.device_memory.is_none() && info.parts.is_empty());
            assert_eq!(info.offload, Offload::NOTHING);
        }
        n if n < n_layers => {
            assert_eq!(info.offload.layers, GpuLayers::Count(n));
            assert_eq!(info.offload.experts, Experts::WithTheirLayer);
            let parts = info.parts.iter().map(|part| (part.side, part.n_layers));
            let expected = [(Side::Gpu, n), (Side::Cpu, n_layers - n)];
            assert_eq!(parts.collect::<Vec<_>>(), expected);
            let kv = |i: usize| info.parts[i].kv_bytes;
            assert_eq!(kv(0) * (n_layers - n) as u64, kv(1) * n as u64);
            assert_eq!(kv(0) + kv(1), info.kv_bytes);
        }
        // The CPU has no part.
        _ => {
            assert!(info.device_memory.is_some() && info.parts.is_empty());
            assert_eq!(info.offload, Offload::default());
        }
    }
    drop(engine);
    compare(&model, &device, bound, &format!("{name}, {n} layers"));
}

// Without and with a shared expert.
test_cases! {
    experts_on_cpu_match_cpu:
    mixtral("mixtral", GpuLayers::All),
    qwen2moe("qwen2moe", GpuLayers::Count(2)),
}

fn experts_on_cpu_match_cpu(name: &str, n: GpuLayers) {
    let Some(gpu) = test_gpu() else { return };
    let model = model(name, GgmlType::F16);
    let device = with(&gpu, n, Experts::OnCpu);
    let offload = start(&model, &device).backend_info().offload;
    assert_eq!((offload.layers, offload.experts), (n, Experts::OnCpu));
    compare(&model, &device, 1e-5, name);
}

#[test]
fn rejects_experts_on_cpu_for_dense_models() {
    let Some(gpu) = test_gpu() else { return };
    let dense = model("llama", GgmlType::F16);
    let device = with(&gpu, GpuLayers::All, Experts::OnCpu);
    let error = Engine::start(&dense, None, &config(&device)).err().unwrap();
    assert!(
        matches!(error, EngineError::Config(ConfigError::NoExperts)),
        "{error}"
    );
}

#[test]
fn split_forge_mini_matches_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let loaded = load_file(&models().join("forge-mini-Q4_K_M.gguf"));
    let prompt: Vec<u32> = (0..9).map(|i| (i * 97 + 5) % 4096).collect();
    let ids = |device: &Device| greedy(&mut start(&loaded.model, device), &prompt, 6);
    let expected = ids(&Device::Cpu);
    for n in [1, 5] {
        assert_eq!(ids(&layers(&gpu, n)), expected, "{n} layers");
    }
}

/// Samples two continuations of a prompt in one batch, with different parameters.
fn sampled(engine: &mut Engine, prompt: &[u32]) -> Vec<(u32, u64)> {
    for (i, temperature) in [0.9, 1.4].into_iter().enumerate() {
        let request = Request {
            sampling: Arc::new(SamplingParams {
                seed: i as u64 + 5,
                temperature,
                repeat_penalty: 1.2,
                // The second is sampled on the host.
                typical_p: if i == 1 { 0.9 } else { 1.0 },
                ..SamplingParams::default()
            }),
            ignore_eos: true,
            ..Request::greedy(prompt.to_vec(), 6)
        };
        engine.submit(request).unwrap();
    }
    let mut all = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { request, id, .. } = event {
                all.push((id, request.0));
            }
        }
    }
    all
}

#[test]
fn sampled_tokens_match_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("llama", GgmlType::F32);
    let prompt = synth::prompt(7, model.config.n_vocab);
    let expected = sampled(&mut start(&model, &Device::Cpu), &prompt);
    for steps_in_flight in [1, 2] {
        let config = EngineConfig {
            steps_in_flight,
            ..config(&layers(&gpu, 2))
        };
        let mut engine = Engine::start(&model, None, &config).unwrap();
        assert_eq!(sampled(&mut engine, &prompt), expected);
    }
}

/// Both sides reuse the cached blocks of an earlier prompt.
#[test]
fn prompts_share_blocks() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("llama", GgmlType::F16);
    let prompt = synth::prompt(40, model.config.n_vocab);
    let config = EngineConfig {
        prefix_sharing: PrefixSharing::On,
        ..config(&layers(&gpu, 2))
    };
    let mut engine = Engine::start(&model, None, &config).unwrap();
    let first = greedy(&mut engine, &prompt, 6);
    let mut cached = 0;
    let id = engine.submit(Request::greedy(prompt.clone(), 6)).unwrap();
    let mut ids = Vec::new();
    engine
        .run(id, |event| {
            match event {
                Event::PromptDone { cached_tokens, .. } => cached = *cached_tokens,
                Event::Token { id, .. } => ids.push(*id),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((cached, ids), (32, first));
}

test_cases! {
    every_operation_passes_the_check:
    // Attention of a prefill and of three decode steps, on both sides or only on the GPU.
    qwen3("qwen3", GpuLayers::Count(2), Experts::WithTheirLayer, 8),
    mixtral("mixtral", GpuLayers::All, Experts::OnCpu, 4),
}

/// Checks every operation of a split model, `n_attention` of them attention, against the CPU.
fn every_operation_passes_the_check(
    name: &str,
    layers: GpuLayers,
    experts: Experts,
    n_attention: usize,
) {
    let Some(gpu) = test_gpu() else { return };
    let device = with(&gpu, layers, experts);
    let model = model(name, GgmlType::Q4_K);
    let tokens = synth::prompt(30, model.config.n_vocab);
    let report = check::check(
        &model,
        &config(&device),
        &tokens,
        &Extent::after(16, Coverage::Distinct),
    )
    .unwrap();
    let failures: Vec<&OpCheck> = report.failures().collect();
    assert!(failures.is_empty(), "{name}: {failures:#?}");
    let attention = report.checks.iter().filter(|check| check.op == "attention");
    assert_eq!(attention.count(), n_attention, "{name}");
}

/// Products that a Hopper GPU computes in f16 have the bound of f16, also if it has only some of the layers.
#[test]
fn products_in_f16_pass_the_check() {
    let Some(hopper) = hopper() else { return };
    for (name, op) in [
        ("qwen3", "matmul"),
        ("qwen3moe", "expert_matmul"),
        // With the products of heads.
        ("deepseek2", "join_heads"),
    ] {
        let device = with(&hopper, GpuLayers::Count(1), Experts::WithTheirLayer);
        let model = short_model(name, GgmlType::Q4_K, 2);
        let tokens = synth::prompt(30, model.config.n_vocab);
        let report = check::check(
            &model,
            &config(&device),
            &tokens,
            &Extent::after(16, Coverage::Distinct),
        )
        .unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:#?}");
        let mut in_f16 = report.checks.iter();
        assert!(
            in_f16.any(|check| check.bound == check::HALF_BOUND && check.op == op),
            "{name}"
        );
    }
}

/// Where several sequences may answer, products of a few rows of codes are not rounded to f16, and the check compares them.
#[test]
fn products_of_codes_pass_the_check() {
    let Some(hopper) = hopper() else { return };
    for (name, op) in [("llama", "matmul"), ("qwen3moe", "expert_matmul")] {
        let model = short_model(name, GgmlType::Q4_K, 2);
        let tokens = synth::prompt(30, model.config.n_vocab);
        let config = EngineConfig {
            max_seqs: 8,
            ..config(&with(&hopper, GpuLayers::All, Experts::WithTheirLayer))
        };
        let extent = Extent::after(16, Coverage::Distinct);
        let report = check::check(&model, &config, &tokens, &extent).unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:#?}");
        let mut of_few = { report.checks.iter() }
            .filter(|check| check.step == Step::Few && check.op == op)
            .peekable();
        assert!(of_few.peek().is_some(), "{name}");
        assert!(
            of_few.all(|check| check.bound < check::HALF_BOUND),
            "{name}"
        );
    }
}

#[test]
fn self_check_and_graphs_do_not_change_results() {
    let Some(gpu) = test_gpu() else { return };
    let model = short_model("llama", GgmlType::Q4_0, 2);
    let prompts = [5, 20, 1].map(|n| synth::prompt(n, model.config.n_vocab));
    let run = |self_check, graphs| {
        let gpu = GpuConfig {
            self_check,
            graphs,
            ..gpu.clone()
        };
        let mut engine = start(&model, &layers(&gpu, 1));
        assert_eq!(engine.backend_info().notices, [] as [String; 0]);
        generate(&mut engine, &prompts, 6)
    };
    let expected = run(SelfCheck::Never, Graphs::Off);
    assert_eq!(run(SelfCheck::Always, Graphs::On), expected);
}

const MIB: u64 = 1 << 20;

#[test]
fn auto_offloads_as_many_layers_as_fit() {
    let Some(gpu) = test_gpu() else { return };
    let loaded = load_file(&models().join("forge-mini-Q4_K_M.gguf"));
    let prompt: Vec<u32> = (0..5).map(|i| (i * 97 + 5) % 4096).collect();
    let limited = |mib: u64, layers| {
        let mut gpu = gpu.clone();
        gpu.open.memory_bytes = Some(mib * MIB);
        with(&gpu, layers, Experts::WithTheirLayer)
    };
    let error = Engine::start(&loaded.model, None, &config(&limited(6, GpuLayers::All)));
    let error = error.err().unwrap().to_string();
    assert!(error.contains("(`auto`)"), "{error}");
    let expected = greedy(&mut start(&loaded.model, &Device::Cpu), &prompt, 4);
    let mut counts = Vec::new();
    for mib in [1, 9, 11, 512] {
        let mut engine = start(&loaded.model, &limited(mib, GpuLayers::Auto));
        let info = engine.backend_info();
        let n_gpu = info.parts.first().map(|part| part.n_layers);
        let all = info.device_memory.is_some() && info.parts.is_empty();
        counts.push(if all { 10 } else { n_gpu.unwrap_or(0) });
        assert_eq!(info.notices.len(), 1, "{:?}", info.notices);
        assert!(
            info.notices[0].contains("--gpu-layers auto"),
            "{:?}",
            info.notices
        );
        if let Some(memory) = info.device_memory {
            assert!(memory.total <= mib * MIB);
        }
        assert_eq!(greedy(&mut engine, &prompt, 4), expected, "{mib} MiB");
    }
    let [none, some, more, all] = counts[..] else {
        panic!("four counts");
    };
    assert_eq!((none, all), (0, 10));
    assert!(0 < some && some < more && more < 10, "{counts:?}");
}

#[test]
fn rejects_more_layers_than_the_model_has() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("llama", GgmlType::F16);
    let start = |n| Engine::start(&model, None, &config(&layers(&gpu, n)));
    let error = start(6).err().unwrap().to_string();
    assert!(error.contains("this model has 4"), "{error}");
}

#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<StepTimes>>>);

impl StepObserver for Steps {
    fn step(&mut self, times: StepTimes) {
        self.0.lock().unwrap().push(times);
    }
}

/// Each operation is timed once, on its side, and each copy on its destination.
#[test]
fn step_times_cover_both_sides() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("mixtral", GgmlType::F16);
    let mut engine = start(&model, &with(&gpu, GpuLayers::Count(3), Experts::OnCpu));
    let steps = Steps::default();
    engine.observe_steps(Some(Box::new(steps.clone())));
    greedy(&mut engine, &[3, 4, 5], 3);
    engine.observe_steps(None);
    let steps = steps.0.lock().unwrap();
    assert_eq!(steps.len(), 3);
    let plan = model.compiled_plan(Fusion::On);
    for step in steps.iter() {
        let mut sides = Vec::new();
        let mut copies = [0, 0];
        for part in &step.parts {
            match &part.part {
                StepPart::Ops(ops) => sides.extend(ops.clone().map(|index| (index, part.side))),
                StepPart::Copy => copies[part.side as usize] += 1,
                StepPart::Begin => {}
                StepPart::Choose | StepPart::End => assert_eq!(part.side, Side::Gpu),
            }
        }
        let indices: Vec<usize> = sides.iter().map(|(index, _)| *index).collect();
        assert_eq!(indices, (0..plan.ops.len()).collect::<Vec<_>>());
        // One layer on the CPU, then experts of three layers between GPU operations.
        for (index, side) in sides {
            if plan.ops[index].routing().is_some() {
                assert_eq!(side, Side::Cpu);
            }
        }
        assert_eq!(copies, [3, 4]);
        for launch in &step.launches {
            assert_eq!(step.parts[launch.part].side, Side::Gpu);
        }
    }
}
