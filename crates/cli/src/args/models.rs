//! Flags of `models` and `pull`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The models folder.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Models folder [default: $XDG_DATA_HOME/rocmforge/models or ~/.local/share/rocmforge/models]
    #[arg(
        long,
        value_name = "DIR",
        env = "ROCMFORGE_MODELS",
        hide_env_values = true
    )]
    pub models_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ModelsArgs {
    #[command(subcommand)]
    pub command: Option<ModelsCommand>,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print the architectures, formats, pre-tokenizers and tool formats that this program supports
    #[arg(long)]
    pub supported: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// Remove a model or an unfinished download
    Rm(RemoveArgs),
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Name, as listed by rocmforge models
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

#[cfg(feature = "pull")]
#[derive(Debug, Args)]
pub struct PullArgs {
    /// Model: hf:OWNER/REPO[:QUANT][@REVISION] or hf:OWNER/REPO/FILE.gguf[@REVISION]
    #[arg(value_name = "MODEL")]
    pub model: rocmforge_hub::Reference,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Memory to choose a quantization for, if MODEL names none [default: the free memory of a GPU, else of the machine]
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u32>,
    /// Hub address
    #[arg(
        long,
        value_name = "URL",
        default_value = "https://huggingface.co",
        env = "ROCMFORGE_HUB_ENDPOINT",
        hide_env_values = true
    )]
    pub endpoint: String,
    /// Access token for gated and private models; prefer the variable, as other users can see flags in the process list
    /// [default: HF_TOKEN]
    #[arg(
        long,
        value_name = "TOKEN",
        env = "ROCMFORGE_HUB_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<rocmforge_hub::Token>,
    /// PEM file of certificates to trust instead of the built-in ones
    #[arg(
        long,
        value_name = "FILE",
        env = "ROCMFORGE_HUB_CA_FILE",
        hide_env_values = true
    )]
    pub ca_file: Option<PathBuf>,
    /// Timeout of a silent connection, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600),
        env = "ROCMFORGE_HUB_TIMEOUT",
        hide_env_values = true
    )]
    pub timeout: u64,
    /// Retries of a failed request
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        env = "ROCMFORGE_HUB_RETRIES",
        hide_env_values = true
    )]
    pub retries: u32,
}
