//! Models and golden results for the tests.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rocmforge_engine::model::Model;
use rocmforge_engine::tokenizer::{TokenId, Tokenizer};
use rocmforge_engine::{Continue, Engine, EngineConfig, Event, PromptOutput, Request};
use rocmforge_gguf::{Gguf, LoadMode};
use serde_json::Value;

/// The repository's `models` folder.
pub(crate) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
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
            if variant != "Q4_K_M" {
                files.push((
                    variant.clone(),
                    folder.join(format!("forge-mini-{variant}.gguf")),
                ));
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
    pub(crate) fn engine(&self, config: &EngineConfig) -> Engine {
        Engine::on_cpu(&self.model, Some(Arc::clone(&self.tokenizer)), config).unwrap()
    }
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
