//! The gated delta rule in chunks, against the recurrence in f64: usual and hostile inputs over thousands of rows, sequences
//! of several lengths in one launch, and states that go from one launch to the next.

use rocmforge_gpu::{Buffer, Gpu, SeqState, ops};
use rocmforge_plan::{Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use crate::common;
use crate::common::weights::Random;
use crate::recurrent::{N_PADDING, N_SLOTS, Sequence, expected, n_rows, run};

/// Greatest error of a column of outputs or of a state, relative to its largest value. Chunks and the recurrence are about
/// as exact.
const BOUND: f64 = 3e-5;

/// What inputs are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Inputs {
    /// Heads forget slowly or fast; values are replaced in part.
    Usual,
    /// Almost nothing decays, and values are replaced whole.
    Lasting,
    /// The same, with keys that are almost the same.
    Alike,
    /// Nothing decays, and all keys are the same.
    Same,
    /// Some rows decay to nothing, others little.
    Forgetting,
    /// Columns of values from 1e-6 to 1e6.
    Loud,
    /// As the recurrence's tests.
    Wide,
}

const ALL: [Inputs; 7] = [
    Inputs::Usual,
    Inputs::Lasting,
    Inputs::Alike,
    Inputs::Same,
    Inputs::Forgetting,
    Inputs::Loud,
    Inputs::Wide,
];

impl Inputs {
    /// Returns decay and beta of a row.
    fn factors(self, random: &mut Random) -> [f32; 2] {
        let mut between = |low: f32, high: f32| low + (high - low) * (random.value() + 1.0) / 2.0;
        match self {
            Inputs::Usual => [-between(-8.0, 1.0).exp(), between(0.05, 0.95)],
            Inputs::Lasting | Inputs::Alike => [-between(0.0, 1e-4), between(0.99, 1.0)],
            Inputs::Same => [0.0, 1.0],
            Inputs::Forgetting => match between(0.0, 1.0) {
                0.9.. => [-between(50.0, 1e4), between(0.0, 1.0)],
                0.5..0.9 => [-between(0.0, 20.0), between(0.0, 1.0)],
                _ => [-between(0.0, 0.1), between(0.5, 1.0)],
            },
            Inputs::Loud | Inputs::Wide => [between(-2.0, 0.0), between(0.0, 1.0)],
        }
    }

    /// Returns a key of length 1, near `direction` if keys are alike.
    fn key(self, direction: &[f32], random: &mut Random) -> Vec<f32> {
        let share = match self {
            Inputs::Alike => 0.1,
            Inputs::Same => 0.0,
            _ => 1.0,
        };
        let of_direction = if share < 1.0 { 1.0 } else { 0.0 };
        let mixed = direction
            .iter()
            .map(|x| of_direction * x + share * random.value());
        let mixed: Vec<f32> = mixed.collect();
        let len = mixed.iter().map(|x| x * x).sum::<f32>().sqrt();
        mixed.iter().map(|x| x / len).collect()
    }

    fn value(self, column: usize, random: &mut Random) -> f32 {
        match self {
            Inputs::Loud => random.value() * 10f32.powi(column as i32 % 13 - 6),
            _ => random.value(),
        }
    }
}

/// Inputs of all rows, states before them, and what follows from them.
struct Case {
    heads: LinearHeads,
    inputs: [Buffer; 5],
    states: Vec<f32>,
    out: Vec<f64>,
    after: Vec<f64>,
}

