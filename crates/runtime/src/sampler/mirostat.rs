//! Mirostat 2.0 (Basu, Ramachandran, Keskar, Varshney 2021): excludes tokens more surprising than `mu`, and adjusts
//! `mu` after each token to keep the text's surprise near `tau`.
//!
//! `mu` is per-sequence state. It travels with the tokens: each step returns it with the sampled token and takes it
//! with the next, so it stays correct with steps in flight and after preemption.

use super::candidates::{Candidates, probabilities};
use super::random::pick;
use rocmforge_gguf::TokenId;
use rocmforge_plan::Mirostat;

/// Returns `mu` before the first token.
fn first_mu(mirostat: &Mirostat) -> f32 {
    2.0 * mirostat.tau
}

/// Returns `mu` after a token that had `probability` among the candidates.
pub(crate) fn next_mu(mirostat: &Mirostat, mu: f32, probability: f64) -> f32 {
    let surprise = -probability.log2();
    let next = f64::from(mu) - f64::from(mirostat.eta) * (surprise - f64::from(mirostat.tau));
    if next.is_finite() { next as f32 } else { mu }
}

/// Keeps the tokens with a surprise of at most `mu` bits, or the best one. Returns their probabilities.
pub(crate) fn keep_expected(candidates: &mut Candidates<'_>, mu: f32) -> Vec<f64> {
    let best = candidates.best_first();
    let expected = |p: &f64| -p.log2() <= f64::from(mu);
    let n = probabilities(best)
        .iter()
        .take_while(|p| expected(p))
        .count();
    best.truncate(n.max(1));
    probabilities(best)
}

/// Draws a token. Returns it with the next `mu`.
pub(crate) fn draw(
    mut candidates: Candidates<'_>,
    mirostat: &Mirostat,
    mu: Option<f32>,
    uniform: f64,
) -> (TokenId, f32) {
    let mu = mu.unwrap_or_else(|| first_mu(mirostat));
    let probabilities = keep_expected(&mut candidates, mu);
    let at = pick(&probabilities, uniform);
    let id = candidates.best_first()[at].id;
    (id, next_mu(mirostat, mu, probabilities[at]))
}
