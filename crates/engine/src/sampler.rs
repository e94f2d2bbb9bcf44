//! Choosing a token from logits: the CPU form of the sampling operation.
//!
//! The order of the steps and their definitions are llama.cpp's (penalties, top-k, top-p, min-p,
//! temperature). The random number is a function of the seed and the token's index in its sequence, so a
//! request gives the same tokens whatever shares its batches.

use rocmforge_cpu::{self as cpu, Isa};

use crate::batch::{SampleRow, TokenLogprob};
use crate::tokenizer::TokenId;

/// A token that may still be chosen.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: TokenId,
    logit: f32,
}

/// Chooses a token. `logits` is `[n_vocab]` and is changed by the penalties; `just_sampled` is the row's
/// own input token where `row.counts` does not have it yet.
pub fn sample(
    isa: Isa,
    logits: &mut [f32],
    row: &SampleRow,
    just_sampled: Option<TokenId>,
) -> TokenId {
    let params = &row.params;
    if params.has_penalties() {
        penalize(logits, row, just_sampled);
    }
    if params.temperature == 0.0 {
        return cpu::argmax(isa, logits).unwrap_or(0) as TokenId;
    }
    let mut candidates = top_k(logits, params.top_k);
    top_p(&mut candidates, params.top_p);
    min_p(&mut candidates, params.min_p);
    draw(
        &candidates,
        params.temperature,
        uniform(params.seed, row.index),
    )
}

/// The `k` best tokens with their log-probabilities, best first.
pub fn top_logprobs(logits: &[f32], log_sum_exp: f32, k: usize) -> Vec<TokenLogprob> {
    if k == 0 {
        return Vec::new();
    }
    top_k(logits, k)
        .into_iter()
        .map(|c| TokenLogprob {
            id: c.id,
            logprob: c.logit - log_sum_exp,
        })
        .collect()
}

fn penalize(logits: &mut [f32], row: &SampleRow, just_sampled: Option<TokenId>) {
    let params = &row.params;
    let mut apply = |id: TokenId, count: u32| {
        let Some(logit) = logits.get_mut(id as usize) else {
            return;
        };
        if *logit > 0.0 {
            *logit /= params.repeat_penalty;
        } else {
            *logit *= params.repeat_penalty;
        }
        *logit -= count as f32 * params.frequency_penalty + params.presence_penalty;
    };
    let mut pending = just_sampled;
    for &(id, count) in &row.counts {
        let extra = u32::from(pending == Some(id));
        if extra == 1 {
            pending = None;
        }
        apply(id, count + extra);
    }
    if let Some(id) = pending {
        apply(id, 1);
    }
}

/// Best first; of equal logits the lower id first.
fn best_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The `k` best (all for 0), best first, at least one.
fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    let k = if k == 0 { logits.len() } else { k };
    let room = k.saturating_mul(2).saturating_add(64).min(logits.len());
    let mut best: Vec<Candidate> = Vec::with_capacity(room);
    let mut threshold = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > threshold {
            if best.len() == room && k < room {
                // Whatever is not better than the k-th best so far can never be chosen.
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

/// Softmax numerators relative to the best candidate.
fn weights(candidates: &[Candidate], temperature: f32) -> Vec<f64> {
    let best = candidates[0].logit;
    candidates
        .iter()
        .map(|c| f64::from((c.logit - best) / temperature).exp())
        .map(|w| if w.is_nan() { 0.0 } else { w })
        .collect()
}

fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    let weights = weights(candidates, 1.0);
    let total: f64 = weights.iter().sum();
    let mut mass = 0.0;
    let kept = weights.iter().take_while(|&&w| {
        let wanted = mass < f64::from(p) * total;
        mass += w;
        wanted
    });
    let n = kept.count().max(1);
    candidates.truncate(n);
}

fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let floor = candidates[0].logit + p.ln();
    let n = candidates.partition_point(|c| c.logit >= floor).max(1);
    candidates.truncate(n);
}

fn draw(candidates: &[Candidate], temperature: f32, uniform: f64) -> TokenId {
    let weights = weights(candidates, temperature);
    let mut left = uniform * weights.iter().sum::<f64>();
    for (candidate, weight) in candidates.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return candidate.id;
        }
    }
    candidates[0].id
}

