//! What `quantize` and `imatrix` are told.

use std::path::PathBuf;

use clap::Args;
use rocmforge_gguf::GgmlType;
use rocmforge_quantize::{FileType, TypeRule, tensor_type};

use super::{DeviceArgs, LoadArgs, ModelArgs};

#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// GGUF file of the model, in F16, BF16 or F32; of a split model the first part
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// The file to make; with --dry-run it may be left out
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// What to make of it, such as Q4_K_M; the list is below
    #[arg(value_name = "TYPE", required_unless_present = "dry_run")]
    pub file_type: Option<String>,
    /// Importance matrix that says which columns matter; rocmforge imatrix makes one
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Give tensors whose name matches this type; may be repeated, the first match decides
    #[arg(long, value_name = "REGEX=TYPE", value_parser = rule)]
    pub tensor_type: Vec<TypeRule>,
    /// Type of output.weight (of the embedding, where it is the output projection, too)
    #[arg(long, value_name = "TYPE", value_parser = ty)]
    pub output_tensor_type: Option<GgmlType>,
    /// Type of token_embd.weight
    #[arg(long, value_name = "TYPE", value_parser = ty)]
    pub token_embedding_type: Option<GgmlType>,
    /// Give all tensors the same type instead of more bits to those that matter more
    #[arg(long)]
    pub pure: bool,
    /// Convert tensors that are quantized already; adds the errors of both conversions
    #[arg(long)]
    pub allow_requantize: bool,
    /// Replace OUT if it exists
    #[arg(long)]
    pub force: bool,
    /// Show what would become of each tensor and how large the file would be, and write nothing
    #[arg(long)]
    pub dry_run: bool,
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
    pub load: LoadArgs,
    /// Print one JSON object: every tensor with its types, bytes and errors, and totals
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

fn rule(text: &str) -> Result<TypeRule, String> {
    TypeRule::parse(text).map_err(|error| error.to_string())
}

fn ty(text: &str) -> Result<GgmlType, String> {
    tensor_type(text).map_err(|error| error.to_string())
}

/// The file type of this name; the error lists all.
pub fn file_type(name: &str) -> Result<FileType, String> {
    FileType::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = FileType::ALL.iter().map(|ty| ty.name()).collect();
        format!("'{name}' is no file type; there are: {}", names.join(", "))
    })
}

/// The file types and what they are, one a line.
pub fn file_types() -> String {
    let line = |ty: &FileType| format!("  {:<10} {}", ty.name(), ty.about());
    let lines: Vec<String> = FileType::ALL.iter().map(line).collect();
    format!("File types:\n{}", lines.join("\n"))
}

#[derive(Debug, Args)]
pub struct ImatrixArgs {
    /// The text to run, taken byte for byte; as much like the model's later use as can be
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// The importance matrix to make
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Tokens in a window
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 512,
        alias = "ctx-size"
    )]
    pub ctx: usize,
    /// Windows to run at most [default: the whole text]
    #[arg(long, value_name = "K")]
    pub chunks: Option<usize>,
    /// Read control tokens in the text as such
    #[arg(long)]
    pub parse_special: bool,
    /// Replace the output if it exists
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object: entries, chunks, tokens, ppl and more
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}
