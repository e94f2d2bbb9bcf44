//! Operations with states against their formulas in f64 on every instruction set; the bits do not depend on chunks, company
//! and threads.

use rocmforge_cpu::{Conv, Isa, Pool, StateSeq, causal_conv, linear_attention};
use rocmforge_plan::{
    ConvForm, Decay, KeptState, KeySharing, LinearHeads, LinearInputs, SeqState, StateRule,
    StateStart,
};

use crate::random::Rng;

/// Rows of two sequences: the first begins, the second continues from a slot that stays as it is.
const N_ROWS: [usize; 2] = [37, 11];
const N_SLOTS: usize = 6;
/// The slots of the two sequences, the one that the second begins from, and the one that keeps a state of the first.
const OWN: [u32; 2] = [4, 1];
const START: u32 = 3;
const KEPT: u32 = 0;
const KEPT_AFTER: usize = 20;

/// The sequences of a step, and which rows of the inputs it has.
type Step<'a> = (&'a [StateSeq<'a>], &'a [usize]);
/// Runs an operation on the states, and writes its output.
type Run<'a> = dyn Fn(&Pool, Step<'_>, &mut [f32], &mut [f32]) + 'a;

/// Runs `op` for both sequences with the rows in steps of `chunk`; returns the outputs and the states.
fn in_chunks(
    (pool, chunk): (&Pool, usize),
    states: &[f32],
    width: usize,
    op: &Run<'_>,
) -> (Vec<f32>, Vec<f32>) {
    let mut states = states.to_vec();
    let mut outs = vec![vec![]; 2];
    for first in (0..N_ROWS[0]).step_by(chunk) {
        let mut rows = Vec::new();
        let mut kept_states = Vec::new();
        for seq in 0..2 {
            let n = chunk.min(N_ROWS[seq].saturating_sub(first));
            if n == 0 {
                continue;
            }
            let start = match (first, seq) {
                (0, 0) => StateStart::Empty,
                (0, _) => StateStart::Slot(START),
                _ => StateStart::Slot(OWN[seq]),
            };
            let is_kept = seq == 0 && (first + 1..=first + n).contains(&KEPT_AFTER);
            let kept = is_kept.then(|| KeptState {
                n_rows: KEPT_AFTER - first,
                slot: KEPT,
            });
            kept_states.push((
                seq,
                n,
                SeqState {
                    slot: OWN[seq],
                    start,
                    kept: kept.into_iter().collect(),
                },
            ));
        }
        let mut seqs = Vec::new();
        for (seq, n, state) in &kept_states {
            seqs.push(StateSeq {
                first_row: rows.len(),
                n_rows: *n,
                state,
            });
            let before = if *seq == 0 { 0 } else { N_ROWS[0] };
            rows.extend(before + first..before + first + n);
        }
        let mut out = vec![0.0; rows.len() * width];
        op(pool, (&seqs, &rows), &mut states, &mut out);
        for ((seq, ..), of) in kept_states.iter().zip(&seqs) {
            outs[*seq].extend_from_slice(&out[of.first_row * width..][..of.n_rows * width]);
        }
    }
    (outs.concat(), states)
}

/// Checks that all chunks and numbers of threads give the same bits, and returns them.
fn same_bits(states: &[f32], width: usize, op: &Run<'_>) -> (Vec<f32>, Vec<f32>) {
    let run = |n_threads: usize, chunk: usize| {
        let pool = Pool::new(n_threads);
        in_chunks((&pool, chunk), states, width, op)
    };
    let expected = run(1, N_ROWS[0]);
    for (n_threads, chunk) in [(3, N_ROWS[0]), (1, 1), (2, 7), (3, 20)] {
        let (out, states) = run(n_threads, chunk);
        assert!(
            out == expected.0 && states == expected.1,
            "{n_threads} threads, chunks of {chunk}"
        );
    }
    expected
}

fn check(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let reach = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= 1e-5 * reach,
            "{what}, {i}: {found}, not {expected}"
        );
    }
}

/// Picks rows of `width` values.
fn rows_of(x: &[f32], width: usize, rows: &[usize]) -> Vec<f32> {
    let of = |&row: &usize| &x[row * width..][..width];
    rows.iter().flat_map(of).copied().collect()
}

