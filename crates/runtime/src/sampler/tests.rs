//! Tests of the whole sampler chain: frequencies of draws, tokens in flight, extreme logits.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use rocmforge_gguf::TokenId;
use rocmforge_plan::DryHistory;
use rocmforge_plan::{Dry, DynamicTemperature, Mirostat, Xtc};

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
        dry: None,
        mu: None,
        logprobs: None,
        mask: None,
    }
}

/// Returns each token's share of 20,000 draws.
fn shares(logits: &[f32], params: &SamplingParams) -> BTreeMap<TokenId, f64> {
    let n = 20_000;
    let mut shares = BTreeMap::new();
    for index in 0..n {
        let id = sample(
            Isa::Scalar,
            &mut logits.to_vec(),
            &row(params.clone(), index, vec![]),
            None,
        )
        .id;
        *shares.entry(id).or_insert(0.0) += 1.0 / n as f64;
    }
    shares
}

#[test]
fn draws_follow_the_softmax() {
    // ln of 0.5, 0.3, 0.15, 0.05 plus a constant.
    let logits = [0.5f32, 0.3, 0.15, 0.05].map(|p| p.ln() + 3.0);
    let cases: [(SamplingParams, &[f64]); 11] = [
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
        // Half of the draws without the token of 0.5: 0.25 + 0, 0.15 + 0.3, 0.075 + 0.15, 0.025 + 0.05.
        (
            SamplingParams {
                xtc: Xtc {
                    probability: 0.5,
                    threshold: 0.2,
                },
                ..off()
            },
            &[0.25, 0.45, 0.225, 0.075],
        ),
        (
            SamplingParams {
                logit_bias: vec![(1, f32::NEG_INFINITY), (3, 2f32.ln())],
                ..off()
            },
            &[0.5 / 0.75, 0.0, 0.15 / 0.75, 0.1 / 0.75],
        ),
        (
            SamplingParams {
                mirostat: Some(Mirostat { tau: 1.0, eta: 0.1 }),
                ..off()
            },
            // The first token's `mu` is 2 bits: a probability of at least 0.25.
            &[0.625, 0.375],
        ),
        // No samplers, no temperature.
        (
            SamplingParams {
                samplers: Vec::new(),
                temperature: 0.0,
                ..off()
            },
            &[0.5, 0.3, 0.15, 0.05],
        ),
        // The best token after XTC.
        (
            SamplingParams {
                temperature: 0.0,
                xtc: Xtc {
                    probability: 1.0,
                    threshold: 0.2,
                },
                ..off()
            },
            &[0.0, 1.0],
        ),
    ];
    for (params, expected) in cases {
        let got = shares(&logits, &params);
        let last = got.keys().last().copied();
        assert_eq!(
            last,
            Some(expected.len() as TokenId - 1),
            "{params:?}: {got:?}"
        );
        for (id, share) in expected.iter().enumerate() {
            let seen = got.get(&(id as TokenId)).copied().unwrap_or(0.0);
            assert!(
                (seen - share).abs() < 0.012,
                "{params:?}: token {id} has share {seen}, expected {share}"
            );
        }
    }
}

#[test]
fn penalties_follow_their_formulas() {
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
        Some(Sampled { id: 1, mu: None }),
    );
    assert_eq!(logits, [4.0 / 2.0 - 0.5 - 0.5, -2.0 - 0.5 - 0.5, 3.0, 1.0]);
}

#[test]
fn a_pending_token_counts_once_in_penalties() {
    let params = SamplingParams {
        temperature: 0.0,
        presence_penalty: 1.0,
        ..SamplingParams::default()
    };
    for (counts, just_sampled) in [
        (vec![(2, 1)], None),
        (vec![], Some(Sampled { id: 2, mu: None })),
    ] {
        let mut logits = vec![0.0, 0.5, 1.0];
        assert_eq!(
            sample(
                Isa::Scalar,
                &mut logits,
                &row(params.clone(), 0, counts),
                just_sampled
            )
            .id,
            1
        );
    }
}

