//! Reads and writes GGUF files and converts between f32 and their block formats. Knows nothing about models or devices.
//!
//! [`Gguf::open`] maps or reads a file and validates its header once. Metadata ([`Metadata`]) and tensors
//! ([`TensorInfo`]) are then borrowed from the file's bytes. [`quant`] defines the block formats with scalar reference
//! conversions, and [`Writer`] writes files.
#![deny(unsafe_code)]

mod bytes;
mod computed;
mod display;
mod error;
mod file;
mod metadata;
mod new_file;
mod open;
mod owned;
pub mod quant;
mod reader;
mod regular;
mod split;
mod tensors;
mod value;
mod write;

pub use display::{escape_control, shown, shown_list, shown_message};
pub use error::Error;
pub use file::{Gguf, LoadMode};
pub use metadata::Metadata;
pub use new_file::{Existing, NewFile};
pub use owned::{OwnedArray, OwnedValue};
pub use quant::GgmlType;
pub use regular::open_regular;
pub use tensors::{TensorInfo, UnknownTensor};
pub use value::{Array, StringIter, Strings, Value, ValueType};
pub use write::{DataStream, Writer};

/// The id of a token: its index in the vocabulary of the file.
pub type TokenId = u32;
