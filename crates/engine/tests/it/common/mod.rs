//! Models and golden results for the tests.

use std::ops::ControlFlow;
pub(crate) mod device;

use std::path::Path;
use std::sync::Arc;

use rocmforge_engine::{Device, Engine, EngineConfig, Event, PromptOutput, Request};
use rocmforge_gguf::TokenId;
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_model::Model;
use rocmforge_runtime::gpu;
use rocmforge_runtime::gpu::{GpuConfig, OpenOptions};
pub(crate) use rocmforge_testkit::data::{
    conformance, forge_mini_files, golden, ids, models, read_json,
};
use rocmforge_text::tokenizer::Tokenizer;

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
    /// An engine on the CPU, or on the device that `ROCMFORGE_TEST_DEVICE` names (`cuda:0`).
    pub(crate) fn engine(&self, config: &EngineConfig) -> Engine {
        let config = EngineConfig {
            device: test_device().unwrap_or_default(),
            ..config.clone()
        };
        Engine::start(&self.model, Some(Arc::clone(&self.tokenizer)), &config).unwrap()
    }
}

/// The device that tests shall run on, where that is not the CPU.
pub(crate) fn test_device() -> Option<Device> {
    let name = std::env::var("ROCMFORGE_TEST_DEVICE").ok()?;
    Some(Device::Gpu(GpuConfig {
        id: Some(name.parse().expect("ROCMFORGE_TEST_DEVICE is a device")),
        open: OpenOptions::from_env(),
        ..GpuConfig::default()
    }))
}

/// The device that `ROCMFORGE_TEST_DEVICE` names (`cuda:0`), or the first GPU that the CPU plays in this build.
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

/// Logits after every token of `prompt`.
pub(crate) fn logits(engine: &mut Engine, prompt: &[TokenId]) -> Vec<Vec<f32>> {
    let mut request = Request::greedy(prompt.to_vec(), 0);
    request.prompt_output = PromptOutput::Logits;
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

/// Greedy ids past the end of the text.
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

/// Indices of the best logits, best first.
pub(crate) fn best(logits: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(n);
    order
}
