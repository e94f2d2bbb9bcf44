//! The events that requests produce.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{EngineError, RequestError};
use crate::request::RequestId;
use rocmforge_plan::{ConstraintError, TokenLogprob};
use rocmforge_runtime::RuntimeError;
use rocmforge_text::tokenizer::TokenId;

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    Stop(StopCause),
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
    /// The request was aborted.
    Aborted,
    /// The deadline has passed.
    Deadline,
}

/// What ended the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// This end-of-generation token.
    Eog(TokenId),
    /// The request's stop string with this index.
    Text(usize),
    /// This token of the request's stop tokens.
    Token(TokenId),
    /// The constraint allows nothing more.
    Constraint,
}

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A row of logits is NaN or infinite.
    #[error("{}", RequestError::NotFinite)]
    NotFinite,
    /// Steps with this request alone failed.
    #[error("{0}")]
    Device(Arc<RuntimeError>),
    /// The constraint reached a limit, or allows no token.
    #[error("the constraint on the text cannot go on: {0}; simplify it")]
    Constraint(ConstraintError),
    /// It waited for a place in the cache until [`Request::start_by`](crate::Request::start_by).
    #[error("the request waited too long for its turn; try again later")]
    NotStarted,
    /// Its first token would come later than [`Request::first_token_within`](crate::Request::first_token_within).
    #[error(
        "the answer would begin after about {:.1} s, later than this server allows; try again later",
        wait.as_secs_f64()
    )]
    Overloaded {
        wait: Duration,
        /// After this time, a request would probably wait less.
        less_after: Duration,
    },
    /// The thread of the engine has ended.
    #[error("the engine has stopped; start it again")]
    EngineStopped,
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> EngineError {
        match failure {
            Failure::NotFinite => RequestError::NotFinite.into(),
            failure => EngineError::Failed(failure),
        }
    }
}

/// Progress of a request. Events of one request arrive in order.
#[derive(Debug, Clone)]
pub enum Event {
    /// The log-probability of the prompt token at `position`, given the tokens before it.
    PromptScore {
        request: RequestId,
        position: usize,
        logprob: f32,
        top: Vec<TokenLogprob>,
    },
    /// The logits after the prompt token at `position`.
    PromptLogits {
        request: RequestId,
        position: usize,
        logits: Vec<f32>,
    },
    /// The hidden values of the prompt, pooled as the request asks.
    Embedding {
        request: RequestId,
        values: Vec<f32>,
    },
    /// The whole prompt is in the cache; `cached_tokens` of it came from earlier requests.
    PromptDone {
        request: RequestId,
        cached_tokens: usize,
        /// How long the request waited for its place in the cache.
        queue_time: Duration,
    },
    /// A generated token and the text that is now final (may be empty or of several tokens).
    Token {
        request: RequestId,
        id: TokenId,
        text: String,
        /// The log-probability of the token, if the request asks for log-probabilities.
        logprob: Option<f32>,
        /// The best tokens, best first.
        top: Vec<TokenLogprob>,
    },
    /// The request failed. This is its last event.
    Failed {
        request: RequestId,
        failure: Failure,
    },
    /// The end of the request, with the text that was held back.
    Finished {
        request: RequestId,
        reason: FinishReason,
        text: String,
    },
}

impl Event {
    /// Returns the request of this event.
    pub fn request(&self) -> RequestId {
        match *self {
            Event::PromptScore { request, .. }
            | Event::PromptLogits { request, .. }
            | Event::Embedding { request, .. }
            | Event::PromptDone { request, .. }
            | Event::Token { request, .. }
            | Event::Finished { request, .. }
            | Event::Failed { request, .. } => request,
        }
    }
}
