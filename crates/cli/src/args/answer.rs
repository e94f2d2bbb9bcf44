//! What to answer, and when an answer ends.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::{AnswerContextArgs, DeviceArgs, ModelArgs, OnOff, SamplingArgs};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_lists() {
        assert_eq!(parse_ids("1"), Ok(Ids(vec![1])));
        assert_eq!(parse_ids("1,2, 3"), Ok(Ids(vec![1, 2, 3])));
        assert_eq!(parse_ids("[1,2]"), Ok(Ids(vec![1, 2])));
        for bad in ["", "1,", "x", "-1", "1 2", "4294967296", "[]"] {
            assert!(parse_ids(bad).is_err(), "{bad:?}");
        }
    }
}
