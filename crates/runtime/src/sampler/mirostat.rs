//! Mirostat 2.0 (Basu, Ramachandran, Keskar, Varshney 2021): tokens more surprising than `mu` are left
//! out, and `mu` follows the surprise of what was drawn so that the text's surprise stays near `tau`.
//!
//! `mu` belongs to a sequence. It comes out with each token and goes in with the next, by the way that the
//! token itself takes; so it is right with a step in flight and after a sequence gave way.

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

/// Leaves the tokens with a surprise of at most `mu` bits, or the best one; gives their probabilities.
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

/// Draws a token; gives it with the next `mu`.
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
