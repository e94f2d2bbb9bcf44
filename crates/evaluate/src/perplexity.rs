//! Perplexity of a text as llama-perplexity computes it.
//!
//! The text is cut into windows of `n_ctx` tokens, without overlap; the first token of each window is the
//! start token if the model uses one; the second half of each window is scored, given all before it.

use rocmforge_engine::Engine;
use rocmforge_engine::{EngineError, RequestError};
use rocmforge_engine::{Event, PromptOutput, Request};
use rocmforge_gguf::TokenId;
use rocmforge_plan::ParameterError;
use std::ops::ControlFlow;

/// The result over all windows.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Perplexity {
    pub ppl: f64,
    /// Standard error of `ppl`.
    pub stderr: f64,
    /// Tokens of the text.
    pub tokens: usize,
    /// Windows scored.
    pub chunks: usize,
}

/// Scores up to `max_chunks` windows of `tokens`; `on_chunk` gets the result so far after each and may stop.
///
/// `bos` is the start token to put in each window's first place, if any. Fails if the text is shorter than
/// one window or `n_ctx` is above the engine's context.
pub fn perplexity(
    engine: &mut Engine,
    tokens: &[TokenId],
    bos: Option<TokenId>,
    n_ctx: usize,
    max_chunks: Option<usize>,
    mut on_chunk: impl FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, EngineError> {
    if n_ctx < 4 {
        let error = ParameterError {
            name: "the window",
            value: n_ctx.to_string(),
            wanted: "at least 4 tokens",
        };
        return Err(RequestError::Parameter(error).into());
    }
    if tokens.len() < n_ctx {
        return Err(RequestError::TextTooShort {
            n_tokens: tokens.len(),
            n_ctx,
        }
        .into());
    }
    let first_scored = n_ctx / 2 + 1;
    let mut sum = Moments::default();
    let mut result = Perplexity {
        ppl: f64::NAN,
        stderr: f64::NAN,
        tokens: tokens.len(),
        chunks: 0,
    };
    for window in tokens
        .chunks_exact(n_ctx)
        .take(max_chunks.unwrap_or(usize::MAX))
    {
        let mut prompt = window.to_vec();
        if let Some(bos) = bos {
            prompt[0] = bos;
        }
        let mut request = Request::greedy(prompt, 0);
        request.prompt_output = PromptOutput::Scores {
            from: first_scored,
            top: 0,
        };
        let id = engine.submit(request)?;
        engine.run(id, |event| {
            if let Event::PromptScore { logprob, .. } = event {
                sum.add(-f64::from(*logprob));
            }
            ControlFlow::Continue(())
        })?;
        result.chunks += 1;
        (result.ppl, result.stderr) = sum.perplexity();
        if on_chunk(&result) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(result)
}

/// Sums of negative log-probabilities.
#[derive(Debug, Default)]
struct Moments {
    n: f64,
    sum: f64,
    sum_of_squares: f64,
}

impl Moments {
    fn add(&mut self, nll: f64) {
        self.n += 1.0;
        self.sum += nll;
        self.sum_of_squares += nll * nll;
    }

    /// The perplexity and its standard error (of the mean, propagated through exp).
    fn perplexity(&self) -> (f64, f64) {
        let mean = self.sum / self.n;
        let variance = self.sum_of_squares / self.n - mean * mean;
        let ppl = mean.exp();
        (ppl, ppl * (variance.max(0.0) / (self.n - 1.0)).sqrt())
    }
}
