//! Attention: `cargo bench -p rocmforge-bench --bench attention [-- FLAGS]`, the same suite as `rocmforge bench
//! attention`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Attention)
}
