//! Requests to the engine and the events they produce.

use std::sync::Arc;

use serde::Serialize;

use rocmforge_plan::SamplingParams;
use rocmforge_plan::TokenLogprob;
use rocmforge_runtime::ContextPolicy;
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText, TokenId};

/// The output for the prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptOutput {
    #[default]
    Nothing,
    /// Log-probabilities of the tokens at positions `from` (at least 1) and later, each with the `top` best tokens.
    Scores { from: usize, top: usize },
    /// The logits of every position.
    Logits,
}

/// A prompt to continue, with its sampling and output options.
#[derive(Debug, Clone)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    /// The most tokens to generate; 0 only evaluates the prompt.
    pub max_tokens: usize,
    pub sampling: Arc<SamplingParams>,
    /// Generation stops before the first of these strings.
    pub stop: Vec<String>,
    /// Continue past end-of-generation tokens.
    pub ignore_eos: bool,
    /// Whether control tokens such as `<|im_end|>` appear in the text.
    pub special_text: SpecialText,
    /// Whether to keep a leading space: text that continues the prompt needs it, an answer does not.
    pub leading_space: LeadingSpace,
    /// The number of best log-probabilities to report with each generated token.
    pub logprobs: Option<usize>,
    pub prompt_output: PromptOutput,
    /// What to do when the context is full; `None` takes the engine's policy. The prompt must always fit.
    pub context_policy: Option<ContextPolicy>,
}

impl Request {
    /// Returns a greedy request for up to `max_tokens` tokens.
    pub fn greedy(prompt: Vec<TokenId>, max_tokens: usize) -> Request {
        Request {
            prompt,
            max_tokens,
            sampling: Arc::new(SamplingParams::greedy()),
            stop: Vec::new(),
            ignore_eos: false,
            special_text: SpecialText::Hide,
            leading_space: LeadingSpace::Keep,
            logprobs: None,
            prompt_output: PromptOutput::Nothing,
            context_policy: None,
        }
    }
}

/// Identifies a request of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-generation token or a stop string.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
}

/// Progress of a request. Events of one request arrive in order.
#[derive(Debug, Clone, PartialEq)]
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
    /// The whole prompt is in the cache; `cached_tokens` of it came from earlier requests.
    PromptDone {
        request: RequestId,
        cached_tokens: usize,
    },
    /// A generated token and the text that is now final (may be empty or of several tokens).
    Token {
        request: RequestId,
        id: TokenId,
        text: String,
        top: Vec<TokenLogprob>,
    },
    /// Logits are NaN or infinite. This is the request's last event.
    Failed { request: RequestId },
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
            | Event::PromptDone { request, .. }
            | Event::Token { request, .. }
            | Event::Finished { request, .. }
            | Event::Failed { request } => request,
        }
    }
}
