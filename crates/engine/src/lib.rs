//! Serves requests: schedules them into batches over a paged KV cache and runs the batches on a device.
//!
//! [`Engine`] owns all request state. It exchanges plain data with its device: batches in, sampled tokens out.
//! [`serve`](serve::serve) gives it a thread of its own, for any number of clients. This crate has no kernels, file
//! formats or protocols.
#![forbid(unsafe_code)]

mod context;
mod draft;
mod engine;
mod error;
mod event;
mod intake;
pub mod kv_cache;
mod masks;
mod progress;
#[cfg(test)]
mod recorder;
mod request;
mod scheduler;
mod sequence;
mod sequences;
pub mod serve;
pub mod speculate;
mod stats;

pub use draft::DraftCounts;
pub use engine::{ComputedStep, Engine, StepWatcher};
pub use error::{ConfigError, DeviceError, EngineError, QueueLimit, RequestError};
pub use event::{Event, Failure, FinishReason, StopCause};
pub use masks::MaskWatcher;
pub use progress::{RequestProgress, RequestState};
pub use request::{PromptOutput, Request, RequestId};
pub use rocmforge_plan::{Constraint, ConstraintError, Progress};
pub use rocmforge_runtime::{ContextPolicy, Device, EngineConfig, KvTokens, PrefixSharing};
pub use stats::{BlockUsage, EngineStats, PrefixLookups};
