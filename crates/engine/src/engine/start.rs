//! From the user's choices to a backend on its thread: memory is asked for, limits are settled, a GPU is checked at its
//! first use.

use std::sync::Arc;

use super::EngineConfig;
use super::limits::{self, Resolved};
use crate::backend::check::FirstUse;
use crate::backend::cpu::{CpuBackend, CpuOptions};
use crate::backend::gpu::{self, GpuBackend, GpuConfig, GpuOptions};
use crate::error::EngineError;
use crate::executor::Executor;
use crate::memory;
use crate::model::Model;
use crate::plan::Plan;

/// The CPU backend of `model` on its thread, and the limits of what it can serve.
pub(super) fn on_cpu(
    model: &Model,
    config: &EngineConfig,
) -> Result<(Executor, Resolved), EngineError> {
    let resolved = limits::resolve(model, config, memory::available_bytes())?;
    let options = CpuOptions {
        isa: config.isa,
        n_threads: n_threads(config),
        page: config.page,
        n_blocks: resolved.n_blocks,
        kv_type: config.kv_type,
    };
    let weights = Arc::clone(&model.weights);
    let plan = settled_plan(model, config, resolved.limits.n_ctx);
    Executor::start(config.steps_in_flight, move || {
        Ok((CpuBackend::new(plan, weights, options), resolved))
    })
}

/// As [`on_cpu`]. The device is opened on its own thread, and limits depend on its memory.
pub(super) fn on_gpu(
    model: &Model,
    config: &EngineConfig,
    gpu: &GpuConfig,
) -> Result<(Executor, Resolved), EngineError> {
    gpu::kv_type(config.kv_type)?;
    let (model, config, gpu) = (model.clone(), config.clone(), gpu.clone());
    Executor::start(config.steps_in_flight, move || {
        let device = gpu.open()?;
        let resolve = || {
            let free = gpu::free_for_steps(&device, &model, config.passes)?;
            limits::resolve(&model, &config, free)
        };
        let mut resolved = resolve()?;
        let checked = FirstUse::due(&device, &model, &config, (&gpu.self_check, gpu.graphs))?;
        if let Some(check) = &checked {
            check.compare_operations(&device)?;
            // Kernels that it loaded stay.
            resolved = resolve()?;
        }
        let limits = &resolved.limits;
        let options = GpuOptions {
            n_ctx: limits.n_ctx,
            max_tokens: limits.max_tokens,
            max_logits: limits.max_logits,
            max_seqs: limits.max_seqs,
            page: config.page,
            n_blocks: resolved.n_blocks,
            kv_type: config.kv_type,
            graphs: gpu.graphs,
            isa: config.isa,
            n_threads: n_threads(&config),
        };
        let plan = settled_plan(&model, &config, limits.n_ctx);
        let mut backend = GpuBackend::new(device, plan, &model.weights, options)?;
        if let Some(check) = checked
            && backend.check_graphs()?
        {
            check.passed();
        }
        Ok((backend, resolved))
    })
}

fn n_threads(config: &EngineConfig) -> usize {
    config
        .n_threads
        .unwrap_or_else(rocmforge_cpu::default_threads)
}

/// The plan as it runs in contexts of `n_ctx` tokens.
fn settled_plan(model: &Model, config: &EngineConfig, n_ctx: usize) -> Plan {
    let mut plan = model.compiled_plan(config.passes);
    for table in &mut plan.rope {
        table.settle(n_ctx);
    }
    plan
}
