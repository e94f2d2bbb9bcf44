//! The candidate tokens of a sampler chain. They stay a plain row of logits until a sampler needs an order, so that
//! only the few best of a large vocabulary are sorted.

use rocmforge_cpu as cpu;
use rocmforge_cpu::Isa;

use rocmforge_gguf::TokenId;

/// A candidate token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: TokenId,
    pub(crate) logit: f32,
}

/// The remaining candidates. Logits of negative infinity or NaN are not chosen.
#[derive(Debug)]
pub(crate) enum Candidates<'a> {
    /// Every token, `[n_vocab]`.
    All(&'a mut [f32]),
    /// Best first, at least one.
    BestFirst(Vec<Candidate>),
}

impl Candidates<'_> {
    /// Changes the logits of the tokens in `changes`, which is sorted by id.
    pub(crate) fn adjust<T>(&mut self, changes: &[(TokenId, T)], new: impl Fn(f32, &T) -> f32) {
        match self {
            Candidates::All(logits) => {
                for (id, change) in changes {
                    if let Some(logit) = logits.get_mut(*id as usize) {
                        *logit = new(*logit, change);
                    }
                }
            }
            Candidates::BestFirst(best) => {
                for candidate in best.iter_mut() {
                    if let Ok(at) = changes.binary_search_by_key(&candidate.id, |&(id, _)| id) {
                        candidate.logit = new(candidate.logit, &changes[at].1);
                    }
                }
                let first = best[0];
                best.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
                if best.is_empty() {
                    best.push(first);
                }
                best.sort_unstable_by(best_first);
            }
        }
    }

    /// Keeps the `k` best; all if `k` is 0.
    pub(crate) fn keep_best(&mut self, k: usize) {
        match self {
            _ if k == 0 => {}
            Candidates::All(logits) => *self = Candidates::BestFirst(top_k(logits, k)),
            Candidates::BestFirst(best) => best.truncate(k),
        }
    }

    /// Returns the candidates in order, best first.
    pub(crate) fn best_first(&mut self) -> &mut Vec<Candidate> {
        if let Candidates::All(logits) = self {
            *self = Candidates::BestFirst(top_k(logits, 0));
        }
        match self {
            Candidates::BestFirst(best) => best,
            Candidates::All(_) => unreachable!("sorted above"),
        }
    }

    /// Returns the best candidate.
    pub(crate) fn best(&self, isa: Isa) -> TokenId {
        match self {
            Candidates::All(logits) => cpu::argmax(isa, logits).unwrap_or(0) as TokenId,
            Candidates::BestFirst(best) => best[0].id,
        }
    }
}

/// Orders by descending logit, then by ascending id.
fn best_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Returns the `k` best tokens (all if `k` is 0), best first, at least one.
pub(crate) fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    let k = if k == 0 { logits.len() } else { k };
    let capacity = k.saturating_mul(2).saturating_add(64).min(logits.len());
    let mut best: Vec<Candidate> = Vec::with_capacity(capacity);
    let mut threshold = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > threshold {
            if best.len() == capacity && k < capacity {
                // Tokens at or below the k-th best so far cannot be among the k best.
                best.select_nth_unstable_by(k - 1, best_first);
                best.truncate(k);
                threshold = best[k - 1].logit;
                if logit <= threshold {
                    continue;
                }
            }
            best.push(Candidate {
                id: id as TokenId,
                logit,
            });
        }
    }
    best.sort_unstable_by(best_first);
    best.truncate(k);
    if best.is_empty() {
        best.push(Candidate { id: 0, logit: 0.0 });
    }
    best
}

/// Computes the softmax of candidates in order. If it is undefined, the best one gets probability 1.
pub(crate) fn probabilities(best_first: &[Candidate]) -> Vec<f64> {
    let best = best_first[0].logit;
    let mut weights: Vec<f64> = best_first
        .iter()
        .map(|c| f64::from(c.logit - best).exp())
        .map(|w| if w.is_nan() { 0.0 } else { w })
        .collect();
    let total: f64 = weights.iter().sum();
    if total > 0.0 {
        for weight in &mut weights {
            *weight /= total;
        }
    } else {
        weights[0] = 1.0;
    }
    weights
}

/// Computes the entropy in nats.
pub(crate) fn entropy(probabilities: &[f64]) -> f64 {
    let terms = probabilities.iter().filter(|&&p| p > 0.0);
    terms.map(|&p| -p * p.ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_k_is_a_prefix_of_the_sorted_candidates() {
        let logits: Vec<f32> = (0..5000u32)
            .map(|i| (i.wrapping_mul(2654435761) % 997) as f32)
            .collect();
        let mut sorted: Vec<u32> = (0..5000).collect();
        sorted.sort_by(|&a, &b| {
            logits[b as usize]
                .total_cmp(&logits[a as usize])
                .then(a.cmp(&b))
        });
        for k in [1, 2, 40, 700, 5000, 0] {
            let ids: Vec<u32> = top_k(&logits, k).iter().map(|c| c.id).collect();
            assert_eq!(ids, sorted[..if k == 0 { 5000 } else { k }], "k = {k}");
        }
    }

    #[test]
    fn adjust_restores_the_order() {
        let mut candidates = Candidates::BestFirst(top_k(&[3.0, 2.0, 1.0, 0.0], 3));
        let changes = [(0, -2.5), (2, f32::NEG_INFINITY), (3, 9.0)];
        candidates.adjust(&changes, |logit, change| logit + change);
        let expected = [(1, 2.0), (0, 0.5)].map(|(id, logit)| Candidate { id, logit });
        assert_eq!(*candidates.best_first(), expected);
    }
}
