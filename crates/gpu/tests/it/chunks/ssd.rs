//! Mamba-2: values are added as they are, with a factor for each head. Keys and queries may have any length.

use rocmforge_gpu::Gpu;
use rocmforge_plan::{Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use super::{
    BOUND, Case, How, SEQUENCES, check, check_kernels, check_rows, check_sequences, heads,
    random_states, with_chunks,
};
use crate::common;
use crate::common::weights::Random;
use crate::recurrent::{N_PADDING, Sequence, n_rows};

/// What inputs are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Inputs {
    /// Heads forget slowly or fast.
    Usual,
    /// Almost nothing decays.
    Lasting,
    /// Nothing decays, and all keys are the same: states grow.
    Same,
    /// Some rows decay to nothing, others little.
    Forgetting,
    /// Columns of values from 1e-6 to 1e6.
    Loud,
    /// Keys and queries a thousandth or a thousand times as long as usual.
    Short,
    Long,
    /// Keys and queries of rows have lengths from 1e-3 to 1e3, and so have their channels.
    Uneven,
    /// Some keys, queries and values are zeros.
    Sparse,
}

const ALL: [Inputs; 9] = [
    Inputs::Usual,
    Inputs::Lasting,
    Inputs::Same,
    Inputs::Forgetting,
    Inputs::Loud,
    Inputs::Short,
    Inputs::Long,
    Inputs::Uneven,
    Inputs::Sparse,
];

fn between(random: &mut Random, low: f32, high: f32) -> f32 {
    low + (high - low) * (random.value() + 1.0) / 2.0
}

impl Inputs {
    /// Returns decay and beta of a row.
    fn factors(self, random: &mut Random) -> [f32; 2] {
        let mut between = |low: f32, high: f32| between(random, low, high);
        let beta = between(-5.0, 1.0).exp();
        let decay = match self {
            Inputs::Lasting => -between(0.0, 1e-4),
            Inputs::Same => 0.0,
            Inputs::Forgetting => match between(0.0, 1.0) {
                0.7.. => -between(50.0, 1e4),
                0.5..0.7 => -between(0.0, 20.0),
                _ => -between(0.0, 0.1),
            },
            _ => -between(-8.0, 1.0).exp(),
        };
        [decay, beta]
    }

    /// Returns a key or a query.
    fn key(self, k_dim: usize, random: &mut Random) -> Vec<f32> {
        let of_row = match self {
            Inputs::Short => 1e-3,
            Inputs::Long => 1e3,
            Inputs::Uneven => 10f32.powf(3.0 * random.value()),
            Inputs::Sparse if random.value() < 0.0 => 0.0,
            _ => 1.0,
        };
        let value = |channel: usize| match self {
            Inputs::Same => ((channel % 7) as f32 - 2.5) / 3.0,
            Inputs::Uneven => random.value() * of_row * 10f32.powi(channel as i32 % 7 - 3),
            _ => random.value() * of_row,
        };
        (0..k_dim).map(value).collect()
    }

    fn value(self, column: usize, random: &mut Random) -> f32 {
        match self {
            Inputs::Loud => random.value() * 10f32.powi(column as i32 % 13 - 6),
            Inputs::Sparse => random.value().max(0.0),
            _ => random.value(),
        }
    }
}

fn how(widths: [usize; 4], sharing: KeySharing) -> How {
    (heads(widths, sharing), StateRule::Add, Decay::Head)
}

fn inputs(
    heads: &LinearHeads,
    n_rows: usize,
    what: Inputs,
    random: &mut Random,
) -> LinearInputs<Vec<f32>> {
    let LinearHeads {
        n_heads,
        n_k_heads,
        k_dim,
        v_dim,
        ..
    } = *heads;
    let n_rows = n_rows + N_PADDING;
    let mut keys = || {
        let rows = (0..n_rows * n_k_heads).flat_map(|_| what.key(k_dim, random));
        rows.collect::<Vec<f32>>()
    };
    let (q, k) = (keys(), keys());
    let v = (0..n_rows * n_heads * v_dim).map(|i| what.value(i % v_dim, random));
    let v = v.collect();
    let factors = (0..n_rows * n_heads).map(|_| what.factors(random));
    let (decay, beta) = factors.map(|[decay, beta]| (decay, beta)).unzip();
    LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    }
}

