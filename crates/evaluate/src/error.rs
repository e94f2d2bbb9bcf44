//! Why an importance matrix cannot be gathered.

use rocmforge_engine::EngineError;
use rocmforge_quantize::imatrix::ImatrixError;

/// Why an importance matrix cannot be gathered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Imatrix(#[from] ImatrixError),
}
