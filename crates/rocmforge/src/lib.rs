//! Run GGUF language models from Rust, on AMD and NVIDIA GPUs and on any CPU.
//!
//! Open a model by path, by its name in the models folder, or by an `hf:` reference; start it on a device; read the
//! answer as an iterator:
//!
//! ```no_run
//! use std::io::Write as _;
//!
//! use rocmforge::{Device, Model};
//!
//! fn main() -> Result<(), rocmforge::Error> {
//!     let model = Model::open("model.gguf")?;
//!     let session = model.device(Device::Auto).start()?;
//!     let mut chat = session.chat()?.system("Answer in one sentence.");
//!     for piece in chat.send("Why is the sky blue?")? {
//!         print!("{}", piece?);
//!         std::io::stdout().flush()?;
//!     }
//!     println!();
//!     Ok(())
//! }
//! ```
//!
//! A model that was opened with [`ModelOptions::for_embeddings`] has [`Session::embed`] and [`Session::rank`] instead.
//!
//! An answer can be made to follow a JSON schema, a regular expression or a grammar: [`Session::grammar`] compiles it, and
//! [`Generate::constrained`] or [`Chat::constrained`] applies it. A model that thinks first does so before, in a conversation.
//!
//! [`Session::generate`] continues a text without a chat template. [`Session::notices`] says what the user should know,
//! for example that a GPU was passed over.
//!
//! This crate is a facade: it keeps its own surface small. Programs that need more depend on the crates below it:
//! `rocmforge-engine` (requests, batches), `rocmforge-runtime` (backends), `rocmforge-gpu` (kernels without a model).
#![forbid(unsafe_code)]

mod chat;
mod conversation;
mod device;
mod embed;
mod error;
mod generate;
mod model;
mod reasoning;
mod session;

pub use chat::{Chat, Reply};
pub use conversation::Message;
pub use device::Device;
pub use error::Error;
pub use generate::{Answer, Generate};
pub use model::{Model, ModelFile, ModelOptions};
pub use rocmforge_engine::{ContextPolicy, FinishReason};
pub use rocmforge_gguf::LoadMode;
pub use rocmforge_grammar::{Grammar, Source};
pub use rocmforge_model::Pooling;
pub use rocmforge_plan::{KvType, KvTypes, SamplingParams};
pub use rocmforge_runtime::gpu::GpuLayers;
pub use rocmforge_text::chat_template::Sandbox;
pub use session::{Session, Start};

/// The parts that the `rocmforge` command is made of. No promise of stability.
#[doc(hidden)]
pub mod parts {
    pub use crate::conversation::{Conversation, Fit, Kept, Prompt};
    pub use crate::device::{
        Started, backend_notices, is_about_a_gpu, settled, start_or_fall_back,
    };
    pub use crate::embed::{embed_each, pair_tokens, text_tokens};
    pub use crate::reasoning::{Reasoning, Said};
    pub use crate::session::{
        Bos, encode_prompt, first_use_check, random_seed, tuning_files, with_bos,
    };
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
