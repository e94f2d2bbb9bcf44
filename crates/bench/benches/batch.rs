//! Batched products and sequences: `cargo bench -p rocmforge-bench --bench batch [-- FLAGS]`, the same suite as
//! `rocmforge bench batch`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Batch)
}
