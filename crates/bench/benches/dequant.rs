//! Conversion of every format to f32: `cargo bench -p rocmforge-bench --bench dequant [-- FLAGS]`, the suite of `rocmforge bench dequant`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Dequant)
}