#[test]
fn mirostat_takes_its_state_from_a_pending_token() {
    let params = SamplingParams {
        mirostat: Some(Mirostat::default()),
        ..off()
    };
    let logits = [0.5f32, 0.3, 0.15, 0.05].map(f32::ln);
    let draw = |mu, just_sampled| {
        let row = SampleRow {
            mu,
            ..row(params.clone(), 0, vec![])
        };
        sample(Isa::Scalar, &mut logits.to_vec(), &row, just_sampled)
    };
    let mu = Some(1.5);
    let known = draw(mu, None);
    assert_eq!(draw(Some(9.0), Some(Sampled { id: 2, mu })), known);
    // Only one token is left: its surprise is 0, and mu grows by eta * tau.
    assert_eq!(
        known,
        Sampled {
            id: 0,
            mu: Some(2.0)
        }
    );
}

/// Returns every sampler with extreme parameters, in the default and the reverse order.
fn everything() -> Vec<SamplingParams> {
    let mut all = vec![off(), SamplingParams::default(), SamplingParams::greedy()];
    for extreme in [1e-40, 0.3, 1.0] {
        for range in [0.0, 2.0] {
            let mut params = SamplingParams {
                logit_bias: vec![(1, f32::NEG_INFINITY), (2, f32::MAX), (77, 1.0)],
                temperature: extreme,
                dynamic_temperature: DynamicTemperature {
                    range,
                    exponent: 3.0,
                },
                typical_p: extreme,
                top_p: extreme,
                min_p: extreme,
                top_n_sigma: extreme,
                xtc: Xtc {
                    probability: 1.0,
                    threshold: extreme / 2.0,
                },
                repeat_penalty: 1e30,
                presence_penalty: f32::MAX,
                frequency_penalty: f32::MAX,
                dry: Dry {
                    multiplier: f32::MAX,
                    base: 1e30,
                    allowed_length: 0,
                    last_n: usize::MAX,
                    sequence_breakers: Vec::new(),
                },
                ..SamplingParams::default()
            };
            all.push(params.clone());
            params.samplers.reverse();
            all.push(params.clone());
            params.mirostat = Some(Mirostat {
                tau: extreme,
                eta: f32::MAX,
            });
            all.push(params);
        }
    }
    all
}

#[test]
fn extreme_logits_do_not_panic() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows: [[f32; 9]; 9] = [
        [nan; 9],
        [inf; 9],
        [-inf; 9],
        [0.0; 9],
        [f32::MAX; 9],
        [f32::MIN; 9],
        [nan, inf, -inf, 0.0, 1.0, -1.0, f32::MAX, f32::MIN, 1e-45],
        [-inf, -inf, nan, -inf, 3.0, -inf, -inf, nan, -inf],
        [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, inf, inf, nan],
    ];
    for params in everything() {
        params.validate().unwrap();
        for logits in rows {
            let mut row = row(params.clone(), 3, vec![(1, 1), (99, 1)]);
            row.dry = Some(DryHistory {
                tokens: vec![1, 2, 1, 2, 99, 1, 2],
                breakers: Arc::default(),
            });
            for mu in [None, Some(nan), Some(f32::MAX), Some(-1.0)] {
                row.mu = mu;
                for just_sampled in [None, Some(Sampled { id: 500, mu })] {
                    let sampled = sample(Isa::Scalar, &mut logits.to_vec(), &row, just_sampled);
                    assert!(sampled.id < 9);
                }
            }
        }
    }
}

#[test]
fn top_logprobs_are_sorted() {
    let logits = [1.0f32, 3.0, 2.0];
    let lse = logits.iter().map(|x| x.exp()).sum::<f32>().ln();
    let top = top_logprobs(&logits, lse, 2);
    assert_eq!(top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 2]);
    assert!((top[0].logprob - (3.0 - lse)).abs() < 1e-6);
}
