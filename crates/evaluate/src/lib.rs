//! Measures a model on a text by running it through an engine: perplexity, and importance matrices for quantization.
//!
//! Invariant: both cut the text into the same windows as llama.cpp's tools do, so the results can be compared.
#![forbid(unsafe_code)]

mod error;
mod imatrix;
mod perplexity;

pub use error::GatherError;
pub use imatrix::{Chunks, gather};
pub use perplexity::{Perplexity, perplexity};
