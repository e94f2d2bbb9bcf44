//! From messages to token ids, through the chat template of the model's file.
//!
//! The template is a program that a stranger wrote, so it runs in a child process with limits: this
//! program again, with the hidden command `render-template`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rocmforge_engine::ContextPolicy;
use rocmforge_gguf::TokenId;
use rocmforge_text::chat_template;
use rocmforge_text::chat_template::{ChatTemplate, Sandbox};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::args::{AnswerContextArgs, OnOff, RENDER_TEMPLATE};
use crate::exit::usage;
use crate::output;
use crate::session::{self, Bos, Session};

/// The variable that templates of thinking models ask for.
const ENABLE_THINKING: &str = "enable_thinking";

/// One message of a conversation.
#[derive(Debug, Clone, Serialize)]
pub struct Message {
    role: &'static str,
    content: String,
}

impl Message {
    pub fn new(role: &'static str, content: impl Into<String>) -> Message {
        Message {
            role,
            content: content.into(),
        }
    }
}

/// How a model wants conversations to be written.
pub struct Conversation {
    template: ChatTemplate,
    variables: Map<String, Value>,
}

impl Conversation {
    /// The template of the session's file, or ChatML with a notice. `think` goes to templates that know it.
    pub fn new(session: &Session, think: Option<OnOff>) -> Result<Conversation> {
        let tokenizer = session.need_tokenizer()?;
        let template = ChatTemplate::from_gguf(&session.file.gguf, tokenizer, None)?;
        if template.is_fallback() {
            output::note(
                "notice: the file has no chat template; using ChatML, which the model may not know",
            );
        }
        let mut variables = Map::new();
        if let Some(think) = think {
            if !template.mentions(ENABLE_THINKING) {
                return Err(usage(format!(
                    "--think: the chat template of {} has no {ENABLE_THINKING}; leave the flag out",
                    session.file.label
                )));
            }
            variables.insert(ENABLE_THINKING.to_string(), json!(think == OnOff::On));
        }
        let sandbox = Sandbox::new(this_program()?, [OsString::from(RENDER_TEMPLATE)]);
        Ok(Conversation {
            template: template.in_sandbox(sandbox),
            variables,
        })
    }

    /// Finds a damaged template before the first message.
    pub fn check(&self) -> Result<()> {
        Ok(self.template.check()?)
    }

    /// What an answer forgets at the end of the context, where that is not what the session says: with `shift`, and no
    /// number of sinks asked for, the tokens that all conversations with this system prompt begin with are never forgotten,
    /// if they leave half of the context. If not, that is told.
    pub fn context_policy(
        &self,
        session: &Session,
        asked: &AnswerContextArgs,
        system: Option<&str>,
    ) -> Result<Option<ContextPolicy>> {
        let ContextPolicy::Shift { n_sinks } = session.config.context_policy else {
            return Ok(None);
        };
        if asked.context_sinks.is_some() {
            return Ok(None);
        }
        // What two conversations that differ in their first word have in common.
        let encode = |first: &str| {
            let system = system.map(|text| Message::new("system", text));
            let messages: Vec<Message> = system
                .into_iter()
                .chain([Message::new("user", first)])
                .collect();
            self.encode(session, &messages)
        };
        let (a, b) = (encode("a")?, encode("1")?);
        let n_common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let n_ctx = session.engine.n_ctx();
        if 2 * n_common < n_ctx {
            let n_sinks = n_sinks.max(n_common);
            return Ok(Some(ContextPolicy::Shift { n_sinks }));
        }
        output::note(&format!(
            "notice: the first {n_common} tokens, with the system prompt, are half of the context of {n_ctx} or more, so they \
             are forgotten when it shifts; ask for more with --ctx, or keep them with --context-sinks {n_common}"
        ));
        Ok(None)
    }

    /// The prompt for the answer to `messages`.
    pub fn encode(&self, session: &Session, messages: &[Message]) -> Result<Vec<TokenId>> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| json!({ "role": message.role, "content": message.content }))
            .collect();
        let text = self.template.render(&chat_template::Conversation {
            messages: &messages,
            add_generation_prompt: true,
            variables: Some(&self.variables),
            ..Default::default()
        })?;
        Ok(session::encode(
            session.need_tokenizer()?,
            text.as_bytes(),
            Bos::AsTheFileSays,
            true,
        ))
    }
}

/// The program that runs, even if its file has been replaced meanwhile.
fn this_program() -> Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        Ok(link.to_path_buf())
    } else {
        env::current_exe().context("cannot find this program's file")
    }
}
