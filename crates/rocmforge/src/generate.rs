//! Generating text as an iterator.

use std::collections::VecDeque;
use std::sync::Arc;

use rocmforge_engine::{Event, FinishReason, Request, RequestError, RequestId};
use rocmforge_gguf::TokenId;
use rocmforge_plan::SamplingParams;
use rocmforge_text::tokenizer::LeadingSpace;

use crate::session::{Bos, encode_prompt, random_sampling};
use crate::{Error, Session};

/// A prompt and how to continue it.
#[must_use = "nothing runs until the answer is read"]
pub struct Generate<'s> {
    session: &'s mut Session,
    prompt: String,
    pub(crate) settings: Settings,
}

/// How an answer is generated.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) sampling: SamplingParams,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_tokens: usize::MAX,
            stop: Vec::new(),
            sampling: random_sampling(),
        }
    }
}

impl Settings {
    pub(crate) fn request(&self, prompt: Vec<TokenId>, leading_space: LeadingSpace) -> Request {
        Request {
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

        /// Always takes the most likely token.
        pub fn greedy(self) -> Self {
            self.sampling(SamplingParams::greedy())
        }
    };
}
pub(crate) use answer_settings;

impl<'s> Generate<'s> {
    pub(crate) fn new(session: &'s mut Session, prompt: &str) -> Generate<'s> {
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
    pub fn stream(self) -> Result<Answer<'s>, Error> {
        let tokenizer = self.session.need_tokenizer()?;
        let ids = encode_prompt(tokenizer, self.prompt.as_bytes(), Bos::AsFileSays, true);
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
pub struct Answer<'s> {
    session: &'s mut Session,
    request: RequestId,
    /// Pieces that were generated and not yet read.
    pieces: VecDeque<String>,
    n_tokens: usize,
    finish_reason: Option<FinishReason>,
    is_over: bool,
}

impl<'s> Answer<'s> {
    pub(crate) fn submit(session: &'s mut Session, request: Request) -> Result<Answer<'s>, Error> {
        let request = session.engine.submit(request)?;
        Ok(Answer {
            session,
            request,
            pieces: VecDeque::new(),
            n_tokens: 0,
            finish_reason: None,
            is_over: false,
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

    /// Runs one step of the engine and keeps the text it gives.
    fn step(&mut self) -> Result<(), Error> {
        for event in self.session.engine.step()? {
            if event.request() != self.request {
                continue;
            }
            match event {
                Event::Token { text, .. } => {
                    self.n_tokens += 1;
                    self.pieces.push_back(text);
                }
                Event::Finished { reason, text, .. } => {
                    self.pieces.push_back(text);
                    self.finish_reason = Some(reason);
                    self.is_over = true;
                }
                Event::Failed { .. } => {
                    self.is_over = true;
                    return Err(RequestError::NotFinite.into());
                }
                Event::PromptScore { .. }
                | Event::PromptLogits { .. }
                | Event::PromptDone { .. } => {}
            }
        }
        Ok(())
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            match self.pieces.pop_front() {
                // A token may complete no character.
                Some(piece) if piece.is_empty() => {}
                Some(piece) => return Some(Ok(piece)),
                None if self.is_over => return None,
                None => {
                    if let Err(error) = self.step() {
                        self.is_over = true;
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.session.engine.abort(self.request);
        }
    }
}
