//! What a caller asks of the engine and what comes back.

use std::sync::Arc;

use serde::Serialize;

use rocmforge_plan::SamplingParams;
use rocmforge_plan::TokenLogprob;
use rocmforge_runtime::ContextPolicy;
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText, TokenId};

/// What is wanted of the prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptOutput {
    #[default]
    Nothing,
    /// Log-probabilities of the tokens at positions `from` and later (`from` at least 1), with the `top` best each.
    Scores { from: usize, top: usize },
    /// The logits of every position.
    Logits,
}

/// A prompt to continue.
#[derive(Debug, Clone)]
pub struct Request {
    pub prompt: Vec<TokenId>,
    /// How many tokens to generate at most; 0 only evaluates the prompt.
    pub max_tokens: usize,
    pub sampling: Arc<SamplingParams>,
    /// Generation ends before the first of these strings appears.
    pub stop: Vec<String>,
    /// Generate past end-of-generation tokens.
    pub ignore_eos: bool,
    /// Whether control tokens such as `<|im_end|>` appear in the text.
    pub special_text: SpecialText,
    /// Whether the text begins (an answer) or continues the prompt.
    pub leading_space: LeadingSpace,
    /// How many of the best log-probabilities to report with each generated token.
    pub logprobs: Option<usize>,
    pub prompt_output: PromptOutput,
    /// What happens when the context is full; `None` takes the engine's policy. A prompt has to fit in any case.
    pub context_policy: Option<ContextPolicy>,
}

impl Request {
    /// A greedy request for up to `max_tokens` tokens.
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

/// Names a request of one engine.
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

/// News of a request, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Score of the prompt token at `position`, given those before it.
    PromptScore {
        request: RequestId,
        position: usize,
        logprob: f32,
        top: Vec<TokenLogprob>,
    },
    /// Logits after the prompt token at `position`.
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
    /// A generated token, and the text that is certain now (may be empty, may be of several tokens).
    Token {
        request: RequestId,
        id: TokenId,
        text: String,
        top: Vec<TokenLogprob>,
    },
    /// The model computed no numbers; nothing more comes of the request.
    Failed { request: RequestId },
    /// The end, with the text that was held back.
    Finished {
        request: RequestId,
        reason: FinishReason,
        text: String,
    },
}

impl Event {
    /// The request it is about.
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
