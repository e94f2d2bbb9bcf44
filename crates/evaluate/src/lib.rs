//! Measures a model on a text by running it through an engine: perplexity, KL divergence from another model, and importance
//! matrices for quantization.
//!
//! Invariant: all cut the text into the same windows as llama.cpp's tools do, so the results can be compared.
#![forbid(unsafe_code)]

mod divergence;
mod error;
mod imatrix;
mod perplexity;
mod saved_logits;

pub use divergence::{Divergence, DivergenceError, Mean, divergence, save_logits};
pub use error::GatherError;
pub use imatrix::{Chunks, gather};
pub use perplexity::{Perplexity, perplexity};
pub use saved_logits::{Row, SavedLogits, SavedLogitsError, SavedLogitsWriter};
