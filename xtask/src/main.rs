//! Chores of the repository that are not part of the program: `cargo xtask`.

mod compare_llama;
mod fixtures;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Chores of the ROCmForge repository")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the expected values of the format tests again, or check that they
    /// are what would be written
    Fixtures {
        /// A Python that has the gguf package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
        /// Compare with the committed files and change nothing
        #[arg(long)]
        check: bool,
    },
    /// Compare logits with llama.cpp's on the same files, side by side
    CompareLlama {
        #[arg(required = true, value_name = "MODEL")]
        models: Vec<PathBuf>,
        /// Length of the prompt
        #[arg(long, default_value_t = 330)]
        tokens: usize,
        /// A Python that has the llama-cpp-python package
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
    },
}

fn main() -> Result<()> {
    match Args::parse().task {
        Task::Fixtures {
            python,
            check: false,
        } => fixtures::write(&python),
        Task::Fixtures {
            python,
            check: true,
        } => fixtures::check(&python),
        Task::CompareLlama {
            models,
            tokens,
            python,
        } => compare_llama::run(&models, tokens, &python),
    }
}

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
}
