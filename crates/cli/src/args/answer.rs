//! Flags for prompts and answers.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Command, Parser as _};

use super::sampling::unescape;
use super::{
    AnswerContextArgs, Cli, DeviceArgs, ModelArgs, OnOff, SamplingArgs, SpeculationArgs,
    with_long_names,
};

/// The limits and output of an answer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Answer")]
pub struct AnswerArgs {
    /// Maximum number of tokens to generate; -1: no limit
    ///
    /// Without a limit, the answer ends when the model ends the text or the context is full
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..),
        aliases = ["predict", "n-predict"]
    )]
    pub max_tokens: i64,
    /// Stop before this text, \n for a newline; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = unescaped)]
    pub stop: Vec<String>,
    /// Ignore end-of-text tokens and keep generating
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print control tokens such as <|im_end|>
    #[arg(long)]
    pub special: bool,
}

/// Parses a text with escapes such as `\n`.
fn unescaped(text: &str) -> Result<String, Infallible> {
    Ok(unescape(text))
}

/// What the answer must be; one of these.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Structured output")]
#[group(multiple = false)]
pub struct StructureArgs {
    /// Answer with JSON that this JSON schema allows
    ///
    /// A keyword that is not supported is an error. Properties come in the order of the schema
    #[arg(long, value_name = "FILE")]
    pub json_schema: Option<PathBuf>,
    /// Answer with a JSON object
    #[arg(long)]
    pub json_object: bool,
    /// Answer with text of this grammar, in GBNF or Lark
    ///
    /// A file whose name does not end in .gbnf or .lark is GBNF if it has ::=
    #[arg(long, value_name = "FILE")]
    pub grammar: Option<PathBuf>,
    /// Answer with text that matches this regular expression as a whole
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub regex: Option<String>,
    /// Answer with this text or that of another --choice
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub choice: Vec<String>,
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
    /// Read the prompt from a file, unchanged; - for stdin
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
    /// With --chat, answer a conversation in JSON
    ///
    /// The file is an array of messages with role and content, such as chat's /save writes; - for stdin
    #[arg(long, value_name = "FILE", requires = "chat", conflicts_with_all = ["prompt", "file", "ids"], help_heading = "Chat")]
    pub messages: Option<PathBuf>,
    /// Parse control tokens in the prompt instead of treating them as text
    #[arg(long, conflicts_with = "chat")]
    pub parse_special: bool,
    /// Answer the prompt, using the model's chat template
    #[arg(long, help_heading = "Chat")]
    pub chat: bool,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub structure: StructureArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Print JSON with ids, text, timings and more
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
    pub speculation: SpeculationArgs,
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
    pub speculation: SpeculationArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// What `/set` may change.
#[derive(Args)]
struct Changeable {
    #[command(flatten)]
    _answer: AnswerArgs,
    #[command(flatten)]
    _sampling: SamplingArgs,
}

impl ChatArgs {
    /// Parses this program's command line again, followed by `settings`, each `NAME VALUE` or `NAME`. An error is one
    /// line.
    pub fn with_settings(settings: &[String]) -> Result<ChatArgs, String> {
        let changeable = Changeable::augment_args(Command::new("set"));
        let mut words: Vec<OsString> = with_long_names(std::env::args_os());
        for setting in settings {
            let (name, value) = match setting.split_once(char::is_whitespace) {
                Some((name, value)) => (name, format!("={}", value.trim())),
                None => (setting.as_str(), String::new()),
            };
            let name = name.trim_start_matches('-').replace('_', "-");
            if !changeable
                .get_arguments()
                .any(|arg| arg.get_long() == Some(&name))
            {
                return Err(format!(
                    "/set: '{}' is no option of sampling or the answer; see chat --help",
                    name.escape_debug()
                ));
            }
            words.push(format!("--{name}{value}").into());
        }
        let parsed = Cli::try_parse_from(words).map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            format!("/set: {}", line.trim_start_matches("error: "))
        })?;
        match parsed.command {
            super::Command::Chat(args) => Ok(args),
            _ => Err("/set works in chats only".to_string()),
        }
    }
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
