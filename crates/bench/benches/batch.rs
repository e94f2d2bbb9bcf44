//! Several products and sequences at once: `cargo bench -p rocmforge-bench --bench batch [-- FLAGS]`, the suite of `rocmforge bench batch`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Batch)
}
