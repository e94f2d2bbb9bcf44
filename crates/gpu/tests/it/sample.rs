//! Sampling on the device, against the samplers' definitions in plain loops.

use crate::common;
use crate::common::any_order;
use crate::common::values::Random;
use rocmforge_gpu::Pinned;
use rocmforge_gpu::ops::{
    self, ALL_TOKENS, Candidates, LOGPROB_WORDS, LogprobRows, MAX_LOGPROBS, MAX_TOP_K,
    SCRATCH_WORDS, SampleEntry, SampleRow, SampleStep,
};

const NO_INPUT: u32 = u32::MAX;

/// One row and its sampling parameters.
#[derive(Clone)]
struct Row {
    logits: Vec<f32>,
    row: SampleRow,
    biases: Vec<(u32, f32)>,
    counts: Vec<(u32, u32)>,
    /// The row's input token, if only the device knows it.
    just_sampled: Option<u32>,
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let weights: Vec<f64> = logits
        .iter()
        .map(|l| f64::from(l - logits[0]).exp())
        .collect();
    let weights: Vec<f64> = weights
        .iter()
        .map(|w| if w.is_nan() { 0.0 } else { *w })
        .collect();
    let total: f64 = weights.iter().sum();
    if total > 0.0 {
        weights.iter().map(|w| w / total).collect()
    } else {
        (0..logits.len())
            .map(|i| if i == 0 { 1.0 } else { 0.0 })
            .collect()
    }
}

/// The sampled id, and the distance of the random number from choosing another.
fn expected(row: &Row) -> (u32, f64) {
    let finite_best = row
        .logits
        .iter()
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
        .is_finite();
    if !finite_best {
        return (u32::MAX, 1.0);
    }
    let params = &row.row;
    let mut logits = row.logits.clone();
    for &(id, bias) in &row.biases {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
    let mut counts = row.counts.clone();
    if let Some(just) = row.just_sampled {
        match counts.iter_mut().find(|(id, _)| *id == just) {
            Some((_, count)) => *count += 1,
            None => counts.push((just, 1)),
        }
    }
    for (id, count) in counts {
        if let Some(logit) = logits.get_mut(id as usize) {
            let scaled = if *logit > 0.0 {
                *logit / params.repeat_penalty
            } else {
                *logit * params.repeat_penalty
            };
            *logit = scaled - (count as f32 * params.frequency_penalty + params.presence_penalty);
        }
    }
    let mut best: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    best.retain(|(logit, _)| *logit > f32::NEG_INFINITY);
    best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    best.truncate(params.top_k as usize);
    if best.is_empty() {
        return (0, 1.0);
    }
    if params.temperature == 0.0 {
        return (best[0].1, 1.0);
    }
    let mut margin = 1.0f64;
    if params.top_p < 1.0 {
        let logits: Vec<f32> = best.iter().map(|b| b.0).collect();
        let (mut mass, mut kept) = (0.0, 0);
        for p in softmax(&logits) {
            margin = margin.min((mass - f64::from(params.top_p)).abs());
            if mass >= f64::from(params.top_p) {
                break;
            }
            mass += p;
            kept += 1;
        }
        best.truncate(kept.max(1));
    }
    let floor = best[0].0 + params.ln_min_p;
    let kept = best.iter().take_while(|b| b.0 >= floor).count();
    best.truncate(kept.max(1));
    let logits: Vec<f32> = best.iter().map(|b| b.0 / params.temperature).collect();
    let probabilities = softmax(&logits);
    let mut left = params.uniform * probabilities.iter().sum::<f64>();
    for (p, best) in probabilities.iter().zip(&best) {
        left -= p;
        margin = margin.min(left.abs());
        if left < 0.0 {
            return (best.1, margin);
        }
    }
    (best[0].1, margin)
}

fn plain(top_k: u32) -> SampleRow {
    SampleRow {
        uniform: 0.5,
        top_k,
        top_p: 1.0,
        ln_min_p: f32::NEG_INFINITY,
        temperature: 1.0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        input_row: NO_INPUT,
        first_bias: 0,
        n_biases: 0,
        first_count: 0,
        n_counts: 0,
        n_logprobs: 0,
        pad: 0,
    }
}

/// Distinct random ids with a value for each.
fn some_ids<T>(
    random: &mut Random,
    n_vocab: usize,
    mut value: impl FnMut(&mut Random) -> T,
) -> Vec<(u32, T)> {
    let n = random.below(12);
    let mut ids: Vec<u32> = (0..n).map(|_| random.below(n_vocab + 2) as u32).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| (id, value(random))).collect()
}

