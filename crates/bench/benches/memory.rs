//! The KV cache: `cargo bench -p rocmforge-bench --bench memory [-- FLAGS]`, the same suite as `rocmforge bench
//! memory`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Memory)
}
