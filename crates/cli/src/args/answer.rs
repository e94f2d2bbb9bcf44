//! Flags for prompts and answers.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::{AnswerContextArgs, DeviceArgs, ModelArgs, OnOff, SamplingArgs};

/// The limits and output of an answer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer")]
pub struct AnswerArgs {
    /// Maximum number of tokens to generate; -1: until the model ends the text or the context is full
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true,
        aliases = ["predict", "n-predict"]
    )]
    pub max_tokens: i64,
    /// Stop before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Ignore end-of-text tokens and keep generating
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print control tokens such as <|im_end|>
    #[arg(long)]
    pub special: bool,
}

/// Chat template settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat")]
pub struct TemplateArgs {
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Turn thinking on or off, if the model's chat template supports it
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub think: Option<OnOff>,
}

/// The prompt's source.
#[derive(Debug, Clone, Args)]
pub struct PromptArgs {
    /// Prompt text
    #[arg(
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "file",
        allow_hyphen_values = true
    )]
    pub prompt: Option<OsString>,
    /// Read the prompt from a file, unchanged
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Prompt as token ids: 1,2,3 or the output of tokenize --ids
    #[arg(long, value_parser = parse_ids, conflicts_with_all = ["prompt", "file", "chat", "parse_special"])]
    pub ids: Option<Ids>,
    /// Parse control tokens in the prompt instead of treating them as text
    #[arg(long, conflicts_with = "chat")]
    pub parse_special: bool,
    /// Format the prompt as a chat message with the model's chat template
    #[arg(long, help_heading = "Chat")]
    pub chat: bool,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Print JSON: ids, text, finish_reason, timings and more
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// With --json, print the top K log-probabilities of each generated token
    #[arg(long, value_name = "K", requires = "json", help_heading = "Output")]
    pub logprobs: Option<usize>,
    /// With --json, print the top K log-probabilities of each prompt position
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

#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Do not load or save the input history
    #[arg(long, env = "ROCMFORGE_NO_HISTORY", hide_env_values = true, value_parser = BoolishValueParser::new())]
    pub no_history: bool,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub context: AnswerContextArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_id_lists() {
        assert_eq!(parse_ids("1"), Ok(Ids(vec![1])));
        assert_eq!(parse_ids("1,2, 3"), Ok(Ids(vec![1, 2, 3])));
        assert_eq!(parse_ids("[1,2]"), Ok(Ids(vec![1, 2])));
        for bad in ["", "1,", "x", "-1", "1 2", "4294967296", "[]"] {
            assert!(parse_ids(bad).is_err(), "{bad:?}");
        }
    }
}
