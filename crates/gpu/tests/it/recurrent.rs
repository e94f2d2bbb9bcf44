//! Operations that keep states of sequences, against their formulas in f64: sequences of several lengths that begin from
//! zeros, from their own slot and from one that two of them share, and keep copies on the way.

mod channel_layer;
mod selective_layer;

use rocmforge_gpu::ops::{self, AfterHeads, Conv, ConvPart, GroupNorm, HeadFactors};
use rocmforge_gpu::{Activation, Buffer, Gpu, KeptState, SeqRows, SeqState, Slice, States, Step};
use rocmforge_plan::{ConvForm, Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use crate::common;
use crate::common::any_order;
use crate::common::values::assert_close;
use crate::common::weights::Random;

pub(crate) const N_SLOTS: usize = 11;
/// Rows of no sequence, behind the others.
pub(crate) const N_PADDING: usize = 2;

/// A sequence: its rows, its slot, what it begins from, and its copies as rows and slots.
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
    pub(crate) n_rows: u32,
    pub(crate) slot: u32,
    pub(crate) start: u32,
    pub(crate) kept: &'static [(u32, u32)],
}

/// Two of them begin from slot 1. The third is an entry without rows.
const SEQUENCES: [Sequence; 5] = [
    Sequence {
        n_rows: 1,
        slot: 0,
        start: 0,
        kept: &[],
    },
    Sequence {
        n_rows: 21,
        slot: 2,
        start: SeqState::EMPTY,
        kept: &[(2, 3), (8, 4), (13, 5), (21, 6)],
    },
    Sequence {
        n_rows: 0,
        slot: SeqState::EMPTY,
        start: SeqState::EMPTY,
        kept: &[],
    },
    Sequence {
        n_rows: 10,
        slot: 7,
        start: 1,
        kept: &[(0, 8)],
    },
    Sequence {
        n_rows: 2,
        slot: 9,
        start: 1,
        kept: &[],
    },
];

pub(crate) fn n_rows(seqs: &[Sequence]) -> usize {
    seqs.iter().map(|seq| seq.n_rows as usize).sum()
}

/// The step of all sequences in device memory.
struct Uploaded {
    words: Buffer,
    /// Rows of the longest sequence.
    longest: u32,
    seqs: Buffer,
    places: Buffer,
    kept: Buffer,
}

impl Uploaded {
    fn new(gpu: &Gpu, sequences: &[Sequence]) -> Uploaded {
        let (mut seqs, mut places, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_row = 0;
        for seq in sequences {
            seqs.push(SeqRows {
                first_row,
                n_rows: seq.n_rows,
                ..SeqRows::default()
            });
            first_row += seq.n_rows;
            places.push(SeqState {
                slot: seq.slot,
                start: seq.start,
                first_kept: kept.len() as u32,
                n_kept: seq.kept.len() as u32,
            });
            let copies = seq.kept.iter();
            kept.extend(copies.map(|&(n_rows, slot)| KeptState { n_rows, slot }));
        }
        Uploaded {
            words: gpu
                .upload(&vec![0u32; n_rows(sequences) + N_PADDING])
                .unwrap(),
            longest: sequences.iter().map(|seq| seq.n_rows).max().unwrap(),
            seqs: gpu.upload(&seqs).unwrap(),
            places: gpu.upload(&places).unwrap(),
            kept: gpu.upload(&kept).unwrap(),
        }
    }

    fn step(&self) -> (Step<'_>, States<'_>) {
        let words = self.words.as_slice();
        let step = Step {
            positions: words,
            slots: words,
            seq_of_row: words,
            seqs: self.seqs.as_slice(),
            block_tables: words.part(0..0),
            max_pages: 0,
            max_rows_of_seq: self.longest as usize,
            longest: usize::MAX,
        };
        let places = States {
            seqs: self.places.as_slice(),
            kept: self.kept.as_slice(),
        };
        (step, places)
    }
}

/// Computes the outputs of all rows and all states with `row`, which passes a row of a sequence through its state.
pub(crate) fn expected(
    sequences: &[Sequence],
    (states, len): (&[f32], usize),
    width: usize,
    mut row: impl FnMut(&mut Vec<f64>, usize) -> Vec<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let before: Vec<f64> = states.iter().map(|&x| f64::from(x)).collect();
    let (mut out, mut after) = (Vec::new(), before.clone());
    let mut first = 0;
    for seq in sequences {
        let mut state = match seq.start {
            SeqState::EMPTY => vec![0.0; len],
            slot => before[slot as usize * len..][..len].to_vec(),
        };
        for at in 0..=seq.n_rows {
            let copies = seq.kept.iter().filter(|(n, _)| *n == at);
            let own = (at == seq.n_rows && at > 0).then_some(seq.slot);
            for slot in copies.map(|(_, slot)| *slot).chain(own) {
                after[slot as usize * len..][..len].copy_from_slice(&state);
            }
            if at < seq.n_rows {
                let values = row(&mut state, first + at as usize);
                assert_eq!(values.len(), width);
                out.extend(values);
            }
        }
        first += seq.n_rows as usize;
    }
    (out, after)
}

/// Runs `launch` on states and outputs of these widths, and returns the outputs and the states.
pub(crate) fn run<const N: usize>(
    gpu: &Gpu,
    sequences: &[Sequence],
    states: &[f32],
    widths: [usize; N],
    launch: impl Fn((&Step<'_>, &States<'_>), Slice<'_, f32>, [Slice<'_, f32>; N]),
) -> ([Vec<f32>; N], Vec<f32>) {
    let uploaded = Uploaded::new(gpu, sequences);
    let n = n_rows(sequences);
    let all = any_order(|| {
        let states = gpu.upload(states).unwrap();
        let outs = widths.map(|width| {
            let values = vec![7.5f32; (n + N_PADDING) * width];
            gpu.upload(&values).unwrap()
        });
        let (step, places) = uploaded.step();
        let slices = outs.each_ref().map(Buffer::as_slice);
        launch((&step, &places), states.as_slice(), slices);
        let buffers = outs.iter().chain([&states]);
        let read = buffers.map(|buffer| gpu.read(buffer.as_slice::<f32>()).unwrap());
        read.collect::<Vec<_>>().concat()
    });
    let mut rest = &all[..];
    let outs = widths.map(|width| {
        let out;
        (out, rest) = rest.split_at((n + N_PADDING) * width);
        let (out, padding) = out.split_at(n * width);
        assert!(padding.iter().all(|&x| x == 7.5), "padding rows");
        out.to_vec()
    });
    (outs, rest.to_vec())
}