fn random_row(random: &mut Random, n_vocab: usize) -> Row {
    let spread = [1.0f32, 3.0, 10.0][random.below(3)];
    let mut logits: Vec<f32> = random.normals(n_vocab).iter().map(|x| x * spread).collect();
    if random.below(4) == 0 {
        // Creates many ties.
        logits.iter_mut().for_each(|x| *x = x.round());
    }
    let mut row = plain([1, 2, 40, 100, MAX_TOP_K as u32, ALL_TOKENS, ALL_TOKENS][random.below(7)]);
    row.uniform = random.unit();
    row.top_p = [1.0, 0.95, 0.5, 0.0][random.below(4)];
    row.ln_min_p = [0.0f32, 0.05, 0.3][random.below(3)].ln();
    row.temperature = [0.0, 0.01, 0.8, 1.0, 2.5][random.below(5)];
    if row.top_k == ALL_TOKENS && row.temperature == 0.0 {
        row.temperature = 1.0;
    }
    row.repeat_penalty = [1.0, 1.1, 0.7][random.below(3)];
    row.frequency_penalty = [0.0, 0.3][random.below(2)];
    row.presence_penalty = [0.0, -0.5, 1.5][random.below(3)];
    Row {
        logits,
        row,
        biases: some_ids(random, n_vocab, |r| {
            [f32::NEG_INFINITY, 5.0, -3.3][r.below(3)]
        }),
        counts: some_ids(random, n_vocab, |r| r.below(4) as u32),
        just_sampled: (random.below(2) == 0).then(|| random.below(n_vocab) as u32),
    }
}

/// Rows that fill the kernel's memory, and rows without candidates.
fn hard_rows(n_vocab: usize) -> Vec<Row> {
    let of = |logits: Vec<f32>, row: SampleRow| Row {
        logits,
        row,
        biases: vec![],
        counts: vec![],
        just_sampled: None,
    };
    let mut rows = Vec::new();
    let mut sparse = vec![f32::NEG_INFINITY; n_vocab];
    sparse[n_vocab / 2] = -1.0;
    sparse[n_vocab - 1] = f32::NAN;
    for top_k in [1, 40, MAX_TOP_K as u32, ALL_TOKENS] {
        for uniform in [0.0, 0.999999] {
            let row = SampleRow {
                uniform,
                ..plain(top_k)
            };
            // All logits equal; and all large logits in one thread's share.
            rows.push(of(vec![1.25; n_vocab], row));
            rows.push(of(
                (0..n_vocab)
                    .map(|i| if i % 1024 == 7 { 9.0 } else { -(i as f32) })
                    .collect(),
                row,
            ));
            rows.push(of(sparse.clone(), row));
        }
        rows.push(of(vec![f32::NAN; n_vocab], plain(top_k)));
        rows.push(of(vec![f32::NEG_INFINITY; n_vocab], plain(top_k)));
    }
    let mut forbidden = of(sparse, plain(40));
    forbidden.biases = vec![(n_vocab as u32 / 2, f32::NEG_INFINITY)];
    rows.push(forbidden);
    rows
}

