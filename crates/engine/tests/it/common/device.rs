//! Comparison of engines on a GPU and on the CPU.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use rocmforge_testkit::models as synth;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rocmforge_cpu::Isa;
use rocmforge_engine::{
    Device, Engine, EngineConfig, Event, KvTokens, PrefixSharing, Request, RequestId,
};
use rocmforge_gguf::{GgmlType, Gguf, Writer};
use rocmforge_model::Model;
use rocmforge_runtime::check::PassedChecks;

/// Returns a configuration with small chunks and blocks, so that a short prompt has several of both.
pub(crate) fn config(device: &Device) -> EngineConfig {
    EngineConfig {
        device: device.clone(),
        isa: Isa::detect(),
        n_threads: Some(1),
        n_ctx: Some(64),
        kv_tokens: KvTokens::Exactly(4 * 64),
        max_seqs: 4,
        page: 16,
        max_batch_tokens: 24,
        prefix_sharing: PrefixSharing::Off,
        ..EngineConfig::default()
    }
}

/// A store of passed checks in memory.
#[derive(Debug, Default)]
pub(crate) struct Passed(pub(crate) Mutex<Vec<String>>);

impl PassedChecks for Passed {
    fn contains(&self, key: &str) -> bool {
        self.0.lock().unwrap().iter().any(|known| known == key)
    }

    fn insert(&self, key: &str) {
        self.0.lock().unwrap().push(key.to_string());
    }
}

pub(crate) fn model(name: &str, ty: GgmlType) -> Model {
    loaded(synth::model(name, ty).unwrap().unwrap())
}

/// Returns the first layers of a model, for tests of what layers have no part in.
pub(crate) fn short_model(name: &str, ty: GgmlType, n_layers: usize) -> Model {
    loaded(synth::model_of(name, ty, n_layers).unwrap().unwrap())
}

fn loaded(writer: Writer) -> Model {
    Model::load(Arc::new(Gguf::from_vec(writer.to_vec().unwrap()).unwrap())).unwrap()
}

/// Returns the mean squared difference of all logits divided by their variance.
pub(crate) fn difference(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let n = expected.len() as f64;
    let mean = expected.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let pairs = got.iter().zip(expected);
    let squares = pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2));
    let variance = expected.iter().map(|&x| (f64::from(x) - mean).powi(2));
    squares.sum::<f64>() / variance.sum::<f64>()
}

/// Generates `n` tokens greedily for several prompts in one batch.
pub(crate) fn generate(engine: &mut Engine, prompts: &[Vec<u32>], n: usize) -> Vec<Vec<u32>> {
    let ids: Vec<RequestId> = prompts
        .iter()
        .map(|prompt| {
            let mut request = Request::greedy(prompt.clone(), n);
            request.ignore_eos = true;
            engine.submit(request).unwrap()
        })
        .collect();
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
