//! Products: `cargo bench -p rocmforge-profile --bench matmul [-- FLAGS]`, the suite of `rocmforge bench matmul`.

mod common;

use std::process::ExitCode;

use rocmforge_profile::bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Matmul)
}