/// Forms, widths and taps of convolutions.
const CONVS: [(ConvForm, usize, usize); 7] = [
    (ConvForm::Plain, 64, 4),
    (ConvForm::Plain, 1030, 4),
    (ConvForm::Plain, 33, 2),
    (ConvForm::Plain, 5, 1),
    (ConvForm::Plain, 12, 30),
    (ConvForm::Gated, 100, 3),
    (ConvForm::Gated, 9, 4),
];

#[test]
fn convolves_rows_with_those_before() {
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (seed, (form, width, n)) in CONVS.into_iter().enumerate() {
            let random = &mut Random(seed as u64);
            let n_parts = if form == ConvForm::Gated { 3 } else { 1 };
            let mut x = random.values(n_rows(&SEQUENCES) * n_parts * width);
            let weight = random.values(n * width);
            let bias = (seed % 2 == 0).then(|| random.values(width));
            let len = (n - 1) * width;
            let states = random.values(N_SLOTS * len);
            let of_row = |row: usize, part: usize, i: usize| x[(row * n_parts + part) * width + i];
            let (expected, after) = expected(&SEQUENCES, (&states, len), width, |state, row| {
                // The device multiplies in f32, as the state holds the product.
                let input = (0..width).map(|i| match form {
                    ConvForm::Plain => f64::from(of_row(row, 0, i)),
                    ConvForm::Gated => f64::from(of_row(row, 2, i) * of_row(row, 0, i)),
                });
                state.extend(input);
                let out = (0..width).map(|i| {
                    let term =
                        |tap: usize| f64::from(weight[tap * width + i]) * state[tap * width + i];
                    let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
                    let c = match form {
                        ConvForm::Plain => 1.0,
                        ConvForm::Gated => f64::from(of_row(row, 1, i)),
                    };
                    ((0..n).map(term).sum::<f64>() + bias) * c
                });
                let out = out.collect();
                state.drain(..width);
                out
            });
            x.extend(vec![0.0; N_PADDING * n_parts * width]);
            let [dx, dw] = [&x, &weight].map(|values| gpu.upload(values).unwrap());
            let db = bias.map(|bias| gpu.upload(&bias).unwrap());
            let conv = Conv {
                weight: dw.as_slice(),
                bias: db.as_ref().map(Buffer::as_slice),
                form,
                width,
            };
            let ([out], found) = run(
                &gpu,
                &SEQUENCES,
                &states,
                [width],
                |places, states, [out]| {
                    ops::causal_conv(&gpu, &conv, dx.as_slice(), places, states, out).unwrap();
                },
            );
            let what = format!("{} {form:?}, {n} x {width}", common::name(&gpu));
            assert_close(&out, &expected, 1e-6, &what);
            let after: Vec<f32> = after.iter().map(|&x| x as f32).collect();
            assert!(found == after, "{what}: states");
        }
    }
}

