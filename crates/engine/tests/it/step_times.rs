//! Step times: backends report the operations that ran, in order and within the step, and observing them does not
//! change results. No test asserts a duration.

use rocmforge_testkit::models::{self as synth, families};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{load, models};
use rocmforge_engine::{Device, Engine, EngineConfig, Event, PrefixSharing, Request};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_plan::Fusion;
use rocmforge_runtime::times::{StepObserver, StepPart, StepTimes};

/// Tokens per step, of the prompt, and generated: few, because an emulated GPU is slow.
const CHUNK: usize = 3;
const N_PROMPT: usize = 5;
const N_GEN: usize = 3;

#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<StepTimes>>>);

impl StepObserver for Steps {
    fn step(&mut self, times: StepTimes) {
        self.0.lock().unwrap().push(times);
    }
}

fn model() -> Model {
    load(&models().join("forge-mini-Q4_K_M.gguf")).model
}

fn engine(model: &Model, device: &Device) -> Engine {
    let config = EngineConfig {
        device: device.clone(),
        n_threads: Some(1),
        n_ctx: Some(64),
        max_seqs: 1,
        page: 16,
        max_batch_tokens: CHUNK,
        prefix_sharing: PrefixSharing::Off,
        steps_in_flight: 2,
        ..EngineConfig::default()
    };
    Engine::start(model, None, &config).unwrap()
}

/// Returns the generated ids.
fn run(engine: &mut Engine) -> Vec<u32> {
    let prompt: Vec<u32> = (0..N_PROMPT as u32).map(|i| 7 * i + 3).collect();
    let mut request = Request::greedy(prompt, N_GEN);
    request.ignore_eos = true;
    engine.submit(request).unwrap();
    let mut ids = Vec::new();
    let mut most_tokens = 0;
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            if let Event::Token { id, .. } = event {
                ids.push(id);
            }
        }
        let usage = engine.kv_usage();
        assert!(usage.n_slots.is_multiple_of(16) && usage.n_tokens <= usage.n_slots);
        most_tokens = most_tokens.max(usage.n_tokens);
    }
    assert_eq!(most_tokens, N_PROMPT + N_GEN - 1);
    ids
}

/// Returns the step times of a run, after checking that an unobserved run gives the same ids.
fn observed(model: &Model, device: &Device) -> Vec<StepTimes> {
    let mut engine = engine(model, device);
    let ids = run(&mut engine);
    let steps = Steps::default();
    engine.observe_steps(Some(Box::new(steps.clone())));
    let (started, observed) = (Instant::now(), run(&mut engine));
    let wall = started.elapsed();
    engine.observe_steps(None);
    assert_eq!(observed, ids);
    assert_eq!(run(&mut engine), ids);
    let steps = std::mem::take(&mut *steps.0.lock().unwrap());
    // Two chunks, and a step for each token after the first.
    let rows: Vec<usize> = steps.iter().map(|step| step.shape.n_tokens()).collect();
    assert_eq!(rows, [CHUNK, N_PROMPT - CHUNK, 1, 1]);
    let total: Duration = steps.iter().map(StepTimes::duration).sum();
    assert!(total <= wall, "{total:?} of {wall:?}");
    steps
}

/// Checks that the parts cover the operations of the plan, each once, in order.
fn check_parts(model: &Model, step: &StepTimes) {
    let plan = model.compiled_plan(Fusion::On);
    let mut covered = Vec::new();
    let mut end = Duration::ZERO;
    for part in &step.parts {
        assert!(part.start >= end, "{part:?} begins before {end:?}");
        end = part.start + part.duration;
        if let StepPart::Ops(ops) = &part.part {
            covered.extend(ops.clone());
        }
    }
    let wanted = |&index: &usize| step.shape.n_logits > 0 || !plan.is_for_logits(&plan.ops[index]);
    let expected: Vec<usize> = (0..plan.ops.len()).filter(wanted).collect();
    assert_eq!(covered, expected);
}