impl Case {
    fn new(
        gpu: &Gpu,
        sequences: &[Sequence],
        (heads, what): (LinearHeads, Inputs),
        (states, random): (Option<Vec<f32>>, &mut Random),
    ) -> Case {
        let LinearHeads {
            n_heads,
            n_k_heads,
            k_dim,
            v_dim,
            ..
        } = heads;
        let n_rows = n_rows(sequences) + N_PADDING;
        let direction = random.values(k_dim);
        let n_keys = n_rows * n_k_heads;
        let k = (0..n_keys).flat_map(|_| what.key(&direction, random));
        let k: Vec<f32> = k.collect();
        let q = (0..n_keys).flat_map(|_| Inputs::Usual.key(&direction, random));
        let q: Vec<f32> = q.map(|x| x / (k_dim as f32).sqrt()).collect();
        let n_values = n_rows * n_heads * v_dim;
        let v: Vec<f32> = { 0..n_values }
            .map(|i| what.value(i % v_dim, random))
            .collect();
        let factors = (0..n_rows * n_heads).map(|_| what.factors(random));
        let (decay, beta): (Vec<f32>, Vec<f32>) =
            factors.map(|[decay, beta]| (decay, beta)).unzip();
        let len = heads.state_len();
        let columns = heads.columns();
        let states = states.unwrap_or_else(|| {
            let mut states = random.values(N_SLOTS * len);
            // The columns behind the last one.
            let of_block = heads.k_dim * columns;
            for (i, x) in states.iter_mut().enumerate() {
                let column = i % heads.head_len() / of_block * columns + i % columns;
                *x = if column < v_dim {
                    *x * what.value(column, random)
                } else {
                    0.0
                };
            }
            states
        });
        let (out, after) = expected(sequences, (&states, len), n_heads * v_dim, |state, row| {
            let mut out = Vec::with_capacity(n_heads * v_dim);
            for (head, state) in state.chunks_exact_mut(heads.head_len()).enumerate() {
                let key = (row * n_k_heads + heads.key_head(head)) * k_dim;
                let [k, q] = [&k, &q].map(|keys| &keys[key..][..k_dim]);
                let (factor, beta) = (row * n_heads + head, f64::from(beta[row * n_heads + head]));
                let factor = f64::from(decay[factor]).exp();
                let v = &v[(row * n_heads + head) * v_dim..][..v_dim];
                for (block, v) in state
                    .chunks_exact_mut(k_dim * columns)
                    .zip(v.chunks(columns))
                {
                    let mut known = vec![0.0; columns];
                    for (row, k) in block.chunks_exact_mut(columns).zip(k) {
                        for (s, known) in row.iter_mut().zip(&mut known) {
                            *s *= factor;
                            *known += *s * f64::from(*k);
                        }
                    }
                    let d = v
                        .iter()
                        .zip(&known)
                        .map(|(v, known)| beta * (f64::from(*v) - known));
                    let d: Vec<f64> = d.collect();
                    let mut sums = vec![0.0; v.len()];
                    for ((row, k), q) in block.chunks_exact_mut(columns).zip(k).zip(q) {
                        for ((s, d), sum) in row.iter_mut().zip(&d).zip(&mut sums) {
                            *s += f64::from(*k) * d;
                            *sum += *s * f64::from(*q);
                        }
                    }
                    out.extend(sums);
                }
            }
            out
        });
        Case {
            heads,
            inputs: [&q, &k, &v, &decay, &beta].map(|values| gpu.upload(values).unwrap()),
            states,
            out,
            after,
        }
    }

    fn inputs(&self) -> LinearInputs<rocmforge_gpu::Slice<'_, f32>> {
        let [q, k, v, decay, beta] = self.inputs.each_ref().map(Buffer::as_slice);
        LinearInputs {
            q,
            k,
            v,
            decay,
            beta,
        }
    }

    /// Returns the outputs and the states after a launch.
    fn run(&self, gpu: &Gpu, sequences: &[Sequence]) -> (Vec<f32>, Vec<f32>) {
        let width = self.heads.n_heads * self.heads.v_dim;
        let ([out], states) = run(
            gpu,
            sequences,
            &self.states,
            [width],
            |places, states, [out]| {
                let how = (&self.heads, StateRule::Delta, Decay::Head);
                ops::linear_attention(gpu, how, self.inputs(), places, states, out).unwrap();
            },
        );
        (out, states)
    }

    /// Returns the greatest errors of outputs and of states, each relative to the largest value of its column.
    fn errors(&self, out: &[f32], states: &[f32]) -> [f64; 2] {
        let columns = self.heads.columns();
        let of_block = self.heads.k_dim * columns;
        let of_out = error(out, &self.out, |i| {
            i % (self.heads.n_heads * self.heads.v_dim)
        });
        let of_states = error(states, &self.after, |i| {
            i / of_block * columns + i % columns
        });
        [of_out, of_states]
    }
}

