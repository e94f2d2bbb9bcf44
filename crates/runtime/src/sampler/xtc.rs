//! XTC, "exclude top choices" (Weidmann 2024), as llama.cpp defines it: sometimes excludes the most likely tokens, for
//! more varied but plausible text.

use super::candidates::{Candidates, probabilities};
use rocmforge_plan::Xtc;

/// Keeps only the least likely of the tokens at or above the threshold, if `chance`, in `[0, 1)`, is below the
/// probability.
pub(crate) fn exclude_top_choices(candidates: &mut Candidates<'_>, xtc: &Xtc, chance: f64) {
    if xtc.probability <= 0.0 || xtc.threshold > 0.5 || chance >= f64::from(xtc.probability) {
        return;
    }
    let best = candidates.best_first();
    let n_top = probabilities(best)
        .into_iter()
        // As f32, like the threshold, so that 0.1 reaches 0.1.
        .take_while(|&p| p as f32 >= xtc.threshold)
        .count();
    best.drain(..n_top.saturating_sub(1));
}
