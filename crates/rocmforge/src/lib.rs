//! The library people depend on.
#![forbid(unsafe_code)]
pub use rocmforge_engine as engine;
pub use rocmforge_gguf as gguf;
