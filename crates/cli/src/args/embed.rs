//! Flags of embed and rerank.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rocmforge_model::Pooling;

use super::{ContextArgs, DeviceArgs, ModelArgs, PromptArgs};

#[derive(Debug, Args)]
pub struct EmbedArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Embed each line of the text for itself
    #[arg(long)]
    pub lines: bool,
    /// How the values of all tokens become one vector [default: what the file says]
    #[arg(long, value_enum, value_name = "HOW")]
    pub pooling: Option<PoolingArg>,
    /// Print JSON: embedding, n_tokens and pooling; with --lines an object for each line
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub batch: BatchArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct RerankArgs {
    /// Query that the documents should answer
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub query: String,
    /// Print only results and errors
    // Takes the place of the global flag, whose short name is the query's here.
    #[arg(long)]
    pub quiet: bool,
    /// Document; may be repeated
    #[arg(
        short = 'p',
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "file"
    )]
    pub document: Vec<OsString>,
    /// Read a document from a file; - for stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Each line of the file is a document
    #[arg(long)]
    pub lines: bool,
    /// Print JSON: the results with index, score, n_tokens and text, best first
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub batch: BatchArgs,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// The steps in which texts are computed.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct BatchArgs {
    /// Maximum number of tokens per step [default: the context, for models that read a text at once]
    ///
    /// Several texts share a step if they fit. A model whose tokens see those after them reads a text at once, so no
    /// text may be longer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_tokens: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PoolingArg {
    /// The mean over all tokens
    Mean,
    /// The first token
    Cls,
    /// The last token
    Last,
    /// The scores of the model's classifier
    Rank,
}

impl From<PoolingArg> for Pooling {
    fn from(pooling: PoolingArg) -> Pooling {
        match pooling {
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Cls => Pooling::Cls,
            PoolingArg::Last => Pooling::Last,
            PoolingArg::Rank => Pooling::Rank,
        }
    }
}
