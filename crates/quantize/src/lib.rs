//! Quantizes GGUF files, reads and writes importance matrices, and writes synthetic models.
//!
//! Invariant: a file has the tensor types that its name promises, because types are chosen as llama.cpp chooses
//! them (`mix.rs`). Tensors are converted one after the other, so a model may be larger than memory. The bytes
//! written do not depend on the number of threads.

#![forbid(unsafe_code)]

mod convert;
mod error;
mod file_type;
pub mod imatrix;
mod mix;
mod options;
mod plan;
pub mod synthetic;

pub use convert::Errors;
pub use error::QuantizeError;
pub use file_type::FileType;
pub use options::{Mixing, QuantizeOptions, Requantize, TypeRule, tensor_type};
pub use plan::{Progress, QuantizePlan, TensorPlan, TensorReport};
