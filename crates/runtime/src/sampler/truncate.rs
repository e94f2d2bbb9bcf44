//! Samplers that exclude unlikely tokens: top-p (Holtzman et al. 2019), min-p (Nguyen et al. 2024),
//! locally typical sampling (Meister et al. 2022) and top-n-sigma (Tang et al. 2024), each as llama.cpp
//! defines it. Sums are in f64, in the order of the candidates.

use rocmforge_cpu::Isa;

use super::candidates::{Candidates, entropy, probabilities};

/// Keeps the smallest set of best tokens whose total probability reaches `p`.
pub(crate) fn top_p(isa: Isa, candidates: &mut Candidates<'_>, p: f32) {
    if p >= 1.0 {
        return;
    }
    candidates.keep_mass(isa, f64::from(p));
}

/// Keeps the tokens with at least `p` times the best one's probability.
pub(crate) fn min_p(candidates: &mut Candidates<'_>, p: f32) {
    if p <= 0.0 {
        return;
    }
    candidates.keep_near(-p.ln());
}

/// Keeps the tokens whose information is closest to the entropy, until their total probability exceeds `p`.
pub(crate) fn typical_p(candidates: &mut Candidates<'_>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let best = candidates.best_first();
    let probabilities = probabilities(best);
    let entropy = entropy(&probabilities);
    let mut by_distance: Vec<(f64, usize)> = probabilities
        .iter()
        .map(|p| (-p.ln() - entropy).abs())
        .zip(0..)
        .collect();
    by_distance.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut mass = 0.0;
    let kept = by_distance.iter().take_while(|&&(_, at)| {
        let wanted = mass <= f64::from(p);
        mass += probabilities[at];
        wanted
    });
    let mut kept: Vec<usize> = kept.map(|&(_, at)| at).collect();
    kept.sort_unstable();
    *best = kept.into_iter().map(|at| best[at]).collect();
}

/// Keeps the tokens whose logit is at most `n` standard deviations of all logits below the best.
pub(crate) fn top_n_sigma(candidates: &mut Candidates<'_>, n: f32) {
    if n <= 0.0 {
        return;
    }
    let lowest = |logits: &mut dyn Iterator<Item = f32>| {
        // Welford's method: one pass without cancellation of large sums.
        let (mut count, mut mean, mut squares) = (0.0f64, 0.0, 0.0);
        let mut max = f64::NEG_INFINITY;
        for logit in logits.map(f64::from) {
            max = max.max(logit);
            if logit.is_finite() {
                count += 1.0;
                let delta = logit - mean;
                mean += delta / count;
                squares += delta * (logit - mean);
            }
        }
        max - f64::from(n) * (squares / count.max(1.0)).sqrt()
    };
    match candidates {
        Candidates::All(logits) => {
            let lowest = lowest(&mut logits.iter().copied());
            for logit in logits.iter_mut() {
                if f64::from(*logit) < lowest {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Candidates::BestFirst(best) => {
            let lowest = lowest(&mut best.iter().map(|c| c.logit));
            let n = best.partition_point(|c| f64::from(c.logit) >= lowest);
            best.truncate(n.max(1));
        }
    }
}
