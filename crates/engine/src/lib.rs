//! Serves requests: schedules them into batches over a paged KV cache and runs the batches on a device.
//!
//! [`Engine`] owns all request state. It exchanges plain data with its device: batches in, sampled tokens out. This
//! crate has no kernels, file formats or protocols.
#![forbid(unsafe_code)]

mod context;
mod engine;
mod error;
pub mod kv_cache;
mod request;
mod scheduler;
mod sequence;

pub use engine::Engine;
pub use error::{ConfigError, DeviceError, EngineError, RequestError};
pub use request::{Event, FinishReason, PromptOutput, Request, RequestId};
pub use rocmforge_runtime::{ContextPolicy, Device, EngineConfig, PrefixSharing};
