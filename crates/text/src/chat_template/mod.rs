//! Chat templates: from messages to the text of a prompt, by the Jinja template
//! in the file.
//!
//! A template is untrusted code. [`ChatTemplate::render`] limits its steps, the
//! depth of its macros and the length of its text, which stops every accident;
//! only a process of its own stops malice, because the interpreter bounds neither
//! memory nor the time of one step (see [`sandbox`]). Programs that open files of
//! strangers give the template a [`Sandbox`].
//!
//! The text is for [`crate::tokenizer::Tokenizer::encode`] with `parse_special`.

mod error;
mod python;
mod render;
pub mod sandbox;
mod strftime;

use std::borrow::Cow;

use rocmforge_gguf::{Gguf, Metadata};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use error::{RenderError, TemplateError};
pub use sandbox::Sandbox;

use crate::tokenizer::{TokenId, Tokenizer};
use render::{Job, render};

const KEY: &str = "tokenizer.chat_template";

/// The variant for conversations with tools, as transformers has it.
const TOOL_USE: &str = "tool_use";

/// The largest template of a released model has 30 KB.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// What most models without a template of their own were trained with.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// The template of a model.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    /// Taken instead where tools are given.
    tool_use: Option<String>,
    bos_token: String,
    eos_token: String,
    clock: Clock,
    is_fallback: bool,
    sandbox: Option<Sandbox>,
}

/// What a template is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// Objects with `role`, `content` and whatever else the template knows, such
    /// as `tool_calls`.
    pub messages: &'a [Value],
    /// Descriptions of functions, as in the OpenAI API. None: not defined.
    pub tools: &'a [Value],
    /// End with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub variables: Option<&'a Map<String, Value>>,
}

/// What `strftime_now` tells a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Clock {
    /// The date of this machine in UTC.
    #[default]
    System,
    /// A fixed moment.
    At {
        /// Seconds since 1970-01-01 00:00 UTC.
        unix_seconds: i64,
    },
    /// The same text for any format.
    Text(String),
}

impl ChatTemplate {
    /// The template of a file: `tokenizer.chat_template`, or the one called
    /// `name` (`tokenizer.chat_template.NAME`). A file without any, or
    /// with an empty one, gets [`ChatTemplate::chatml`].
    ///
    /// # Errors
    /// The name is unknown or the source too large.
    pub fn from_gguf(
        gguf: &Gguf,
        tokenizer: &Tokenizer,
        name: Option<&str>,
    ) -> Result<Self, TemplateError> {
        let metadata = gguf.metadata();
        let named = |name: &str| metadata.opt_str(&format!("{KEY}.{name}"));
        let default = metadata.opt_str(KEY)?.filter(|source| !source.is_empty());
        let mut template = match name {
            None => match default {
                None => Self::chatml(),
                Some(source) => {
                    let tool_use = named(TOOL_USE)?.map(checked).transpose()?;
                    ChatTemplate {
                        tool_use,
                        ..Self::from_source(source)?
                    }
                }
            },
            Some(name) => {
                let source = named(name)?.or(default.filter(|_| name == "default"));
                let unknown = || TemplateError::UnknownName {
                    name: name.into(),
                    available: names(metadata),
                };
                Self::from_source(source.ok_or_else(unknown)?)?
            }
        };
        let text = |id: Option<TokenId>| {
            id.map(|id| tokenizer.token_text(id).into_owned())
                .unwrap_or_default()
        };
        template.bos_token = text(tokenizer.bos());
        template.eos_token = text(tokenizer.eos());
        Ok(template)
    }

    /// A template from its source, with empty texts for start and end tokens.
    ///
    /// # Errors
    /// The source is too large.
    pub fn from_source(source: &str) -> Result<Self, TemplateError> {
        Ok(ChatTemplate {
            source: checked(source)?,
            is_fallback: false,
            ..Self::chatml()
        })
    }

    /// ChatML: `<|im_start|>role`, a line feed, the content, `<|im_end|>`.
    pub fn chatml() -> Self {
        ChatTemplate {
            source: CHATML.into(),
            tool_use: None,
            bos_token: String::new(),
            eos_token: String::new(),
            clock: Clock::System,
            is_fallback: true,
            sandbox: None,
        }
    }

    /// The same with these texts for start and end tokens.
    pub fn with_tokens(self, bos_token: &str, eos_token: &str) -> Self {
        ChatTemplate {
            bos_token: bos_token.into(),
            eos_token: eos_token.into(),
            ..self
        }
    }

    /// The same with this date.
    pub fn with_clock(self, clock: Clock) -> Self {
        ChatTemplate { clock, ..self }
    }

    /// The same, rendering in a process of its own from now on.
    pub fn in_sandbox(self, sandbox: Sandbox) -> Self {
        ChatTemplate {
            sandbox: Some(sandbox),
            ..self
        }
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// The template is damaged, refuses the conversation ([`RenderError::Refused`]
    /// has its words), or was stopped by a limit.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let source = match &self.tool_use {
            Some(source) if !conversation.tools.is_empty() => source,
            _ => &self.source,
        };
        let job = Job {
            source: Cow::Borrowed(source),
            bos_token: Cow::Borrowed(&self.bos_token),
            eos_token: Cow::Borrowed(&self.eos_token),
            messages: Cow::Borrowed(conversation.messages),
            tools: Cow::Borrowed(conversation.tools),
            add_generation_prompt: conversation.add_generation_prompt,
            variables: conversation
                .variables
                .map_or_else(Cow::default, Cow::Borrowed),
            clock: Cow::Borrowed(&self.clock),
        };
        match &self.sandbox {
            Some(sandbox) => sandbox.render(job),
            None => Ok(render(&job)?),
        }
    }

    /// Renders a greeting, so that a damaged or hostile template is found when a
    /// model is loaded and not at the first message.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], except that a refusal is no error.
    pub fn check(&self) -> Result<(), TemplateError> {
        let messages = [json!({"role": "user", "content": "Hi"})];
        let greeting = Conversation {
            messages: &messages,
            add_generation_prompt: true,
            ..Conversation::default()
        };
        match self.render(&greeting) {
            Ok(_) | Err(TemplateError::Render(RenderError::Refused { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether the file had no template, so that ChatML stands in.
    pub fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// Whether the source names this variable, such as `enable_thinking`.
    pub fn mentions(&self, variable: &str) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut sources = [Some(&self.source), self.tool_use.as_ref()]
            .into_iter()
            .flatten();
        sources.any(|source| source.split(|c| !is_word(c)).any(|word| word == variable))
    }

    /// The source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }
}

fn checked(source: &str) -> Result<String, TemplateError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(TemplateError::TooLarge {
            bytes: source.len(),
            limit: MAX_SOURCE_BYTES,
        });
    }
    Ok(source.into())
}

/// The names of the templates in a file.
fn names(metadata: &Metadata) -> String {
    let mut names = Vec::new();
    for (key, _) in metadata.iter() {
        match key.strip_prefix(KEY) {
            Some("") => names.push("default"),
            Some(rest) => names.extend(rest.strip_prefix('.')),
            None => {}
        }
    }
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}
