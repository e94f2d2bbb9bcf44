//! The command line: every flag with its default and environment variable. `session.rs` resolves them into the
//! engine's types.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rocmforge_runtime::gpu::DeviceId;

use crate::help;

mod answer;
mod baseline;
mod bench;
mod compare;
mod context;
mod device;
mod embed;
mod external;
mod models;
mod profile;
mod quantize;
mod sampling;
mod serve;
mod speculation;
mod suite;
mod targets;

pub use answer::{AnswerArgs, ChatArgs, GenerateArgs, PromptArgs, StructureArgs, TemplateArgs};
pub use baseline::{
    BaselineArgs, BaselineCommand, BaselineCompareArgs, BaselineListArgs, BaselineRmArgs,
    BaselineShowArgs, BaselineStoreArgs, BaselineTrendArgs, KeepArgs, ReportForm, RuleArgs,
};
pub use bench::{BenchArgs, BenchOutput, numbers};
pub use compare::CompareArgs;
pub use context::{AnswerContextArgs, CacheArgs, ContextArgs, ContextPolicyArg, KvTypeArg};
pub use device::{
    Device, DeviceArgs, GpuArgs, GpuCheckArg, IsaArg, OffloadArgs, OnArgs, with_long_names,
};
pub use embed::{BatchArgs, EmbedArgs, RerankArgs};
pub use external::ExternalArgs;
#[cfg(feature = "pull")]
pub use models::PullArgs;
pub use models::{ModelsArgs, ModelsCommand, RemoveArgs, StoreArgs};
pub use profile::ProfileArgs;
pub use quantize::{ImatrixArgs, QuantizeArgs, file_type, file_types};
pub use sampling::SamplingArgs;
pub use serve::{BenchServeArgs, ServeArgs};
pub use speculation::{DraftBy, Speculation, SpeculationArgs};
pub use suite::{BenchCommand, ModelSuiteArgs, SuiteArgs, SuiteCommand, SuiteDevice};
pub use targets::{Metric, Targets};

/// Run GGUF language models on this machine
#[derive(Debug, Parser)]
#[command(
    name = "rocmforge",
    version = crate::version::VERSION,
    after_help = help::TOP,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    args_override_self = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print only results and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Complete a text, or answer a message with --chat
    #[command(after_help = help::GENERATE)]
    Generate(GenerateArgs),
    /// Chat with a model
    #[command(after_help = help::CHAT)]
    Chat(ChatArgs),
    /// Answer requests over HTTP, with OpenAI's API
    #[command(after_help = help::SERVE)]
    Serve(ServeArgs),
    /// Compute embeddings of texts
    #[command(after_help = help::EMBED)]
    Embed(EmbedArgs),
    /// Sort documents by how well they answer a query
    #[command(after_help = help::RERANK)]
    Rerank(RerankArgs),
    /// Show a GGUF file's contents and memory requirements
    #[command(after_help = help::INSPECT)]
    Inspect(InspectArgs),
    /// Show the tokens of a text
    #[command(after_help = help::TOKENIZE)]
    Tokenize(TokenizeArgs),
    /// Measure a model's perplexity on a text
    #[command(after_help = help::PERPLEXITY)]
    Perplexity(PerplexityArgs),
    /// Convert a model to a smaller file type
    #[command(after_help = format!("{}\n\n{}", help::QUANTIZE, file_types()))]
    Quantize(QuantizeArgs),
    /// Compute an importance matrix from a text, for quantize --imatrix
    #[command(after_help = help::IMATRIX)]
    Imatrix(ImatrixArgs),
    /// Measure prefill and decode speed, and compare with the roofline
    #[command(after_help = help::BENCH, args_conflicts_with_subcommands = true)]
    Bench(BenchArgs),
    /// List, show, compare and chart saved benchmark results
    #[command(after_help = help::BASELINE)]
    Baseline(BaselineArgs),
    /// Compare speed with llama.cpp's llama-bench on the same model
    #[command(
        after_help = help::COMPARE,
        override_usage = "rocmforge compare [OPTIONS] --with PROGRAM PATH -m FILE [-- ARGS]"
    )]
    Compare(CompareArgs),
    /// Profile a prompt and its answer
    #[command(after_help = help::PROFILE)]
    Profile(ProfileArgs),
    /// Run a command under rocprofv3, nsys, ncu, perf or another profiler
    #[command(name = "profile-with", after_help = help::PROFILE_WITH)]
    ProfileWith(ExternalArgs),
    /// Autotune a model's kernel launches on a GPU
    #[command(after_help = help::TUNE)]
    Tune(TuneArgs),
    /// Check a model's operations against the scalar reference
    #[command(after_help = help::CHECK)]
    Check(CheckArgs),
    /// List the devices that can run models
    #[command(after_help = help::DEVICES)]
    Devices(DevicesArgs),
    /// Find out what works on this machine, and what to do about the rest
    #[command(after_help = help::DOCTOR)]
    Doctor(DoctorArgs),
    /// List or remove downloaded models
    #[command(after_help = help::MODELS, args_conflicts_with_subcommands = true)]
    Models(ModelsArgs),
    /// Download a model into the models folder
    #[cfg(feature = "pull")]
    #[command(after_help = help::PULL)]
    Pull(PullArgs),
    /// Print a shell completion script
    #[command(after_help = help::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print a manual page, or write all
    #[command(after_help = help::MAN)]
    Man(ManArgs),
    /// Do a part of doctor's work; used internally
    #[command(name = DOCTOR_PART, hide = true)]
    DoctorPart(DoctorPartArgs),
    /// Render a chat template with resource limits; used internally
    #[command(name = RENDER_TEMPLATE, hide = true)]
    RenderTemplate,
}

