//! Dequantization: `cargo bench -p rocmforge-bench --bench dequant [-- FLAGS]`, the same suite as `rocmforge bench
//! dequant`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Dequant)
}
