//! Small random models and LoRA adapters for tests. Never part of the program.
//!
//! Invariant: a name gives the same bytes every time, on every machine, so that results can be compared with committed
//! ones of llama.cpp.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod data;
pub mod models;
pub mod schemas;
