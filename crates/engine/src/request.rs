//! Requests to the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rocmforge_model::PooledTokens;
use rocmforge_plan::{Constraint, SamplingParams};
use rocmforge_runtime::ContextPolicy;
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText, TokenId};

/// The output for the prompt itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptOutput {
    #[default]
    Nothing,
    /// Log-probabilities of the tokens at positions `from` (at least 1) and later, each with the `top` best tokens.
    Scores { from: usize, top: usize },
    /// The logits of positions `from` and later: for 4,096 positions over a vocabulary of 128,000, 2 GB. Only a program
    /// that drives its own [`Engine`](crate::Engine) gets them, step by step. A [`Handle`](crate::serve::Handle) refuses
    /// them: its engine does not wait for readers, so those of a slow one would pile up in memory. For perplexity, take
    /// [`PromptOutput::Scores`].
    Logits { from: usize },
    /// The embedding: hidden values of these tokens of the prompt, as one event. Only a model that was loaded for
    /// embeddings has it.
    Embedding(PooledTokens),
}

/// A prompt to continue, with its sampling and output options.
#[derive(Debug, Clone)]
pub struct Request {
    /// Requests may share it.
    pub prompt: Arc<[TokenId]>,
    /// The most tokens to generate; 0 only evaluates the prompt.
    pub max_tokens: usize,
    pub sampling: Arc<SamplingParams>,
    /// Generation stops before the first of these strings.
    pub stop: Vec<String>,
    /// Generation ends with the first of these tokens, which is not part of the text.
    pub stop_ids: Vec<TokenId>,
    /// Continue past end-of-generation tokens.
    pub ignore_eos: bool,
    /// Before this many tokens, no end-of-generation token and no stop token is chosen, and no stop string ends the
    /// generation.
    pub min_tokens: usize,
    /// The request fails at this time if it still waits for a place in the cache.
    pub start_by: Option<Instant>,
    /// The request is refused when it comes if its first token would probably take longer.
    pub first_token_within: Option<Duration>,
    /// The request ends at this time, with what there is.
    pub deadline: Option<Instant>,
    /// Requests of higher priority are served first. In the same priority, tenants take turns; of one tenant, earlier
    /// requests are first.
    pub priority: i32,
    /// Whose request it is.
    pub tenant: Arc<str>,
    /// Cached prefixes are shared only between requests with the same salt.
    pub cache_salt: Option<String>,
    /// Tokens at the start of the prompt that requests with any salt share; at most the whole prompt.
    pub shared_tokens: usize,
    /// Whether control tokens such as `<|im_end|>` appear in the text.
    pub special_text: SpecialText,
    /// Whether to keep a leading space: text that continues the prompt needs it, an answer does not.
    pub leading_space: LeadingSpace,
    /// Report the log-probability of each generated token, and this many best ones. They are those of the model: neither
    /// sampling nor the constraint changes them.
    pub logprobs: Option<usize>,
    /// What restricts the generated tokens, in its state before the first of them. Their text begins as the constraint
    /// says, so no leading space is removed.
    pub constraint: Option<Box<dyn Constraint>>,
    pub prompt_output: PromptOutput,
    /// What to do when the context is full; `None` takes the engine's policy. The prompt must always fit.
    pub context_policy: Option<ContextPolicy>,
}

impl Request {
    /// Returns a greedy request for up to `max_tokens` tokens.
    pub fn greedy(prompt: Vec<TokenId>, max_tokens: usize) -> Request {
        Request {
            prompt: prompt.into(),
            max_tokens,
            sampling: Arc::new(SamplingParams::greedy()),
            stop: Vec::new(),
            stop_ids: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            start_by: None,
            first_token_within: None,
            deadline: None,
            priority: 0,
            tenant: Arc::default(),
            cache_salt: None,
            shared_tokens: 0,
            special_text: SpecialText::Hide,
            leading_space: LeadingSpace::Keep,
            logprobs: None,
            constraint: None,
            prompt_output: PromptOutput::Nothing,
            context_policy: None,
        }
    }

    /// Returns a request for the embedding of a text, pooled over `tokens`.
    pub fn embedding(text: Vec<TokenId>, tokens: PooledTokens) -> Request {
        Request {
            prompt_output: PromptOutput::Embedding(tokens),
            ..Request::greedy(text, 0)
        }
    }
}

/// Identifies a request of one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);
