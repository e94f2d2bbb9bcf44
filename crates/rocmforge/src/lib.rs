//! Run GGUF language models from Rust: the same parts that the `rocmforge` command is made of.
//!
//! [`gguf`] reads model files, [`engine`] runs them, [`profile`] says how fast and why. Products of quantized matrices
//! without a model: [`gpu::BatchQuantizedMatmul`], [`gpu::AsyncKernelLauncher`]. A whole program:
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//!
//! use rocmforge::engine::tokenizer::{EncodeOptions, Tokenizer};
//! use rocmforge::engine::{Continue, Engine, EngineConfig, Event, Request, model::Model};
//! use rocmforge::gguf::{Gguf, LoadMode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gguf = Arc::new(Gguf::open(Path::new("model.gguf"), LoadMode::Mmap)?);
//! let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None)?);
//! let model = Model::load(gguf)?;
//! let mut engine = Engine::on_cpu(&model, Some(tokenizer.clone()), &EngineConfig::default())?;
//!
//! let options = EncodeOptions { add_special: true, parse_special: false };
//! let prompt = tokenizer.encode("Once upon a time", options);
//! let id = engine.submit(Request::greedy(prompt, 100))?;
//! engine.run(id, |event| {
//!     if let Event::Token { text, .. } = event {
//!         print!("{text}");
//!     }
//!     Continue::Yes
//! })?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub use rocmforge_bench as bench;
pub use rocmforge_engine as engine;
pub use rocmforge_external as external;
pub use rocmforge_gguf as gguf;
pub use rocmforge_gpu as gpu;
pub use rocmforge_profile as profile;
pub use rocmforge_report as report;
