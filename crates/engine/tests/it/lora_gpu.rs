//! LoRA adapters on an emulated GPU, or on the device of `ROCMFORGE_TEST_DEVICE`, against the CPU backend.

use rocmforge_testkit::models as synth;
use std::sync::{Arc, Mutex};

use crate::common::cases::test_cases;
use crate::common::{greedy, logits};
use rocmforge_engine::{Device, Engine, EngineConfig, Event, PrefixSharing, Request};
use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::{Adapter, Model};
use rocmforge_runtime::times::{StepObserver, StepTimes};
use rocmforge_testkit::adapters::adapter;

fn test_gpu() -> Option<Device> {
    crate::common::test_gpu().map(Device::Gpu)
}

fn engine(model: &Model, device: &Device) -> Engine {
    let config = EngineConfig {
        device: device.clone(),
        n_threads: Some(1),
        n_ctx: Some(64),
        max_seqs: 4,
        page: 16,
        max_batch_tokens: 6,
        prefix_sharing: PrefixSharing::Off,
        ..EngineConfig::default()
    };
    Engine::start(model, None, &config).unwrap()
}

fn open(writer: &Writer<'_>) -> Arc<Gguf> {
    Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())
}

/// Returns a model with `adapters`, by seed and scale.
fn model(name: &str, ty: GgmlType, adapters: &[(&str, f32)]) -> Model {
    let gguf = open(&synth::model(name, ty).unwrap().unwrap());
    let load = |&(seed, scale): &(&str, f32)| {
        let file = open(&adapter(&gguf, seed).unwrap());
        Adapter::new(seed, file, scale).unwrap()
    };
    let adapters: Vec<Adapter> = adapters.iter().map(load).collect();
    Model::load_with(gguf, &adapters).unwrap()
}

/// Returns the mean squared difference divided by the mean square of `expected`.
fn difference(got: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let pairs = || got.iter().flatten().zip(expected.iter().flatten());
    let squares = pairs().map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2));
    let size = pairs().map(|(_, &b)| f64::from(b).powi(2));
    squares.sum::<f64>() / size.sum::<f64>()
}

test_cases! {
    logits_match_cpu:
    llama_q4_k("llama", GgmlType::Q4_K, &[("one", 1.0)], 5e-3),
    qwen2_q8_0("qwen2", GgmlType::Q8_0, &[("one", 0.7), ("two", -1.5)], 1e-3),
    // Slices of fused projections.
    phi3_q5_1("phi3", GgmlType::Q5_1, &[("two", 1.0)], 1e-3),
    // Norms after the projections.
    olmo3_f16("olmo3", GgmlType::F16, &[("two", 1.0), ("one", 0.5)], 1e-5),
}

/// Compares the logits of a model with `adapters`, by seed and scale.
fn logits_match_cpu(name: &str, ty: GgmlType, adapters: &[(&str, f32)], bound: f64) {
    let Some(gpu) = test_gpu() else { return };
    let changed = model(name, ty, adapters);
    let plain = model(name, ty, &[]);
    let [mut cpu, mut plain] = [&changed, &plain].map(|model| engine(model, &Device::Cpu));
    let mut gpu = engine(&changed, &gpu);
    // One row, and more than a chunk.
    for n_tokens in [1, 8] {
        let prompt = synth::prompt(n_tokens, changed.config.n_vocab);
        let expected = logits(&mut cpu, &prompt);
        let d = difference(&logits(&mut gpu, &prompt), &expected);
        let effect = difference(&logits(&mut plain, &prompt), &expected);
        println!("{name} {ty:?}, {n_tokens} tokens: {d:.1e}, effect of the adapters {effect:.1e}");
        assert!(d <= bound, "{name} {ty:?}, {n_tokens} tokens: {d:e}");
        assert!(effect > 5.0 * bound, "{name} {ty:?}: {effect:e}");
    }
    gpu.check_integrity().unwrap();
}

#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<StepTimes>>>);

impl StepObserver for Steps {
    fn step(&mut self, times: StepTimes) {
        self.0.lock().unwrap().push(times);
    }
}

/// Counts the launches of a decode step whose kernels are in `module`.
fn launches(model: &Model, gpu: &Device, module: &str) -> usize {
    let mut engine = engine(model, gpu);
    let steps = Steps::default();
    engine.observe_steps(Some(Box::new(steps.clone())));
    greedy(&mut engine, &synth::prompt(4, model.config.n_vocab), 3);
    let steps = steps.0.lock().unwrap();
    let step = steps.iter().find(|step| step.shape.n_tokens() == 1);
    let launches = &step.expect("a step of one token").launches;
    launches.iter().filter(|l| l.kernel.0 == module).count()
}

#[test]
fn factors_with_the_same_input_share_a_launch() {
    let Some(gpu) = test_gpu() else { return };
    let plain = model("llama", GgmlType::Q4_0, &[]);
    let changed = model("llama", GgmlType::Q4_0, &[("one", 1.0)]);
    let n = |model, module| launches(model, &gpu, module);
    // Queries, keys and values, and gate and up, are fused as without adapters.
    assert_eq!(n(&changed, "gemv.Q4_0"), n(&plain, "gemv.Q4_0"));
    // Per layer: four launches for the first factors (those two groups, attention output, down) and seven for the
    // second factors. Also the embedding's second factor and both of the output.
    let small = n(&changed, "gemv.F32") - n(&plain, "gemv.F32");
    let n_layers = changed.config.n_layers();
    assert_eq!(small, n_layers * (4 + 7) + 1 + 2);
}

/// Decode steps have padding rows and run as graphs.
#[test]
fn batched_generation_matches_cpu() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("llama", GgmlType::F16, &[("one", 1.0), ("two", 0.5)]);
    let [expected, got] = [&Device::Cpu, &gpu].map(|device| {
        let mut engine = engine(&model, device);
        let mut ids = Vec::new();
        for n_tokens in [1, 3, 8] {
            let prompt = synth::prompt(n_tokens, model.config.n_vocab);
            let mut request = Request::greedy(prompt, 4);
            request.ignore_eos = true;
            ids.push((engine.submit(request).unwrap(), Vec::new()));
        }
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Token { request, id, .. } = event {
                    let entry = ids.iter_mut().find(|(known, _)| *known == request);
                    entry.unwrap().1.push(id);
                }
            }
        }
        ids.into_iter()
            .map(|(_, ids)| ids)
            .collect::<Vec<Vec<u32>>>()
    });
    assert!(expected.iter().all(|ids| ids.len() == 4));
    assert_eq!(got, expected);
}
