//! Text of models: tokenizers, chat templates and streams of generated text.
//!
//! Everything here reads untrusted input (vocabularies, templates, prompts) in bounded time and memory. This crate
//! knows no plan and no device.
#![forbid(unsafe_code)]

pub mod chat_template;
mod text_stream;
pub mod tokenizer;

pub use text_stream::{Piece, TextStream};
