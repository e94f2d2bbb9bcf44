//! Products: `cargo bench -p rocmforge-bench --bench matmul [-- FLAGS]`, the suite of `rocmforge bench matmul`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Matmul)
}