/// Returns the greatest error of values, relative to the largest one of its column.
fn error(got: &[f32], wanted: &[f64], column: impl Fn(usize) -> usize) -> f64 {
    assert_eq!(got.len(), wanted.len(), "as many values");
    let n = (0..wanted.len())
        .map(&column)
        .max()
        .map_or(0, |last| last + 1);
    let (mut largest, mut errors) = (vec![0.0f64; n], vec![0.0f64; n]);
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let (of, error) = (column(i), (f64::from(*got) - wanted).abs());
        assert!(!error.is_nan(), "value {i} is {got}, not {wanted}");
        largest[of] = largest[of].max(wanted.abs());
        errors[of] = errors[of].max(error);
    }
    let relative = errors
        .iter()
        .zip(largest)
        .map(|(error, largest)| match *error {
            0.0 => 0.0,
            error => error / largest,
        });
    relative.fold(0.0, f64::max)
}

fn check(errors: [f64; 2], bound: f64, what: &str) {
    println!("{what}: {:.1e} {:.1e}", errors[0], errors[1]);
    let is_near = errors.iter().all(|error| *error <= bound);
    assert!(is_near, "{what}: {errors:?}");
}

fn heads([n_heads, n_k_heads, k_dim, v_dim]: [usize; 4], sharing: KeySharing) -> LinearHeads {
    LinearHeads {
        n_heads,
        n_k_heads,
        k_dim,
        v_dim,
        sharing,
    }
}

/// A device that computes in chunks; `turn` says which one.
fn with_chunks(turn: usize) -> Option<Gpu> {
    let heads = heads([1, 1, 64, 32], KeySharing::Neighbours);
    let how = (&heads, StateRule::Delta, Decay::<()>::Head);
    common::gpus_from(turn).find(|gpu| ops::is_in_chunks(gpu, how, 32).unwrap())
}

/// A sequence from zeros.
fn alone(n_rows: u32) -> [Sequence; 1] {
    [Sequence {
        n_rows,
        slot: 2,
        start: SeqState::EMPTY,
        kept: &[],
    }]
}

fn check_long(gpu: &Gpu, n_rows: u32, of: ([usize; 4], Inputs)) {
    let (heads, what) = (heads(of.0, KeySharing::Neighbours), of.1);
    let sequences = alone(n_rows);
    let case = Case::new(
        gpu,
        &sequences,
        (heads, what),
        (None, &mut Random(n_rows.into())),
    );
    let (out, states) = case.run(gpu, &sequences);
    // Where all keys are the same, what remains of values may be far smaller than they.
    let bound = if what == Inputs::Same { 1e-3 } else { BOUND };
    let name = format!("{} {what:?} {n_rows} {:?}", common::name(gpu), of.0);
    check(case.errors(&out, &states), bound, &name);
}

/// Each kind of inputs on another device.
#[test]
fn thousands_of_rows_stay_near_the_recurrence() {
    for (turn, what) in ALL.into_iter().enumerate() {
        if let Some(gpu) = with_chunks(turn) {
            let n_rows = if what == Inputs::Usual { 8000 } else { 1000 };
            check_long(&gpu, n_rows, ([1, 1, 64, 32], what));
        }
    }
}

#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn all_inputs_stay_near_the_recurrence() {
    for gpu in common::gpus() {
        for what in ALL {
            check_long(&gpu, 8000, ([1, 1, 64, 32], what));
            check_long(&gpu, 2000, ([1, 1, 128, 32], what));
        }
    }
}

/// Heads, heads of keys, and the lengths of a key and a value.
const HEADS: [([usize; 4], KeySharing); 4] = [
    ([4, 2, 64, 32], KeySharing::Strided),
    ([4, 2, 64, 80], KeySharing::Neighbours),
    ([1, 1, 128, 128], KeySharing::Strided),
    ([2, 1, 128, 48], KeySharing::Neighbours),
];

/// Two of them begin from slot 1, one of those with fewer rows than a chunk. Copies divide chunks.
const SEQUENCES: [Sequence; 6] = [
    Sequence {
        n_rows: 1,
        slot: 0,
        start: 0,
        kept: &[],
    },
    Sequence {
        n_rows: 101,
        slot: 2,
        start: SeqState::EMPTY,
        kept: &[(2, 3), (34, 4), (64, 5), (101, 6)],
    },
    Sequence {
        n_rows: 0,
        slot: SeqState::EMPTY,
        start: SeqState::EMPTY,
        kept: &[],
    },
    Sequence {
        n_rows: 33,
        slot: 7,
        start: 1,
        kept: &[(0, 8)],
    },
    Sequence {
        n_rows: 31,
        slot: 9,
        start: 1,
        kept: &[],
    },
    Sequence {
        n_rows: 64,
        slot: 10,
        start: SeqState::EMPTY,
        kept: &[],
    },
];