#[test]
fn cpu_times_cover_every_operation() {
    let model = model();
    for step in observed(&model, &Device::Cpu) {
        check_parts(&model, &step);
        assert_eq!(step.parts.first().unwrap().part, StepPart::Begin);
        assert_eq!(step.parts.last().unwrap().part, StepPart::Choose);
        assert_eq!(step.launches, []);
        // One clock: each part begins where the previous one ends.
        for pair in step.parts.windows(2) {
            assert_eq!(pair[0].start + pair[0].duration, pair[1].start);
        }
    }
}

/// Returns the first emulated GPU of this build, or the device of `ROCMFORGE_TEST_DEVICE`.
fn test_gpu() -> Option<Device> {
    crate::common::test_gpu().map(Device::Gpu)
}

#[test]
fn gpu_times_add_up_from_launches() {
    let Some(gpu) = test_gpu() else { return };
    let model = model();
    for step in observed(&model, &gpu) {
        check_parts(&model, &step);
        let kernels: Vec<&str> = step.launches.iter().map(|l| l.kernel.1).collect();
        assert_eq!(kernels.first(), Some(&"begin_step"));
        assert_eq!(kernels.last(), Some(&"end_step"));
        let merged = |part: &StepPart| matches!(part, StepPart::Ops(ops) if ops.len() == 3);
        let n_merged = step.parts.iter().filter(|p| merged(&p.part)).count();
        assert_eq!(n_merged, model.config.n_layers());
        for (index, part) in step.parts.iter().enumerate() {
            let own = step.launches.iter().filter(|l| l.part == index);
            let times: Vec<Duration> = own.map(|launch| launch.duration).collect();
            assert!(!times.is_empty());
            assert_eq!(times.iter().sum::<Duration>(), part.duration);
        }
        for pair in step.launches.windows(2) {
            assert!(pair[0].queued + pair[0].submit <= pair[1].queued);
            assert!(pair[0].start + pair[0].duration <= pair[1].start);
        }
    }
}

/// A mixture-of-experts layer of a decode step is one launch for the router, and two GEMV launches for all its experts, of which
/// the second computes their sum, too.
#[test]
fn moe_layers_are_few_launches() {
    let Some(gpu) = test_gpu() else { return };
    let writer = synth::model_of("mixtral", GgmlType::Q8_0, 2).unwrap();
    let gguf = Gguf::from_vec(writer.unwrap().to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let steps = observed(&model, &gpu);
    let layer = ["route_one", "gemv_own_tiled_2", "gemv_summed_8"];
    let launches = &steps.last().unwrap().launches;
    let kernels: Vec<&str> = launches.iter().map(|l| l.kernel.1).collect();
    let first = |rest: &[&str]| rest.iter().position(|kernel| *kernel == layer[0]);
    let (mut rest, mut n) = (&kernels[..], 0);
    while let Some(at) = first(rest) {
        assert_eq!(rest[at..at + layer.len()], layer, "{kernels:?}");
        rest = &rest[at + layer.len()..];
        n += 1;
    }
    assert_eq!(n, model.config.n_layers());
    assert!(
        kernels.len() <= 16 * n + 8,
        "{} launches: {kernels:?}",
        kernels.len()
    );
}

/// What is between the four products of a layer of Mamba-1 is one launch each: the convolution, norms, the scan and the
/// conversion of its result.
#[test]
fn layers_of_mamba_1_are_few_launches() {
    let Some(gpu) = test_gpu() else { return };
    let writer = families::model_of("jamba", GgmlType::Q8_0, 1).unwrap();
    let gguf = Gguf::from_vec(writer.unwrap().to_vec().unwrap()).unwrap();
    let model = Model::load(Arc::new(gguf)).unwrap();
    let steps = observed(&model, &gpu);
    let launches = &steps.last().unwrap().launches;
    let kernels = launches.iter().map(|l| match l.kernel.1 {
        kernel if kernel.starts_with("gemv") => "product",
        kernel => kernel,
    });
    let kernels: Vec<&str> = kernels.collect();
    let layer = [
        "product",
        "conv_silu_q8x32",
        "product",
        "rms_norms_q8x32",
        "product",
        "selective_decode_1",
        "quantize_q8x32",
        "product",
    ];
    let mut parts = kernels.windows(layer.len());
    assert!(parts.any(|part| part == layer), "{kernels:?}");
}