fn check(rows: &[Row]) {
    let n_vocab = rows[0].logits.len();
    let (mut params, mut entries, mut tokens) = (vec![], vec![], vec![]);
    for row in rows {
        let mut with_lists = row.row;
        with_lists.first_bias = entries.len() as u32;
        with_lists.n_biases = row.biases.len() as u32;
        let biases = row.biases.iter().map(|&(id, bias)| SampleEntry {
            id,
            value: bias.to_bits(),
        });
        entries.extend(biases);
        with_lists.first_count = entries.len() as u32;
        with_lists.n_counts = row.counts.len() as u32;
        entries.extend(
            row.counts
                .iter()
                .map(|&(id, value)| SampleEntry { id, value }),
        );
        if let Some(just) = row.just_sampled {
            with_lists.input_row = tokens.len() as u32;
            tokens.push(just);
        }
        params.push(with_lists);
    }
    let logits: Vec<f32> = rows.iter().flat_map(|row| row.logits.clone()).collect();
    let wanted: Vec<(u32, f64)> = rows.iter().map(expected).collect();
    for gpu in common::gpus() {
        let d_params = gpu.upload(&params).unwrap();
        let (d_entries, d_tokens) = (gpu.upload(&entries).unwrap(), gpu.upload(&tokens).unwrap());
        // Whatever was there before has no effect.
        let scratch = gpu.upload(&vec![u64::MAX; rows.len() * SCRATCH_WORDS]);
        let scratch = scratch.unwrap();
        let step = SampleStep {
            rows: d_params.as_slice(),
            entries: d_entries.as_slice(),
            tokens: d_tokens.as_slice(),
            scratch: scratch.as_slice(),
        };
        let ids = gpu.alloc::<u32>(rows.len()).unwrap();
        let run = || {
            let logits = gpu.upload(&logits).unwrap();
            let all = Candidates::Mixed;
            ops::sample(&gpu, logits.as_slice(), &step, all, ids.as_slice()).unwrap();
            gpu.read(ids.as_slice::<u32>()).unwrap()
        };
        let got = if n_vocab < 600 { any_order(run) } else { run() };
        for (i, (&got, &(wanted, margin))) in got.iter().zip(&wanted).enumerate() {
            assert!(
                got == wanted || margin < 1e-12,
                "row {i} of {n_vocab} on {}: {got}, not {wanted}: {:?}",
                gpu.target(),
                rows[i].row
            );
        }
    }
}

#[test]
fn random_rows() {
    let mut random = Random(1);
    for (n_vocab, n_rows) in [(1, 2), (500, 8), (5003, 14)] {
        let rows: Vec<Row> = (0..n_rows)
            .map(|_| random_row(&mut random, n_vocab))
            .collect();
        check(&rows);
    }
}

#[test]
fn edge_case_rows() {
    check(&hard_rows(3000));
}

#[test]
fn rows_without_candidates_use_argmax() {
    let mut rows = vec![random_row(&mut Random(2), 300); 2];
    rows[0].row.top_k = 0;
    let best_id = |row: &Row| {
        let best = row.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.logits.iter().position(|&x| x == best).unwrap() as u32
    };
    for gpu in common::gpus() {
        let params = gpu.upload(&[rows[0].row]).unwrap();
        let nothing = gpu.upload(&[0u32; 0]).unwrap();
        let step = SampleStep {
            rows: params.as_slice(),
            entries: nothing.as_slice::<u32>().cast(),
            tokens: nothing.as_slice(),
            scratch: nothing.as_slice::<u32>().cast(),
        };
        let (logits, ids) = (
            gpu.upload(&rows[0].logits).unwrap(),
            gpu.alloc::<u32>(1).unwrap(),
        );
        let best = Candidates::Best;
        ops::sample(&gpu, logits.as_slice(), &step, best, ids.as_slice()).unwrap();
        assert_eq!(
            gpu.read(ids.as_slice::<u32>()).unwrap(),
            [best_id(&rows[0])]
        );
        assert_eq!(gpu.read(logits.as_slice::<f32>()).unwrap(), rows[0].logits);
    }
}

/// Draws from all tokens: every part of the distribution is hit, and all that are cut off are not.
#[test]
fn draws_from_the_whole_vocabulary() {
    let mut random = Random(3);
    let n_vocab = 6000;
    let mut rows = Vec::new();
    for (i, uniform) in [0.0, 1e-9, 0.3, 0.9, 0.99999, 1.0 - 1e-15]
        .into_iter()
        .enumerate()
    {
        let mut row = random_row(&mut random, n_vocab);
        // Flat and peaked rows, equal logits, and rows in which most tokens have no weight.
        let spread = [0.01f32, 1.0, 0.0, 30.0, 4.0, 1000.0][i];
        row.logits = random.normals(n_vocab).iter().map(|x| x * spread).collect();
        row.row = SampleRow {
            uniform,
            top_p: [1.0, 0.9][i % 2],
            ..plain(ALL_TOKENS)
        };
        row.biases.clear();
        row.counts.clear();
        row.just_sampled = None;
        rows.push(row);
    }
    check(&rows);
}

