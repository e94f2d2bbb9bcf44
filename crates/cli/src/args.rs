//! The command line: every flag, its default and its environment variable, and nothing that acts on
//! them. `session.rs` resolves these choices once into the engine's own types.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use rocmforge::engine::backend::gpu::{DeviceId, GpuLayers, Variants};

use crate::help;

mod baseline;
mod bench;
mod compare;
mod external;
mod models;
mod profile;
mod quantize;
mod sampling;
mod suite;

pub use baseline::{
    BaselineArgs, BaselineCommand, BaselineCompareArgs, BaselineListArgs, BaselineShowArgs,
    BaselineStoreArgs, BaselineTrendArgs, KeepArgs, ReportForm,
};
pub use bench::{BenchArgs, BenchOutput, numbers};
pub use compare::CompareArgs;
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

/// Where and how to compute.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    #[command(flatten)]
    pub on: OnArgs,
    #[command(flatten)]
    pub offload: OffloadArgs,
    /// Instruction set of the CPU; auto takes the fastest
    #[arg(long, value_enum, default_value_t = IsaArg::Auto, env = "ROCMFORGE_ISA", hide_env_values = true)]
    pub isa: IsaArg,
    /// Threads that compute [default: one for each core this process may use]
    #[arg(
        short,
        long,
        value_name = "N",
        env = "ROCMFORGE_THREADS",
        hide_env_values = true
    )]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub cache: CacheArgs,
    #[command(flatten)]
    pub lora: LoraArgs,
}

/// Which device computes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct OnArgs {
    /// What computes: auto, cpu, gpu, hip:N (AMD), cuda:N (NVIDIA), or host, a slow CPU that plays a GPU; auto takes a
    /// GPU that this build has kernels for, else the CPU
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        env = "ROCMFORGE_DEVICE",
        hide_env_values = true
    )]
    pub device: Device,
    #[command(flatten)]
    pub gpu: GpuArgs,
}

/// What of a model a GPU computes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct OffloadArgs {
    /// Layers that the GPU computes, the last ones and the output: a number, auto, which takes as many as its memory has
    /// room for, or all; the CPU computes the others (-ngl is the same)
    #[arg(
        long,
        value_name = "N",
        default_value = "all",
        alias = "n-gpu-layers",
        allow_negative_numbers = true,
        env = "ROCMFORGE_GPU_LAYERS",
        hide_env_values = true
    )]
    pub gpu_layers: GpuLayers,
    /// Leave the experts of a mixture to the CPU, the rest of their layers to the GPU
    #[arg(
        long,
        env = "ROCMFORGE_CPU_MOE",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub cpu_moe: bool,
}

/// How a GPU is used.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct GpuArgs {
    /// Kernels of the GPU, of those that rocmforge devices lists [default: the best for it]
    #[arg(
        long,
        value_name = "NAME",
        env = "ROCMFORGE_GPU_IMAGE",
        hide_env_values = true
    )]
    pub gpu_image: Option<String>,
    /// Kernels that the GPU takes instead of the fastest for a shape, with commas between them: plain, or such as
    /// attention=generic,tiles=small; tuning=off takes none but ignores what was tuned
    #[arg(
        long,
        value_name = "NAMES",
        env = "ROCMFORGE_KERNEL_VARIANT",
        hide_env_values = true
    )]
    pub kernel_variant: Option<Variants>,
    /// Take at most so many MiB of the GPU's memory [default: what is free]
    #[arg(
        long,
        value_name = "MIB",
        env = "ROCMFORGE_GPU_MEMORY",
        hide_env_values = true,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub gpu_memory: Option<u32>,
    /// Queue every kernel of a generated token by itself, not as a graph: slower, for comparisons
    #[arg(
        long,
        env = "ROCMFORGE_NO_GRAPHS",
        hide_env_values = true,
        value_parser = BoolishValueParser::new()
    )]
    pub no_graphs: bool,
    /// When a GPU is compared with the CPU before it is used: auto at its first use with a driver, a build and a
    /// model's formats
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t = GpuCheckArg::Auto,
        env = "ROCMFORGE_GPU_CHECK",
        hide_env_values = true
    )]
    pub gpu_check: GpuCheckArg,
    /// The folder that remembers such checks and what was tuned [default: $XDG_CACHE_HOME/rocmforge, ~/.cache/rocmforge]
    #[arg(
        long,
        value_name = "DIR",
        env = "ROCMFORGE_CACHE",
        hide_env_values = true
    )]
    pub cache_dir: Option<PathBuf>,
}

/// llama.cpp's names of flags that have several letters after one dash, by this program's. What follows `--`, or is the
/// text of a flag, stays as it is.
pub fn with_long_names(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const TEXTS: [&str; 5] = ["-p", "--prompt", "--stop", "--system", "--"];
    let mut is_text = false;
    let mut long = Vec::new();
    for arg in args {
        let name = match arg.to_str() {
            Some("-ngl") if !is_text => "--gpu-layers".into(),
            Some("-cmoe") if !is_text => "--cpu-moe".into(),
            _ => arg,
        };
        let is_after_dashes = long.contains(&OsString::from("--"));
        is_text = is_after_dashes || name.to_str().is_some_and(|name| TEXTS.contains(&name));
        long.push(name);
    }
    long
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

/// How the KV cache is kept.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct CacheArgs {
    /// How the KV cache keeps its values
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KvTypeArg::F16, env = "ROCMFORGE_KV_TYPE", hide_env_values = true)]
    pub kv_type: KvTypeArg,
    /// Tokens in a page of the KV cache: 16, 32 or 64
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        env = "ROCMFORGE_PAGE",
        hide_env_values = true,
        value_parser = page
    )]
    pub page: usize,
}

