//! The flags of `compare`: llama-bench's where it has them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::bench::Numbers;
use super::models::StoreArgs;

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The other program, llama-bench, and its path
    #[arg(
        long,
        required = true,
        num_args = 2,
        value_names = ["llama-bench", "PATH"]
    )]
    pub with: Vec<OsString>,
    /// GGUF file, or its name in the models folder
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "ROCMFORGE_MODEL",
        hide_env_values = true
    )]
    pub model: PathBuf,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Tokens of a prompt; 0 measures none [default: 512]
    #[arg(short = 'p', long, value_name = "N,...", help_heading = "Tests")]
    pub n_prompt: Vec<Numbers>,
    /// Tokens to generate; 0 measures none [default: 128]
    #[arg(short = 'n', long, value_name = "N,...", help_heading = "Tests")]
    pub n_gen: Vec<Numbers>,
    /// Tokens already in the cache before a test, a multiple of 32 [default: 0]
    #[arg(short = 'd', long, value_name = "N,...", help_heading = "Tests")]
    pub n_depth: Vec<Numbers>,
    /// Threads that compute, of both programs [default: one for each core this process may use]
    #[arg(short, long, value_name = "N", help_heading = "Tests")]
    pub threads: Option<usize>,
    /// Pairs of runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: u32,
    /// How often each test is measured in a run, which counts with its median
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// What computes in our runs, as with bench; say the same to llama-bench after --
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<String>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Arguments for llama-bench, after --
    #[arg(last = true, value_name = "ARGS")]
    pub theirs: Vec<OsString>,
}

/// The text, if it names a device.
fn device(text: &str) -> Result<String, String> {
    text.parse::<super::Device>().map(|_| text.to_string())
}