/// Names of the hidden commands.
pub const DOCTOR_PART: &str = "doctor-part";
pub const RENDER_TEMPLATE: &str = "render-template";

/// The model file and how to load it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// GGUF file, or name of a downloaded model [default: the built-in forge-mini]
    #[arg(
        short,
        long,
        value_name = "FILE",
        env = "ROCMFORGE_MODEL",
        hide_env_values = true
    )]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Override the pre-tokenizer that the file names
    #[arg(
        long,
        value_name = "NAME",
        env = "ROCMFORGE_PRE",
        hide_env_values = true
    )]
    pub pre: Option<String>,
}

/// How to load a file.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Read the file into memory instead of mapping it, e.g. if it may change while in use
    #[arg(long, env = "ROCMFORGE_NO_MMAP", hide_env_values = true, value_parser = BoolishValueParser::new())]
    pub no_mmap: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// LoRA adapters.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct LoraArgs {
    /// Apply a LoRA adapter (GGUF); may be repeated
    #[arg(long, value_name = "FILE")]
    pub lora: Vec<PathBuf>,
    /// Apply a LoRA adapter with a scale; may be repeated
    #[arg(long, value_name = "FILE:SCALE", value_parser = scaled_file)]
    pub lora_scaled: Vec<(PathBuf, f32)>,
}

