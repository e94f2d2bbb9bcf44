//! Flags for the KV cache and the context.

use clap::{Args, ValueEnum};
use rocmforge_plan::KvType;

/// The KV cache.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct CacheArgs {
    /// KV cache type
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KvTypeArg::F16, env = "ROCMFORGE_KV_TYPE", hide_env_values = true)]
    pub kv_type: KvTypeArg,
    /// Type of cached keys [default: --kv-type]
    #[arg(
        long,
        value_enum,
        value_name = "TYPE",
        env = "ROCMFORGE_KV_TYPE_K",
        hide_env_values = true,
        hide_possible_values = true
    )]
    pub kv_type_k: Option<KvTypeArg>,
    /// Type of cached values [default: --kv-type]
    #[arg(
        long,
        value_enum,
        value_name = "TYPE",
        env = "ROCMFORGE_KV_TYPE_V",
        hide_env_values = true,
        hide_possible_values = true
    )]
    pub kv_type_v: Option<KvTypeArg>,
    /// Tokens per KV-cache page: 16, 32 or 64 [default: by context]
    #[arg(
        long,
        value_name = "N",
        env = "ROCMFORGE_PAGE",
        hide_env_values = true,
        value_parser = page
    )]
    pub page: Option<usize>,
}

pub(super) fn page(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(page @ (16 | 32 | 64)) => Ok(page),
        _ => Err("use 16, 32 or 64".to_string()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvTypeArg {
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q5_1")]
    Q5_1,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "fp8", aliases = ["f8_e4m3", "fp8_e4m3"])]
    F8E4M3,
}

impl From<KvTypeArg> for KvType {
    fn from(kv_type: KvTypeArg) -> KvType {
        match kv_type {
            KvTypeArg::F16 => KvType::F16,
            KvTypeArg::F32 => KvType::F32,
            KvTypeArg::Q8_0 => KvType::Q8_0,
            KvTypeArg::F8E4M3 => KvType::F8E4M3,
            KvTypeArg::Q5_1 => KvType::Q5_1,
            KvTypeArg::Q4_0 => KvType::Q4_0,
        }
    }
}

/// The context size.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct ContextArgs {
    /// Context size in tokens; 0: the default
    ///
    /// Prompt and answer together have to fit. Default: the smallest of the model's training context, 8192 and what fits in
    /// memory
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

/// The context size, and what happens when it is full.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device")]
pub struct AnswerContextArgs {
    #[command(flatten)]
    pub context: ContextArgs,
    /// When the context is full: stop, or shift: drop the older half and continue
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t = ContextPolicyArg::Stop,
        env = "ROCMFORGE_CONTEXT_POLICY",
        hide_env_values = true
    )]
    pub context_policy: ContextPolicyArg,
    /// With shift, keep the first N tokens [default: 4; in chats, the tokens up to and including the system prompt]
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
