//! Flags of `compare`; most are llama-bench's.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use rocmforge_bench::baseline::Thresholds;

use super::bench::Numbers;
use super::models::StoreArgs;

#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Program to compare with and its path: llama-bench, or rocmforge for another build
    ///
    /// Of several builds of llama-bench, each with its own --with, the best counts. Another build of rocmforge also gets
    /// a verdict.
    #[arg(
        long,
        required = true,
        num_args = 2,
        value_names = ["PROGRAM", "PATH"]
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
    /// Run llama-bench only as given
    ///
    /// Without this, llama-bench first tries -fa, -ub, threads and its builds in short runs, and each test takes the best.
    #[arg(long)]
    pub fixed: bool,
    /// Number of pairs of runs [default: 5, with another build of rocmforge 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: Option<u32>,
    /// With another build: the smallest loss that matters, in percent; exit code 3 on a regression [default: 10]
    #[arg(long, value_name = "PERCENT")]
    pub threshold: Option<Thresholds>,
    /// With another build: exit code 5 if a test cannot be judged
    #[arg(long)]
    pub fail_inconclusive: bool,
    /// Repetitions of each test in a run; the run counts with its median
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Device of our runs, as in bench; set llama-bench's own after --
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<String>,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Arguments for the other program, after --
    #[arg(last = true, value_name = "ARGS")]
    pub theirs: Vec<OsString>,
}

/// Checks that the text names a device.
fn device(text: &str) -> Result<String, String> {
    text.parse::<super::Device>().map(|_| text.to_string())
}
