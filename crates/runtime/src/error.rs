//! Errors of settings and of devices.

use rocmforge_plan::{KvTypes, ParameterError};

use crate::self_check::OpCheck;

/// A setting that does not work with this model or machine. Each message says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error(
        "a context of {n_ctx} tokens with {n_sinks} attention sinks cannot shift, which needs at least two more tokens; use a larger context or fewer sinks"
    )]
    TooManySinks { n_sinks: usize, n_ctx: usize },
    #[error(
        "this model has learned position embeddings, so its context cannot be shifted; use the context policy `stop`"
    )]
    FixedPositions,
    #[error(
        "this model has layers whose state cannot forget a token, so its context cannot be shifted; use the context policy `stop`"
    )]
    FixedStates,
    #[error(
        "a context of {n_ctx} tokens is too long: this model has {n_positions} learned position embeddings; use a context of {n_positions} or less"
    )]
    TooFewPositions { n_ctx: usize, n_positions: usize },
    #[error(
        "a context of {n_ctx} tokens needs {needed_mib} MiB of KV cache, but only {free_mib} MiB are free; use a context of {fitting} or less"
    )]
    NoMemory {
        n_ctx: usize,
        needed_mib: u64,
        free_mib: u64,
        fitting: usize,
    },
    #[error(
        "a KV cache of type {kv_type} stores blocks of {block_len} values, but this model has heads of {head_dim} values; use the KV cache type f16 or fp8"
    )]
    KvTypeHeadDim {
        kv_type: &'static str,
        block_len: usize,
        head_dim: usize,
    },
    #[error(
        "running this model needs {needed_mib} MiB in addition to its weights, but only {free_mib} MiB are free; close other programs, use a smaller model or, on a GPU, leave some layers to the CPU"
    )]
    NoMemoryAtAll { needed_mib: u64, free_mib: u64 },
    #[error(
        "the weights need {needed_mib} MiB on the GPU, but only {free_mib} MiB are free; let the GPU take as many layers as fit (`auto`), or use a smaller quantization"
    )]
    NoMemoryForWeights { needed_mib: u64, free_mib: u64 },
    #[error(
        "this model has {n_layers} layers, so the GPU cannot take {n}; use a number up to {n_layers}, `all` or `auto`"
    )]
    TooManyGpuLayers { n: usize, n_layers: usize },
    #[error("this model has no experts to keep on the CPU; limit the number of GPU layers instead")]
    NoExperts,
    #[error(
        "this model keeps its values in its keys, so its KV cache has one type, but {kv_types} (keys/values) was asked for; use one type for both"
    )]
    KvTypesOfLatent { kv_types: KvTypes },
    #[error(
        "on a GPU the types of the KV cache (keys/values) can be {known}, but not {kv_types}; use f16, or run on the CPU"
    )]
    GpuKvTypes { kv_types: KvTypes, known: String },
    #[error(
        "the drafter reads layers of the model's KV cache that are not on one device; let one device run all layers, or draft with ngram"
    )]
    SplitCache,
    #[error(
        "the GPU has no room for the drafter beside the model whose KV cache it reads; use a shorter context, or draft with ngram"
    )]
    NoRoomBesideCache,
    #[error("the model whose KV cache the drafter reads has ended; start both again")]
    NoCache,
    #[error("the GPU kernels support {0}; run this model on the CPU")]
    GpuLimit(rocmforge_gpu::Limit),
}

/// A device that is missing, has failed or computes wrong results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    #[error("the device's code stopped unexpectedly: {reason}")]
    WorkerGone { reason: String },
    #[error(
        "the GPU returned the results of step {found} for step {step}, which is a driver fault; turn graphs off"
    )]
    LostStep { step: u64, found: u32 },
    #[error("GPU error: {0}")]
    Gpu(#[from] rocmforge_gpu::GpuError),
    #[error(
        "{device} ({id}) computes wrong results: {n_failed} of {n_checked} operations differ from the CPU, first {} ({}, {}){}: error {:.1e}, bound {:.0e}; run on the CPU, and use `rocmforge check --device {id}` with this model for details",
        first.op, first.shape, first.format, of_tensor(first.tensor.as_deref()), first.max_rel, first.bound
    )]
    WrongGpu {
        device: String,
        /// Device id such as `hip:0`.
        id: String,
        n_failed: usize,
        n_checked: usize,
        first: Box<OpCheck>,
    },
    #[error("no usable GPU: {reasons}")]
    NoGpu { reasons: String },
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

/// An error of the configuration or the device.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl DeviceError {
    /// Whether the device computes nothing more until a backend is started anew.
    pub fn is_loss(&self) -> bool {
        match self {
            DeviceError::WorkerGone { .. } => true,
            DeviceError::Gpu(error) => error.is_fatal(),
            _ => false,
        }
    }
}

impl From<rocmforge_gpu::GpuError> for RuntimeError {
    fn from(error: rocmforge_gpu::GpuError) -> RuntimeError {
        DeviceError::Gpu(error).into()
    }
}

impl From<ParameterError> for RuntimeError {
    fn from(error: ParameterError) -> RuntimeError {
        ConfigError::Parameter(error).into()
    }
}

fn of_tensor(name: Option<&str>) -> String {
    name.map_or(String::new(), |name| format!(" of {name}"))
}