fn page(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(page @ (16 | 32 | 64)) => Ok(page),
        _ => Err("pages have 16, 32 or 64 tokens".to_string()),
    }
}

/// The context of a conversation or a text.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct ContextArgs {
    /// Tokens that prompt and answer may have together [default: the smallest of what the model was
    /// trained for, 8192 and what memory allows]
    #[arg(
        short,
        long,
        value_name = "N",
        alias = "ctx-size",
        env = "ROCMFORGE_CTX",
        hide_env_values = true
    )]
    pub ctx: Option<usize>,
}

/// The context of an answer, and what happens at its end.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct AnswerContextArgs {
    #[command(flatten)]
    pub context: ContextArgs,
    /// At the end of the context: stop, or shift, which forgets the older half and goes on
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t = ContextPolicyArg::Stop,
        env = "ROCMFORGE_CONTEXT_POLICY",
        hide_env_values = true
    )]
    pub context_policy: ContextPolicyArg,
    /// With shift: how many tokens of the beginning are never forgotten [default: 4, or what all conversations with this
    /// system prompt begin with]
    #[arg(
        long,
        value_name = "N",
        alias = "keep",
        env = "ROCMFORGE_CONTEXT_SINKS",
        hide_env_values = true
    )]
    pub context_sinks: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ContextPolicyArg {
    Stop,
    Shift,
}

/// When a GPU is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuCheckArg {
    Auto,
    Always,
    Never,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// A GPU if there is one, else the CPU.
    Auto,
    Cpu,
    /// The first GPU.
    Gpu,
    Id(DeviceId),
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        match text {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "gpu" => Ok(Device::Gpu),
            id => id
                .parse()
                .map(Device::Id)
                .map_err(|error| format!("{error}; give auto, cpu, gpu, hip:N or cuda:N")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsaArg {
    Auto,
    Scalar,
    Avx2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvTypeArg {
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "fp8", aliases = ["f8_e4m3", "fp8_e4m3"])]
    F8E4M3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    On,
    Off,
}

/// When an answer ends and what of it is shown.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer")]
pub struct AnswerArgs {
    /// Tokens to generate at most; -1 goes on until the model ends the text or the context is full
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true,
        aliases = ["predict", "n-predict"]
    )]
    pub max_tokens: i64,
    /// End before the first appearance of this text; may be given more than once
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on past the end that the model gives the text
    #[arg(long)]
    pub ignore_eos: bool,
    /// Show control tokens such as <|im_end|>
    #[arg(long)]
    pub special: bool,
}

/// How a conversation is put to the model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat")]
pub struct TemplateArgs {
    /// Instruction that stands before the conversation
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Let the model think before it answers, or not; for models whose template knows it
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub think: Option<OnOff>,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// The prompt as token ids, taken as they are: 1,2,3 or what tokenize --ids prints
    #[arg(long, value_parser = parse_ids, conflicts_with_all = ["prompt", "file", "chat", "parse_special"])]
    pub ids: Option<Ids>,
    /// Read control tokens in a raw prompt as such, instead of as text
    #[arg(long, conflicts_with = "chat")]
    pub parse_special: bool,
    /// Put the prompt to the model as a message, with the template of its file
    #[arg(long, help_heading = "Chat")]
    pub chat: bool,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Print one JSON object: ids, text, finish_reason, timings and more
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// With --json: the K best log-probabilities of every step
    #[arg(long, value_name = "K", requires = "json", help_heading = "Output")]
    pub logprobs: Option<usize>,
    /// With --json: the K best log-probabilities of every position of the prompt
    #[arg(long, value_name = "K", requires = "json", help_heading = "Output")]
    pub prompt_logprobs: Option<usize>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: AnswerContextArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Token ids from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

fn parse_ids(text: &str) -> Result<Ids, String> {
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let parse = |id: &str| {
        id.trim()
            .parse()
            .map_err(|_| format!("'{id}' is not a token id; give numbers as in 1,2,3"))
    };
    inner
        .split(',')
        .map(parse)
        .collect::<Result<_, _>>()
        .map(Ids)
}

/// Where the text comes from.
#[derive(Debug, Clone, Args)]
pub struct PromptArgs {
    /// The text
    #[arg(
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    pub prompt: Option<OsString>,
    /// A file with the text, taken byte for byte
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Do not read or write the history of typed lines
    #[arg(long, env = "ROCMFORGE_NO_HISTORY", hide_env_values = true, value_parser = BoolishValueParser::new())]
    pub no_history: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: AnswerContextArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
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
    fn ids_are_lists() {
        assert_eq!(parse_ids("1"), Ok(Ids(vec![1])));
        assert_eq!(parse_ids("1,2, 3"), Ok(Ids(vec![1, 2, 3])));
        assert_eq!(parse_ids("[1,2]"), Ok(Ids(vec![1, 2])));
        for bad in ["", "1,", "x", "-1", "1 2", "4294967296", "[]"] {
            assert!(parse_ids(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn short_names_of_llama_cpp() {
        let long = |args: &[&str]| with_long_names(args.iter().map(OsString::from));
        for (given, expected) in [
            (
                &["x", "-ngl", "3", "-cmoe"][..],
                &["x", "--gpu-layers", "3", "--cpu-moe"][..],
            ),
            (
                &["x", "-p", "-ngl", "-n", "1"],
                &["x", "-p", "-ngl", "-n", "1"],
            ),
            (&["x", "--", "a", "-ngl"], &["x", "--", "a", "-ngl"]),
            (
                &["x", "-p", "a", "-ngl", "1"],
                &["x", "-p", "a", "--gpu-layers", "1"],
            ),
        ] {
            assert_eq!(
                long(given),
                expected.iter().map(OsString::from).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