/// Each of the heads on another device.
#[test]
fn sequences_of_several_lengths_share_a_launch() {
    for (turn, (widths, sharing)) in HEADS.into_iter().enumerate() {
        if let Some(gpu) = with_chunks(turn) {
            let (heads, random) = (heads(widths, sharing), &mut Random(turn as u64));
            let what = format!("{} {heads:?}", common::name(&gpu));
            let case = Case::new(&gpu, &SEQUENCES, (heads, Inputs::Wide), (None, random));
            let (out, states) = case.run(&gpu, &SEQUENCES);
            check(case.errors(&out, &states), BOUND, &what);
            let len = heads.state_len();
            let is_same = |a: &[f32], b: &[f32], slot: usize| {
                let range = slot * len..(slot + 1) * len;
                a[range.clone()] == b[range]
            };
            assert!(
                is_same(&states, &case.states, 1),
                "{what}: nothing writes slot 1"
            );
            // Sequences of few rows have the bits that the recurrence gives them.
            let by_rows = gpu.with_variants("linear=rows".parse().unwrap());
            let (out_by_rows, states_by_rows) = case.run(&by_rows, &SEQUENCES);
            for slot in [0, 9] {
                assert!(
                    is_same(&states, &states_by_rows, slot),
                    "{what}: slot {slot}"
                );
            }
            let width = heads.n_heads * heads.v_dim;
            for rows in [0..1, 135..166] {
                let range = rows.start * width..rows.end * width;
                assert!(
                    out[range.clone()] == out_by_rows[range],
                    "{what}: rows {rows:?}"
                );
            }
            check(case.errors(&out_by_rows, &states_by_rows), BOUND, &what);
        }
    }
}

/// A sequence in launches of several lengths, each from the state that the one before left.
#[test]
fn states_go_from_launch_to_launch() {
    for gpu in common::gpus() {
        for (widths, launches) in [
            ([2, 2, 64, 48], &[70, 5, 32, 96, 45][..]),
            ([1, 1, 128, 32], &[48, 33][..]),
        ] {
            let heads = heads(widths, KeySharing::Strided);
            let mut states = vec![0.0; N_SLOTS * heads.state_len()];
            let mut random = Random(5);
            for (i, &n_rows) in launches.iter().enumerate() {
                let sequences = [Sequence {
                    n_rows,
                    slot: 3,
                    start: if i == 0 { SeqState::EMPTY } else { 3 },
                    kept: &[],
                }];
                let of = (Some(states), &mut random);
                let case = Case::new(&gpu, &sequences, (heads, Inputs::Lasting), of);
                let (out, after) = case.run(&gpu, &sequences);
                let what = format!("{} {widths:?} launch {i}", common::name(&gpu));
                check(case.errors(&out, &after), BOUND, &what);
                states = after;
            }
        }
    }
}

/// The delta rule with a factor for each head, of as many rows as a chunk has, and not where rows have the same bits in any
/// company.
#[test]
fn long_sequences_are_computed_in_chunks() {
    for gpu in common::gpus_with(&["linear=rows", "rows=prompt", "rows=answer", "loads=narrow"]) {
        let heads = heads([1, 1, 64, 32], KeySharing::Strided);
        let has_units = !gpu.target().contains("gfx10");
        let is_on = gpu.variants().is_empty() && has_units;
        for (n_rows, in_chunks) in [(1, false), (31, false), (32, is_on), (40, is_on)] {
            let sequences = alone(n_rows);
            let of = (None, &mut Random(1));
            let case = Case::new(&gpu, &sequences, (heads, Inputs::Usual), of);
            let kernels = common::kernels(&gpu, || {
                case.run(&gpu, &sequences);
                Ok(())
            });
            let wanted = if in_chunks {
                "delta_chunks_64"
            } else {
                "linear_attention_2"
            };
            let is_it = kernels.iter().all(|kernel| *kernel == wanted);
            assert!(
                is_it && !kernels.is_empty(),
                "{} {n_rows}: {kernels:?}",
                common::name(&gpu)
            );
        }
    }
}
