//! The gated delta rule with a factor for each head.

use rocmforge_gpu::{Gpu, SeqState};
use rocmforge_plan::{Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use super::{
    BOUND, Case, How, SEQUENCES, alone, check, check_kernels, check_sequences, heads, key_near,
    random_states, with_chunks,
};
use crate::common;
use crate::common::weights::Random;
use crate::recurrent::{N_PADDING, Sequence, n_rows};

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
        key_near(direction, [of_direction, share], random)
    }

    fn value(self, column: usize, random: &mut Random) -> f32 {
        match self {
            Inputs::Loud => random.value() * 10f32.powi(column as i32 % 13 - 6),
            _ => random.value(),
        }
    }
}

fn how(widths: [usize; 4], sharing: KeySharing) -> How {
    (heads(widths, sharing), StateRule::Delta, Decay::Head)
}

/// Returns the inputs of a case, and the states before it if there are none yet.
fn case(
    gpu: &Gpu,
    sequences: &[Sequence],
    (how, what): (How, Inputs),
    (states, random): (Option<Vec<f32>>, &mut Random),
) -> Case {
    let LinearHeads {
        n_heads,
        n_k_heads,
        k_dim,
        v_dim,
        ..
    } = how.0;
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
    let (decay, beta): (Vec<f32>, Vec<f32>) = factors.map(|[decay, beta]| (decay, beta)).unzip();
    let states = states.unwrap_or_else(|| {
        let of_columns = &mut Random(7);
        random_states(&how.0, random, |column| what.value(column, of_columns))
    });
    let inputs = LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    };
    Case::new(gpu, sequences, how, (&inputs, states))
}

fn check_long(gpu: &Gpu, n_rows: u32, (widths, what): ([usize; 4], Inputs)) {
    let how = how(widths, KeySharing::Neighbours);
    let sequences = alone(n_rows);
    let random = &mut Random(n_rows.into());
    let case = case(gpu, &sequences, (how, what), (None, random));
    let (out, states) = case.run(gpu, &sequences);
    // Where all keys are the same, what remains of values may be far smaller than they.
    let bound = if what == Inputs::Same { 1e-3 } else { BOUND };
    let name = format!("{} {what:?} {n_rows} {widths:?}", common::name(gpu));
    check(case.errors(&out, &states), bound, &name);
}

/// Each kind of inputs on another device.
#[test]
fn thousands_of_rows_stay_near_the_recurrence() {
    for (turn, what) in ALL.into_iter().enumerate() {
        let widths = [1, 1, 64, 32];
        if let Some(gpu) = with_chunks(how(widths, KeySharing::Neighbours), turn) {
            let n_rows = if what == Inputs::Usual { 8000 } else { 1000 };
            check_long(&gpu, n_rows, (widths, what));
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

/// Each of the heads on another device.
#[test]
fn sequences_of_several_lengths_share_a_launch() {
    for (turn, (widths, sharing)) in HEADS.into_iter().enumerate() {
        let how = how(widths, sharing);
        if let Some(gpu) = with_chunks(how, turn) {
            let random = &mut Random(turn as u64);
            let case = case(&gpu, &SEQUENCES, (how, Inputs::Wide), (None, random));
            check_sequences(&gpu, &case, &format!("{} {how:?}", common::name(&gpu)));
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
            let how = how(widths, KeySharing::Strided);
            let mut states = random_states(&how.0, &mut Random(0), |_| 0.0);
            let mut random = Random(5);
            for (i, &n_rows) in launches.iter().enumerate() {
                let sequences = [Sequence {
                    n_rows,
                    slot: 3,
                    start: if i == 0 { SeqState::EMPTY } else { 3 },
                    kept: &[],
                }];
                let of = (Some(states), &mut random);
                let case = case(&gpu, &sequences, (how, Inputs::Lasting), of);
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
    let how = how([1, 1, 64, 32], KeySharing::Strided);
    let case = |gpu: &Gpu, sequences: &[Sequence]| {
        let of = (None, &mut Random(1));
        case(gpu, sequences, (how, Inputs::Usual), of)
    };
    check_kernels(case, "delta_chunks_64", "linear_attention_2");
}