/// Parses FILE:SCALE or FILE=SCALE.
fn scaled_file(text: &str) -> Result<(PathBuf, f32), String> {
    let parts = text.rsplit_once([':', '=']);
    let (file, scale) = parts.ok_or("the scale is missing; use FILE:SCALE")?;
    match scale.parse::<f32>() {
        _ if file.is_empty() => Err("the file is missing; use FILE:SCALE".to_string()),
        Ok(scale) if scale.is_finite() => Ok((file.into(), scale)),
        _ => Err(format!("`{scale}` is not a number; use FILE:SCALE")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    On,
    Off,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// GGUF file, or name of a downloaded model [default: the built-in forge-mini]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Same as FILE
    #[arg(
        short,
        long,
        value_name = "FILE",
        hide = true,
        env = "ROCMFORGE_MODEL",
        hide_env_values = true
    )]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub cache: CacheArgs,
    /// List all tensors
    #[arg(long, help_heading = "Output")]
    pub tensors: bool,
    /// Print JSON, tensors included
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Print only the ids, as a JSON array
    #[arg(long)]
    pub ids: bool,
    /// Print JSON: each token's id, text, bytes and kind
    #[arg(long, conflicts_with = "ids", help_heading = "Output")]
    pub json: bool,
    /// Do not add the BOS token
    #[arg(long)]
    pub no_bos: bool,
    /// Parse control tokens in the text
    #[arg(long)]
    pub parse_special: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// Text file to measure on
    #[arg(short, long, value_name = "FILE", required_unless_present = "kl_base")]
    pub file: Option<PathBuf>,
    /// Window size in tokens; the second half of each window is scored
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 512,
        alias = "ctx-size"
    )]
    pub ctx: usize,
    /// Maximum number of windows [default: the whole text]
    #[arg(long, value_name = "K")]
    pub chunks: Option<usize>,
    /// Also save the log-probabilities of all tokens of the vocabulary, for --kl-base
    #[arg(long, value_name = "FILE")]
    pub save_logits: Option<PathBuf>,
    /// Measure the KL divergence from saved log-probabilities, on their text
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "ctx", "save_logits"])]
    pub kl_base: Option<PathBuf>,
    /// Print JSON: ppl, stderr, tokens, chunks and more
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Check every operation instead of one per kind, shape and format
    #[arg(long)]
    pub all: bool,
    /// Number of tokens already in the KV cache
    #[arg(short = 'd', long, value_name = "N", default_value_t = 112)]
    pub depth: usize,
    /// Number of tokens of the first of two prompts. 512 tokens reach the kernels of long prompts, and take longer
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub prompt_tokens: u16,
    /// Check the kernels of a server that answers up to N requests at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub max_seqs: usize,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Time limit in seconds; a later run continues
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub budget: u64,
    /// Measure again what is already tuned
    #[arg(long)]
    pub again: bool,
    /// Delete the saved results for this GPU, driver and build, and exit
    #[arg(long, conflicts_with_all = ["again", "dry_run", "json"])]
    pub clear: bool,
    /// Measure without saving
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Also write a tar file for a report: the output, versions, variables and the kernel's lines about GPUs, without
    /// your name and home folder
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Check the results of an emulated GPU, too, such as host:gfx11, if the build has it
    #[arg(long, value_name = "DEVICE", value_parser = emulated_gpu)]
    pub emulated: Option<DeviceId>,
    /// End the checks of a device after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,
}

#[derive(Debug, Args)]
pub struct DoctorPartArgs {
    pub part: String,
    #[arg(long)]
    pub limit: u64,
}

/// Parses the name of an emulated GPU.
fn emulated_gpu(text: &str) -> Result<DeviceId, String> {
    match text.parse()? {
        id @ DeviceId::Host(_) => Ok(id),
        id => Err(format!(
            "{id} is no emulated GPU; all others are checked anyway"
        )),
    }
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Command to print, such as models rm [default: the main page]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Vec<String>,
    /// Write all pages to this folder
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn parses_adapter_scales() {
        for (text, file, scale) in [
            ("a.gguf:0.5", "a.gguf", 0.5),
            ("a.gguf=-2", "a.gguf", -2.0),
            ("dir:1/a=b.gguf:1e-1", "dir:1/a=b.gguf", 0.1),
        ] {
            assert_eq!(scaled_file(text), Ok((file.into(), scale)));
        }
        for text in [
            "a.gguf",
            "a.gguf:",
            "a.gguf:x",
            ":1",
            "a.gguf:nan",
            "a.gguf:inf",
        ] {
            assert!(scaled_file(text).is_err(), "{text}");
        }
    }

    #[test]
    fn command_definition_is_valid() {
        Cli::command().debug_assert();
    }
}