fn check_long(gpu: &Gpu, n_rows: u32, (widths, what): ([usize; 4], Inputs)) {
    let how = how(widths, KeySharing::Neighbours);
    // Where all keys are the same, what remains of a column may be far smaller than it was before.
    let bound = if what == Inputs::Same { 1e-3 } else { BOUND };
    let of = (bound, &*format!("{what:?} {widths:?}"));
    check_rows(gpu, (n_rows, how), of, |heads, n_rows, random| {
        inputs(heads, n_rows, what, random)
    });
}

/// Each kind of inputs on another device.
#[test]
fn thousands_of_rows_stay_near_the_recurrence() {
    for (turn, what) in ALL.into_iter().enumerate() {
        let widths = [1, 1, 64, 32];
        if let Some(gpu) = with_chunks(how(widths, KeySharing::Neighbours), turn) {
            let n_rows = if what == Inputs::Usual { 8000 } else { 300 };
            check_long(&gpu, n_rows, (widths, what));
        }
    }
}

#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn all_inputs_stay_near_the_recurrence() {
    for gpu in common::gpus() {
        for what in ALL {
            for k_dim in [64, 128, 256] {
                check_long(&gpu, 8000, ([1, 1, k_dim, 32], what));
            }
        }
    }
}

/// Heads, heads of keys, and the lengths of a key and a value.
const HEADS: [[usize; 4]; 4] = [
    [2, 2, 64, 32],
    [2, 1, 64, 80],
    [1, 1, 128, 48],
    [1, 1, 256, 48],
];

/// Each of the heads on another device.
#[test]
fn sequences_of_several_lengths_share_a_launch() {
    for (turn, widths) in HEADS.into_iter().enumerate() {
        let how = how(widths, KeySharing::Neighbours);
        if let Some(gpu) = with_chunks(how, turn) {
            let random = &mut Random(turn as u64);
            let inputs = inputs(&how.0, n_rows(&SEQUENCES), Inputs::Usual, random);
            let states = random_states(&how.0, random, |_| 1.0);
            let case = Case::new(&gpu, &SEQUENCES, how, (&inputs, states));
            check_sequences(&gpu, &case, &format!("{} {how:?}", common::name(&gpu)));
        }
    }
}

/// The parts of a column may have values of any size: one of zeros has the largest scale.
#[test]
fn a_state_may_be_zero_in_part() {
    let how = how([1, 1, 256, 32], KeySharing::Neighbours);
    for gpu in common::gpus() {
        let sequences = [Sequence {
            n_rows: 40,
            slot: 3,
            start: 1,
            kept: &[],
        }];
        let random = &mut Random(3);
        let mut inputs = inputs(&how.0, 40, Inputs::Usual, random);
        inputs.v.fill(0.0);
        let mut states = random_states(&how.0, random, |_| 1e4);
        for state in states.chunks_exact_mut(how.0.state_len()) {
            state[..128 * 32].fill(0.0);
        }
        let case = Case::new(&gpu, &sequences, how, (&inputs, states));
        let (out, states) = case.run(&gpu, &sequences);
        check(case.errors(&out, &states), BOUND, &common::name(&gpu));
    }
}

#[test]
fn long_sequences_are_computed_in_chunks() {
    let how = how([1, 1, 64, 32], KeySharing::Neighbours);
    let case = |gpu: &Gpu, sequences: &[Sequence]| {
        let random = &mut Random(1);
        let inputs = inputs(&how.0, n_rows(sequences), Inputs::Usual, random);
        let states = random_states(&how.0, random, |_| 1.0);
        Case::new(gpu, sequences, how, (&inputs, states))
    };
    check_kernels(case, "ssd_chunks_64", "linear_attention_2");
}
