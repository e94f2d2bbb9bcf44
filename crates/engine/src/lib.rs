//! Inference: a model becomes a plan of operations, requests become batches, batches become tokens.
//!
//! `model` reads a GGUF file and records a [`plan`]; a [`backend`] compiles it; [`Engine`] schedules
//! requests into batches over a paged KV cache and runs them through an executor thread.
#![forbid(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod chat_template;
mod context;
mod engine;
mod error;
mod executor;
pub mod imatrix;
pub mod kv_cache;
mod memory;
pub mod model;
mod new_file;
pub mod perplexity;
pub mod plan;
pub mod quantize;
pub mod request;
pub mod sampler;
mod scheduler;
mod sequence;
pub mod synthetic;
mod text_stream;
pub mod tokenizer;

pub use context::ContextPolicy;
pub use engine::{Continue, Device, Engine, EngineConfig};
pub use error::EngineError;
pub use memory::available_bytes;
pub use new_file::{Existing, NewFile};
pub use plan::Passes;
pub use request::{Event, FinishReason, PromptOutput, Request, RequestId};
pub use rocmforge_cpu::{Isa, Roofline, default_threads};
pub use sampler::{Dry, DynamicTemperature, Mirostat, SamplerKind, SamplingParams, Xtc};
pub use scheduler::PrefixSharing;
