//! The perplexity of a text, computed as llama.cpp's `llama-perplexity` does.
//!
//! The text is cut into windows of `n_ctx` tokens without overlap. The first token of each window is replaced by the
//! start token if the model uses one. The second half of each window is scored, given everything before it.

use std::ops::ControlFlow;

use rocmforge_engine::{Engine, EngineError, Event, PromptOutput, Request, RequestError};
use rocmforge_gguf::TokenId;
use rocmforge_plan::ParameterError;

use crate::saved_logits::{MIN_CTX, scored};

/// The perplexity over all windows so far.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Perplexity {
    pub ppl: f64,
    /// Standard error of `ppl`.
    pub stderr: f64,
    /// Number of tokens in the text.
    pub tokens: usize,
    /// Number of windows scored.
    pub chunks: usize,
}

/// Scores up to `max_chunks` windows of `tokens`. `on_chunk` gets the result so far after each window, and may stop.
///
/// `bos` is the start token to put at the beginning of each window, if any.
///
/// # Errors
/// If the text is shorter than one window, or `n_ctx` is above the engine's context.
pub fn perplexity(
    engine: &mut Engine,
    tokens: &[TokenId],
    bos: Option<TokenId>,
    n_ctx: usize,
    max_chunks: Option<usize>,
    mut on_chunk: impl FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, EngineError> {
    let output = PromptOutput::Scores {
        from: scored(n_ctx).start + 1,
        top: 0,
    };
    let on_event = |_: &[TokenId], event: &Event, sum: &mut Moments| {
        if let Event::PromptScore { logprob, .. } = event {
            sum.add(-f64::from(*logprob));
        }
        Ok::<_, EngineError>(())
    };
    let text = (tokens, bos);
    run_windows(
        engine,
        text,
        (n_ctx, max_chunks),
        output,
        on_event,
        &mut on_chunk,
    )
}

/// Refuses windows that are too small, and texts without one.
fn check_windows(tokens: &[TokenId], n_ctx: usize) -> Result<(), EngineError> {
    if n_ctx < MIN_CTX {
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
    Ok(())
}

/// Computes each window with this output. `on_event` gets the window, each of its events, and where to add what a token scored.
fn run_windows<E: From<EngineError>>(
    engine: &mut Engine,
    (tokens, bos): (&[TokenId], Option<TokenId>),
    (n_ctx, max_chunks): (usize, Option<usize>),
    output: PromptOutput,
    mut on_event: impl FnMut(&[TokenId], &Event, &mut Moments) -> Result<(), E>,
    on_chunk: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, E> {
    check_windows(tokens, n_ctx)?;
    let mut sum = Moments::default();
    let mut result = Perplexity {
        ppl: f64::NAN,
        stderr: f64::NAN,
        tokens: tokens.len(),
        chunks: 0,
    };
    let windows = tokens.chunks_exact(n_ctx);
    for window in windows.take(max_chunks.unwrap_or(usize::MAX)) {
        let mut prompt = window.to_vec();
        if let Some(bos) = bos {
            prompt[0] = bos;
        }
        let mut request = Request::greedy(prompt, 0);
        request.prompt_output = output;
        let id = engine.submit(request)?;
        let mut failure = None;
        engine.run(id, |event| match on_event(window, event, &mut sum) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        result.chunks += 1;
        (result.ppl, result.stderr) = sum.perplexity();
        if on_chunk(&result) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(result)
}

/// As [`perplexity`], with all logits: `on_row` gets those of each scored token and the token.
///
/// # Errors
/// As [`perplexity`], if a logit is not a number, and those of `on_row`.
pub(crate) fn score_by_logits<E: From<EngineError>>(
    engine: &mut Engine,
    text: (&[TokenId], Option<TokenId>),
    (n_ctx, max_chunks): (usize, Option<usize>),
    mut on_row: impl FnMut(TokenId, &[f32]) -> Result<(), E>,
    on_chunk: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, E> {
    let scored = scored(n_ctx);
    let output = PromptOutput::Logits { from: scored.start };
    let on_event = |window: &[TokenId], event: &Event, sum: &mut Moments| {
        let Event::PromptLogits {
            position, logits, ..
        } = event
        else {
            return Ok(());
        };
        if !scored.contains(position) {
            return Ok(());
        }
        let log_sum = log_sum(logits);
        if !log_sum.is_finite() {
            return Err(EngineError::from(RequestError::NotFinite).into());
        }
        let next = window[position + 1];
        sum.add(log_sum - f64::from(logits[next as usize]));
        on_row(next, logits)
    };
    run_windows(
        engine,
        text,
        (n_ctx, max_chunks),
        output,
        on_event,
        on_chunk,
    )
}

/// Returns the logarithm of the sum of the exponentials.
pub(crate) fn log_sum(logits: &[f32]) -> f64 {
    let most = logits
        .iter()
        .fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let sum: f64 = logits.iter().map(|&x| f64::from(x - most).exp()).sum();
    f64::from(most) + sum.ln()
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

    /// Returns the perplexity and its standard error (that of the mean, propagated through exp).
    fn perplexity(&self) -> (f64, f64) {
        let mean = self.sum / self.n;
        let variance = self.sum_of_squares / self.n - mean * mean;
        let ppl = mean.exp();
        (ppl, ppl * (variance.max(0.0) / (self.n - 1.0)).sqrt())
    }
}
