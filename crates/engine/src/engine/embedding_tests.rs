use std::collections::BTreeMap;

use crate::event::{Event, FinishReason};
use crate::recorder::{Sizes, lost_step, score, states};
use crate::request::{Request, RequestId};
use rocmforge_model::PooledTokens;
use rocmforge_plan::Batch;
use rocmforge_runtime::{Limits, Output, PrefixSharing};

/// A small generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((z ^ (z >> 27)) % n as u64) as usize
    }
}

/// What the recorder gives for a position is the position and a number that depends on all tokens before it.
fn expected(request: &Request, tokens: PooledTokens) -> Vec<f32> {
    let states = states(&request.prompt);
    let hidden: Vec<[f64; 2]> = states
        .iter()
        .enumerate()
        .map(|(position, &state)| [position as f64, f64::from(score(state, 0))])
        .collect();
    let pooled = match tokens {
        PooledTokens::First => &hidden[..1],
        PooledTokens::Last => &hidden[hidden.len() - 1..],
        PooledTokens::All => &hidden,
    };
    let mean = |i: usize| {
        let sum: f64 = pooled.iter().map(|values| values[i]).sum();
        (sum / pooled.len() as f64) as f32
    };
    vec![mean(0), mean(1)]
}

/// Texts of random lengths, with preemptions, shared prefixes, failed steps, and whole or in parts.
#[test]
fn random_embeddings_match_each_text_alone() {
    let (mut n_shared_steps, mut n_failed_steps) = (0, 0);
    for seed in 0..100u64 {
        let mut random = Random(seed);
        let page = [1, 4, 16][random.below(3)];
        let n_ctx = 8 + random.below(60);
        let whole_sequences = seed % 3 == 0;
        let max_tokens = match whole_sequences {
            true => n_ctx + random.below(40),
            false => 6 + random.below(24),
        };
        let limits = Limits {
            max_answer_rows: None,
            n_ctx,
            max_seqs: 1 + random.below(6),
            max_tokens,
            max_logits: max_tokens,
            step_target: None,
            prefix_sharing: match whole_sequences {
                true => PrefixSharing::Off,
                false => PrefixSharing::On,
            },
            context_policy: Default::default(),
            fixed_by: Some(rocmforge_plan::Fixed::LooksAhead),
            output: Output::Hidden,
            whole_sequences,
        };
        let sizes = Sizes {
            limits,
            n_blocks: n_ctx.div_ceil(page) * (1 + random.below(3)),
            n_slots: 0,
            page,
            steps_in_flight: 1 + random.below(2),
        };
        let (mut fails, mut n_since) = (Random(seed), 0);
        let before = Box::new(move |batch: &Batch| {
            let starts = batch.seqs.iter().all(|seq| seq.first_pos == 0);
            assert!(starts || !whole_sequences, "seed {seed}: a part of a text");
            n_since += 1;
            if seed % 2 == 1 || n_since < 4 || fails.below(8) > 0 {
                return Ok(());
            }
            n_since = 0;
            Err(lost_step())
        });
        let mut engine = sizes.engine(before);
        let mut open: BTreeMap<RequestId, (Request, PooledTokens)> = BTreeMap::new();
        let mut results: BTreeMap<RequestId, Vec<f32>> = BTreeMap::new();
        let (mut left, mut steps) = (30, 0);
        while left > 0 || !engine.is_idle() {
            steps += 1;
            assert!(steps < 20_000, "seed {seed}: no progress");
            if left > 0 && random.below(3) > 0 {
                left -= 1;
                let (n, family) = (1 + random.below(n_ctx), random.below(2));
                let token = |i: usize| ((i * 7 + family) % 50) as u32;
                let tokens = [PooledTokens::First, PooledTokens::Last, PooledTokens::All];
                let tokens = tokens[random.below(3)];
                let request = Request::embedding((0..n).map(token).collect(), tokens);
                let id = engine.submit(request.clone()).unwrap();
                open.insert(id, (request, tokens));
            }
            for event in engine.step().unwrap_or_default() {
                match event {
                    Event::Embedding { request, values } => {
                        assert!(results.insert(request, values).is_none(), "seed {seed}");
                    }
                    Event::PromptDone { .. } => {}
                    Event::Finished {
                        request, reason, ..
                    } => {
                        assert_eq!(reason, FinishReason::Length);
                        let (text, tokens) = open.remove(&request).unwrap();
                        let got = results.remove(&request).unwrap();
                        assert_eq!(got, expected(&text, tokens), "seed {seed}, {text:?}");
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            let stats = engine.stats();
            n_shared_steps += usize::from(stats.running > 1);
            engine.check_integrity().unwrap();
        }
        assert!(open.is_empty(), "seed {seed}");
        n_failed_steps += engine.stats().failed_steps;
    }
    assert!(n_shared_steps > 200, "{n_shared_steps}");
    assert!(n_failed_steps > 50, "{n_failed_steps}");
}
