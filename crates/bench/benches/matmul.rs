//! GEMM and GEMV: `cargo bench -p rocmforge-bench --bench matmul [-- FLAGS]`, the same suite as `rocmforge bench
//! matmul`.

mod common;

use std::process::ExitCode;

use rocmforge_bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Matmul)
}
