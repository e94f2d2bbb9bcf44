//! Temperature, fixed or dependent on entropy (Zhu et al. 2023; llama.cpp's `temp_ext`).

use rocmforge_cpu::Isa;

use super::candidates::{Candidate, Candidates, entropy, probabilities};
use rocmforge_plan::DynamicTemperature;

/// Divides the logits by `temperature`; 0 keeps only the best token.
pub(crate) fn scale(isa: Isa, candidates: &mut Candidates<'_>, temperature: f32) {
    if temperature <= 0.0 {
        let id = candidates.best(isa);
        *candidates = Candidates::BestFirst(vec![Candidate { id, logit: 0.0 }]);
    } else if temperature != 1.0 {
        // Sort first: very small temperatures make all logits infinite, and the best must stay first.
        for candidate in candidates.best_first() {
            candidate.logit /= temperature;
        }
    }
}

/// Divides the logits by a temperature that grows with the candidates' entropy.
pub(crate) fn scale_by_entropy(
    isa: Isa,
    candidates: &mut Candidates<'_>,
    temperature: f32,
    dynamic: &DynamicTemperature,
) {
    if dynamic.range <= 0.0 {
        return scale(isa, candidates, temperature);
    }
    let best = candidates.best_first();
    if best.len() < 2 {
        return;
    }
    let share = entropy(&probabilities(best)) / (best.len() as f64).ln();
    let low = f64::from(temperature - dynamic.range).max(0.0);
    let high = f64::from(temperature) + f64::from(dynamic.range);
    let temperature = low + (high - low) * share.powf(f64::from(dynamic.exponent));
    scale(isa, candidates, temperature as f32);
}