/// Heads, heads of keys, and the lengths of a key and a value.
const HEADS: [([usize; 4], KeySharing, StateRule, Decay<()>); 15] = {
    use KeySharing::{Neighbours, Strided};
    use StateRule::{Add, Delta};
    [
        ([4, 2, 33, 40], Strided, Delta, Decay::Head),
        ([3, 3, 16, 9], Neighbours, Add, Decay::Head),
        ([6, 2, 20, 16], Neighbours, Delta, Decay::Head),
        ([2, 1, 64, 64], Neighbours, Delta, Decay::Head),
        ([2, 2, 128, 128], Strided, Delta, Decay::Head),
        ([2, 1, 256, 70], Neighbours, Add, Decay::Head),
        ([1, 1, 300, 17], Neighbours, Delta, Decay::Head),
        ([1, 1, 1024, 3], Neighbours, Add, Decay::Head),
        ([4, 2, 32, 40], Strided, Delta, Decay::Channel),
        ([3, 1, 50, 9], Neighbours, Add, Decay::Channel),
        ([2, 2, 128, 128], Neighbours, Delta, Decay::Channel),
        ([1, 1, 201, 17], Neighbours, Delta, Decay::Channel),
        ([2, 1, 16, 128], Neighbours, Add, Decay::Value(())),
        ([3, 3, 7, 45], Neighbours, Add, Decay::Value(())),
        ([2, 1, 61, 30], Neighbours, Add, Decay::Value(())),
    ]
};

/// Inputs of linear attention, states before it, and what follows from them.
struct HeadsCase {
    heads: LinearHeads,
    rule: StateRule,
    of: Decay<Buffer>,
    inputs: [Buffer; 5],
    states: Vec<f32>,
    out: Vec<f64>,
    after: Vec<f64>,
}

impl HeadsCase {
    fn new(
        gpu: &Gpu,
        sequences: &[Sequence],
        (heads, rule, of): (LinearHeads, StateRule, Decay<()>),
        random: &mut Random,
    ) -> HeadsCase {
        let LinearHeads {
            n_heads,
            n_k_heads,
            k_dim,
            v_dim,
            ..
        } = heads;
        let n_rows = n_rows(sequences) + N_PADDING;
        // Keys about as long as normed ones, so that states neither grow nor vanish.
        let unit = 1.7 / (k_dim as f32).sqrt();
        let mut keys = || {
            let values = random.values(n_rows * n_k_heads * k_dim);
            values.iter().map(|x| x * unit).collect::<Vec<f32>>()
        };
        let [q, k] = [keys(), keys()];
        let v = random.values(n_rows * n_heads * v_dim);
        let mut between = |low: f32, high: f32, n: usize| {
            let values = random.values(n);
            let middle = (low + high) / 2.0;
            let values = values.iter().map(|x| middle + (high - low) / 2.0 * x);
            values.collect::<Vec<f32>>()
        };
        let [n_decay, n_beta] = of.widths(&heads).map(|width| n_rows * width);
        let decay = match of {
            Decay::Head | Decay::Channel => between(-2.0, 0.0, n_decay),
            Decay::Value(()) => between(0.0, 1.0, n_decay),
        };
        let beta = between(0.0, 1.0, n_beta);
        let rates = between(-2.0, 0.0, heads.state_len());
        let (columns, len) = (heads.columns(), heads.state_len());
        let at = |head: usize, k: usize, v: usize| {
            head * heads.head_len() + v / columns * k_dim * columns + k * columns + v % columns
        };
        let mut states = vec![0.0; N_SLOTS * len];
        for state in states.chunks_exact_mut(len) {
            for head in 0..n_heads {
                for (k, row) in random.values(k_dim * v_dim).chunks(v_dim).enumerate() {
                    row.iter()
                        .enumerate()
                        .for_each(|(v, x)| state[at(head, k, v)] = *x);
                }
            }
        }
        let (out, after) = expected(sequences, (&states, len), n_heads * v_dim, |state, row| {
            let mut out = Vec::with_capacity(n_heads * v_dim);
            for head in 0..n_heads {
                let key = (row * n_k_heads + heads.key_head(head)) * k_dim;
                let [q, k] = [&q, &k].map(|keys| &keys[key..][..k_dim]);
                let index = row * n_heads + head;
                for column in 0..v_dim {
                    let beta = match of {
                        Decay::Head | Decay::Channel => beta[index],
                        Decay::Value(()) => beta[index * v_dim + column],
                    };
                    let factor = |i: usize| {
                        let decay = match of {
                            Decay::Head => f64::from(decay[index]),
                            Decay::Channel => f64::from(decay[index * k_dim + i]),
                            Decay::Value(()) => {
                                let step = f64::from(decay[index * v_dim + column]);
                                step * f64::from(rates[at(head, i, column)])
                            }
                        };
                        decay.exp()
                    };
                    for i in 0..k_dim {
                        state[at(head, i, column)] *= factor(i);
                    }
                    let product = |state: &[f64], x: &[f32]| -> f64 {
                        let terms = x.iter().enumerate();
                        let terms = terms.map(|(i, x)| state[at(head, i, column)] * f64::from(*x));
                        terms.sum()
                    };
                    let known = match rule {
                        StateRule::Delta => product(state, k),
                        StateRule::Add => 0.0,
                    };
                    let value = f64::from(v[(row * n_heads + head) * v_dim + column]);
                    let d = f64::from(beta) * (value - known);
                    for (i, k) in k.iter().enumerate() {
                        state[at(head, i, column)] += f64::from(*k) * d;
                    }
                    out.push(product(state, q));
                }
            }
            out
        });
        HeadsCase {
            heads,
            rule,
            of: of.map(|()| gpu.upload(&rates).unwrap()),
            inputs: [&q, &k, &v, &decay, &beta].map(|values| gpu.upload(values).unwrap()),
            states,
            out,
            after,
        }
    }

