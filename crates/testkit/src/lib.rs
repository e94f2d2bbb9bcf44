//! Small random models and LoRA adapters for tests, the same bytes every time. Never part of the program.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod data;
pub mod models;
