//! A model's prompts and generation: `cargo bench -p rocmforge-bench --bench inference [-- FLAGS]`, the suite of `rocmforge bench inference`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Inference)
}
