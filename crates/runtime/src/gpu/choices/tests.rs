//! Compares sampling on the device with the CPU backend, from the same logits.

use std::sync::Arc;

use rocmforge_cpu::{Isa, Pool};
use rocmforge_gpu::ops::{SCRATCH_WORDS, SampleStep};
use rocmforge_gpu::{Gpu, image_targets, ops};

use super::*;
use crate::gpu::{masks, sampled};
use crate::output;
use rocmforge_plan::{RowOutput, SampleRow as WantedRow, Sampled, TokenMask};
use rocmforge_plan::{SamplerKind, SamplingParams};

/// Pseudorandom numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    /// Approximately normal.
    fn normal(&mut self) -> f32 {
        let unit = |bits: u64| (bits >> 11) as f32 / (1u64 << 53) as f32;
        (0..6).map(|_| unit(self.bits())).sum::<f32>() - 3.0
    }

    /// Ascending ids, each with a value.
    fn ids<T>(&mut self, n_vocab: usize, value: impl Fn(&mut Random) -> T) -> Vec<(u32, T)> {
        let n = self.below(20);
        let mut ids: Vec<u32> = (0..n).map(|_| self.below(n_vocab) as u32).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_iter().map(|id| (id, value(self))).collect()
    }
}

/// Logits that are peaked, flat, tied, or partly or entirely NaN or infinite.
fn logits(random: &mut Random, n_vocab: usize) -> Vec<f32> {
    let spread = random.one_of(&[0.01f32, 1.0, 4.0, 30.0]);
    let mut logits: Vec<f32> = (0..n_vocab).map(|_| random.normal() * spread).collect();
    match random.below(12) {
        // `+ 0.0` removes negative zeros, which compare equal to zero but sort before it.
        0..4 => logits.iter_mut().for_each(|x| *x = x.round() + 0.0),
        4 => logits[random.below(n_vocab)] = f32::NAN,
        5 => logits[random.below(n_vocab)] = f32::NEG_INFINITY,
        6 => match random.below(4) {
            0 => logits.fill(f32::NAN),
            1 => logits.fill(f32::NEG_INFINITY),
            2 => logits[random.below(n_vocab)] = f32::INFINITY,
            _ => logits.fill(2.5),
        },
        _ => {}
    }
    logits
}

fn wanted_row(random: &mut Random, n_vocab: usize) -> WantedRow {
    use SamplerKind::{MinP, Penalties, Temperature, TopK, TopP};
    let default = SamplingParams::default();
    let bias = |random: &mut Random| random.one_of(&[f32::NEG_INFINITY, 3.7, -1.1]);
    let params = SamplingParams {
        samplers: random.one_of(&[
            default.samplers.clone(),
            default.samplers.clone(),
            vec![Penalties, TopK, TopP, MinP, Temperature],
            vec![TopK, MinP],
            vec![TopP, Temperature],
        ]),
        temperature: random.one_of(&[0.8, 0.8, 1.0, 0.0, 1e-30, 2.5]),
        top_k: random.one_of(&[40, 40, 40, 0, 1, 2, 300, MAX_TOP_K]),
        top_p: random.one_of(&[0.95, 0.95, 1.0, 0.3, 0.0]),
        min_p: random.one_of(&[0.05, 0.05, 0.0, 0.5, 1.0]),
        repeat_penalty: random.one_of(&[1.0, 1.1, 0.8]),
        presence_penalty: random.one_of(&[0.0, 0.4, -0.6]),
        frequency_penalty: random.one_of(&[0.0, 0.3]),
        logit_bias: match random.below(3) {
            0 => random.ids(n_vocab, bias),
            _ => Vec::new(),
        },
        seed: random.bits(),
        ..default
    };
    let counts = match params.has_penalties() {
        true => random.ids(n_vocab, |random| 1 + random.below(4) as u32),
        false => Vec::new(),
    };
    WantedRow {
        params: Arc::new(params),
        index: random.below(5000) as u64,
        counts,
        dry: None,
        mu: None,
        logprobs: None,
        mask: None,
    }
}

