//! A conversation as the model's chat template writes it, and the rules for what fits into the context.

use rocmforge_engine::ContextPolicy;
use rocmforge_gguf::TokenId;
use rocmforge_text::answer::Format;
use rocmforge_text::chat_template::{self, ChatTemplate, Sandbox, TemplateError};
use rocmforge_text::tokenizer::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::session::with_bos;

/// The variable that templates of thinking models read.
const ENABLE_THINKING: &str = "enable_thinking";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    pub content: String,
}

impl Message {
    pub fn new(role: &'static str, content: impl Into<String>) -> Message {
        Message {
            role,
            content: content.into(),
        }
    }
}

/// Messages, and the template that turns them into a prompt.
#[derive(Debug, Clone)]
pub struct Conversation {
    template: ChatTemplate,
    variables: Map<String, Value>,
    system: Option<String>,
    /// Messages of the user and the model, in turn.
    turns: Vec<Message>,
    /// How many of the first turns no longer fit into the context.
    n_left_out: usize,
}

/// The context that a conversation has to fit into.
#[derive(Debug, Clone, Copy)]
pub struct Fit {
    pub n_ctx: usize,
    pub policy: ContextPolicy,
}

/// The prompt for the next answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub ids: Vec<TokenId>,
    /// Its text, of which the end may have opened reasoning.
    pub text: String,
    /// Messages left out at the beginning, if more than for the last prompt.
    pub newly_left_out: Option<usize>,
}

/// What an answer keeps when the context shifts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// This many tokens: the system prompt and what all conversations with it begin with.
    SystemPrompt(usize),
    /// No more than the session keeps: the system prompt has this many tokens, half of the context or more.
    TooLong(usize),
}

impl Conversation {
    /// Begins a conversation. `system` is the system prompt.
    pub fn new(template: ChatTemplate, system: Option<String>) -> Conversation {
        Conversation {
            template,
            variables: Map::new(),
            system,
            turns: Vec::new(),
            n_left_out: 0,
        }
    }

    /// Renders the template in a child process with limits from now on.
    #[must_use]
    pub fn in_sandbox(self, sandbox: Sandbox) -> Conversation {
        Conversation {
            template: self.template.in_sandbox(sandbox),
            ..self
        }
    }

    /// Whether the template knows how to turn thinking on and off.
    pub fn can_think(&self) -> bool {
        self.template.mentions(ENABLE_THINKING)
    }

    /// Returns how the model writes reasoning and calls.
    pub fn format(&self) -> Format {
        Format::of_template(self.template.source())
    }

    /// Turns thinking on or off.
    pub fn set_thinking(&mut self, is_on: bool) {
        let variables = &mut self.variables;
        variables.insert(ENABLE_THINKING.to_string(), json!(is_on));
    }

    /// Renders a greeting, so that a damaged template is found before the first message.
    ///
    /// # Errors
    /// The template is damaged.
    pub fn check(&self) -> Result<(), TemplateError> {
        self.template.check()
    }

    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Replaces the system prompt, for the whole conversation.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message) {
        self.turns.push(message);
    }

    /// Takes the last message back.
    pub fn pop(&mut self) -> Option<Message> {
        self.turns.pop()
    }

    /// Removes the last message of the user and what follows it. Returns its text.
    pub fn undo(&mut self) -> Option<String> {
        let at = self.turns.iter().rposition(|turn| turn.role == "user")?;
        let removed = self.turns.drain(at..).next();
        self.n_left_out = self.n_left_out.min(self.turns.len());
        removed.map(|message| message.content)
    }

    /// Begins anew with the same system prompt.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.n_left_out = 0;
    }

    /// Returns all messages, the system prompt first.
    pub fn messages(&self) -> Vec<Message> {
        self.with_system(&self.turns)
    }

    fn with_system(&self, turns: &[Message]) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        system.chain(turns.iter().cloned()).collect()
    }

    /// Returns the prompt for the answer to the last message.
    ///
    /// If the context shifts, a conversation that does not fit leaves out its first turns until it takes half of the
    /// context. So it is not computed again in every turn from then on.
    ///
    /// # Errors
    /// The template refuses the conversation or is damaged.
    pub fn prompt(&mut self, tokenizer: &Tokenizer, fit: Fit) -> Result<Prompt, TemplateError> {
        let without = |this: &Conversation, n_left_out: usize| {
            this.encode(tokenizer, &this.with_system(&this.turns[n_left_out..]))
        };
        let (ids, text) = without(self, self.n_left_out)?;
        // Turns go in pairs, and the message to answer stays.
        let n_pairs = self.turns.len().saturating_sub(1 + self.n_left_out) / 2;
        if fit.policy == ContextPolicy::Stop || ids.len() < fit.n_ctx || n_pairs == 0 {
            return Ok(Prompt {
                ids,
                text,
                newly_left_out: None,
            });
        }
        let (mut too_few, mut enough) = (0, n_pairs);
        let mut shortest = without(self, self.n_left_out + 2 * n_pairs)?;
        while enough - too_few > 1 {
            let middle = (too_few + enough) / 2;
            let prompt = without(self, self.n_left_out + 2 * middle)?;
            if prompt.0.len() <= fit.n_ctx / 2 {
                (enough, shortest) = (middle, prompt);
            } else {
                too_few = middle;
            }
        }
        self.n_left_out += 2 * enough;
        let (ids, text) = shortest;
        Ok(Prompt {
            ids,
            text,
            newly_left_out: Some(self.n_left_out),
        })
    }

    /// Returns how many tokens an answer keeps when the context shifts, or `None` if it does not shift: those that all
    /// conversations with this system prompt begin with, if they leave half of the context.
    ///
    /// # Errors
    /// The template refuses the conversation or is damaged.
    pub fn kept(&self, tokenizer: &Tokenizer, fit: Fit) -> Result<Option<Kept>, TemplateError> {
        let ContextPolicy::Shift { n_sinks } = fit.policy else {
            return Ok(None);
        };
        // The common beginning of two conversations that differ in their first word.
        let encode = |first: &str| {
            let messages = self.with_system(&[Message::new("user", first)]);
            self.encode(tokenizer, &messages)
        };
        let ((a, _), (b, _)) = (encode("a")?, encode("1")?);
        let n_common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        Ok(Some(match 2 * n_common < fit.n_ctx {
            true => Kept::SystemPrompt(n_sinks.max(n_common)),
            false => Kept::TooLong(n_common),
        }))
    }

    /// Returns the tokens and the text of a prompt.
    fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
    ) -> Result<(Vec<TokenId>, String), TemplateError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| json!({ "role": message.role, "content": message.content }))
            .collect();
        let conversation = chat_template::Conversation {
            messages: &messages,
            add_generation_prompt: true,
            variables: Some(&self.variables),
            ..Default::default()
        };
        let prompt = self.template.prompt(&conversation, tokenizer)?;
        let ids = with_bos(tokenizer, prompt.encode(tokenizer));
        Ok((ids, prompt.text().to_string()))
    }
}