/// A number in `[0, 1)` for the `index`-th draw of `seed`: two rounds of SplitMix64's finalizer
/// (Steele, Lea, Flood 2014).
fn uniform(seed: u64, index: u64) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let stream = mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
    let bits = mix(stream.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::request::SamplingParams;

    fn off() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..SamplingParams::default()
        }
    }

    fn row(params: SamplingParams, index: u64, counts: Vec<(TokenId, u32)>) -> SampleRow {
        SampleRow {
            params: Arc::new(params),
            index,
            counts,
            top_logprobs: 0,
        }
    }

    /// Share of each token in many draws.
    fn shares(logits: &[f32], params: &SamplingParams) -> BTreeMap<TokenId, f64> {
        let n = 20_000;
        let mut shares = BTreeMap::new();
        for index in 0..n {
            let id = sample(
                Isa::Scalar,
                &mut logits.to_vec(),
                &row(params.clone(), index, vec![]),
                None,
            );
            *shares.entry(id).or_insert(0.0) += 1.0 / n as f64;
        }
        shares
    }

    #[test]
    fn draws_follow_the_softmax() {
        // ln of 0.5, 0.3, 0.15, 0.05 plus a constant.
        let logits = [0.5f32, 0.3, 0.15, 0.05].map(|p| p.ln() + 3.0);
        let cases: [(SamplingParams, &[f64]); 6] = [
            (off(), &[0.5, 0.3, 0.15, 0.05]),
            (SamplingParams { top_k: 2, ..off() }, &[0.625, 0.375]),
            (
                SamplingParams {
                    top_p: 0.7,
                    ..off()
                },
                &[0.625, 0.375],
            ),
            (
                SamplingParams {
                    min_p: 0.2,
                    ..off()
                },
                &[0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95],
            ),
            // Squared probabilities: 0.25, 0.09, 0.0225, 0.0025, sum 0.365.
            (
                SamplingParams {
                    temperature: 0.5,
                    ..off()
                },
                &[0.685, 0.2466, 0.0616, 0.0068],
            ),
            (
                SamplingParams {
                    temperature: 0.0,
                    ..off()
                },
                &[1.0],
            ),
        ];
        for (params, expected) in cases {
            let got = shares(&logits, &params);
            assert_eq!(got.len(), expected.len(), "{params:?}: {got:?}");
            for (id, share) in expected.iter().enumerate() {
                let seen = got[&(id as TokenId)];
                assert!(
                    (seen - share).abs() < 0.012,
                    "{params:?}: token {id} {seen} instead of {share}"
                );
            }
        }
    }

    #[test]
    fn penalties_change_logits_as_defined() {
        let params = SamplingParams {
            temperature: 0.0,
            repeat_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplingParams::default()
        };
        let mut logits = vec![4.0, -1.0, 3.0, 1.0];
        sample(
            Isa::Scalar,
            &mut logits,
            &row(params, 0, vec![(0, 2), (1, 1)]),
            Some(1),
        );
        assert_eq!(logits, [4.0 / 2.0 - 0.5 - 0.5, -2.0 - 0.5 - 0.5, 3.0, 1.0]);
    }

    #[test]
    fn a_token_known_only_to_the_device_counts_once() {
        let params = SamplingParams {
            temperature: 0.0,
            presence_penalty: 1.0,
            ..SamplingParams::default()
        };
        for (counts, just_sampled) in [(vec![(2, 1)], None), (vec![], Some(2))] {
            let mut logits = vec![0.0, 0.5, 1.0];
            assert_eq!(
                sample(
                    Isa::Scalar,
                    &mut logits,
                    &row(params.clone(), 0, counts),
                    just_sampled
                ),
                1
            );
        }
    }

    #[test]
    fn hostile_logits_do_not_panic() {
        for fill in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for params in [off(), SamplingParams::default(), SamplingParams::greedy()] {
                let id = sample(
                    Isa::Scalar,
                    &mut [fill; 9],
                    &row(params, 3, vec![(1, 1), (99, 1)]),
                    Some(500),
                );
                assert!(id < 9);
            }
        }
    }

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
    fn the_best_log_probabilities_come_first() {
        let logits = [1.0f32, 3.0, 2.0];
        let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
        let top = top_logprobs(&logits, lse, 2);
        assert_eq!(top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 2]);
        assert!((top[0].logprob - (3.0 - lse)).abs() < 1e-6);
    }
}
