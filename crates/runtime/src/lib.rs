//! Backends that run plans on the CPU, on a GPU, or on both.
//!
//! A [`Backend`] compiles a plan and runs batches; [`Executor`] calls it. [`start`] builds a backend
//! from the user's settings ([`EngineConfig`]): it measures free memory, resolves limits, places layers, and checks a
//! GPU at its first use. This crate has no requests and no text.
#![forbid(unsafe_code)]

mod backend;
pub mod check;
mod config;
pub mod cpu;
mod error;
mod executor;
pub mod gpu;
mod gpu_config;
pub mod hybrid;
mod limits;
mod offload;
mod output;
mod place;
mod plans;
pub mod sampler;
mod self_check;
mod shared_cache;
mod start;
mod stepwise;
pub mod times;
pub mod tuning;
mod tuning_files;

pub use backend::{
    Backend, BackendInfo, BackendPart, DeviceMemory, IdleWork, OpData, OpObserver, Reply, Wait,
};
pub use config::{ContextPolicy, Device, EngineConfig, KvTokens, PrefixSharing};
pub use error::{ConfigError, DeviceError, RuntimeError};
pub use executor::{Executor, Pending};
pub use limits::{Limits, Output, Resolved, check_shift};
pub use place::{Fit, Fits, fit, free_bytes};
pub use plans::running_plan;
pub use shared_cache::SharedCache;
pub use start::{Started, compare_graphs, start, start_beside};
pub use times::StepObserver;
