//! The command line: every flag, its default and its environment variable, and nothing that acts on
//! them. `session.rs` resolves these choices once into the engine's own types.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::help;

mod answer;
mod baseline;
mod bench;
mod compare;
mod context;
mod device;
mod external;
mod models;
mod profile;
mod quantize;
mod sampling;
mod suite;

pub use answer::{AnswerArgs, ChatArgs, GenerateArgs, PromptArgs};
pub use baseline::{
    BaselineArgs, BaselineCommand, BaselineCompareArgs, BaselineListArgs, BaselineShowArgs,
    BaselineStoreArgs, BaselineTrendArgs, KeepArgs, ReportForm,
};
pub use bench::{BenchArgs, BenchOutput, numbers};
pub use compare::CompareArgs;
pub use context::{AnswerContextArgs, CacheArgs, ContextArgs, ContextPolicyArg, KvTypeArg};
pub use device::{
    Device, DeviceArgs, GpuArgs, GpuCheckArg, IsaArg, OffloadArgs, OnArgs, with_long_names,
};
pub use external::ExternalArgs;
#[cfg(feature = "pull")]
pub use models::PullArgs;
pub use models::{ModelsArgs, ModelsCommand, RemoveArgs, StoreArgs};
pub use profile::ProfileArgs;
pub use quantize::{ImatrixArgs, QuantizeArgs, file_type, file_types};
pub use sampling::SamplingArgs;
pub use suite::{ModelSuiteArgs, SuiteArgs, SuiteCommand, SuiteDevice};

/// Run GGUF language models on this machine
#[derive(Debug, Parser)]
#[command(
    name = "rocmforge",
    version,
    after_help = help::TOP,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    args_override_self = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a text, or answer one message with --chat
    #[command(after_help = help::GENERATE)]
    Generate(GenerateArgs),
    /// Talk with the model, over many turns
    #[command(after_help = help::CHAT)]
    Chat(ChatArgs),
    /// Show what a GGUF file holds and what memory it needs
    #[command(after_help = help::INSPECT)]
    Inspect(InspectArgs),
    /// Show the tokens of a text
    #[command(after_help = help::TOKENIZE)]
    Tokenize(TokenizeArgs),
    /// Measure how well the model predicts a text
    #[command(after_help = help::PERPLEXITY)]
    Perplexity(PerplexityArgs),
    /// Make a smaller file of a model
    #[command(after_help = help::quantize())]
    Quantize(QuantizeArgs),
    /// Find out which weights matter most on a text, for quantize --imatrix
    #[command(after_help = help::IMATRIX)]
    Imatrix(ImatrixArgs),
    /// Measure the speed of prompts and of generation, beside what the machine allows
    #[command(after_help = help::BENCH, args_conflicts_with_subcommands = true)]
    Bench(BenchArgs),
    /// Show baselines of benchmarks, compare them, follow them over time
    #[command(after_help = help::BASELINE)]
    Baseline(BaselineArgs),
    /// Measure another engine's bench and ours in turn, on the same model
    #[command(after_help = help::COMPARE)]
    Compare(CompareArgs),
    /// Find out what a prompt and an answer spend their time on
    #[command(after_help = help::PROFILE)]
    Profile(ProfileArgs),
    /// Run a command below rocprofv3, nsys, ncu, perf and others, and show what they found
    #[command(name = "profile-with", after_help = help::PROFILE_WITH)]
    ProfileWith(ExternalArgs),
    /// Measure the ways to launch a model's kernels on a GPU, and remember the fastest
    #[command(after_help = help::TUNE)]
    Tune(TuneArgs),
    /// Compare every operation of a model with the plain path, on this machine
    #[command(after_help = help::CHECK)]
    Check(CheckArgs),
    /// Show the devices of this machine that can run a model
    #[command(after_help = help::DEVICES)]
    Devices(DevicesArgs),
    /// Show the models in the models folder, or remove one
    #[command(after_help = help::MODELS, args_conflicts_with_subcommands = true)]
    Models(ModelsArgs),
    /// Download a model into the models folder
    #[cfg(feature = "pull")]
    #[command(after_help = help::PULL)]
    Pull(PullArgs),
    /// Print the completions of a shell
    #[command(after_help = help::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print a manual page, or write all of them
    #[command(after_help = help::MAN)]
    Man(ManArgs),
    /// Render a chat template under limits; the program calls itself with this
    #[command(name = RENDER_TEMPLATE, hide = true)]
    RenderTemplate,
}

/// Name of the hidden command.
pub const RENDER_TEMPLATE: &str = "render-template";

/// Which file to use and how to read it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// GGUF file of the model, or its name in the models folder [default: forge-mini, a small model
    /// inside this program]
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
    /// Cut text as the named pre-tokenizer does, whatever the file says
    #[arg(
        long,
        value_name = "NAME",
        env = "ROCMFORGE_PRE",
        hide_env_values = true
    )]
    pub pre: Option<String>,
}

/// How to read a file.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Read the file into memory instead of mapping it; for files that may change while they are used
    #[arg(long, env = "ROCMFORGE_NO_MMAP", hide_env_values = true, value_parser = BoolishValueParser::new())]
    pub no_mmap: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

/// What changes the model.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct LoraArgs {
    /// LoRA adapter in GGUF to add to the model; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub lora: Vec<PathBuf>,
    /// The same, times a factor; may be given more than once
    #[arg(long, value_name = "FILE:SCALE", value_parser = scaled_file)]
    pub lora_scaled: Vec<(PathBuf, f32)>,
}

/// FILE:SCALE, or FILE=SCALE.
fn scaled_file(text: &str) -> Result<(PathBuf, f32), String> {
    let parts = text.rsplit_once([':', '=']);
    let (file, scale) = parts.ok_or("a scale is missing: FILE:SCALE")?;
    match scale.parse::<f32>() {
        _ if file.is_empty() => Err("a file is missing: FILE:SCALE".to_string()),
        Ok(scale) if scale.is_finite() => Ok((file.into(), scale)),
        _ => Err(format!("`{scale}` is no scale: FILE:SCALE, SCALE a number")),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    On,
    Off,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// GGUF file, or its name in the models folder [default: forge-mini, the model inside this program]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The same, as the other commands have it
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
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Print the ids only, as a JSON array
    #[arg(long)]
    pub ids: bool,
    /// Leave out the start token that the model would get
    #[arg(long)]
    pub no_bos: bool,
    /// Read control tokens in the text as such
    #[arg(long)]
    pub parse_special: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// The text to measure on, taken byte for byte
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens in a window; the second half of each window counts
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 512,
        alias = "ctx-size"
    )]
    pub ctx: usize,
    /// Windows to measure at most [default: the whole text]
    #[arg(long, value_name = "K")]
    pub chunks: Option<usize>,
    /// Print one JSON object: ppl, stderr, tokens, chunks
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Compare every operation, not only one of each kind, shape and format
    #[arg(long)]
    pub all: bool,
    /// Tokens in the cache before those that are compared
    #[arg(short = 'd', long, value_name = "N", default_value_t = 112)]
    pub depth: usize,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Measure for so long at most; what is left can be done another time
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    pub budget: u64,
    /// Measure again what is known
    #[arg(long)]
    pub again: bool,
    /// Forget what is known for this GPU, its driver and this build, and do nothing else
    #[arg(long, conflicts_with_all = ["again", "dry_run", "json"])]
    pub clear: bool,
    /// Measure, and store nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object
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
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Whose completions to print
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// The command whose page to print, such as models rm [default: the page of the program]
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Vec<String>,
    /// Write the pages of all commands into this folder
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn adapters_have_scales() {
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
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
