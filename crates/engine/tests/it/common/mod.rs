//! Models, golden results and test cases for the tests.

pub(crate) mod cases;
pub(crate) mod device;
pub(crate) mod drafter;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocmforge_engine::{Device, Engine, EngineConfig, Event, PromptOutput, Request};
use rocmforge_gguf::TokenId;
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_plan::{KvType, KvTypes};
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::{GpuConfig, OpenOptions};
pub(crate) use rocmforge_testkit::data::{
    conformance, forge_mini_files, golden, ids, models, read_json,
};
use rocmforge_text::tokenizer::Tokenizer;

/// Returns types of keys and of values.
pub(crate) fn apart(keys: KvType, values: KvType) -> KvTypes {
    KvTypes { keys, values }
}

pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

pub(crate) fn load(path: &Path) -> Loaded {
    let gguf = Arc::new(Gguf::open(path, LoadMode::Mmap).unwrap_or_else(|error| panic!("{error}")));
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None).unwrap());
    Loaded {
        model: Model::load(gguf).unwrap(),
        tokenizer,
    }
}

impl Loaded {
    /// Starts an engine on the CPU, or on the device that `ROCMFORGE_TEST_DEVICE` names (`cuda:0`).
    pub(crate) fn engine(&self, config: &EngineConfig) -> Engine {
        let config = EngineConfig {
            device: test_device().unwrap_or_default(),
            ..config.clone()
        };
        Engine::start(&self.model, Some(Arc::clone(&self.tokenizer)), &config).unwrap()
    }
}

/// Returns the device of `ROCMFORGE_TEST_DEVICE`, if set.
pub(crate) fn test_device() -> Option<Device> {
    let name = std::env::var("ROCMFORGE_TEST_DEVICE").ok()?;
    Some(Device::Gpu(GpuConfig {
        id: Some(name.parse().expect("ROCMFORGE_TEST_DEVICE is a device")),
        open: OpenOptions::from_env(),
        ..GpuConfig::default()
    }))
}

/// Returns the device of `ROCMFORGE_TEST_DEVICE` (`cuda:0`), or the first emulated GPU of this build. Prints that the
/// test is skipped if there is none.
pub(crate) fn test_gpu() -> Option<GpuConfig> {
    let built = || {
        let mut targets = gpu::image_targets().into_iter();
        let target = targets.find(|target| target.starts_with("host-"));
        target.map(|target| target.replace("host-", "host:"))
    };
    let Some(id) = std::env::var("ROCMFORGE_TEST_DEVICE").ok().or_else(built) else {
        println!("skipped: built without the target host");
        return None;
    };
    Some(GpuConfig {
        id: Some(id.parse().unwrap()),
        ..GpuConfig::default()
    })
}

/// Returns the emulated GPU with Hopper's kernels. Prints that the test is skipped if this build has none.
pub(crate) fn hopper() -> Option<GpuConfig> {
    if !gpu::image_targets().contains(&"host-nv") {
        println!("skipped: built without the target host-nv");
        return None;
    }
    Some(GpuConfig {
        id: Some("host:nv".parse().unwrap()),
        ..GpuConfig::default()
    })
}

/// Like [`test_gpu`], for comparisons near the error of f32.
pub(crate) fn exact_gpu() -> Option<GpuConfig> {
    let mut gpu = test_gpu()?;
    gpu.open.variants = "attention=exact".parse().unwrap();
    Some(gpu)
}

/// Returns the path of a variant of forge-mini. Prints that the test is skipped if the file is absent.
pub(crate) fn forge_mini_file(variant: &str) -> Option<PathBuf> {
    let mut files = forge_mini_files().into_iter();
    let file = files.find(|(name, _)| name == variant);
    if file.is_none() {
        println!("skipped: no forge-mini in {variant}");
    }
    file.map(|(_, path)| path)
}

/// Returns the logits after every token of `prompt`.
pub(crate) fn logits(engine: &mut Engine, prompt: &[TokenId]) -> Vec<Vec<f32>> {
    let mut request = Request::greedy(prompt.to_vec(), 0);
    request.prompt_output = PromptOutput::Logits { from: 0 };
    let id = engine.submit(request).unwrap();
    let mut rows = Vec::new();
    engine
        .run(id, |event| {
            if let Event::PromptLogits { logits, .. } = event {
                rows.push(logits.clone());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(rows.len(), prompt.len());
    rows
}

/// Generates `n` tokens greedily, past end-of-generation tokens.
pub(crate) fn greedy(engine: &mut Engine, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let mut request = Request::greedy(prompt.to_vec(), n);
    request.ignore_eos = true;
    let id = engine.submit(request).unwrap();
    let mut ids = Vec::new();
    engine
        .run(id, |event| {
            if let Event::Token { id, .. } = event {
                ids.push(*id);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    ids
}

/// Returns the indices of the `n` best logits, best first.
pub(crate) fn best(logits: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(n);
    order
}

/// Returns the mean squared difference over the variance of `expected`.
pub(crate) fn error(found: &[f64], expected: &[f64]) -> f64 {
    let n = expected.len() as f64;
    let mean = expected.iter().sum::<f64>() / n;
    let variance = expected.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let pairs = found.iter().zip(expected);
    pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>() / n / variance
}
