//! Models that a GPU and the CPU share, on the CPU that plays a GPU: whatever is where, logits are the CPU backend's
//! within the bounds of a GPU, and texts are the same.

use rocmforge_engine::ConfigError;
use rocmforge_testkit::models as synth;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use crate::common::device::{config, difference, generate, model};
use crate::common::{greedy, load as load_file, logits, models, test_gpu};
use rocmforge_engine::{Device, Engine, EngineConfig, EngineError, Event, PrefixSharing, Request};
use rocmforge_gguf::GgmlType;
use rocmforge_model::Model;
use rocmforge_plan::SamplingParams;
use rocmforge_plan::{Fusion, Side};
use rocmforge_runtime::check;
use rocmforge_runtime::check::{Coverage, OpCheck, SelfCheck};
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

/// Compares logits of prompts, in chunks, and what several sequences go on with.
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

#[test]
fn every_division_computes_the_same() {
    let Some(gpu) = test_gpu() else { return };
    // Norms before and after blocks, windows, soft caps, tied embeddings, learned positions.
    for (name, ty, bound, counts) in [
        ("llama", GgmlType::F16, 1e-5, &[0, 1, 3, 4, 5][..]),
        ("qwen3", GgmlType::Q4_K, 5e-3, &[2]),
        ("gemma2", GgmlType::Q8_0, 1e-3, &[1]),
        ("olmo2", GgmlType::F16, 1e-5, &[2]),
    ] {
        let model = model(name, ty);
        let n_layers = model.config.n_layers;
        for &n in counts {
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
                // Nothing is left for the CPU.
                _ => {
                    assert!(info.device_memory.is_some() && info.parts.is_empty());
                    assert_eq!(info.offload, Offload::default());
                }
            }
            drop(engine);
            compare(&model, &device, bound, &format!("{name}, {n} layers"));
        }
    }
}

#[test]
fn experts_stay_on_the_cpu() {
    let Some(gpu) = test_gpu() else { return };
    // With an expert that sees every token, and without.
    for (name, ty, n) in [
        ("mixtral", GgmlType::F16, GpuLayers::All),
        ("qwen2moe", GgmlType::F16, GpuLayers::Count(2)),
    ] {
        let model = model(name, ty);
        let device = with(&gpu, n, Experts::OnCpu);
        let offload = start(&model, &device).backend_info().offload;
        assert_eq!((offload.layers, offload.experts), (n, Experts::OnCpu));
        compare(&model, &device, 1e-5, name);
    }
    let dense = model("llama", GgmlType::F16);
    let device = with(&gpu, GpuLayers::All, Experts::OnCpu);
    let error = Engine::start(&dense, None, &config(&device)).err().unwrap();
    assert!(
        matches!(error, EngineError::Config(ConfigError::NoExperts)),
        "{error}"
    );
}

#[test]
fn the_embedded_model_divided() {
    let Some(gpu) = test_gpu() else { return };
    let loaded = load_file(&models().join("forge-mini-Q4_K_M.gguf"));
    let prompt: Vec<u32> = (0..9).map(|i| (i * 97 + 5) % 4096).collect();
    let ids = |device: &Device| greedy(&mut start(&loaded.model, device), &prompt, 6);
    let expected = ids(&Device::Cpu);
    for n in [1, 5] {
        assert_eq!(ids(&layers(&gpu, n)), expected, "{n} layers");
    }
}

/// What each of two samplings makes of a prompt, together.
fn sampled(engine: &mut Engine, prompt: &[u32]) -> Vec<(u32, u64)> {
    for (i, temperature) in [0.9, 1.4].into_iter().enumerate() {
        let request = Request {
            sampling: Arc::new(SamplingParams {
                seed: i as u64 + 5,
                temperature,
                repeat_penalty: 1.2,
                // The second is the host's.
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
fn draws_are_the_cpu_backends() {
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

/// Both sides find the pages of a prompt that came before.
#[test]
fn prompts_share_pages() {
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

#[test]
fn every_operation_of_both_passes_the_check() {
    let Some(gpu) = test_gpu() else { return };
    for (name, device) in [
        ("qwen3", layers(&gpu, 2)),
        ("mixtral", with(&gpu, GpuLayers::All, Experts::OnCpu)),
    ] {
        let model = model(name, GgmlType::Q4_K);
        let tokens = synth::prompt(30, model.config.n_vocab);
        let report =
            check::check(&model, &config(&device), &tokens, 16, Coverage::Distinct).unwrap();
        let failures: Vec<&OpCheck> = report.failures().collect();
        assert!(failures.is_empty(), "{name}: {failures:#?}");
        let n = |op: &str| report.checks.iter().filter(|check| check.op == op).count();
        // Attention of a prompt and of a token, on each side where it is on both.
        assert_eq!(
            n("attention"),
            if name == "qwen3" { 4 } else { 2 },
            "{name}"
        );
    }
}

#[test]
fn a_checked_hybrid_computes_as_before_with_graphs_and_without() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("llama", GgmlType::Q4_0);
    let prompts = [5, 20, 1].map(|n| synth::prompt(n, model.config.n_vocab));
    let run = |self_check, graphs| {
        let gpu = GpuConfig {
            self_check,
            graphs,
            ..gpu.clone()
        };
        let mut engine = start(&model, &layers(&gpu, 2));
        assert_eq!(engine.backend_info().notices, [] as [String; 0]);
        generate(&mut engine, &prompts, 6)
    };
    let expected = run(SelfCheck::Never, Graphs::Off);
    assert_eq!(run(SelfCheck::Always, Graphs::On), expected);
}

const MIB: u64 = 1 << 20;

#[test]
fn auto_takes_what_there_is_room_for() {
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
    for mib in [1, 6, 9, 512] {
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
        panic!("four of them");
    };
    assert_eq!((none, all), (0, 10));
    assert!(0 < some && some < more && more < 10, "{counts:?}");
}

#[test]
fn more_layers_than_there_are_are_refused() {
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

/// Each operation has its time once, on its side, and copies are of the sides they go to.
#[test]
fn times_are_of_both_sides() {
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
        // The layer that is the CPU's, then experts of three layers between operations of the GPU.
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