/// Allows many or few tokens, and the best one, so that a row with finite logits has one left. The last words may be
/// missing.
fn mask(random: &mut Random, logits: &[f32]) -> Arc<TokenMask> {
    let n_words = logits.len().div_ceil(32);
    let rarity = random.below(5);
    let bits =
        |random: &mut Random| (0..rarity).fold(u32::MAX, |all, _| all & random.bits() as u32);
    let mut words: Vec<u32> = (0..n_words).map(|_| bits(random)).collect();
    let best = rocmforge_cpu::argmax(Isa::Scalar, logits).unwrap_or(0);
    words.truncate(n_words - random.below(2).min(n_words - 1 - best / 32));
    words[best / 32] |= 1 << (best % 32);
    let mask = TokenMask::default();
    mask.set(Ok(words));
    Arc::new(mask)
}

/// The GPU that `ROCMFORGE_TEST_DEVICE` names, or the first emulated GPU of this build.
pub(in crate::gpu) fn gpu() -> Option<Gpu> {
    let built = || {
        let mut targets = image_targets().into_iter();
        let target = targets.find(|target| target.starts_with("host-"));
        target.map(|target| target.replace("host-", "host:"))
    };
    let Some(name) = std::env::var("ROCMFORGE_TEST_DEVICE").ok().or_else(built) else {
        println!("skipped: built without the target host");
        return None;
    };
    Some(Gpu::open(name.parse().unwrap()).unwrap())
}

/// Samples every row of `batch` on the device; `last` are the tokens sampled by the step before.
fn on_device(gpu: &Gpu, logits: &[f32], batch: &Batch, last: &[Sampled]) -> Vec<RowOutput> {
    let choices = Choices::of(batch);
    assert_eq!(
        choices.host_rows, [0usize; 0],
        "the device samples all rows"
    );
    let tokens: Vec<u32> = batch
        .tokens
        .iter()
        .map(|token| match *token {
            InputToken::Id(id) => id,
            InputToken::Sampled { row } => last[row].id,
        })
        .collect();
    let n_rows = choices.rows.len();
    let masks = masks::packed(batch, &choices.masked_rows, logits.len() / n_rows);
    let masks = gpu.upload(&masks).unwrap();
    let logits = gpu.upload(logits).unwrap();
    let (rows, entries) = (
        gpu.upload(&choices.rows).unwrap(),
        gpu.upload(&choices.entries).unwrap(),
    );
    let tokens = gpu.upload(&tokens).unwrap();
    let ids = gpu.alloc::<u32>(choices.rows.len()).unwrap();
    let scratch = gpu.alloc::<u64>(choices.rows.len() * SCRATCH_WORDS);
    let scratch = scratch.unwrap();
    ops::forbid(gpu, logits.as_slice(), n_rows, masks.as_slice()).unwrap();
    let step = SampleStep {
        rows: rows.as_slice(),
        entries: entries.as_slice(),
        tokens: tokens.as_slice(),
        scratch: scratch.as_slice(),
    };
    let all = Candidates::Mixed;
    ops::sample(gpu, logits.as_slice(), &step, all, ids.as_slice()).unwrap();
    let ids: Vec<u32> = gpu.read(ids.as_slice()).unwrap();
    ids.into_iter().map(sampled).collect()
}

