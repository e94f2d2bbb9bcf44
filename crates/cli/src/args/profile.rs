//! Flags of `profile`.

use std::path::PathBuf;

use clap::Args;

use super::{AnswerContextArgs, DeviceArgs, ModelArgs, PromptArgs};

#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Use a prompt of N random tokens instead of a text [default: 512]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["prompt", "file"]
    )]
    pub prompt_tokens: Option<u32>,
    /// Number of tokens to generate
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..),
        aliases = ["predict", "n-predict"]
    )]
    pub max_tokens: u32,
    /// Number of profiled runs, and of runs without profiling
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub runs: u32,
    /// Target time to first token (TTFT), in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200.0, value_parser = positive)]
    pub ttft_target: f64,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write a trace for Perfetto and chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// Write a self-contained HTML report with plots, timeline and tables
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Write a flame graph of the operations as SVG, or as folded stacks if FILE ends in .folded
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub flamegraph: Option<PathBuf>,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: AnswerContextArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if ms.is_finite() && ms > 0.0 => Ok(ms),
        _ => Err(format!("'{text}' is not a time; use milliseconds above 0")),
    }
}
