//! The candidate tokens of a sampler chain. They stay a plain row of logits until a sampler needs an order, so that
//! only the few best of a large vocabulary are sorted.

use rocmforge_cpu as cpu;
use rocmforge_cpu::Isa;

use super::random::pick;
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

    /// Draws a candidate with the probabilities at `temperature`, which is above 0: the first one, best first, at which
    /// the probabilities up to it exceed `uniform`.
    pub(crate) fn draw(&self, isa: Isa, temperature: f32, uniform: f64) -> TokenId {
        match self {
            Candidates::BestFirst(best) => {
                let scaled = best.iter().map(|c| Candidate {
                    logit: c.logit / temperature,
                    ..*c
                });
                let scaled: Vec<Candidate> = scaled.collect();
                best[pick(&probabilities(&scaled), uniform)].id
            }
            Candidates::All(logits) => {
                let head = Head::new(isa, logits, temperature, |mass, total| {
                    mass > uniform * total
                });
                // Rounding may leave the sum of all below the last share.
                head.best[head.n.saturating_sub(1)].id
            }
        }
    }

    /// Keeps the best candidates until their total probability reaches `share`, at least one.
    pub(crate) fn keep_mass(&mut self, isa: Isa, share: f64) {
        match self {
            Candidates::All(logits) => {
                let head = Head::new(isa, logits, 1.0, |mass, total| mass >= share * total);
                let n = if head.n == 0 { head.best.len() } else { head.n };
                *self = Candidates::BestFirst(head.best);
                self.keep_best(n);
            }
            Candidates::BestFirst(best) => {
                let mut mass = 0.0;
                let kept = probabilities(best).into_iter().take_while(|probability| {
                    let wanted = mass < share;
                    mass += probability;
                    wanted
                });
                let n = kept.count().max(1);
                best.truncate(n);
            }
        }
    }

    /// Keeps the candidates whose logit is at most `below` less than the best one.
    pub(crate) fn keep_near(&mut self, below: f32) {
        match self {
            Candidates::All(logits) => {
                let floor = largest(logits) - below;
                let near = (0..)
                    .zip(logits.iter())
                    .filter(|&(_, &logit)| logit >= floor);
                let mut near: Vec<Candidate> =
                    near.map(|(id, &logit)| Candidate { id, logit }).collect();
                near.retain(|c| c.logit > f32::NEG_INFINITY);
                near.sort_unstable_by(best_first);
                *self = Candidates::BestFirst(match near.is_empty() {
                    true => top_k(logits, 1),
                    false => near,
                });
            }
            Candidates::BestFirst(best) => {
                let floor = best[0].logit - below;
                let n = best.partition_point(|c| c.logit >= floor).max(1);
                best.truncate(n);
            }
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

/// Returns the largest logit, negative infinity if there is none.
fn largest(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The weight of each logit at a temperature: its probability up to a factor that all share.
#[derive(Clone, Copy)]
struct Weights {
    best: f32,
    temperature: f32,
}

impl Weights {
    fn of(self, logit: f32) -> f64 {
        let weight = f64::from(logit / self.temperature - self.best).exp();
        if weight.is_nan() { 0.0 } else { weight }
    }

    /// Estimates the weight of all tokens in f32.
    fn about_total(self, isa: Isa, logits: &[f32]) -> f64 {
        let log = match self.temperature {
            1.0 => cpu::log_sum_exp(isa, logits),
            temperature => {
                let scaled: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
                cpu::log_sum_exp(isa, &scaled)
            }
        };
        f64::from(log - self.best).exp()
    }

    /// Returns how many of the best tokens are enough of `total`; 0 if all of them are not.
    fn count(self, best: &[Candidate], total: f64, is_enough: impl Fn(f64, f64) -> bool) -> usize {
        let mut mass = 0.0;
        let last = best.iter().position(|c| {
            mass += self.of(c.logit);
            is_enough(mass, total)
        });
        last.map_or(0, |at| at + 1)
    }
}

/// The best tokens, in order, up to those that have a share of the probability of all.
struct Head {
    best: Vec<Candidate>,
    /// How many of them have the share; 0 if all tokens together do not.
    n: usize,
}

impl Head {
    /// Tokens that are sorted at first. More are sorted while these do not have the share.
    const FIRST: usize = 64;
    /// Relative error of a sum in f32, and more.
    const ERROR: f64 = 1e-5;

    /// `is_enough` says whether a part of the total weight is the share; with less of it, or of a larger total, it is not.
    fn new(
        isa: Isa,
        logits: &[f32],
        temperature: f32,
        is_enough: impl Fn(f64, f64) -> bool,
    ) -> Head {
        let weights = Weights {
            best: largest(logits) / temperature,
            temperature,
        };
        // An estimate of the total decides, unless the share ends within its error.
        let about = weights.about_total(isa, logits);
        let bounds = [about * (1.0 - Head::ERROR), about * (1.0 + Head::ERROR)];
        if about.is_finite() && about > 0.0 {
            let mut k = Head::FIRST;
            while k < logits.len() {
                let best = top_k(logits, k);
                let [low, high] = bounds.map(|total| weights.count(&best, total, &is_enough));
                if low == high && low > 0 {
                    return Head { best, n: low };
                }
                if low > 0 && high > 0 {
                    break;
                }
                k *= 16;
            }
        }
        let total: f64 = logits.iter().map(|&logit| weights.of(logit)).sum();
        let best = top_k(logits, if total > 0.0 { 0 } else { 1 });
        let n = weights.count(&best, total, &is_enough);
        Head { best, n }
    }
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

    /// The definition: all candidates in order, their softmax, and the first one beyond the random number.
    fn drawn_by_definition(logits: &[f32], temperature: f32, uniform: f64) -> TokenId {
        let mut sorted = top_k(logits, 0);
        let ids: Vec<TokenId> = sorted.iter().map(|c| c.id).collect();
        sorted.iter_mut().for_each(|c| c.logit /= temperature);
        ids[pick(&probabilities(&sorted), uniform)]
    }

    #[test]
    fn draws_from_all_as_from_sorted_candidates() {
        let isa = Isa::detect();
        for (width, temperature) in [(0.0, 1.0), (0.3, 1.0), (8.0, 0.7), (30.0, 1.0), (4.0, 2.5)] {
            let mut logits: Vec<f32> = (0..5000u32)
                .map(|i| (i.wrapping_mul(2654435761) % 997) as f32 / 997.0 * width)
                .collect();
            logits[17] = f32::NEG_INFINITY;
            logits[18] = f32::NAN;
            for step in 0..200 {
                let uniform = f64::from(step) / 200.0 + 1e-4;
                let expected = drawn_by_definition(&logits, temperature, uniform);
                let all = Candidates::All(&mut logits);
                assert_eq!(
                    all.draw(isa, temperature, uniform),
                    expected,
                    "{width} {uniform}"
                );
            }
        }
        for mut logits in [
            vec![f32::NEG_INFINITY; 3],
            vec![f32::NAN; 3],
            vec![1.0, f32::INFINITY],
        ] {
            let expected = drawn_by_definition(&logits, 1.0, 0.5);
            assert_eq!(Candidates::All(&mut logits).draw(isa, 1.0, 0.5), expected);
        }
    }

    #[test]
    fn keeps_the_same_of_all_as_of_sorted_candidates() {
        let isa = Isa::detect();
        let logits: Vec<f32> = (0..5000u32)
            .map(|i| (i.wrapping_mul(2654435761) % 997) as f32 / 100.0)
            .collect();
        let same = |keep: &dyn Fn(&mut Candidates<'_>)| {
            let mut own = logits.clone();
            let mut all = Candidates::All(&mut own);
            let mut sorted = Candidates::BestFirst(top_k(&logits, 0));
            keep(&mut all);
            keep(&mut sorted);
            assert_eq!(all.best_first(), sorted.best_first());
        };
        for share in [0.0, 0.01, 0.5, 0.9, 0.999, 0.999_999] {
            same(&|candidates| candidates.keep_mass(isa, share));
        }
        for below in [0.0, 0.5, 3.0, 100.0] {
            same(&|candidates| candidates.keep_near(below));
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
