//! Flags of the commands that manage models.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Where models are kept.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// The models folder [default: $XDG_DATA_HOME/rocmforge/models, ~/.local/share/rocmforge/models]
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
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ModelsCommand {
    /// Remove a model, or what a stopped pull left
    Rm(RemoveArgs),
}

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// The name that rocmforge models shows
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    #[command(flatten)]
    pub store: StoreArgs,
}

#[cfg(feature = "pull")]
#[derive(Debug, Args)]
pub struct PullArgs {
    /// hf:OWNER/REPO[:QUANT][@REVISION], or hf:OWNER/REPO/FILE.gguf[@REVISION]
    #[arg(value_name = "MODEL")]
    pub model: rocmforge_hub::Reference,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Address of the hub
    #[arg(
        long,
        value_name = "URL",
        default_value = "https://huggingface.co",
        env = "ROCMFORGE_HUB_ENDPOINT",
        hide_env_values = true
    )]
    pub endpoint: String,
    /// Token for gated and private models; a variable does not show in the list of processes as a flag
    /// does [default: HF_TOKEN]
    #[arg(
        long,
        value_name = "TOKEN",
        env = "ROCMFORGE_HUB_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<rocmforge_hub::Token>,
    /// Trust these certificates (PEM) instead of the built-in ones
    #[arg(
        long,
        value_name = "FILE",
        env = "ROCMFORGE_HUB_CA_FILE",
        hide_env_values = true
    )]
    pub ca_file: Option<PathBuf>,
    /// Give a connection up that is silent for so many seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600),
        env = "ROCMFORGE_HUB_TIMEOUT",
        hide_env_values = true
    )]
    pub timeout: u64,
    /// Try so many times again when the connection fails
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        env = "ROCMFORGE_HUB_RETRIES",
        hide_env_values = true
    )]
    pub retries: u32,
}
