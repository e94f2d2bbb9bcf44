//! How far a model's predictions are from those of another one, as `llama-perplexity --kl-divergence` measures it: of a model
//! and its quantized file, or of a KV cache in another type.

use std::io::{self, Write};
use std::ops::ControlFlow;

use rocmforge_engine::{Engine, EngineError};
use rocmforge_gguf::TokenId;

use crate::perplexity::{Perplexity, log_sum, score_by_logits};
use crate::saved_logits::{Row, SavedLogits, SavedLogitsError, SavedLogitsWriter};

/// Why log-probabilities could not be saved or compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DivergenceError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Saved(#[from] SavedLogitsError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A mean over all scored tokens and its standard error.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Mean {
    pub mean: f64,
    pub stderr: f64,
}

/// How far the predictions of a model are from the saved ones, the base.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Divergence {
    #[serde(flatten)]
    pub perplexity: Perplexity,
    pub base_ppl: f64,
    /// ln(perplexity / perplexity of the base).
    pub ln_ppl_ratio: Mean,
    /// Kullback-Leibler divergence from the base, in nats.
    pub kl: Mean,
    pub kl_median: f64,
    /// 99 of 100 tokens have less.
    pub kl_99: f64,
    pub kl_max: f64,
    /// Share of the tokens for which both find the same token most likely.
    pub same_top: Mean,
    /// The root of the mean square by which the probability of the right token differs.
    pub probability_rms: f64,
}

/// Saves the log-probabilities of the scored tokens of `tokens`, for [`divergence`]. The arguments are those of
/// [`perplexity`](crate::perplexity()).
///
/// # Errors
/// As [`perplexity`](crate::perplexity()), and those of writing.
pub fn save_logits(
    engine: &mut Engine,
    (tokens, bos): (&[TokenId], Option<TokenId>),
    n_ctx: usize,
    max_chunks: Option<usize>,
    to: impl Write,
    on_chunk: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Perplexity, DivergenceError> {
    let n_windows = (tokens.len() / n_ctx.max(1)).min(max_chunks.unwrap_or(usize::MAX));
    let saved = &tokens[..n_windows * n_ctx];
    let mut to = Some(to);
    let mut writer = None;
    let result = score_by_logits(
        engine,
        (tokens, bos),
        (n_ctx, max_chunks),
        |_, logits| {
            if let Some(to) = to.take() {
                writer = Some(SavedLogitsWriter::new(to, saved, n_ctx, logits.len())?);
            }
            let writer = writer.as_mut().expect("the first row makes it");
            Ok::<_, DivergenceError>(writer.write(&Row::new(logits))?)
        },
        on_chunk,
    )?;
    if let Some(writer) = writer {
        writer.finish()?;
    }
    Ok(result)
}

/// Compares the model's predictions with those of `base`, in up to `max_chunks` of its windows.
///
/// `bos` is the start token to put at the beginning of each window, if any.
///
/// # Errors
/// If the models have different vocabularies; as [`perplexity`](crate::perplexity()); those of reading.
pub fn divergence(
    engine: &mut Engine,
    base: &mut SavedLogits,
    bos: Option<TokenId>,
    max_chunks: Option<usize>,
    on_chunk: &mut dyn FnMut(&Perplexity) -> ControlFlow<()>,
) -> Result<Divergence, DivergenceError> {
    let [got, wanted] = [base.n_vocab(), engine.n_vocab()];
    if got != wanted {
        return Err(SavedLogitsError::Vocabulary { got, wanted }.into());
    }
    let (n_ctx, tokens) = (base.n_ctx(), base.tokens().to_vec());
    let mut row = Row::default();
    let mut sums = Sums::default();
    let perplexity = score_by_logits(
        engine,
        (&tokens, bos),
        (n_ctx, max_chunks),
        |next, logits| {
            base.read(&mut row)?;
            sums.add(next as usize, logits, &row);
            Ok::<_, DivergenceError>(())
        },
        on_chunk,
    )?;
    Ok(sums.result(perplexity))
}

/// What is known of each scored token.
#[derive(Default)]
struct Sums {
    kl: Vec<f64>,
    /// Negative log-probabilities of the base, and how much larger the model's are.
    base_nll: Vec<f64>,
    ln_ratio: Vec<f64>,
    same_top: Vec<f64>,
    probability_change: Vec<f64>,
}

impl Sums {
    fn add(&mut self, next: usize, logits: &[f32], base: &Row) {
        /// Less likely tokens count nothing, whatever was saved of them.
        const LEAST: f64 = -16.0;
        let log_sum = log_sum(logits);
        let log_prob = |token: usize| f64::from(logits[token]) - log_sum;
        let of_base = |token: usize| f64::from(base.log_prob(token));
        let mut kl = 0.0;
        let mut top = [(f64::NEG_INFINITY, 0); 2];
        for token in 0..base.n_vocab() {
            let both = [log_prob(token), of_base(token)];
            for (top, log_prob) in top.iter_mut().zip(both) {
                if log_prob > top.0 {
                    *top = (log_prob, token);
                }
            }
            let [log_prob, of_base] = both;
            if of_base > LEAST {
                kl += of_base.exp() * (of_base - log_prob);
            }
        }
        let [own, base] = [log_prob(next), of_base(next)];
        self.kl.push(kl);
        self.base_nll.push(-base);
        self.ln_ratio.push(base - own);
        self.same_top.push(f64::from(top[0].1 == top[1].1));
        self.probability_change.push(own.exp() - base.exp());
    }

    fn result(mut self, perplexity: Perplexity) -> Divergence {
        let squares = self.probability_change.iter().map(|change| change * change);
        let squares: Vec<f64> = squares.collect();
        let kl = mean(&self.kl);
        self.kl.sort_by(f64::total_cmp);
        // The rank of a share of the tokens.
        let at = |share: f64| {
            let last = self.kl.len().saturating_sub(1);
            let rank = (share * last as f64).round() as usize;
            self.kl.get(rank).copied().unwrap_or(f64::NAN)
        };
        Divergence {
            perplexity,
            base_ppl: mean(&self.base_nll).mean.exp(),
            ln_ppl_ratio: mean(&self.ln_ratio),
            kl,
            kl_median: at(0.5),
            kl_99: at(0.99),
            kl_max: at(1.0),
            same_top: mean(&self.same_top),
            probability_rms: mean(&squares).mean.sqrt(),
        }
    }
}

fn mean(values: &[f64]) -> Mean {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Mean {
        mean,
        stderr: (squares / (n - 1.0) / n).sqrt(),
    }
}