#[test]
fn convolutions_see_the_last_rows_of_their_sequence() {
    let mut rng = Rng(5);
    let n_rows: usize = N_ROWS.iter().sum();
    for isa in Isa::available() {
        for (n, width, form) in [
            (4, 70, ConvForm::Plain),
            (1, 8, ConvForm::Plain),
            (3, 33, ConvForm::Gated),
        ] {
            let n_in = if form == ConvForm::Gated { 3 } else { 1 } * width;
            let x = rng.vec(n_rows * n_in);
            let weight = rng.vec(n * width);
            let bias = (form == ConvForm::Plain).then(|| rng.vec(width));
            let before = rng.vec(N_SLOTS * (n - 1) * width);
            let conv = Conv {
                weight: &weight,
                bias: bias.as_deref(),
                form,
                width,
            };
            let (out, states) = same_bits(&before, width, &|pool, (seqs, rows), states, out| {
                let x = rows_of(&x, n_in, rows);
                causal_conv(isa, pool, &conv, seqs, &x, states, out);
            });
            // The input of the convolution in row `at` of a sequence; rows before the first are negative.
            let input = |seq: usize, at: isize, c: usize| -> f64 {
                if at < 0 {
                    let state = &before[START as usize * (n - 1) * width..][..(n - 1) * width];
                    let row = (at + n as isize - 1) as usize;
                    return if seq == 0 {
                        0.0
                    } else {
                        f64::from(state[row * width + c])
                    };
                }
                let row = &x[(seq * N_ROWS[0] + at as usize) * n_in..][..n_in];
                match form {
                    ConvForm::Plain => f64::from(row[c]),
                    ConvForm::Gated => f64::from(row[c] * row[2 * width + c]),
                }
            };
            let mut expected = Vec::new();
            for (seq, n_rows) in N_ROWS.into_iter().enumerate() {
                for at in 0..n_rows as isize {
                    for c in 0..width {
                        let taps = (0..n).map(|i| {
                            let at = at - (n - 1 - i) as isize;
                            f64::from(weight[i * width + c]) * input(seq, at, c)
                        });
                        let sum = taps.sum::<f64>();
                        let row = &x[(seq * N_ROWS[0] + at as usize) * n_in..][..n_in];
                        expected.push(match form {
                            ConvForm::Plain => sum + f64::from(bias.as_ref().unwrap()[c]),
                            ConvForm::Gated => sum * f64::from(row[width + c]),
                        });
                    }
                }
            }
            check("outputs", &out, &expected);
            for (slot, seq, end) in [
                (OWN[0], 0, N_ROWS[0]),
                (OWN[1], 1, N_ROWS[1]),
                (KEPT, 0, KEPT_AFTER),
            ] {
                let found = &states[slot as usize * (n - 1) * width..][..(n - 1) * width];
                let last = (0..(n - 1) * width).map(|i| {
                    let at = end as isize - (n as isize - 1) + (i / width) as isize;
                    input(seq, at, i % width) as f32
                });
                assert_eq!(found, last.collect::<Vec<f32>>(), "slot {slot}");
            }
            let untouched =
                START as usize * (n - 1) * width..(START as usize + 1) * (n - 1) * width;
            assert_eq!(states[untouched.clone()], before[untouched]);
        }
    }
}

