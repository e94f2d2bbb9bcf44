//! Prefill and decode of a model: `cargo bench -p rocmforge-bench --bench inference [-- FLAGS]`, the same suite as
//! `rocmforge bench inference`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Inference)
}