#[test]
fn device_and_cpu_sample_the_same_tokens() {
    let Some(gpu) = gpu() else { return };
    let mut random = Random(7);
    let pool = Pool::new(1);
    for (n_vocab, n_rows, n_batches) in [(30, 60, 1), (400, 100, 2), (2500, 60, 1), (20_000, 6, 1)]
    {
        for _ in 0..n_batches {
            let mut batch = Batch::default();
            let (mut all, mut last) = (Vec::new(), Vec::new());
            for row in 0..n_rows {
                all.extend(logits(&mut random, n_vocab));
                let id = random.below(n_vocab) as u32;
                last.push(Sampled { id, mu: None });
                batch.tokens.push(match random.below(2) {
                    0 => InputToken::Id(id),
                    _ => InputToken::Sampled { row },
                });
                let mut wanted = wanted_row(&mut random, n_vocab);
                if random.below(3) == 0 {
                    wanted.mask = Some(mask(&mut random, &all[row * n_vocab..]));
                }
                let want = Want::Sample(wanted);
                batch.logits.push(LogitsRow { row, want });
            }
            let wanted: Vec<&LogitsRow> = batch.logits.iter().collect();
            let before: Vec<Option<Sampled>> = last.iter().copied().map(Some).collect();
            let mut changed = all.clone();
            let (isa, tokens) = (Isa::detect(), &batch.tokens);
            let expected = output::rows(isa, &pool, &mut changed, tokens, &wanted, &before);
            let got = on_device(&gpu, &all, &batch, &last);
            for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let want = &batch.logits[row].want;
                assert_eq!(got, expected, "{n_vocab} on {}: {want:?}", gpu.target());
            }
        }
    }
}

#[test]
fn splits_mixed_rows_between_device_and_host() {
    let with_mask = |params, logprobs, mask| {
        Want::Sample(WantedRow {
            params: Arc::new(params),
            index: 3,
            counts: vec![(1, 2), (8, 1)],
            dry: None,
            mu: None,
            logprobs,
            mask,
        })
    };
    let sample = |params, logprobs| with_mask(params, logprobs, None);
    let masked = |logprobs| with_mask(SamplingParams::greedy(), logprobs, Some(Arc::default()));
    let penalties = SamplingParams {
        repeat_penalty: 1.1,
        logit_bias: vec![(4, -1.0)],
        ..SamplingParams::default()
    };
    let too_many = SamplingParams {
        logit_bias: (0..MAX_ENTRIES as u32).map(|id| (id, 1.0)).collect(),
        ..SamplingParams::default()
    };
    let wants = [
        sample(SamplingParams::greedy(), None),
        sample(penalties.clone(), None),
        Want::Logits,
        sample(penalties.clone(), Some(2)),
        sample(too_many, None),
        sample(penalties, None),
        Want::Score { target: 1, top: 0 },
        masked(None),
        masked(Some(0)),
    ];
    let rows = wants.into_iter().enumerate();
    let batch = Batch {
        tokens: (0..9)
            .map(|row| match row {
                5 => InputToken::Sampled { row: 0 },
                _ => InputToken::Id(0),
            })
            .collect(),
        logits: rows.map(|(row, want)| LogitsRow { row, want }).collect(),
        ..Batch::default()
    };
    let choices = Choices::of(&batch);
    assert_eq!(choices.host_rows, [2, 3, 4, 6, 8]);
    assert_eq!(choices.masked_rows, [7]);
    assert_eq!(choices.choosing(), Choosing::AfterMasks);
    let top_k: Vec<u32> = choices.rows.iter().map(|row| row.top_k).collect();
    assert_eq!(top_k, [0, 40, 0, 0, 0, 40, 0, 0, 0]);
    let lists = [1, 5].map(|i| {
        let row = &choices.rows[i];
        [
            row.first_bias,
            row.n_biases,
            row.first_count,
            row.n_counts,
            row.input_row,
        ]
    });
    assert_eq!(lists, [[0, 1, 1, 2, u32::MAX], [3, 1, 4, 2, 5]]);
    assert_eq!(choices.entries.len(), 6);
    assert_eq!(
        choices.chooser(),
        Chooser::Sample {
            candidates: Candidates::Best,
            logprobs: Logprobs::No
        }
    );
    let best = Batch {
        logits: batch.logits[..1].to_vec(),
        ..batch
    };
    assert_eq!(Choices::of(&best).chooser(), Chooser::Best);
}