#[test]
fn linear_attention_follows_the_recurrence() {
    use KeySharing::{Neighbours, Strided};
    use StateRule::{Add, Delta};
    let mut rng = Rng(6);
    let n_rows: usize = N_ROWS.iter().sum();
    for isa in Isa::available() {
        for (rule, sharing, of, [n_heads, n_k_heads, k_dim, v_dim]) in [
            (Delta, Strided, Decay::Head, [4, 2, 128, 128]),
            (Delta, Neighbours, Decay::Head, [6, 2, 33, 40]),
            (Add, Neighbours, Decay::Head, [4, 1, 16, 9]),
            (Add, Neighbours, Decay::Head, [3, 3, 64, 24]),
            (Delta, Neighbours, Decay::Channel, [2, 2, 128, 128]),
            (Delta, Strided, Decay::Channel, [4, 2, 37, 12]),
            (Add, Neighbours, Decay::Channel, [3, 1, 16, 40]),
            (Add, Neighbours, Decay::Value(()), [2, 1, 16, 128]),
            (Add, Neighbours, Decay::Value(()), [3, 3, 7, 45]),
        ] {
            let heads = LinearHeads {
                n_heads,
                n_k_heads,
                k_dim,
                v_dim,
                sharing,
            };
            let columns = heads.columns();
            let n_blocks = v_dim.div_ceil(columns);
            // Where a state has the value of a key's and a value's index.
            let at = |head: usize, i: usize, j: usize| {
                (((head * n_blocks + j / columns) * k_dim) + i) * columns + j % columns
            };
            let mut before = rng.vec(N_SLOTS * heads.state_len());
            for state in before.chunks_exact_mut(heads.state_len()) {
                let mut is_used = vec![false; state.len()];
                for head in 0..n_heads {
                    for i in 0..k_dim {
                        (0..v_dim).for_each(|j| is_used[at(head, i, j)] = true);
                    }
                }
                // Padding is zeros.
                let pairs = state.iter_mut().zip(is_used);
                pairs
                    .filter(|(_, is_used)| !is_used)
                    .for_each(|(x, _)| *x = 0.0);
            }
            let unit = |rng: &mut Rng, n: usize| -> Vec<f32> {
                let mut x = rng.vec(n);
                for x in x.chunks_exact_mut(k_dim) {
                    let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                    x.iter_mut().for_each(|x| *x /= length);
                }
                x
            };
            let q = unit(&mut rng, n_rows * n_k_heads * k_dim);
            let k = unit(&mut rng, n_rows * n_k_heads * k_dim);
            let v = rng.vec(n_rows * n_heads * v_dim);
            let [n_decay, n_beta] = of.widths(&heads);
            let rates: Vec<f32> = rng.vec(heads.state_len());
            let rates: Vec<f32> = rates.into_iter().map(|x| -2.0 * x.abs()).collect();
            let of = of.map(|()| &rates[..]);
            let decay: Vec<f32> = rng.vec(n_rows * n_decay);
            // Steps are positive.
            let sign = if matches!(of, Decay::Value(_)) {
                0.1
            } else {
                -0.1
            };
            let decay: Vec<f32> = decay.into_iter().map(|x| sign * x.abs()).collect();
            let beta: Vec<f32> = rng.vec(n_rows * n_beta);
            let beta: Vec<f32> = beta.into_iter().map(|x| x.abs().min(1.0)).collect();
            let width = n_heads * v_dim;
            let (out, states) = same_bits(&before, width, &|pool, (seqs, rows), states, out| {
                let picked = [
                    rows_of(&q, n_k_heads * k_dim, rows),
                    rows_of(&k, n_k_heads * k_dim, rows),
                    rows_of(&v, width, rows),
                    rows_of(&decay, n_decay, rows),
                    rows_of(&beta, n_beta, rows),
                ];
                let inputs = LinearInputs {
                    q: &picked[0][..],
                    k: &picked[1][..],
                    v: &picked[2][..],
                    decay: &picked[3][..],
                    beta: &picked[4][..],
                };
                linear_attention(isa, pool, (&heads, rule, of), seqs, inputs, states, out);
            });
            let mut expected = vec![0.0; n_rows * width];
            for (seq, n) in N_ROWS.into_iter().enumerate() {
                for head in 0..n_heads {
                    let from = &before[START as usize * heads.state_len()..];
                    let mut s = vec![vec![0.0; v_dim]; k_dim];
                    for (i, s) in s.iter_mut().enumerate().filter(|_| seq == 1) {
                        for (j, s) in s.iter_mut().enumerate() {
                            *s = f64::from(from[at(head, i, j)]);
                        }
                    }
                    let key_head = match sharing {
                        KeySharing::Neighbours => head * n_k_heads / n_heads,
                        KeySharing::Strided => head % n_k_heads,
                    };
                    for t in 0..n {
                        let row = seq * N_ROWS[0] + t;
                        let key = |x: &[f32], i: usize| {
                            f64::from(x[(row * n_k_heads + key_head) * k_dim + i])
                        };
                        let index = row * n_heads + head;
                        let factor = |i: usize, j: usize| {
                            let decay = match of {
                                Decay::Head => f64::from(decay[index]),
                                Decay::Channel => f64::from(decay[index * k_dim + i]),
                                Decay::Value(rates) => {
                                    let step = f64::from(decay[index * v_dim + j]);
                                    step * f64::from(rates[at(head, i, j)])
                                }
                            };
                            decay.exp()
                        };
                        for j in 0..v_dim {
                            let beta = match of {
                                Decay::Head | Decay::Channel => f64::from(beta[index]),
                                Decay::Value(_) => f64::from(beta[index * v_dim + j]),
                            };
                            (0..k_dim).for_each(|i| s[i][j] *= factor(i, j));
                            let known: f64 = (0..k_dim).map(|i| s[i][j] * key(&k, i)).sum();
                            let known = if rule == StateRule::Delta { known } else { 0.0 };
                            let value = f64::from(v[row * width + head * v_dim + j]);
                            let d = beta * (value - known);
                            (0..k_dim).for_each(|i| s[i][j] += key(&k, i) * d);
                            expected[row * width + head * v_dim + j] =
                                (0..k_dim).map(|i| s[i][j] * key(&q, i)).sum();
                        }
                    }
                    let own = &states[OWN[seq] as usize * heads.state_len()..];
                    let own = (0..k_dim * v_dim).map(|x| own[at(head, x / v_dim, x % v_dim)]);
                    check("states", &own.collect::<Vec<f32>>(), &s.concat());
                }
            }
            check("outputs", &out, &expected);
        }
    }
}
