//! Flags of the bench suites, which are subcommands of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rocmforge_bench::Suite;

use super::{BenchOutput, BenchServeArgs, Device, GpuArgs, IsaArg, KeepArgs, LoadArgs};
use crate::help;

/// What `bench` measures instead of a model's speed.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    #[command(flatten)]
    Suite(SuiteCommand),
    /// Measure a server under load: OpenAI's completions or chats
    #[command(
        after_help = help::BENCH_SERVE,
        override_usage = "rocmforge bench serve --url URL (--rate R | --concurrency C) [OPTIONS]"
    )]
    Serve(BenchServeArgs),
}

#[derive(Debug, Subcommand)]
pub enum SuiteCommand {
    /// Measure GEMM and GEMV of F32 and of every quantized format
    #[command(after_help = help::SUITE)]
    Matmul(SuiteArgs),
    /// Measure attention: standard, flash (online softmax) and causal
    #[command(after_help = help::SUITE)]
    Attention(SuiteArgs),
    /// Measure dequantization of every format to f32
    #[command(after_help = help::SUITE)]
    Dequant(SuiteArgs),
    /// Measure a model's time to first token and its decode speed
    #[command(after_help = help::SUITE)]
    Inference(ModelSuiteArgs),
    /// Measure the KV cache: growth, fragmentation, page tables
    #[command(after_help = help::SUITE)]
    Memory(SuiteArgs),
    /// Measure merged GEMMs and batched sequences
    #[command(after_help = help::SUITE)]
    Batch(ModelSuiteArgs),
}

impl SuiteCommand {
    /// Returns the suite, its flags and its model flags.
    pub fn parts(&self) -> (Suite, &SuiteArgs, Option<&ModelSuiteArgs>) {
        match self {
            SuiteCommand::Matmul(args) => (Suite::Matmul, args, None),
            SuiteCommand::Attention(args) => (Suite::Attention, args, None),
            SuiteCommand::Dequant(args) => (Suite::Dequant, args, None),
            SuiteCommand::Inference(args) => (Suite::Inference, &args.suite, Some(args)),
            SuiteCommand::Memory(args) => (Suite::Memory, args, None),
            SuiteCommand::Batch(args) => (Suite::Batch, &args.suite, Some(args)),
        }
    }
}

#[derive(Debug, Args)]
pub struct SuiteArgs {
    /// Run only rows whose name contains this text or matches this regular expression; case-insensitive
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Use small sizes and few samples, as a smoke test
    #[arg(long)]
    pub quick: bool,
    /// Print all statistics, metrics and the hardware
    #[arg(short, long, help_heading = "Output")]
    pub verbose: bool,
    /// Output format
    ///
    /// json: one array; jsonl: one object per line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = BenchOutput::Table, help_heading = "Output")]
    pub output: BenchOutput,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// Device: all (the CPU and every GPU), cpu, gpu, hip:N (AMD), cuda:N (NVIDIA) or host (a slow emulated GPU)
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "all",
        env = "ROCMFORGE_DEVICE",
        hide_env_values = true,
        help_heading = "Device"
    )]
    pub device: SuiteDevice,
    #[command(flatten)]
    pub gpu: GpuArgs,
    /// CPU instruction set; auto: the fastest supported
    #[arg(long, value_enum, default_value_t = IsaArg::Auto, env = "ROCMFORGE_ISA", hide_env_values = true, help_heading = "Device")]
    pub isa: IsaArg,
    /// Number of CPU threads [default: cores available to the process]
    #[arg(
        short,
        long,
        value_name = "N",
        env = "ROCMFORGE_THREADS",
        hide_env_values = true,
        value_parser = clap::value_parser!(u16).range(1..=1024),
        help_heading = "Device"
    )]
    pub threads: Option<u16>,
}

#[derive(Debug, Args)]
pub struct ModelSuiteArgs {
    /// GGUF file, or name of a downloaded model [default: the built-in forge-mini]
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "ROCMFORGE_MODEL",
        hide_env_values = true,
        help_heading = "Model"
    )]
    pub model: Option<PathBuf>,
    /// Instead of a file, random weights in the shape and type of a model, such as llama-3.1-8b:Q4_K_M
    #[arg(long, value_name = "SHAPE:TYPE", help_heading = "Model")]
    pub synthetic: Option<String>,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub suite: SuiteArgs,
}

/// One device or all usable ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuiteDevice {
    All,
    One(Device),
}

impl std::str::FromStr for SuiteDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<SuiteDevice, String> {
        match text {
            "all" => Ok(SuiteDevice::All),
            one => one.parse().map(SuiteDevice::One),
        }
    }
}