    fn inputs(&self) -> LinearInputs<Slice<'_, f32>> {
        let [q, k, v, decay, beta] = self.inputs.each_ref().map(Buffer::as_slice);
        LinearInputs {
            q,
            k,
            v,
            decay,
            beta,
        }
    }

    fn how(&self) -> (&LinearHeads, StateRule, Decay<Slice<'_, f32>>) {
        let of = match &self.of {
            Decay::Head => Decay::Head,
            Decay::Channel => Decay::Channel,
            Decay::Value(rates) => Decay::Value(rates.as_slice()),
        };
        (&self.heads, self.rule, of)
    }

    /// Values of an output.
    fn width(&self) -> usize {
        self.heads.n_heads * self.heads.v_dim
    }

    /// Checks the states after a step that does not write these slots.
    fn check_states(&self, found: &[f32], untouched: &[usize], what: &str) {
        assert_close(found, &self.after, 3e-6, &format!("{what}: states"));
        let len = self.heads.state_len();
        for slot in untouched {
            let range = slot * len..(slot + 1) * len;
            let is_same = found[range.clone()] == self.states[range];
            assert!(is_same, "{what}: slot {slot}");
        }
    }
}

/// Calls `check` with each of [`HEADS`] on each device.
fn for_each_heads(check: impl Fn(&Gpu, (LinearHeads, StateRule, Decay<()>), &mut Random, &str)) {
    for (turn, gpu) in common::gpus_with(&["loads=narrow"]).enumerate() {
        // Each with wide loads on some device, and with narrow ones on another.
        let all = common::every_second(HEADS.into_iter().enumerate(), turn + turn / 2);
        for (seed, ([n_heads, n_k_heads, k_dim, v_dim], sharing, rule, of)) in all {
            let heads = LinearHeads {
                n_heads,
                n_k_heads,
                k_dim,
                v_dim,
                sharing,
            };
            let what = format!("{} {heads:?} {rule:?} {of:?}", common::name(&gpu));
            check(&gpu, (heads, rule, of), &mut Random(seed as u64), &what);
        }
    }
}

#[test]
fn passes_rows_through_the_states_of_heads() {
    for_each_heads(|gpu, how, random, what| {
        let case = HeadsCase::new(gpu, &SEQUENCES, how, random);
        let (how, inputs) = (case.how(), case.inputs());
        let ([out], states) = run(
            gpu,
            &SEQUENCES,
            &case.states,
            [case.width()],
            |places, states, [out]| {
                ops::linear_attention(gpu, how, inputs, places, states, out).unwrap();
            },
        );
        assert_close(&out, &case.out, 3e-6, what);
        case.check_states(&states, &[1, 10], what);
    });
}

