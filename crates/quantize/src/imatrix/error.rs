//! Why an importance matrix could not be read or made.

use rocmforge_gguf::escape_control;

/// Names come from the file, so they are escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImatrixError {
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error(
        "it is no GGUF file; an importance matrix in the old .dat form becomes one with 'llama-imatrix --in-file OLD.dat -o NEW.gguf', or make a new one with rocmforge imatrix"
    )]
    NotGguf,
    #[error(
        "it is a GGUF file without an importance matrix; make one from the model with rocmforge imatrix"
    )]
    NotImatrix,
    #[error(
        "the entry for '{}' is damaged: {problem}; make the importance matrix again",
        escape_control(name)
    )]
    Entry { name: String, problem: &'static str },
    #[error(
        "the activations of '{}' are not finite; its model is damaged, get the file again",
        escape_control(name)
    )]
    NotFinite { name: String },
}