/// So many rows that few blocks share one: a block has more tokens than threads, all equal in some rows.
#[test]
fn many_rows_draw_from_the_whole_vocabulary() {
    let mut random = Random(5);
    let n_vocab = 5000;
    let row = |i: usize| {
        let mut row = random_row(&mut random, n_vocab);
        let spread = [0.0, 2.0, 9.0][i % 3];
        row.logits = random.normals(n_vocab).iter().map(|x| x * spread).collect();
        row.row = SampleRow {
            uniform: i as f64 / 70.0,
            top_p: [1.0, 0.9][i % 2],
            ..plain(ALL_TOKENS)
        };
        row.biases.clear();
        row.counts.clear();
        row.just_sampled = None;
        row
    };
    let rows: Vec<Row> = (0..70).map(row).collect();
    check(&rows);
}

#[test]
fn log_probabilities_are_those_of_the_softmax() {
    let mut random = Random(4);
    let n_vocab = 3001;
    // The number of wanted tokens of each row.
    let wanted = [None, Some(0), Some(1), Some(5), Some(MAX_LOGPROBS)];
    let mut rows: Vec<Row> = (0..wanted.len())
        .map(|_| random_row(&mut random, n_vocab))
        .collect();
    rows[4].logits = vec![f32::NEG_INFINITY; n_vocab];
    rows[4].logits[7..17].copy_from_slice(&[1.0; 10]);
    let ids = [0u32, 5, 1234, 3000, 7];
    let params: Vec<SampleRow> = wanted
        .iter()
        .map(|wanted| SampleRow {
            n_logprobs: wanted.map_or(0, |n| n as u32 + 1),
            ..plain(ALL_TOKENS)
        })
        .collect();
    let logits: Vec<f32> = rows.iter().flat_map(|row| row.logits.clone()).collect();
    for gpu in common::gpus() {
        let d_logits = gpu.upload(&logits).unwrap();
        let (d_rows, d_ids) = (gpu.upload(&params).unwrap(), gpu.upload(&ids).unwrap());
        let n_steps = gpu.upload(&[3u32]).unwrap();
        let (n_slots, slot_rows) = (2, rows.len() + 1);
        let host: Pinned<u32> = Pinned::new(&gpu, n_slots * slot_rows * LOGPROB_WORDS).unwrap();
        let to = LogprobRows {
            host: host.device(),
            n_slots,
            n_steps: n_steps.as_slice(),
        };
        let (logits, d_rows) = (d_logits.as_slice(), d_rows.as_slice());
        ops::logprobs(&gpu, logits, d_rows, d_ids.as_slice(), &to).unwrap();
        gpu.synchronize().unwrap();
        for (i, row) in rows.iter().enumerate() {
            let Some(n_wanted) = wanted[i] else { continue };
            let first = (slot_rows + i) * LOGPROB_WORDS;
            let words = host.read(first..first + LOGPROB_WORDS);
            let sum = f64::from_bits(u64::from(words[1]) << 32 | u64::from(words[0]));
            let (best, chosen) = (f32::from_bits(words[2]), f32::from_bits(words[3]));
            let largest = row.logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(best, largest);
            assert_eq!(chosen, row.logits[ids[i] as usize]);
            let exact = row.logits.iter();
            let exact: f64 = exact.map(|x| f64::from(x - best).exp()).sum();
            assert!((sum / exact - 1.0).abs() < 1e-6, "{sum}, not {exact}");
            let mut sorted: Vec<(f32, u32)> = row.logits.iter().copied().zip(0..).collect();
            sorted.retain(|(logit, _)| *logit > f32::NEG_INFINITY);
            sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            sorted.truncate(n_wanted);
            let pairs = words[4..]
                .chunks_exact(2)
                .take_while(|pair| pair[0] != u32::MAX);
            let got: Vec<(f32, u32)> = pairs
                .map(|pair| (f32::from_bits(pair[1]), pair[0]))
                .collect();
            assert_eq!(got, sorted, "row {i} on {}", gpu.target());
        }
    }
}