/// Sequences of one row, of which one begins from slot 1, and some keep copies.
const ONE_ROW: [Sequence; 4] = [
    Sequence {
        n_rows: 1,
        slot: 0,
        start: 0,
        kept: &[(1, 3)],
    },
    Sequence {
        n_rows: 1,
        slot: 2,
        start: SeqState::EMPTY,
        kept: &[],
    },
    Sequence {
        n_rows: 0,
        slot: SeqState::EMPTY,
        start: SeqState::EMPTY,
        kept: &[],
    },
    Sequence {
        n_rows: 1,
        slot: 9,
        start: 1,
        kept: &[(0, 4), (1, 5)],
    },
];

/// One row per sequence, with a norm of each head or the values added, and the gate after it.
#[test]
fn passes_one_row_with_what_comes_after_it() {
    const EPS: f32 = 1e-4;
    for_each_heads(|gpu, how, random, what| {
        if !ops::takes_decode(&how.0) || how.2 != Decay::Head {
            return;
        }
        let case = HeadsCase::new(gpu, &ONE_ROW, how, random);
        let (width, v_dim) = (case.width(), case.heads.v_dim);
        let gate = random.values((n_rows(&ONE_ROW) + N_PADDING) * width);
        let [weight, skip] = [v_dim, width].map(|n| random.values(n));
        let by_head = case.out.chunks(v_dim).zip(std::iter::repeat(&weight));
        let normed = by_head.flat_map(|(out, weight)| {
            let squares: f64 = out.iter().map(|x| x * x).sum();
            let scale = 1.0 / (squares / v_dim as f64 + f64::from(EPS)).sqrt();
            let normed = out.iter().zip(weight);
            normed.map(move |(x, weight)| x * scale * f64::from(*weight))
        });
        let v = gpu.read(case.inputs().v).unwrap();
        let skipped = { case.out.iter().zip(&v) }.zip(skip.iter().cycle());
        let skipped = skipped.map(|((x, v), skip)| x + f64::from(*skip) * f64::from(*v));
        let gated = |values: Vec<f64>| -> Vec<f64> {
            let gated = values.iter().zip(&gate);
            gated.map(|(x, gate)| x * silu(f64::from(*gate))).collect()
        };
        let expected = [gated(normed.collect()), gated(skipped.collect())];

        let [gate, weight, skip] =
            [&gate, &weight, &skip].map(|values| gpu.upload(values).unwrap());
        let norm = GroupNorm {
            weight: weight.as_slice(),
            eps: EPS,
        };
        let ways = [AfterHeads::Norm(norm), AfterHeads::Skip(skip.as_slice())];
        let (heads, inputs) = ((&case.heads, case.rule), case.inputs());
        for (after, expected) in ways.into_iter().zip(expected) {
            let after = (after, gate.as_slice());
            let ([out], states) = run(
                gpu,
                &ONE_ROW,
                &case.states,
                [width],
                |places, states, [out]| {
                    ops::linear_decode(gpu, heads, inputs, after, places, (states, out)).unwrap();
                },
            );
            assert_close(&out, &expected, 1e-5, what);
            case.check_states(&states, &[1, 6, 10], what);
        }
    });
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Heads, heads of keys, values of a key and of a head of values, taps, and whether queries and keys have norms.
const INPUTS: [([usize; 5], bool); 4] = [
    ([3, 1, 128, 128, 4], true),
    ([40, 2, 20, 5, 4], true),
    ([4, 2, 33, 7, 2], true),
    ([5, 1, 50, 30, 3], false),
];

/// The convolution of a layer of linear attention with its parts and their norms, and the factors of heads.
#[test]
fn computes_the_inputs_of_linear_attention() {
    const EPS: f32 = 1e-4;
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (seed, ([n_heads, n_k_heads, k_dim, v_dim, n], has_norms)) in
            INPUTS.into_iter().enumerate()
        {
            let random = &mut Random(seed as u64);
            let (n_k, n_v) = (n_k_heads * k_dim, n_heads * v_dim);
            let width = 2 * n_k + n_v;
            let n_all = n_rows(&SEQUENCES) + N_PADDING;
            let x = random.values(n_all * width);
            let [weight, bias] = [n * width, width].map(|n| random.values(n));
            let norms = [(); 2].map(|()| random.values(k_dim));
            let [beta, decay] = [(); 2].map(|()| random.values(n_all * n_heads));
            let rate = random.values(n_heads);
            let len = (n - 1) * width;
            let states = random.values(N_SLOTS * len);
            let (convolved, after) = expected(&SEQUENCES, (&states, len), width, |state, row| {
                state.extend(x[row * width..][..width].iter().map(|&x| f64::from(x)));
                let out = (0..width).map(|i| {
                    let term =
                        |tap: usize| f64::from(weight[tap * width + i]) * state[tap * width + i];
                    silu((0..n).map(term).sum::<f64>() + f64::from(bias[i]))
                });
                let out = out.collect();
                state.drain(..width);
                out
            });
            // Values before keys and queries, as in Mamba-2.
            let firsts = [n_v, n_v + n_k, 0];
            let widths = [n_k, n_k, n_v, n_heads, n_heads];
            let part = |i: usize| -> Vec<f64> {
                let rows = convolved.chunks(width);
                let values = rows.flat_map(|row| row[firsts[i]..][..widths[i]].to_vec());
                let values: Vec<f64> = values.collect();
                if i == 2 || !has_norms {
                    return values;
                }
                let heads = values.chunks(k_dim).flat_map(|head| {
                    let squares: f64 = head.iter().map(|x| x * x).sum();
                    let scale = 1.0 / (squares / k_dim as f64 + f64::from(EPS)).sqrt();
                    let normed = head.iter().zip(&norms[i]);
                    let normed = normed.map(move |(x, weight)| x * scale * f64::from(*weight));
                    normed.collect::<Vec<f64>>()
                });
                heads.collect()
            };
            let n_factors = n_rows(&SEQUENCES) * n_heads;
            let softplus = |x: f32| f64::from(x).exp().ln_1p();
            let betas = beta[..n_factors].iter().map(|&x| match has_norms {
                true => 1.0 / (1.0 + (-f64::from(x)).exp()),
                false => softplus(x),
            });
            let rates = rate.iter().cycle();
            let decays = decay[..n_factors].iter().zip(rates);
            let decays = decays.map(|(&x, &rate)| softplus(x) * f64::from(rate));
            let expected = [part(0), part(1), part(2), betas.collect(), decays.collect()];

            let uploaded = [
                &x, &weight, &bias, &beta, &decay, &rate, &norms[0], &norms[1],
            ];
            let uploaded = uploaded.map(|values| gpu.upload(values).unwrap());
            let [x, weight, bias, beta, decay, rate, of_q, of_k] =
                uploaded.each_ref().map(Buffer::as_slice);
            let conv = Conv {
                weight,
                bias: Some(bias),
                form: ConvForm::Plain,
                width,
            };
            let norm = |weight| has_norms.then_some(GroupNorm { weight, eps: EPS });
            let norms = [norm(of_q), norm(of_k), None];
            let of_beta = match has_norms {
                true => Activation::Sigmoid,
                false => Activation::Softplus,
            };
            let (outs, found) = run(&gpu, &SEQUENCES, &states, widths, |places, states, outs| {
                let parts = std::array::from_fn(|i| ConvPart {
                    first: firsts[i],
                    norm: norms[i],
                    out: outs[i],
                });
                let factors = HeadFactors {
                    beta,
                    decay,
                    rate,
                    beta_out: outs[3],
                    decay_out: outs[4],
                };
                let factors = (of_beta, factors);
                ops::linear_inputs(&gpu, (&conv, x), parts, factors, places, states).unwrap();
            });
            let what = format!("{} {n_heads} heads of {v_dim}", common::name(&gpu));
            for (i, (out, expected)) in outs.iter().zip(&expected).enumerate() {
                assert_close(out, expected, 2e-6, &format!("{what}: {i}"));
            }
            let after: Vec<f32> = after.iter().map(|&x| x as f32).collect();
            assert!(found == after, "{what}: states");
        }
    }
}

#[test]
fn keys_longer_than_the_kernels_take_are_refused() {
    let heads = LinearHeads {
        n_heads: 1,
        n_k_heads: 1,
        k_dim: 1025,
        v_dim: 1,
        sharing: KeySharing::Strided,
    };
    for (of, most) in [
        (Decay::Head, 1024),
        (Decay::Channel, 256),
        (Decay::Value(()), 64),
    ] {
        let limit = ops::check_linear_heads(&heads, of).unwrap_err();
        let wanted = format!("at most {most} values, not 1025");
        assert!(limit.to_string().contains(&wanted), "{limit}");
    }
}
