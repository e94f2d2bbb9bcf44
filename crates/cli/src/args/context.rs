//! The KV cache and the context.

use clap::{Args, ValueEnum};

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

pub(super) fn page(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(page @ (16 | 32 | 64)) => Ok(page),
        _ => Err("pages have 16, 32 or 64 tokens".to_string()),
    }
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
