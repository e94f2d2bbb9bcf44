//! What a caller asks of the engine and what comes back.

use std::sync::Arc;

use serde::Serialize;

use crate::batch::TokenLogprob;
use crate::error::EngineError;
use crate::tokenizer::{LeadingSpace, SpecialText, TokenId};

/// How the next token is chosen. The order is llama.cpp's: penalties, top-k, top-p, min-p, temperature.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the best token; larger is more varied.
    pub temperature: f32,
    /// Only the `top_k` best tokens; 0 means all.
    pub top_k: usize,
    /// The smallest set of best tokens whose probability reaches `top_p`; 1 means all.
    pub top_p: f32,
    /// Only tokens with at least `min_p` times the best one's probability; 0 means all.
    pub min_p: f32,
    /// Logits of tokens seen in the window are divided (positive) or multiplied (negative) by this; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token that occurs in the window; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the window; 0 is off.
    pub frequency_penalty: f32,
    /// How many of the last tokens, prompt included, the penalties look at.
    pub penalty_last_n: usize,
    /// Random seed; the same request with the same seed gives the same tokens in any company.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> SamplingParams {
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// The best token every time.
    pub fn greedy() -> SamplingParams {
        SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        }
    }

    /// Whether any penalty changes the logits.
    pub fn has_penalties(&self) -> bool {
        self.penalty_last_n > 0
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }

    /// Refuses values that have no meaning, by name.
    pub fn validate(&self) -> Result<(), EngineError> {
        let check = |ok: bool, name: &'static str, value: f32, wanted: &'static str| {
            if ok {
                Ok(())
            } else {
                Err(EngineError::BadParameter {
                    name,
                    value: value.to_string(),
                    wanted,
                })
            }
        };
        let finite = |v: f32| v.is_finite();
        check(
            finite(self.temperature) && self.temperature >= 0.0,
            "temperature",
            self.temperature,
            "0 or more",
        )?;
        check(
            (0.0..=1.0).contains(&self.top_p),
            "top-p",
            self.top_p,
            "between 0 and 1",
        )?;
        check(
            (0.0..=1.0).contains(&self.min_p),
            "min-p",
            self.min_p,
            "between 0 and 1",
        )?;
        check(
            finite(self.repeat_penalty) && self.repeat_penalty > 0.0,
            "repeat-penalty",
            self.repeat_penalty,
            "above 0",
        )?;
        check(
            finite(self.presence_penalty),
            "presence-penalty",
            self.presence_penalty,
            "a finite number",
        )?;
        check(
            finite(self.frequency_penalty),
            "frequency-penalty",
            self.frequency_penalty,
            "a finite number",
        )
    }
}

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
            | Event::Finished { request, .. } => request,
        }
    }
}
