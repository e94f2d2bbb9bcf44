//! Models and golden results for the tests.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocmforge_engine::backend::gpu::{self, GpuConfig, OpenOptions};
use rocmforge_engine::model::Model;
use rocmforge_engine::tokenizer::{TokenId, Tokenizer};
use rocmforge_engine::{Continue, Device, Engine, EngineConfig, Event, PromptOutput, Request};
use rocmforge_gguf::{Gguf, LoadMode};
use serde_json::Value;

/// The repository's `models` folder. Where a test program is run by itself on another machine, the variable of
/// cargo's says where it is.
pub(crate) fn models() -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    Path::new(&here).join("../../models")
}

/// A path below the conformance data, if this machine has them; prints the skip otherwise.
pub(crate) fn conformance(path: &str) -> Option<PathBuf> {
    match std::env::var_os("ROCMFORGE_CONFORMANCE_DATA") {
        Some(root) => Some(Path::new(&root).join(path)),
        None => {
            println!("skipped: ROCMFORGE_CONFORMANCE_DATA is not set, so there is no {path}");
            None
        }
    }
}

/// The embedded model, and every other forge-mini file of the conformance data, by variant.
pub(crate) fn forge_mini_files() -> Vec<(String, PathBuf)> {
    let mut files = vec![(
        "Q4_K_M".to_string(),
        models().join("forge-mini-Q4_K_M.gguf"),
    )];
    if let Some(folder) = conformance("models") {
        for (variant, _) in golden()["variants"].as_object().unwrap() {
            let path = folder.join(format!("forge-mini-{variant}.gguf"));
            // What can be carried to the machine with a device is limited: it comes in parts.
            if test_device().is_some() && !path.is_file() {
                println!("skipped: no {}", path.display());
                continue;
            }
            if variant != "Q4_K_M" {
                files.push((variant.clone(), path));
            }
        }
    }
    files
}

pub(crate) fn golden() -> Value {
    read_json(&models().join("golden.json"))
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(
        &std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    )
    .unwrap()
}

pub(crate) fn ids(value: &Value) -> Vec<TokenId> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as TokenId)
        .collect()
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
            Continue::Yes
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
            Continue::Yes
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
