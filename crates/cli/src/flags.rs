//! Names the flags that solve an error. The libraries' messages name settings, not flags.

use anyhow::Error;
use rocmforge_engine::{ConfigError, DeviceError, EngineError, Failure, RequestError};
use rocmforge_evaluate::GatherError;
use rocmforge_model::LoadError;
use rocmforge_runtime::RuntimeError;
use rocmforge_runtime::gpu::GpuError;

/// Reported by builds without GPU kernels.
pub const NO_KERNELS: &str = "this build has no GPU kernels; build it with clang 22 and ROCMFORGE_GPU_TARGETS=native or \
     a list such as gfx1100,sm_80";

/// An error of the engine, whichever library reported it.
pub enum Cause<'a> {
    Config(&'a ConfigError),
    Device(&'a DeviceError),
    Request(&'a RequestError),
}

impl<'a> Cause<'a> {
    fn of_engine(error: &'a EngineError) -> Option<Cause<'a>> {
        match error {
            EngineError::Config(error) => Some(Cause::Config(error)),
            EngineError::Device(error) => Some(Cause::Device(error)),
            EngineError::Request(error) => Some(Cause::Request(error)),
            EngineError::Failed(Failure::Device(error)) => Some(Cause::of_runtime(error)),
            EngineError::Failed(_) => None,
        }
    }

    fn of_runtime(error: &'a RuntimeError) -> Cause<'a> {
        match error {
            RuntimeError::Config(error) => Cause::Config(error),
            RuntimeError::Device(error) => Cause::Device(error),
        }
    }

    /// Returns the engine's error in `error`, if there is one.
    pub fn of(error: &'a Error) -> Option<Cause<'a>> {
        if let Some(error) = error.downcast_ref::<EngineError>() {
            return Cause::of_engine(error);
        }
        if let Some(GatherError::Engine(error)) = error.downcast_ref() {
            return Cause::of_engine(error);
        }
        if let Some(error) = error.downcast_ref::<RuntimeError>() {
            return Some(Cause::of_runtime(error));
        }
        match error.downcast_ref::<rocmforge::Error>()? {
            rocmforge::Error::Config(error) => Some(Cause::Config(error)),
            rocmforge::Error::Device(error) => Some(Cause::Device(error)),
            rocmforge::Error::Request(error) => Some(Cause::Request(error)),
            _ => None,
        }
    }

    /// Returns whether a parameter is out of range, which is wrong usage.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Cause::Config(ConfigError::Parameter(_)) | Cause::Request(RequestError::Parameter(_))
        )
    }

    /// Returns what this build lacks, if no GPU was found and a driver alone would not help. `targets`: those that the
    /// build has kernels for.
    pub fn of_build(&self, targets: &[&str]) -> Option<&'static str> {
        let no_gpu = match self {
            Cause::Device(DeviceError::NoGpu { .. }) => true,
            Cause::Device(DeviceError::Gpu(error)) => matches!(
                error,
                GpuError::NoLibrary { .. } | GpuError::NoDevice { .. }
            ),
            _ => false,
        };
        let has_kernels = targets.iter().any(|target| !target.starts_with("host-"));
        (no_gpu && !has_kernels).then_some(NO_KERNELS)
    }

    fn flags(&self) -> Option<&'static str> {
        match self {
            Cause::Config(error) => config_flags(error),
            Cause::Device(DeviceError::LostStep { .. }) => Some("--no-graphs"),
            Cause::Device(DeviceError::WrongGpu { .. }) => Some("--device cpu"),
            Cause::Request(
                RequestError::PromptTooLong { .. } | RequestError::TextTooShort { .. },
            ) => Some("--ctx"),
            Cause::Request(RequestError::TextTooLong { .. }) => Some("--batch-tokens"),
            Cause::Request(RequestError::NoTokenizer) => Some("--ids"),
            _ => None,
        }
    }
}

/// Returns the flags that solve `error`, for the end of its message.
pub fn of(error: &Error) -> Option<&'static str> {
    let exists = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::AlreadyExists;
    let embeds = |cause: &LoadError| matches!(cause, LoadError::EmbeddingsOnly { .. });
    match Cause::of(error) {
        Some(cause) => cause.flags(),
        None if error.chain().filter_map(|e| e.downcast_ref()).any(embeds) => {
            Some("rocmforge embed")
        }
        None if error.chain().filter_map(|e| e.downcast_ref()).any(exists) => Some("--force"),
        None => None,
    }
}

fn config_flags(error: &ConfigError) -> Option<&'static str> {
    match error {
        ConfigError::TooManySinks { .. } => Some("--ctx, --context-sinks"),
        ConfigError::FixedPositions | ConfigError::FixedStates => Some("--context-policy"),
        ConfigError::TooFewPositions { .. } | ConfigError::NoMemory { .. } => Some("--ctx"),
        ConfigError::KvTypeHeadDim { .. } => Some("--kv-type"),
        ConfigError::KvTypesOfLatent { .. } => Some("--kv-type, --kv-type-k, --kv-type-v"),
        ConfigError::GpuKvTypes { kv_types, .. } => Some(match kv_types.same() {
            Some(_) => "--kv-type f16",
            None => "--kv-type-k f16 --kv-type-v f16",
        }),
        ConfigError::NoMemoryAtAll { .. } | ConfigError::NoMemoryForWeights { .. } => {
            Some("--gpu-layers auto")
        }
        ConfigError::TooManyGpuLayers { .. } | ConfigError::NoExperts => Some("--gpu-layers"),
        ConfigError::GpuLimit(_) => Some("--device cpu"),
        _ => None,
    }
}
