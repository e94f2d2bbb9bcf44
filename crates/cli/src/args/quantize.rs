//! Flags of `quantize` and `imatrix`.

use std::path::PathBuf;

use clap::Args;
use rocmforge_gguf::GgmlType;
use rocmforge_quantize::{FileType, TypeRule, tensor_type};

use super::{DeviceArgs, LoadArgs, ModelArgs};

#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// GGUF file in F16, BF16 or F32; the first part of a split model
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Output file; optional with --dry-run
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    /// File type, such as Q4_K_M (all: --help)
    #[arg(value_name = "TYPE", required_unless_present = "dry_run")]
    pub file_type: Option<String>,
    /// Importance matrix, e.g. from rocmforge imatrix
    #[arg(long, value_name = "FILE")]
    pub imatrix: Option<PathBuf>,
    /// Type of the tensors whose name matches; may be repeated, the first match decides
    #[arg(long, value_name = "REGEX=TYPE", value_parser = rule)]
    pub tensor_type: Vec<TypeRule>,
    /// Type of output.weight, or of the embedding if it is tied to the output projection
    #[arg(long, value_name = "TYPE", value_parser = ty)]
    pub output_tensor_type: Option<GgmlType>,
    /// Type of token_embd.weight
    #[arg(long, value_name = "TYPE", value_parser = ty)]
    pub token_embedding_type: Option<GgmlType>,
    /// Use the same type for all tensors instead of more bits for the important ones
    #[arg(long)]
    pub pure: bool,
    /// Allow converting quantized tensors; the errors of both conversions add up
    #[arg(long)]
    pub allow_requantize: bool,
    /// Overwrite OUT if it exists
    #[arg(long)]
    pub force: bool,
    /// Show each tensor's type and the file size, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Number of CPU threads [default: cores available to the process]
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
    /// Print JSON: types, bytes and errors of every tensor, and totals
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

fn rule(text: &str) -> Result<TypeRule, String> {
    TypeRule::parse(text).map_err(|error| error.to_string())
}

fn ty(text: &str) -> Result<GgmlType, String> {
    tensor_type(text).map_err(|error| error.to_string())
}

/// Returns the file type of this name; the error lists all.
pub fn file_type(name: &str) -> Result<FileType, String> {
    FileType::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = FileType::ALL.iter().map(|ty| ty.name()).collect();
        format!(
            "'{name}' is not a file type; use one of: {}",
            names.join(", ")
        )
    })
}

/// Returns the file types with their descriptions, one per line.
pub fn file_types() -> String {
    let line = |ty: &FileType| format!("  {:<10} {}", ty.name(), ty.about());
    let lines: Vec<String> = FileType::ALL.iter().map(line).collect();
    format!("File types:\n{}", lines.join("\n"))
}

#[derive(Debug, Args)]
pub struct ImatrixArgs {
    /// Calibration text, similar to the model's later use
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Window size in tokens
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
    /// Parse control tokens in the text
    #[arg(long)]
    pub parse_special: bool,
    /// Overwrite the output if it exists
    #[arg(long)]
    pub force: bool,
    /// Print JSON: entries, chunks, tokens, ppl and more
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}
