//! Attention: `cargo bench -p rocmforge-profile --bench attention [-- FLAGS]`, the suite of `rocmforge bench attention`.

mod common;

use std::process::ExitCode;

use rocmforge_profile::bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Attention)
}
