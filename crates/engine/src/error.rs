//! Errors of the engine and of requests.

use crate::event::Failure;
use rocmforge_plan::ParameterError;
use rocmforge_runtime::RuntimeError;
pub use rocmforge_runtime::{ConfigError, DeviceError};

/// An invalid or failed request. Each message says what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error("the prompt is empty and the model adds no start token; give at least one token")]
    EmptyPrompt,
    #[error(
        "the prompt has {n_tokens} tokens, but the context holds {n_ctx}; shorten the prompt or use a larger context"
    )]
    PromptTooLong { n_tokens: usize, n_ctx: usize },
    #[error(
        "the text has {n_tokens} tokens, fewer than one window of {n_ctx}; use a longer text or a smaller context"
    )]
    TextTooShort { n_tokens: usize, n_ctx: usize },
    #[error(
        "the text has {n_tokens} tokens, but this model reads a text at once, in a step of up to {max_tokens}; shorten the text or allow more tokens per step (`max_batch_tokens`)"
    )]
    TextTooLong { n_tokens: usize, max_tokens: usize },
    #[error("this model was loaded for embeddings and generates no text; load it for text")]
    LoadedForEmbeddings,
    #[error("this model was loaded for text and has no embeddings; load it for embeddings")]
    LoadedForText,
    #[error("{0}; try again later")]
    QueueFull(QueueLimit),
    #[error(
        "the logits of prompts are not streamed; take log-probabilities (`PromptOutput::Scores`), or drive an engine of your own"
    )]
    LogitsStreamed,
    #[error("token id {id} is outside the vocabulary of {n_vocab} tokens")]
    TokenOutOfRange { id: u32, n_vocab: usize },
    #[error("the file has no vocabulary, so prompts must be token ids")]
    NoTokenizer,
    #[error(
        "the model's logits are NaN or infinite; its weights are damaged, download the file again"
    )]
    NotFinite,
}

/// How much may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueLimit {
    #[error("{0} requests may wait")]
    Requests(usize),
    #[error("prompts of {0} tokens may wait")]
    Tokens(usize),
}

/// An error of the configuration, the device or a request.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A request that ended with an error other than its own.
    #[error(transparent)]
    Failed(Failure),
}

impl From<RuntimeError> for EngineError {
    fn from(error: RuntimeError) -> EngineError {
        match error {
            RuntimeError::Config(error) => error.into(),
            RuntimeError::Device(error) => error.into(),
        }
    }
}

impl From<rocmforge_gpu::GpuError> for EngineError {
    fn from(error: rocmforge_gpu::GpuError) -> EngineError {
        DeviceError::Gpu(error).into()
    }
}
