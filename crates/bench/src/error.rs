//! Errors of bench suites.

use rocmforge_engine::{ConfigError, EngineError};
use rocmforge_gpu::GpuError;

/// Why a suite or a case could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the GPU: {0}")]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error("{0}")]
    Unsupported(String),
    #[error("it needs {needed_mib} MiB, and {free_mib} MiB are free")]
    NoMemory { needed_mib: u64, free_mib: u64 },
    #[error(
        "no case of {suite} matches '{filter}'; its {n_cases} cases range from {first} to {last}"
    )]
    NoMatch {
        suite: &'static str,
        filter: String,
        n_cases: usize,
        first: String,
        last: String,
    },
    /// Stopped by the sink.
    #[error("stopped")]
    Stopped,
    #[error("the suite {suite} needs a model")]
    NoModel { suite: &'static str },
    #[error(
        "the cache kept {kept} of {depth} tokens between two runs; use a smaller depth or fewer sequences"
    )]
    CacheLost { kept: usize, depth: usize },
}

impl BenchError {
    /// Whether the error concerns only this case.
    pub(crate) fn is_of_the_case(&self) -> bool {
        match self {
            BenchError::Unsupported(_) | BenchError::NoMemory { .. } => true,
            BenchError::Gpu(error) => matches!(
                error,
                GpuError::OutOfMemory { .. } | GpuError::Format { .. } | GpuError::NoSymbol { .. }
            ),
            BenchError::Engine(error) => matches!(
                error,
                EngineError::Config(
                    ConfigError::NoMemory { .. }
                        | ConfigError::NoMemoryAtAll { .. }
                        | ConfigError::NoMemoryForWeights { .. }
                        | ConfigError::TooFewPositions { .. }
                )
            ),
            _ => false,
        }
    }
}
