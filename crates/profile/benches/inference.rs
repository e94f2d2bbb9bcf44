//! A model's prompts and generation: `cargo bench -p rocmforge-profile --bench inference [-- FLAGS]`, the suite of `rocmforge bench inference`.

mod common;

use std::process::ExitCode;

use rocmforge_profile::bench::Suite;

fn main() -> ExitCode {
    common::main(Suite::Inference)
}
