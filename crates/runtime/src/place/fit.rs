//! Whether a model fits on a device: computed from its plan and the free memory, without loading it.

use super::{Memory, Place, Planner};
use crate::config::{Device, EngineConfig, KvTokens};
use crate::error::{ConfigError, RuntimeError};
use crate::gpu::{self, Experts};
use crate::limits::{self, MemoryBudget, Output};
use rocmforge_cpu::memory;
use rocmforge_gpu::Gpu;
use rocmforge_model::Model;
use rocmforge_plan::Side;

/// How a model fits on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// Positions of the context: the requested ones, or the usual number if they fit, or fewer.
    pub n_ctx: usize,
    /// Bytes that must be free for the whole model with this context.
    pub needed_bytes: u64,
    /// Bytes that the model takes if as many are free: those needed, and the rest of the KV cache that the settings allow.
    pub wanted_bytes: u64,
    /// Free bytes; `None` if the system does not report them.
    pub free_bytes: Option<u64>,
    pub fits: Fits,
}

/// How much of a model fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fits {
    Whole,
    /// On a CPU: all but the weights, which are read from the file again for each token.
    WithoutWeights,
    /// On a GPU: some of the layers. The CPU runs the others.
    Layers {
        n: usize,
        of: usize,
    },
}

/// Returns how `model` fits on the device of `config`, whatever part of it the settings put there: into the free memory, or
/// into `bytes`.
///
/// # Errors
/// [`ConfigError`] if it does not run there with these settings; device errors.
pub fn fit(model: &Model, config: &EngineConfig, bytes: Option<u64>) -> Result<Fit, RuntimeError> {
    match &config.device {
        Device::Cpu => on_cpu(model, config, bytes.or_else(memory::available_bytes)),
        Device::Gpu(gpu) => {
            let gpu = gpu.open()?;
            let free = Memory::of(&gpu)?;
            let memory = Memory {
                gpu: bytes.unwrap_or(free.gpu),
                ..free
            };
            on_gpu(model, config, &gpu, memory)
        }
    }
}

pub(super) fn on_cpu(
    model: &Model,
    config: &EngineConfig,
    free_bytes: Option<u64>,
) -> Result<Fit, RuntimeError> {
    let n_ctx = limits::resolve(model, config, free_bytes)?.limits.n_ctx;
    let budget = MemoryBudget {
        weight_bytes: gpu::file_bytes(&model.plan, &model.weights),
        ..MemoryBudget::for_plan((&model.plan, Output::of(model)), config, free_bytes)
    };
    let n_tokens = limits::cache_tokens(config, n_ctx);
    Ok(Fit {
        n_ctx,
        needed_bytes: budget.required_bytes(n_tokens, config.page),
        wanted_bytes: budget.required_bytes(wanted_tokens(config, n_ctx), config.page),
        free_bytes,
        fits: match budget.fits(n_tokens, config.page) {
            true => Fits::Whole,
            false => Fits::WithoutWeights,
        },
    })
}

pub(super) fn on_gpu(
    model: &Model,
    config: &EngineConfig,
    gpu: &Gpu,
    memory: Memory,
) -> Result<Fit, RuntimeError> {
    limits::check(model, config)?;
    let config = &super::with_step_for(gpu, model, config, memory);
    let planner = Planner::new(gpu, model, config, memory);
    let (n_ctx, fits) = match planner.resolve(&Place::Gpu, config) {
        Ok(resolved) => (resolved.limits.n_ctx, Fits::Whole),
        Err(RuntimeError::Config(
            error @ (ConfigError::NoMemory { .. }
            | ConfigError::NoMemoryAtAll { .. }
            | ConfigError::NoMemoryForWeights { .. }),
        )) => {
            let placed = planner.automatic(Experts::WithTheirLayer)?;
            let Place::Both(placement) = &placed.place else {
                return Err(error.into());
            };
            let fits = Fits::Layers {
                n: placement.n_layers(&planner.plan, Side::Gpu),
                of: planner.n_layers(),
            };
            (placed.resolved.limits.n_ctx, fits)
        }
        Err(error) => return Err(error),
    };
    let budget = planner.budgets(&Place::Gpu)?.gpu;
    let n_tokens = limits::cache_tokens(config, n_ctx);
    let required = |n| budget.map_or(0, |budget| budget.required_bytes(n, config.page));
    Ok(Fit {
        n_ctx,
        needed_bytes: required(n_tokens),
        wanted_bytes: required(wanted_tokens(config, n_ctx)),
        free_bytes: Some(memory.gpu),
        fits,
    })
}

/// Returns the size of the KV cache in tokens, if memory allows it.
fn wanted_tokens(config: &EngineConfig, n_ctx: usize) -> usize {
    match config.kv_tokens {
        KvTokens::AtMost(n) => n.max(n_ctx),
        KvTokens::OneContext | KvTokens::Exactly(_) => limits::cache_tokens(config, n_ctx),
    }
}

/// Returns the free bytes of the device of `config`; `None` if the system does not report them.
///
/// # Errors
/// Device errors.
pub fn free_bytes(config: &EngineConfig) -> Result<Option<u64>, RuntimeError> {
    match &config.device {
        Device::Cpu => Ok(memory::available_bytes()),
        Device::Gpu(gpu) => Ok(Some(Memory::of(&gpu.open()?)?.gpu)),
    }
}
