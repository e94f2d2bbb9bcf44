//! Starts a backend from the user's settings: measures free memory, resolves limits and checks a GPU at its first use.

use std::sync::Arc;

use crate::backend::Backend;
use crate::check::FirstUse;
use crate::config::{Device, EngineConfig};
use crate::cpu::{CpuBackend, CpuOptions};
use crate::error::{ConfigError, RuntimeError};
use crate::executor::{Executor, caught};
use crate::gpu::{
    self, Experts, GpuBackend, GpuConfig, GpuLayers, GpuOptions, GraphCheck, Graphs, WhenIdle,
};
use crate::hybrid::{HybridBackend, HybridOptions};
use crate::limits::{self, Resolved};
use crate::place::{self, Place, Placed};
use crate::plans;
use crate::shared_cache::{Borrowed, DeviceLayer, HostLayer, SharedCache};
use rocmforge_cpu::memory;
use rocmforge_model::Model;
use rocmforge_plan::Plan;

/// A started backend.
pub struct Started {
    pub executor: Executor,
    /// Its limits.
    pub resolved: Resolved,
    /// Steps to submit before the first one's result is read.
    pub steps_in_flight: usize,
}

/// Starts the backend that `config` selects for `model`.
///
/// # Errors
/// [`ConfigError`] if the settings do not work with the model or machine; [`DeviceError`](crate::DeviceError) if the
/// device fails.
pub fn start(model: &Model, config: &EngineConfig) -> Result<Started, RuntimeError> {
    match &config.device {
        Device::Cpu => on_cpu(model, config, None),
        Device::Gpu(gpu) => on_gpu(model, config, (gpu, None)),
    }
}

/// Starts a drafter that reads `cache`, the cache of a model with the same page size, context and KV types, on the device on
/// which the layers are that it reads.
///
/// # Errors
/// [`ConfigError::SplitCache`] if they are on several; others as [`start`].
pub fn start_beside(
    model: &Model,
    config: &EngineConfig,
    cache: &SharedCache,
) -> Result<Started, RuntimeError> {
    match (cache.borrow(&model.plan)?, &config.device) {
        (Borrowed::Host(layers), _) => on_cpu(model, config, Some(layers)),
        (Borrowed::Device(id, layers), Device::Gpu(gpu)) => {
            let gpu = GpuConfig {
                id: Some(id),
                ..gpu.clone()
            };
            on_gpu(model, config, (&gpu, Some(layers)))
        }
        (Borrowed::Device(..), Device::Cpu) => Err(ConfigError::SplitCache.into()),
    }
}

/// Starts the CPU backend.
fn on_cpu(
    model: &Model,
    config: &EngineConfig,
    borrowed: Option<Vec<HostLayer>>,
) -> Result<Started, RuntimeError> {
    let resolved = limits::resolve(model, config, memory::available_bytes())?;
    let (options, weights) = (cpu_options(config, &resolved), Arc::clone(&model.weights));
    let plan = settled(model.compiled_plan(config.fusion), resolved.limits.n_ctx);
    let (mut executor, (resolved, cache)) = Executor::start(config.steps_in_flight, move || {
        let backend = match borrowed {
            Some(layers) => CpuBackend::over(plan, weights, options, layers),
            None => CpuBackend::new(plan, weights, options),
        };
        let cache = backend.shared_cache();
        Ok((backend, (resolved, cache)))
    })?;
    executor.set_cache(cache);
    executor.add_notices(few_slots(model, config, &resolved));
    Ok(Started {
        executor,
        resolved,
        steps_in_flight: config.steps_in_flight,
    })
}

/// Starts a backend with the configured part of `model` on the GPU. The limits depend on its memory.
fn on_gpu(
    model: &Model,
    config: &EngineConfig,
    (gpu, borrowed): (&GpuConfig, Option<Vec<DeviceLayer>>),
) -> Result<Started, RuntimeError> {
    if gpu.offload.experts == Experts::OnCpu && !model.config.has_experts() {
        return Err(ConfigError::NoExperts.into());
    }
    if gpu.offload.layers == GpuLayers::Count(0) {
        return on_cpu(model, config, None);
    }
    gpu::kv_types(config.kv_types)?;
    let made = caught(|| make(model, config, (gpu, borrowed)))??;
    let (backend, cache, (placed, steps_in_flight)) = made;
    let Placed {
        resolved,
        notice,
        place,
    } = placed;
    // The device has a queue of its own.
    let mut executor = match place {
        Place::Gpu => Executor::here(backend)?,
        Place::Cpu | Place::Both(_) => Executor::start(steps_in_flight, || Ok((backend, ())))?.0,
    };
    executor.set_cache(cache);
    executor.add_notices(notice);
    executor.add_notices(few_slots(model, config, &resolved));
    Ok(Started {
        executor,
        resolved,
        steps_in_flight,
    })
}

/// Says so if fewer sequences run at once than configured, because each keeps a state.
pub(crate) fn few_slots(
    model: &Model,
    config: &EngineConfig,
    resolved: &Resolved,
) -> Option<String> {
    let n = resolved.limits.max_seqs;
    let mib = model.plan.state_bytes().div_ceil(1 << 20);
    (n < config.max_seqs).then(|| {
        format!(
            "each sequence keeps a state of {mib} MiB, so {n} of {} run at once; the others wait",
            config.max_seqs
        )
    })
}

/// A backend, its cache, its placement and limits, and its number of steps in flight.
type Made = (Box<dyn Backend>, SharedCache, (Placed, usize));

