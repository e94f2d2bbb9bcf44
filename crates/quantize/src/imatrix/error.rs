//! Importance-matrix errors.

use rocmforge_gguf::shown;

/// Why an importance matrix could not be read or made. Names come from the file, so they are escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImatrixError {
    #[error(transparent)]
    Gguf(#[from] rocmforge_gguf::Error),
    #[error(
        "not a GGUF file; convert an importance matrix in the old .dat format with 'llama-imatrix --in-file OLD.dat -o NEW.gguf', or make a new one with rocmforge imatrix"
    )]
    NotGguf,
    #[error(
        "a GGUF file without an importance matrix; make one from the model with rocmforge imatrix"
    )]
    NotImatrix,
    #[error(
        "the entry for '{}' is damaged: {problem}; make the importance matrix again",
        shown(name)
    )]
    Entry { name: String, problem: &'static str },
    #[error(
        "the activations of '{}' are not finite; the model is damaged, download it again",
        shown(name)
    )]
    NotFinite { name: String },
}
