//! The CPU backend's reference results for texts: the logits after each token, and how clearly the routers of a MoE
//! model chose their experts there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, bail};
use rocmforge_engine::{
    Device, Engine, EngineConfig, Event, KvTokens, PrefixSharing, PromptOutput, Request,
};
use rocmforge_model::Model;
use rocmforge_plan::Batch;
use rocmforge_plan::Op;
use rocmforge_runtime::{OpData, OpObserver};
use std::ops::ControlFlow;

use super::rows::margin;

/// The reference for a text.
pub(super) struct Expected {
    /// One for each token.
    pub(super) rows: Vec<ExpectedRow>,
}

/// The reference after a token.
pub(super) struct ExpectedRow {
    /// `[n_vocab]`
    pub(super) logits: Vec<f32>,
    /// The smallest [`margin`] of all routers; infinite without any.
    pub(super) margin: f64,
}

/// Runs the texts one after the other on the CPU backend, whose results do not depend on batching. Ignores the device
/// of `config`.
pub(super) fn on_cpu(
    model: &Model,
    config: &EngineConfig,
    texts: &[Vec<u32>],
) -> Result<Vec<Expected>> {
    let n_ctx = texts.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let config = EngineConfig {
        n_ctx: Some(n_ctx),
        kv_tokens: KvTokens::Exactly(n_ctx + config.page),
        max_seqs: 1,
        // The observer would not see the routing of cached tokens.
        prefix_sharing: PrefixSharing::Off,
        device: Device::Cpu,
        ..config.clone()
    };
    let mut engine = Engine::start(model, None, &config)?;
    let margins = Margins::default();
    engine.observe(Some(Box::new(margins.clone())));
    let mut all = Vec::new();
    for text in texts {
        let mut request = Request::greedy(text.clone(), 0);
        request.prompt_output = PromptOutput::Logits { from: 0 };
        let id = engine.submit(request)?;
        let mut logits: Vec<f32> = Vec::new();
        engine.run(id, |event| {
            if let Event::PromptLogits { logits: row, .. } = event {
                logits.extend(row);
            }
            ControlFlow::Continue(())
        })?;
        let margins = margins.take(text.len());
        let logits = logits.chunks(model.config.n_vocab).map(<[f32]>::to_vec);
        let rows = logits.zip(margins);
        let rows: Vec<ExpectedRow> = rows
            .map(|(logits, margin)| ExpectedRow { logits, margin })
            .collect();
        if rows.len() != text.len() {
            bail!("the CPU backend has {} of {} rows", rows.len(), text.len());
        }
        all.push(Expected { rows });
    }
    Ok(all)
}

/// Observes the margins of routers; clones share the record.
#[derive(Clone, Default)]
struct Margins(Arc<Mutex<BTreeMap<usize, Vec<f64>>>>);

impl Margins {
    /// Returns the smallest margin of each of the `n_tokens` tokens seen since the last call, and clears the record.
    fn take(&self, n_tokens: usize) -> Vec<f64> {
        let mut by_router = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut least = vec![f64::INFINITY; n_tokens];
        for margins in std::mem::take(&mut *by_router).into_values() {
            for (least, margin) in least.iter_mut().zip(margins) {
                *least = least.min(margin);
            }
        }
        least
    }
}

impl OpObserver for Margins {
    fn before(&mut self, index: usize, op: &Op, batch: &Batch, data: &dyn OpData) {
        let Op::Route { logits, router, .. } = op else {
            return;
        };
        let logits = data.buffer(*logits);
        let n_experts = logits.len() / batch.tokens.len().max(1);
        let margins = logits.chunks(n_experts.max(1));
        let mut by_router = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = by_router.entry(index).or_default();
        seen.extend(margins.map(|logits| margin(logits, router.n_used)));
    }

    fn after(&mut self, _index: usize, _op: &Op, _batch: &Batch, _data: &dyn OpData) {}
}
