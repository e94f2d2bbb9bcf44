//! Small random models and LoRA adapters for tests, and which of their cases are exhaustive. Never part of the program.
//!
//! Invariant: a name gives the same bytes every time, on every machine, so that results can be compared with committed
//! ones of llama.cpp.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod data;
pub mod exact;
pub mod models;
pub mod schemas;
pub mod sweep;
