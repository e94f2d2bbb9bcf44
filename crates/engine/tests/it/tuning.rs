//! Autotuning of a model's GEMV, GEMM and attention launches: its results, that it changes no bit of the output, and
//! that it runs only while the device is idle.

use rocmforge_testkit::models as synth;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::common::device::{Passed, config, generate, short_model};
use crate::common::test_gpu;
use rocmforge_engine::{Device, Engine, Event, Request};
use rocmforge_gguf::{GgmlType, Gguf};
use rocmforge_model::Model;
use rocmforge_runtime::check::{PassedChecks, SelfCheck};
use rocmforge_runtime::gpu::{GpuConfig, Graphs, TuningUse, WhenIdle};
use rocmforge_runtime::tuning::{Choice, Kept, Shape, TuneProgress, Tuning, TuningStore};

/// A store in memory. `added` is notified of each new entry.
#[derive(Debug, Default)]
struct Store {
    entries: Mutex<HashMap<String, Vec<(Shape, Choice)>>>,
    added: Condvar,
    /// How many more times `keep` reports that another program is writing.
    n_busy: Mutex<usize>,
}

impl TuningStore for Store {
    fn load(&self, key: &str) -> Tuning {
        let entries = self.entries.lock().unwrap();
        entries.get(key).into_iter().flatten().copied().collect()
    }

    fn keep(&self, key: &str, found: &[(Shape, Choice)]) -> Kept {
        let mut n_busy = self.n_busy.lock().unwrap();
        if let Some(left) = n_busy.checked_sub(1) {
            *n_busy = left;
            return Kept::Busy;
        }
        let mut entries = self.entries.lock().unwrap();
        entries.entry(key.to_string()).or_default().extend(found);
        self.added.notify_all();
        Kept::Settled
    }
}

fn model(name: &str, ty: GgmlType) -> Model {
    let writer = synth::model_of(name, ty, 2).unwrap().unwrap();
    Model::load(Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())).unwrap()
}

fn with(gpu: &GpuConfig, store: Option<&Arc<Store>>, when_idle: WhenIdle) -> GpuConfig {
    let store = store.map(|store| Arc::clone(store) as Arc<dyn TuningStore>);
    GpuConfig {
        tuning: TuningUse { store, when_idle },
        ..gpu.clone()
    }
}

fn start(model: &Model, gpu: GpuConfig) -> Engine {
    Engine::start(model, None, &config(&Device::Gpu(gpu))).unwrap()
}

/// Tunes everything, in the smallest steps.
fn tune(engine: &mut Engine) -> TuneProgress {
    let mut all = TuneProgress::default();
    loop {
        let next = engine.tune(Duration::ZERO).unwrap().expect("a GPU");
        all.decided.extend(next.decided);
        all.untuned.extend(next.untuned);
        (all.key, all.n_left) = (next.key, next.n_left);
        (all.n_shapes, all.n_known) = (next.n_shapes, next.n_known);
        if all.n_left == 0 {
            return all;
        }
    }
}

/// Returns ids with the bits of their log-probabilities, sampled on the host, and ids sampled on the GPU.
fn bits(engine: &mut Engine, model: &Model) -> (Vec<(u32, u32)>, Vec<Vec<u32>>) {
    let prompts = [synth::prompt(20, model.config.n_vocab)];
    let mut all = Vec::new();
    for prompt in &prompts {
        let request = Request {
            ignore_eos: true,
            logprobs: Some(1),
            ..Request::greedy(prompt.clone(), 2)
        };
        engine.submit(request).unwrap();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Token { id, top, .. } = event {
                    all.push((id, top[0].logprob.to_bits()));
                }
            }
        }
    }
    (all, generate(engine, &prompts, 2))
}

