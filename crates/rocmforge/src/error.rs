//! The facade's error: one enum over the errors of its parts.

use std::io::ErrorKind;

use rocmforge_engine::{ConfigError, DeviceError, EngineError, Failure, RequestError};
use rocmforge_grammar::GrammarError;
use rocmforge_model::LoadError;
use rocmforge_text::chat_template::TemplateError;
use rocmforge_text::tokenizer::TokenizerError;

/// Why a model cannot be opened or started, or an answer fails. Each message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device or the engine ended the answer.
    #[error(transparent)]
    Failed(Failure),
    /// The models folder or the hub.
    #[error(transparent)]
    Hub(#[from] rocmforge_hub::Error),
    /// The GGUF file.
    #[error("{}", file_message(label, error))]
    File {
        label: String,
        error: Box<rocmforge_gguf::Error>,
    },
    /// The model in the file.
    #[error("{label}: {error}")]
    Load {
        label: String,
        error: Box<LoadError>,
    },
    /// The vocabulary in the file.
    #[error("{label}: {error}")]
    Tokenizer {
        label: String,
        error: Box<TokenizerError>,
    },
    /// The file has no weights.
    #[error("{label} has no weights; only its metadata and vocabulary can be used")]
    NoWeights { label: String },
    /// The chat template in the file.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// What an answer was to follow.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// A setting that this model or machine cannot serve.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A device that is missing, failed or computes wrongly.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A request that cannot be served.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Printing or reading text.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Returns the message of a file's error, which names the file once.
fn file_message(label: &str, error: &rocmforge_gguf::Error) -> String {
    match error {
        rocmforge_gguf::Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            format!(
                "{error}; give the path of a .gguf file, the name of a downloaded model, or hf:OWNER/REPO"
            )
        }
        rocmforge_gguf::Error::Io { .. } | rocmforge_gguf::Error::NotAFile { .. } => {
            error.to_string()
        }
        _ => format!("{label}: {error}"),
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        match error {
            EngineError::Config(error) => error.into(),
            EngineError::Device(error) => error.into(),
            EngineError::Request(error) => error.into(),
            EngineError::Failed(failure) => Error::Failed(failure),
        }
    }
}
