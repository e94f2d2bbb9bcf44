//! Text of models: tokenizers, chat templates, streams of generated text, and the calls of tools in it.
//!
//! Invariant: vocabularies, templates and prompts are untrusted, and every one is handled in bounded time and memory.
//! This crate knows no plan and no device.
#![forbid(unsafe_code)]

pub mod answer;
pub mod chat_template;
pub mod infill;
mod text_stream;
pub mod tokenizer;

pub use text_stream::{Piece, TextStream};
