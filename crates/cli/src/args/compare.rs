//! Flags of `compare`; most are llama-bench's.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::bench::Numbers;
use super::models::StoreArgs;

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Program to compare with and its path
    #[arg(
        long,
        required = true,
        num_args = 2,
        value_names = ["llama-bench", "PATH"]
    )]
    pub with: Vec<OsString>,
    /// GGUF file, or name of a downloaded model
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
    /// Prompt lengths in tokens; 0: skip prefill [default: 512]
    #[arg(short = 'p', long, value_name = "N,...", help_heading = "Tests")]
    pub n_prompt: Vec<Numbers>,
    /// Numbers of tokens to generate; 0: skip decode [default: 128]
    #[arg(short = 'n', long, value_name = "N,...", help_heading = "Tests")]
    pub n_gen: Vec<Numbers>,
    /// Tokens already in the KV cache before a test; a multiple of 32 [default: 0]
    #[arg(short = 'd', long, value_name = "N,...", help_heading = "Tests")]
    pub n_depth: Vec<Numbers>,
    /// Number of CPU threads of both programs [default: cores available to the process]
    #[arg(short, long, value_name = "N", help_heading = "Tests")]
    pub threads: Option<usize>,
    /// Number of pairs of runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: u32,
    /// Repetitions of each test in a run; the run counts with its median
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Device of our runs, as in bench; set llama-bench's own after --
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<String>,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Arguments for llama-bench, after --
    #[arg(last = true, value_name = "ARGS")]
    pub theirs: Vec<OsString>,
}

/// Checks that the text names a device.
fn device(text: &str) -> Result<String, String> {
    text.parse::<super::Device>().map(|_| text.to_string())
}
