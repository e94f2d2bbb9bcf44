//! Conversations from the command line: the chat template of the model's file, in a sandbox.
//!
//! The template is code from the model's file, so it runs in a child process with limits: this program again, with the
//! hidden command `render-template`.

use std::ffi::OsString;

use anyhow::Result;
use rocmforge::parts::{Conversation, Fit, Kept};
use rocmforge_engine::ContextPolicy;
use rocmforge_text::chat_template::{ChatTemplate, Sandbox};

use crate::args::{AnswerContextArgs, OnOff, RENDER_TEMPLATE, TemplateArgs};
use crate::exit::usage;
use crate::output;
use crate::program::this_program;
use crate::session::Session;
use rocmforge_engine::serve::Server;

/// Begins a conversation with the template of the session's file, or ChatML with a notice.
pub fn begin(session: &Session<Server>, args: &TemplateArgs) -> Result<Conversation> {
    let tokenizer = session.need_tokenizer()?;
    let template = ChatTemplate::from_gguf(&session.file.gguf, tokenizer, None)?;
    if template.is_fallback() {
        output::note(
            "notice: the file has no chat template; using ChatML, which the model may not know",
        );
    }
    let mut conversation = Conversation::new(template, args.system.clone()).in_sandbox(sandbox()?);
    if let Some(think) = args.think {
        if !conversation.can_think() {
            return Err(usage(format!(
                "--think: the chat template of {} has no switch for thinking; omit the flag",
                session.file.label
            )));
        }
        conversation.set_thinking(think == OnOff::On);
    }
    Ok(conversation)
}

/// Returns where templates are rendered: in this program as a child process, with limits.
pub fn sandbox() -> Result<Sandbox> {
    let program = this_program()?;
    Ok(Sandbox::new(program, [OsString::from(RENDER_TEMPLATE)]))
}

/// The context that a conversation has to fit into.
pub fn fit(session: &Session<Server>) -> Fit {
    Fit {
        n_ctx: session.engine.n_ctx(),
        policy: session.config.context_policy,
    }
}

/// Returns the context policy of an answer where it differs from the session's: a context that shifts keeps the system
/// prompt, unless a number of sinks was given.
pub fn context_policy(
    conversation: &Conversation,
    session: &Session<Server>,
    asked: &AnswerContextArgs,
) -> Result<Option<ContextPolicy>> {
    if asked.context_sinks.is_some() {
        return Ok(None);
    }
    match conversation.kept(session.need_tokenizer()?, fit(session))? {
        None => Ok(None),
        Some(Kept::SystemPrompt(n_sinks)) => Ok(Some(ContextPolicy::Shift { n_sinks })),
        Some(Kept::TooLong(n)) => {
            output::note(&format!(
                "notice: the system prompt takes {n} tokens, half of the context of {} or more, so it is forgotten when \
                 the context shifts; use a larger --ctx, or keep it with --context-sinks {n}",
                session.engine.n_ctx()
            ));
            Ok(None)
        }
    }
}
