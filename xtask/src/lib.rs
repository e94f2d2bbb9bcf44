//! The part of `cargo xtask` that is also a program of its own, for machines without Rust.
#![forbid(unsafe_code)]

pub mod gpu_proof;
