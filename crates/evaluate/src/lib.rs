//! Runs a text through an engine and measures: perplexity, and importance matrices for quantization.
#![forbid(unsafe_code)]

mod error;
mod imatrix;
mod perplexity;

pub use error::GatherError;
pub use imatrix::{Chunks, gather};
pub use perplexity::{Perplexity, perplexity};
