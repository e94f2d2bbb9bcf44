//! XTC, "exclude top choices" (Weidmann 2024), as llama.cpp defines it: now and then the obvious tokens
//! are left out, so that a text goes another way while it stays plausible.

use super::candidates::{Candidates, probabilities};
use rocmforge_plan::Xtc;

/// Of the tokens at or above the threshold only the least likely stays, if `chance`, from `[0, 1)`, says so.
pub(crate) fn exclude_top_choices(candidates: &mut Candidates<'_>, xtc: &Xtc, chance: f64) {
    if xtc.probability <= 0.0 || xtc.threshold > 0.5 || chance >= f64::from(xtc.probability) {
        return;
    }
    let best = candidates.best_first();
    let n_top = probabilities(best)
        .into_iter()
        // As f32, like the threshold: 0.1 is to reach 0.1.
        .take_while(|&p| p as f32 >= xtc.threshold)
        .count();
    best.drain(..n_top.saturating_sub(1));
}
