//! Linear attention in chunks, against the recurrence in f64: usual and hostile inputs over thousands of rows, sequences
//! of several lengths in one launch, and states that go from one launch to the next.

mod channel;
mod delta;
mod ssd;

use rocmforge_gpu::{Buffer, Gpu, SeqState, ops};
use rocmforge_plan::{Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use crate::common;
use crate::common::weights::Random;
use crate::recurrent::{N_SLOTS, Sequence, expected, run};

/// Greatest error of a column of outputs or of a state, relative to its largest value. Chunks and the recurrence are about
/// as exact.
const BOUND: f64 = 3e-5;

/// The heads, the rule, and what decays.
type How = (LinearHeads, StateRule, Decay<()>);

/// Inputs of all rows, states before them, and what follows from them.
struct Case {
    how: How,
    inputs: [Buffer; 5],
    states: Vec<f32>,
    out: Vec<f64>,
    after: Vec<f64>,
}

impl Case {
    /// `inputs` are those of all sequences, and of the rows of no sequence behind them.
    fn new(
        gpu: &Gpu,
        sequences: &[Sequence],
        how: How,
        (inputs, states): (&LinearInputs<Vec<f32>>, Vec<f32>),
    ) -> Case {
        let (heads, ..) = how;
        let len = heads.state_len();
        let width = heads.n_heads * heads.v_dim;
        let (out, after) = expected(sequences, (&states, len), width, |state, row| {
            pass_row(how, inputs, state, row)
        });
        let LinearInputs {
            q,
            k,
            v,
            decay,
            beta,
        } = inputs;
        Case {
            how,
            inputs: [q, k, v, decay, beta].map(|values| gpu.upload(values).unwrap()),
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
        let (heads, rule, decay) = &self.how;
        let width = heads.n_heads * heads.v_dim;
        let ([out], states) = run(
            gpu,
            sequences,
            &self.states,
            [width],
            |places, states, [out]| {
                let of = decay.map(|()| unreachable!("values do not decay on their own"));
                let how = (heads, *rule, of);
                ops::linear_attention(gpu, how, self.inputs(), places, states, out).unwrap();
            },
        );
        (out, states)
    }

    /// Returns the greatest errors of outputs and of states, each relative to the largest value of its column.
    fn errors(&self, out: &[f32], states: &[f32]) -> [f64; 2] {
        let (heads, ..) = self.how;
        let columns = heads.columns();
        let of_block = heads.k_dim * columns;
        let of_out = error(out, &self.out, |i| i % (heads.n_heads * heads.v_dim));
        let of_states = error(states, &self.after, |i| {
            i / of_block * columns + i % columns
        });
        [of_out, of_states]
    }
}

/// Passes a row through a state, in f64; returns its outputs.
fn pass_row(
    (heads, rule, of): How,
    inputs: &LinearInputs<Vec<f32>>,
    state: &mut [f64],
    row: usize,
) -> Vec<f64> {
    let LinearHeads {
        n_heads,
        n_k_heads,
        k_dim,
        v_dim,
        ..
    } = heads;
    let columns = heads.columns();
    let n_decays = if of == Decay::Channel { k_dim } else { 1 };
    let mut out = Vec::with_capacity(n_heads * v_dim);
    for (head, state) in state.chunks_exact_mut(heads.head_len()).enumerate() {
        let key = (row * n_k_heads + heads.key_head(head)) * k_dim;
        let [k, q] = [&inputs.k, &inputs.q].map(|keys| &keys[key..][..k_dim]);
        let of_head = row * n_heads + head;
        let beta = f64::from(inputs.beta[of_head]);
        let factors = inputs.decay[of_head * n_decays..][..n_decays].iter();
        let factors: Vec<f64> = factors.map(|decay| f64::from(*decay).exp()).collect();
        let v = &inputs.v[of_head * v_dim..][..v_dim];
        for (block, v) in state
            .chunks_exact_mut(k_dim * columns)
            .zip(v.chunks(columns))
        {
            let mut known = vec![0.0; columns];
            let factors = factors.iter().cycle();
            for ((row, k), factor) in block.chunks_exact_mut(columns).zip(k).zip(factors) {
                for (s, known) in row.iter_mut().zip(&mut known) {
                    *s *= factor;
                    *known += *s * f64::from(*k);
                }
            }
            if rule == StateRule::Add {
                known.fill(0.0);
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
}

/// Returns random states for all slots, each value times that of its column; zeros behind the last column.
fn random_states(
    heads: &LinearHeads,
    random: &mut Random,
    mut of_column: impl FnMut(usize) -> f32,
) -> Vec<f32> {
    let columns = heads.columns();
    let of_block = heads.k_dim * columns;
    let mut states = random.values(N_SLOTS * heads.state_len());
    for (i, x) in states.iter_mut().enumerate() {
        let column = i % heads.head_len() / of_block * columns + i % columns;
        *x *= if column < heads.v_dim {
            of_column(column)
        } else {
            0.0
        };
    }
    states
}

/// Returns a key of length 1: the sum of `direction` and random values, times these factors.
fn key_near(direction: &[f32], [of_direction, share]: [f32; 2], random: &mut Random) -> Vec<f32> {
    let mixed = direction.iter();
    let mixed = mixed.map(|x| of_direction * x + share * random.value());
    let mixed: Vec<f32> = mixed.collect();
    let len = mixed.iter().map(|x| x * x).sum::<f32>().sqrt();
    mixed.iter().map(|x| x / len).collect()
}

/// Checks a sequence of so many rows, of which `inputs` makes the inputs.
fn check_rows(
    gpu: &Gpu,
    (n_rows, how): (u32, How),
    (bound, what): (f64, &str),
    inputs: impl FnOnce(&LinearHeads, usize, &mut Random) -> LinearInputs<Vec<f32>>,
) {
    let sequences = alone(n_rows);
    let random = &mut Random(n_rows.into());
    let inputs = inputs(&how.0, n_rows as usize, random);
    let states = random_states(&how.0, random, |_| 1.0);
    let case = Case::new(gpu, &sequences, how, (&inputs, states));
    let (out, states) = case.run(gpu, &sequences);
    let name = format!("{} {what} {n_rows}", common::name(gpu));
    check(case.errors(&out, &states), bound, &name);
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
fn with_chunks((heads, rule, decay): How, turn: usize) -> Option<Gpu> {
    common::gpus_from(turn).find(|gpu| ops::is_in_chunks(gpu, (&heads, rule, decay), 32).unwrap())
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

/// Checks a launch of [`SEQUENCES`]: those of few rows have the bits that the recurrence gives them.
fn check_sequences(gpu: &Gpu, case: &Case, what: &str) {
    let (heads, ..) = case.how;
    let (out, states) = case.run(gpu, &SEQUENCES);
    check(case.errors(&out, &states), BOUND, what);
    let len = heads.state_len();
    let is_same = |a: &[f32], b: &[f32], slot: usize| {
        let range = slot * len..(slot + 1) * len;
        a[range.clone()] == b[range]
    };
    assert!(
        is_same(&states, &case.states, 1),
        "{what}: nothing writes slot 1"
    );
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
    check(case.errors(&out_by_rows, &states_by_rows), BOUND, what);
}

/// Checks that launches are of `chunks` from [`ops::CHUNK_ROWS`] rows on, and of `rows` before; of the latter only, where rows
/// have the same bits in any company. `case` makes the inputs of a number of rows.
fn check_kernels(case: impl Fn(&Gpu, &[Sequence]) -> Case, chunks: &str, rows: &str) {
    for gpu in common::gpus_with(&["linear=rows", "rows=prompt", "rows=answer", "loads=narrow"]) {
        let has_units = !gpu.target().contains("gfx10") && gpu.target() != "host-quick";
        let is_on = gpu.variants().is_empty() && has_units;
        for (n_rows, in_chunks) in [(1, false), (31, false), (32, is_on), (40, is_on)] {
            let sequences = alone(n_rows);
            let case = case(&gpu, &sequences);
            let kernels = common::kernels(&gpu, || {
                case.run(&gpu, &sequences);
                Ok(())
            });
            let wanted = if in_chunks { chunks } else { rows };
            let is_it = kernels.iter().all(|kernel| *kernel == wanted);
            assert!(
                is_it && !kernels.is_empty(),
                "{} {n_rows}: {kernels:?}",
                common::name(&gpu)
            );
        }
    }
}
