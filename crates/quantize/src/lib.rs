//! Makes a smaller file of a model: chooses a type for each tensor ([`QuantizePlan`]) and converts them one
//! after the other, so that a model may be larger than memory.
//!
//! The choice is llama.cpp's (`mix.rs`), so that a file has the types that its name promises.

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
pub(crate) use mix::ModelFacts;
pub use options::{Mixing, QuantizeOptions, Requantize, TypeRule, tensor_type};
pub(crate) use plan::choose_types;
pub use plan::{Progress, QuantizePlan, TensorPlan, TensorReport};
