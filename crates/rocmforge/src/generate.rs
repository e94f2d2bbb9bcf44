//! Generating text as an iterator.

use std::sync::Arc;

use rocmforge_engine::serve::{EventStream, StreamEvent};
use rocmforge_engine::{EngineError, FinishReason, Request};
use rocmforge_gguf::TokenId;
use rocmforge_grammar::Grammar;
use rocmforge_plan::{Constraint, SamplingParams};
use rocmforge_text::tokenizer::LeadingSpace;

use crate::session::random_sampling;
use crate::{Error, Session};

/// A prompt and how to continue it.
#[must_use = "nothing runs until the answer is read"]
pub struct Generate<'s> {
    session: &'s Session,
    prompt: String,
    pub(crate) settings: Settings,
}

/// How an answer is generated.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingParams,
    pub(crate) grammar: Option<Grammar>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_tokens: usize::MAX,
            stop: Vec::new(),
            sampling: random_sampling(),
            grammar: None,
        }
    }
}

impl Settings {
    pub(crate) fn request(&self, prompt: Vec<TokenId>, leading_space: LeadingSpace) -> Request {
        let constraint = |grammar: &Grammar| Box::new(grammar.start()) as Box<dyn Constraint>;
        Request {
            constraint: self.grammar.as_ref().map(constraint),
            sampling: Arc::new(self.sampling.clone()),
            stop: self.stop.clone(),
            leading_space,
            ..Request::greedy(prompt, self.max_tokens)
        }
    }
}

/// Declares the settings of an answer on a builder.
macro_rules! answer_settings {
    () => {
        /// Limits the answer to `n` tokens. Default: no limit but the context.
        pub fn max_tokens(mut self, n: usize) -> Self {
            self.settings.max_tokens = n;
            self
        }

        /// Ends the answer before the first of these texts.
        pub fn stop<S: Into<String>>(mut self, texts: impl IntoIterator<Item = S>) -> Self {
            self.settings.stop = texts.into_iter().map(Into::into).collect();
            self
        }

        /// Sets how tokens are chosen. Default: llama.cpp's samplers with a random seed.
        pub fn sampling(mut self, sampling: SamplingParams) -> Self {
            self.settings.sampling = sampling;
            self
        }

        /// Makes the answer follow a grammar that [`Session::grammar`](crate::Session::grammar) compiled. The answer ends
        /// when it is complete.
        pub fn constrained(mut self, grammar: &rocmforge_grammar::Grammar) -> Self {
            self.settings.grammar = Some(grammar.clone());
            self
        }

        /// Always takes the most likely token.
        pub fn greedy(self) -> Self {
            self.sampling(SamplingParams::greedy())
        }
    };
}
pub(crate) use answer_settings;

impl<'s> Generate<'s> {
    pub(crate) fn new(session: &'s Session, prompt: &str) -> Generate<'s> {
        Generate {
            session,
            prompt: prompt.to_string(),
            settings: Settings::default(),
        }
    }

    answer_settings!();

    /// Submits the prompt and returns the answer as an iterator over pieces of text.
    ///
    /// # Errors
    /// The prompt is empty or longer than the context, or a parameter is out of range.
    pub fn stream(self) -> Result<Answer, Error> {
        let ids = self.session.encode(&self.prompt)?;
        let request = self.settings.request(ids, LeadingSpace::Keep);
        Answer::submit(self.session, request)
    }

    /// Generates the whole answer.
    ///
    /// # Errors
    /// As [`Generate::stream`]; the device fails, or the model's logits are not finite.
    pub fn text(self) -> Result<String, Error> {
        self.stream()?.collect()
    }
}

/// An answer that is being generated: an iterator over pieces of text. Dropping it ends the request.
pub struct Answer {
    stream: EventStream,
    n_tokens: usize,
    finish_reason: Option<FinishReason>,
}

impl Answer {
    pub(crate) fn submit(session: &Session, request: Request) -> Result<Answer, Error> {
        let stream = session.server.submit(request).map_err(EngineError::from)?;
        Ok(Answer {
            stream,
            n_tokens: 0,
            finish_reason: None,
        })
    }

    /// Returns why the answer ended; `None` before its end.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// Returns how many tokens were generated so far.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }
}

impl Iterator for Answer {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            let text = match self.stream.next()? {
                StreamEvent::Tokens { tokens, text, .. } => {
                    self.n_tokens += tokens.len();
                    text
                }
                StreamEvent::Finished { reason, text } => {
                    self.finish_reason = Some(reason);
                    text
                }
                StreamEvent::Failed(failure) => {
                    return Some(Err(EngineError::from(failure).into()));
                }
                StreamEvent::PromptDone { .. }
                | StreamEvent::PromptScores(_)
                | StreamEvent::Embedding(_) => continue,
            };
            // A token may complete no character.
            if !text.is_empty() {
                return Some(Ok(text));
            }
        }
    }
}