#[test]
fn tuning_does_not_change_results() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("gemma3", GgmlType::Q8_0);
    let mut engine = start(&model, with(&gpu, None, WhenIdle::Wait));
    assert_eq!(engine.backend_info().n_tuned, 0);
    let found = tune(&mut engine);
    assert_eq!((found.n_known, found.untuned), (0, vec![]));
    assert_eq!(found.decided.len(), found.n_shapes);
    let kinds = found.decided.iter().map(|one| one.shape.to_string());
    let kinds: Vec<String> = kinds.collect();
    for kind in ["matvec Q8_0 ", "matmul Q8_0 ", "attention F16 "] {
        assert!(
            kinds.iter().any(|shape| shape.starts_with(kind)),
            "{kinds:?}"
        );
    }
    assert!(found.decided.iter().all(|one| one.differing.is_empty()));
    // The engine itself still runs untuned launches.
    let expected = bits(&mut start(&model, gpu.clone()), &model);
    assert_eq!(bits(&mut engine, &model), expected);
    // For each shape the last candidate, which is the most different from the default, not the fastest.
    let store = Arc::new(Store::default());
    let others = found.decided.iter().map(|one| {
        let (choice, _) = one.ways.last().unwrap();
        (one.shape, *choice)
    });
    store.keep(&found.key, &others.collect::<Vec<_>>());
    for graphs in [Graphs::On, Graphs::Off] {
        let tuned = GpuConfig {
            graphs,
            ..with(&gpu, Some(&store), WhenIdle::Wait)
        };
        let mut engine = start(&model, tuned);
        assert_eq!(engine.backend_info().n_tuned, found.n_shapes);
        assert_eq!(bits(&mut engine, &model), expected, "{graphs:?}");
        // Nothing is left to tune.
        let again = tune(&mut engine);
        assert_eq!((again.n_known, again.decided), (found.n_shapes, vec![]));
    }
}

#[test]
fn tunes_only_when_idle_and_enabled() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("llama", GgmlType::Q4_0);
    let expected = bits(&mut start(&model, gpu.clone()), &model);
    let store = Arc::new(Store::default());
    let mut engine = start(&model, with(&gpu, Some(&store), WhenIdle::Tune));
    // Wait for the first result, found without any request.
    let entries = store.entries.lock().unwrap();
    let entries = store
        .added
        .wait_while(entries, |entries| entries.is_empty());
    drop(entries.unwrap());
    assert_eq!(bits(&mut engine, &model), expected);
    drop(engine);
    // Without idle tuning, an engine uses known results and finds no new ones.
    let key = store.entries.lock().unwrap().keys().next().unwrap().clone();
    let known = store.load(&key);
    let engine = start(&model, with(&gpu, Some(&store), WhenIdle::Wait));
    assert_eq!(engine.backend_info().n_tuned, known.len());
    std::thread::sleep(Duration::from_millis(400));
    drop(engine);
    assert_eq!(store.load(&key), known);
}

/// Time limit; reached only if the engine loses results.
const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn retries_results_that_a_busy_store_rejects() {
    let Some(gpu) = test_gpu() else { return };
    let model = model("llama", GgmlType::Q4_0);
    let n_shapes = start(&model, with(&gpu, None, WhenIdle::Wait))
        .tune(Duration::ZERO)
        .unwrap()
        .unwrap()
        .n_shapes;
    let store = Arc::new(Store::default());
    *store.n_busy.lock().unwrap() = 3;
    let engine = start(&model, with(&gpu, Some(&store), WhenIdle::Tune));
    let n_kept = |entries: &HashMap<String, Vec<(Shape, Choice)>>| {
        entries.values().map(Vec::len).sum::<usize>()
    };
    let entries = store.entries.lock().unwrap();
    let waited = store
        .added
        .wait_timeout_while(entries, PATIENCE, |entries| n_kept(entries) < n_shapes);
    let (entries, _) = waited.unwrap();
    assert_eq!(n_kept(&entries), n_shapes);
    drop(entries);
    drop(engine);
}

/// New launches are checked again, even of kernels that have passed.
#[test]
fn checks_a_tuned_gpu_again() {
    let Some(gpu) = test_gpu() else { return };
    let model = short_model("llama", GgmlType::Q8_0, 1);
    let (passed, store) = (Arc::new(Passed::default()), Arc::new(Store::default()));
    let start = || {
        let checks: Arc<dyn PassedChecks> = Arc::clone(&passed) as _;
        let gpu = GpuConfig {
            self_check: SelfCheck::FirstUse(checks),
            ..with(&gpu, Some(&store), WhenIdle::Wait)
        };
        start(&model, gpu)
    };
    let n_passed = || passed.0.lock().unwrap().len();
    let key = start().tune(Duration::ZERO).unwrap().unwrap().key;
    drop(start());
    assert_eq!(n_passed(), 1);
    let entry = ("matvec Q8_0 1x1", "rows 2 split 1");
    store.keep(
        &key,
        &[(entry.0.parse().unwrap(), entry.1.parse().unwrap())],
    );
    drop(start());
    drop(start());
    assert_eq!(n_passed(), 2);
}
