//! GGUF files and quantization formats. Knows no model and no device.
//!
//! A file is opened with [`Gguf::open`] (memory-mapped or read), its header is
//! parsed and checked once, and everything after that is borrowed from the
//! file's bytes: metadata through [`Metadata`], tensors through [`TensorInfo`].
//! [`quant`] holds the block formats and their scalar definition, [`Writer`]
//! produces files.
#![deny(unsafe_code)]

mod display;
mod error;
mod file;
mod metadata;
mod new_file;
mod owned;
pub mod quant;
mod reader;
mod split;
mod tensors;
mod value;
mod write;

pub use display::escape_control;
pub use error::Error;
pub use file::{Gguf, LoadMode};
pub use metadata::Metadata;
pub use new_file::{Existing, NewFile};
pub use owned::{OwnedArray, OwnedValue};
pub use quant::GgmlType;
pub use tensors::TensorInfo;
pub use value::{Array, StringIter, Strings, Value, ValueType};
pub use write::{DataStream, Writer};

/// The id of a token: its index in the vocabulary of the file.
pub type TokenId = u32;
