//! Chat templates: renders messages to the text of a prompt with the Jinja template of a model file.
//!
//! A template is untrusted code. [`ChatTemplate::render`] limits its steps, macro recursion and output, which
//! stops every accident. Only a separate process stops an attack, because the interpreter bounds neither memory
//! nor the time of a single step (see [`sandbox`]). Programs that open untrusted files give the template a
//! [`Sandbox`].
//!
//! A rendered text mixes the template's control tokens with the texts of a conversation, which may contain the same
//! characters. [`ChatTemplate::prompt`] keeps them apart, and [`Rendered::encode`] makes control tokens only of the
//! template's.

mod error;
mod filters;
mod literals;
mod origin;
mod python;
mod render;
pub mod sandbox;
mod strftime;

use std::borrow::Cow;

use rocmforge_gguf::{Gguf, Metadata};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use error::{RenderError, TemplateError};
pub use origin::{Origin, Rendered};
pub use sandbox::Sandbox;

use crate::tokenizer::{TokenId, Tokenizer};
use render::{Job, render, unix_seconds};

const KEY: &str = "tokenizer.chat_template";

/// Name of the variant for conversations with tools, as in transformers.
const TOOL_USE: &str = "tool_use";

/// The largest template of a released model has 30 KB.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// The format that most models without a template of their own were trained with.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    /// Used instead of `source` if there are tools.
    tool_use: Option<String>,
    bos_token: String,
    eos_token: String,
    clock: Clock,
    is_fallback: bool,
    sandbox: Option<Sandbox>,
}

/// The input of a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// Objects with `role`, `content` and whatever else the template uses, such as `tool_calls`.
    pub messages: &'a [Value],
    /// Descriptions of functions, as in the OpenAI API. If empty, `tools` is none.
    pub tools: &'a [Value],
    /// Whether to end with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking` or `documents`, which is none otherwise.
    pub variables: Option<&'a Map<String, Value>>,
}

/// The date that `strftime_now` gives a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Clock {
    /// The current date in UTC.
    #[default]
    System,
    /// A fixed moment.
    At {
        /// Seconds since 1970-01-01 00:00 UTC.
        unix_seconds: i64,
    },
    /// This text for every format.
    Text(String),
}

impl Clock {
    /// Returns a clock that stands still at this moment.
    fn stopped(&self) -> Clock {
        match self {
            Clock::System => Clock::At {
                unix_seconds: unix_seconds(),
            },
            other => other.clone(),
        }
    }
}

impl ChatTemplate {
    /// Returns the template of a file: `tokenizer.chat_template`, or `tokenizer.chat_template.NAME` if `name` is
    /// given. If the file has none, or an empty one, this is [`ChatTemplate::chatml`].
    ///
    /// # Errors
    /// If the name is unknown or the source is too large.
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

    /// Creates a template from its source, with empty start and end tokens.
    ///
    /// # Errors
    /// If the source is too large.
    pub fn from_source(source: &str) -> Result<Self, TemplateError> {
        Ok(ChatTemplate {
            source: checked(source)?,
            is_fallback: false,
            ..Self::chatml()
        })
    }

    /// The ChatML template: `<|im_start|>role`, a line feed, the content, `<|im_end|>`.
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

    /// Sets the texts of start and end token.
    pub fn with_tokens(self, bos_token: &str, eos_token: &str) -> Self {
        ChatTemplate {
            bos_token: bos_token.into(),
            eos_token: eos_token.into(),
            ..self
        }
    }

    /// Sets the date.
    pub fn with_clock(self, clock: Clock) -> Self {
        ChatTemplate { clock, ..self }
    }

    /// Renders in a separate process from now on.
    pub fn in_sandbox(self, sandbox: Sandbox) -> Self {
        ChatTemplate {
            sandbox: Some(sandbox),
            ..self
        }
    }

    /// Renders the text of a conversation. It does not say which control tokens in it a message forged: to encode it,
    /// use [`ChatTemplate::prompt`].
    ///
    /// # Errors
    /// If the template is damaged, rejects the conversation ([`RenderError::Refused`] has its message), or was stopped
    /// by a limit.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        self.run(self.job(conversation, &self.clock))
    }

    /// Renders the prompt of a conversation for `tokenizer`. Conversations that contain characters at which its control
    /// tokens begin or end are rendered twice or, if the template looks for such characters, a few more times.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn prompt(
        &self,
        conversation: &Conversation<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<Rendered, TemplateError> {
        // All renderings must see the same time.
        let clock = self.clock.stopped();
        let job = self.job(conversation, &clock);
        let text = self.run(job.borrowed())?;
        let edges = tokenizer.control_edges();
        Ok(origin::trace(text, &job, edges, |job| self.run(job)))
    }

    fn job<'j>(&'j self, conversation: &Conversation<'j>, clock: &'j Clock) -> Job<'j> {
        let source = match &self.tool_use {
            Some(source) if !conversation.tools.is_empty() => source,
            _ => &self.source,
        };
        Job {
            source: Cow::Borrowed(source),
            bos_token: Cow::Borrowed(&self.bos_token),
            eos_token: Cow::Borrowed(&self.eos_token),
            messages: Cow::Borrowed(conversation.messages),
            tools: Cow::Borrowed(conversation.tools),
            add_generation_prompt: conversation.add_generation_prompt,
            variables: conversation
                .variables
                .map_or_else(Cow::default, Cow::Borrowed),
            clock: Cow::Borrowed(clock),
            marks: String::new(),
        }
    }

    fn run(&self, job: Job<'_>) -> Result<String, TemplateError> {
        match &self.sandbox {
            Some(sandbox) => sandbox.render(job),
            None => Ok(render(&job)?),
        }
    }

    /// Renders a greeting, so that a damaged or hostile template is found when a model is loaded instead of at the
    /// first message.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], but rejecting the greeting is not an error.
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

    /// Returns whether the file had no template, so that ChatML is used instead.
    pub fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// Returns whether the source contains the name of a variable such as `enable_thinking`.
    pub fn mentions(&self, variable: &str) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let mut sources = [Some(&self.source), self.tool_use.as_ref()]
            .into_iter()
            .flatten();
        sources.any(|source| source.split(|c| !is_word(c)).any(|word| word == variable))
    }

    /// Returns the source of the template.
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

/// Returns the names of the templates in a file.
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
