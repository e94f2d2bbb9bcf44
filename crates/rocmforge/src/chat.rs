//! A conversation with a model.

use rocmforge_engine::{ContextPolicy, FinishReason};
use rocmforge_plan::SamplingParams;
use rocmforge_text::chat_template::{ChatTemplate, Sandbox};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText};

use crate::conversation::{Conversation, Fit, Kept, Message};
use crate::generate::{Answer, Settings, answer_settings};
use crate::reasoning::Reasoning;
use crate::{Error, Session};

/// A conversation with a model. It remembers messages and answers, and follows the chat template of the file. Control
/// tokens in a message are text: no message ends its turn or begins another.
pub struct Chat<'s> {
    session: &'s Session,
    conversation: Conversation,
    pub(crate) settings: Settings,
}

impl<'s> Chat<'s> {
    pub(crate) fn new(session: &'s Session) -> Result<Chat<'s>, Error> {
        let tokenizer = session.need_tokenizer()?;
        let template = ChatTemplate::from_gguf(&session.file.gguf, tokenizer, None)?;
        Ok(Chat {
            session,
            conversation: Conversation::new(template, None),
            settings: Settings::default(),
        })
    }

    answer_settings!();

    /// Sets the system prompt.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.conversation.set_system(Some(text.into()));
        self
    }

    /// Renders the template in a child process with limits on memory and time. Templates are code from the model's
    /// file; use this for files that you do not trust. See [`Sandbox`].
    pub fn sandbox(mut self, sandbox: Sandbox) -> Self {
        self.conversation = self.conversation.in_sandbox(sandbox);
        self
    }

    /// Returns all messages, the system prompt first.
    pub fn messages(&self) -> Vec<Message> {
        self.conversation.messages()
    }

    /// Sends a message and returns the answer as an iterator over pieces of text. The conversation remembers what was
    /// read of the answer.
    ///
    /// # Errors
    /// The conversation no longer fits into the context, or the template refuses it; the message is then forgotten.
    pub fn send(&mut self, message: impl Into<String>) -> Result<Reply<'_>, Error> {
        self.conversation.push(Message::new("user", message));
        let Chat {
            session,
            conversation,
            settings,
        } = self;
        match submit(session, conversation, settings) {
            Ok((answer, reasoning)) => Ok(Reply {
                answer,
                reasoning,
                conversation,
                text: String::new(),
            }),
            Err(error) => {
                conversation.pop();
                Err(error)
            }
        }
    }
}

fn submit(
    session: &Session,
    conversation: &mut Conversation,
    settings: &Settings,
) -> Result<(Answer, Option<Reasoning>), Error> {
    let fit = Fit {
        n_ctx: session.n_ctx(),
        policy: session.config().context_policy,
    };
    let tokenizer = session.need_tokenizer()?;
    let prompt = conversation.prompt(tokenizer, fit)?;
    let mut request = settings.request(prompt.ids, LeadingSpace::Strip);
    if let Some(Kept::SystemPrompt(n_sinks)) = conversation.kept(tokenizer, fit)? {
        request.context_policy = Some(ContextPolicy::Shift { n_sinks });
    }
    let mut reasoning = None;
    if let Some(constraint) = request.constraint.take() {
        reasoning = Reasoning::before_answer(&prompt.text, conversation.format());
        request.constraint = Some(match &reasoning {
            None => constraint,
            Some(reasoning) => reasoning.before(tokenizer, constraint),
        });
        if reasoning.is_some() {
            // Its marks may be control tokens.
            request.special_text = SpecialText::Show;
        }
    }
    Ok((Answer::submit(session, request)?, reasoning))
}

/// An answer in a conversation: an iterator over pieces of text. Of one that follows a grammar, they leave the reasoning out.
pub struct Reply<'c> {
    answer: Answer,
    /// Reads the reasoning before an answer that follows a grammar.
    reasoning: Option<Reasoning>,
    conversation: &'c mut Conversation,
    text: String,
}

impl Reply<'_> {
    /// Returns why the answer ended; `None` before its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.answer.finish_reason()
    }

    /// Returns how many tokens were generated so far.
    pub fn n_tokens(&self) -> usize {
        self.answer.n_tokens()
    }
}

impl Iterator for Reply<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            let piece = match (self.answer.next(), &mut self.reasoning) {
                (Some(Err(error)), _) => return Some(Err(error)),
                (None, None) => return None,
                (Some(Ok(piece)), None) => piece,
                (Some(Ok(piece)), Some(reasoning)) => reasoning.push(&piece).answer,
                (None, Some(reasoning)) => {
                    let rest = reasoning.finish().answer;
                    self.reasoning = None;
                    rest
                }
            };
            if !piece.is_empty() {
                self.text.push_str(&piece);
                return Some(Ok(piece));
            }
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        self.conversation.push(Message::new("assistant", text));
    }
}
