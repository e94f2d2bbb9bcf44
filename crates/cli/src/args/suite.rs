//! The flags of the bench suites, the subcommands of `bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use rocmforge_bench::Suite;
use rocmforge_bench::export::Form;

use super::{Device, GpuArgs, IsaArg, KeepArgs, LoadArgs};
use crate::help;

#[derive(Debug, Subcommand)]
pub enum SuiteCommand {
    /// Measure products: of F32, and of every format with few and with many tokens
    #[command(after_help = help::SUITE)]
    Matmul(SuiteArgs),
    /// Measure attention: all scores in memory, online softmax, causal
    #[command(after_help = help::SUITE)]
    Attention(SuiteArgs),
    /// Measure the conversion of every format to f32
    #[command(after_help = help::SUITE)]
    Dequant(SuiteArgs),
    /// Measure a model's time to the first token and its generation, of one and of several sequences
    #[command(after_help = help::SUITE)]
    Inference(ModelSuiteArgs),
    /// Measure the KV cache: growth, allocation, fragmentation, page tables
    #[command(after_help = help::SUITE)]
    Memory(SuiteArgs),
    /// Measure several products and several sequences at once
    #[command(after_help = help::SUITE)]
    Batch(ModelSuiteArgs),
}

impl SuiteCommand {
    /// The suite, its flags, and those of its model.
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
    /// Only rows whose name contains this text, or matches it as a regular expression, in any case
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Small sizes and few samples, to see that everything runs
    #[arg(long)]
    pub quick: bool,
    /// Show all times, what else was measured, and on what
    #[arg(short, long, help_heading = "Output")]
    pub verbose: bool,
    /// How to print the results
    #[arg(short, long, value_enum, default_value_t = SuiteOutput::Table, help_heading = "Output")]
    pub output: SuiteOutput,
    #[command(flatten)]
    pub keep: KeepArgs,
    /// What is measured: all (the CPU and every GPU), cpu, gpu, hip:N (AMD), cuda:N (NVIDIA), or host, a slow CPU that
    /// plays a GPU
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
    /// Instruction set of the CPU; auto takes the fastest
    #[arg(long, value_enum, default_value_t = IsaArg::Auto, env = "ROCMFORGE_ISA", hide_env_values = true, help_heading = "Device")]
    pub isa: IsaArg,
    /// Threads that compute [default: one for each core this process may use]
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
    /// GGUF file, or its name in the models folder [default: forge-mini, the model inside this program]
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "ROCMFORGE_MODEL",
        hide_env_values = true,
        help_heading = "Model"
    )]
    pub model: Option<PathBuf>,
    /// Instead of a file: a model of this shape and type with random weights, made in memory, such as
    /// llama-3.1-8b:Q4_K_M
    #[arg(long, value_name = "SHAPE:TYPE", help_heading = "Model")]
    pub synthetic: Option<String>,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub suite: SuiteArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SuiteOutput {
    Table,
    /// One array
    Json,
    Csv,
    Markdown,
}

impl SuiteOutput {
    pub fn form(self) -> Form {
        match self {
            SuiteOutput::Table => Form::Table,
            SuiteOutput::Json => Form::Json,
            SuiteOutput::Csv => Form::Csv,
            SuiteOutput::Markdown => Form::Markdown,
        }
    }
}

/// One device, or all that can be used.
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