/// Builds the backend of [`on_gpu`].
fn make(
    model: &Model,
    config: &EngineConfig,
    (gpu, borrowed): (&GpuConfig, Option<Vec<DeviceLayer>>),
) -> Result<Made, RuntimeError> {
    let device = gpu.open()?;
    let config = &place::with_step_that_fits(&device, model, config)?;
    let place = || place::place(&device, model, config, gpu.offload);
    let mut placed = place()?;
    if borrowed.is_some() && !matches!(placed.place, Place::Gpu) {
        return Err(ConfigError::NoRoomBesideCache.into());
    }
    let placement = match &placed.place {
        Place::Cpu => return make_on_cpu(model, config, placed),
        Place::Gpu => None,
        Place::Both(placement) => Some(placement),
    };
    let check = (&gpu.self_check, gpu.graphs);
    let (checked, graphs) = FirstUse::due((&device, placement), model, config, check)?;
    if let Some(check) = &checked {
        check.compare_operations(&device)?;
        // The check loaded kernels, which stay in memory.
        placed = place()?;
    }
    let resolved = &placed.resolved;
    let options = gpu_options(config, resolved, graphs);
    let n_ctx = resolved.limits.n_ctx;
    // Forced variants override tuning.
    let is_free = device.variants().is_empty() && gpu.tuning.when_idle == WhenIdle::Tune;
    let when_idle = gpu.tuning.store.clone().filter(|_| is_free);
    match &placed.place {
        Place::Cpu => make_on_cpu(model, config, placed),
        Place::Gpu => {
            let plan = settled(plans::on_gpu(model, config.fusion), n_ctx);
            let options = (options, borrowed);
            let mut backend = GpuBackend::over(device, plan, &model.weights, options)?;
            backend.load_kernels()?;
            if let Some(check) = &checked
                && let Some(faster) = backend.check_graphs()?
            {
                check.passed(faster);
            }
            if let Some(store) = when_idle {
                backend.enable_idle_tuning(store);
            }
            backend.tell_notices(config.notice);
            let cache = backend.shared_cache();
            let placed = (placed, config.steps_in_flight);
            Ok((Box::new(backend), cache, placed))
        }
        Place::Both(placement) => {
            let options = HybridOptions {
                cpu: cpu_options(config, resolved),
                gpu: options,
            };
            let placement = placement.clone();
            let plan = settled(model.compiled_plan(config.fusion), n_ctx);
            let mut backend = HybridBackend::new(device, plan, placement, &model.weights, options)?;
            backend.load_kernels()?;
            if let Some(check) = &checked
                && let Some(faster) = backend.check_graphs()?
            {
                check.passed(faster);
            }
            if let Some(store) = when_idle {
                backend.enable_idle_tuning(store);
            }
            backend.tell_notices(config.notice);
            // The host has a step's results as soon as it ends, so a second step in flight gains nothing.
            let cache = backend.shared_cache();
            Ok((Box::new(backend), cache, (placed, 1)))
        }
    }
}

/// Compares graphs of decode steps of `model` with separate launches, as the check at the first use of a GPU does, and
/// times both. Nothing is stored. `None` if the model does not fit on the GPU as a whole.
///
/// # Errors
/// Errors of the settings and of the device.
pub fn compare_graphs(
    model: &Model,
    config: &EngineConfig,
    gpu: &GpuConfig,
) -> Result<Option<GraphCheck>, RuntimeError> {
    let compare = || {
        let device = gpu.open()?;
        let placed = place::place(&device, model, config, gpu.offload)?;
        let Place::Gpu = placed.place else {
            return Ok(None);
        };
        let options = gpu_options(config, &placed.resolved, Graphs::On);
        let plan = settled(plans::on_gpu(model, config.fusion), options.n_ctx);
        let mut backend = GpuBackend::new(device, plan, &model.weights, options)?;
        backend.load_kernels()?;
        backend.compare_graphs().map(Some)
    };
    caught(compare)?
}

fn make_on_cpu(model: &Model, config: &EngineConfig, placed: Placed) -> Result<Made, RuntimeError> {
    let plan = model.compiled_plan(config.fusion);
    let plan = settled(plan, placed.resolved.limits.n_ctx);
    let options = cpu_options(config, &placed.resolved);
    let backend = CpuBackend::new(plan, Arc::clone(&model.weights), options);
    // The CPU is busy with the step, so a second step in flight gains nothing.
    let cache = backend.shared_cache();
    Ok((Box::new(backend), cache, (placed, 1)))
}

fn cpu_options(config: &EngineConfig, resolved: &Resolved) -> CpuOptions {
    CpuOptions {
        isa: config.isa,
        n_threads: n_threads(config),
        page: config.page,
        n_blocks: resolved.n_blocks,
        kv_types: config.kv_types,
        n_slots: resolved.n_slots,
    }
}

fn gpu_options(config: &EngineConfig, resolved: &Resolved, graphs: Graphs) -> GpuOptions {
    let limits = &resolved.limits;
    GpuOptions {
        n_ctx: limits.n_ctx,
        max_tokens: limits.max_tokens,
        max_logits: limits.max_logits,
        max_sampled: limits.max_sampled(),
        max_seqs: limits.max_seqs,
        answers_at_once: config.answers_at_once(),
        page: config.page,
        n_blocks: resolved.n_blocks,
        n_slots: resolved.n_slots,
        kv_types: config.kv_types,
        batch_invariant: limits.max_answer_rows.is_some(),
        graphs,
        isa: config.isa,
        n_threads: n_threads(config),
    }
}

fn n_threads(config: &EngineConfig) -> usize {
    config
        .n_threads
        .unwrap_or_else(rocmforge_cpu::default_threads)
}

/// Returns the plan with RoPE tables for contexts of `n_ctx` tokens.
fn settled(mut plan: Plan, n_ctx: usize) -> Plan {
    for table in &mut plan.rope {
        table.settle(n_ctx);
    }
    plan
}
