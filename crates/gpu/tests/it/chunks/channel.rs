//! The delta rule with a factor for each channel of keys.

use rocmforge_gpu::{Gpu, SeqState};
use rocmforge_plan::{Decay, KeySharing, LinearHeads, LinearInputs, StateRule};

use super::{
    BOUND, Case, How, SEQUENCES, check, check_kernels, check_rows, check_sequences, heads,
    key_near, random_states, with_chunks,
};
use crate::common;
use crate::common::weights::Random;
use crate::recurrent::{N_PADDING, Sequence, n_rows};

/// What inputs are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Inputs {
    /// Channels forget slowly or fast; values are replaced in part.
    Usual,
    /// Almost nothing decays, values are replaced whole, and keys are almost the same.
    Alike,
    /// Channels of some rows decay to nothing, others little.
    Forgetting,
    /// All channels of some rows decay to nothing, and half of the channels always.
    Strong,
    /// Columns of values from 1e-6 to 1e6.
    Loud,
}

const ALL: [Inputs; 5] = [
    Inputs::Usual,
    Inputs::Alike,
    Inputs::Forgetting,
    Inputs::Strong,
    Inputs::Loud,
];

fn between(random: &mut Random, low: f32, high: f32) -> f32 {
    low + (high - low) * (random.value() + 1.0) / 2.0
}

impl Inputs {
    /// Returns the decays of a row.
    fn decays(self, k_dim: usize, random: &mut Random) -> Vec<f32> {
        let is_strong = random.value() > 0.6;
        let decay = |channel: usize| match self {
            Inputs::Usual | Inputs::Loud => -between(random, -8.0, 1.0).exp(),
            Inputs::Alike => -between(random, 0.0, 1e-4),
            Inputs::Forgetting => match between(random, 0.0, 1.0) {
                0.9.. => -between(random, 50.0, 1e4),
                0.5..0.9 => -between(random, 0.0, 20.0),
                _ => -between(random, 0.0, 0.1),
            },
            Inputs::Strong if is_strong || channel.is_multiple_of(2) => -between(random, 80.0, 1e4),
            Inputs::Strong => 0.0,
        };
        (0..k_dim).map(decay).collect()
    }

    fn beta(self, random: &mut Random) -> f32 {
        match self {
            Inputs::Alike => between(random, 0.99, 1.0),
            _ => between(random, 0.0, 1.0),
        }
    }

    /// Returns a key of length 1, near `direction` if keys are alike.
    fn key(self, direction: &[f32], random: &mut Random) -> Vec<f32> {
        let [of_direction, share] = match self {
            Inputs::Alike => [1.0, 0.1],
            _ => [0.0, 1.0],
        };
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
    (heads(widths, sharing), StateRule::Delta, Decay::Channel)
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
    let direction = random.values(k_dim);
    let n_keys = n_rows * n_k_heads;
    let k = (0..n_keys).flat_map(|_| what.key(&direction, random));
    let k = k.collect();
    let q = (0..n_keys).flat_map(|_| Inputs::Usual.key(&direction, random));
    let q = q.map(|x| x / (k_dim as f32).sqrt()).collect();
    let v = (0..n_rows * n_heads * v_dim).map(|i| what.value(i % v_dim, random));
    let v = v.collect();
    let decay = (0..n_rows * n_heads).flat_map(|_| what.decays(k_dim, random));
    let decay = decay.collect();
    let beta = (0..n_rows * n_heads).map(|_| what.beta(random)).collect();
    LinearInputs {
        q,
        k,
        v,
        decay,
        beta,
    }
}

fn check_long(gpu: &Gpu, n_rows: u32, what: Inputs) {
    let how = how([1, 1, 128, 32], KeySharing::Neighbours);
    let of = (BOUND, &*format!("{what:?}"));
    check_rows(gpu, (n_rows, how), of, |heads, n_rows, random| {
        inputs(heads, n_rows, what, random)
    });
}

/// Each kind of inputs on another device.
#[test]
fn thousands_of_rows_stay_near_the_recurrence() {
    let how = how([1, 1, 128, 32], KeySharing::Neighbours);
    for (turn, what) in ALL.into_iter().enumerate() {
        if let Some(gpu) = with_chunks(how, turn) {
            let n_rows = if what == Inputs::Usual { 2000 } else { 300 };
            check_long(&gpu, n_rows, what);
        }
    }
}

#[test]
#[ignore = "exhaustive: run by .ci/run --full"]
fn all_inputs_stay_near_the_recurrence() {
    for gpu in common::gpus() {
        for what in ALL {
            check_long(&gpu, 8000, what);
        }
    }
}

/// Each of the heads on another device.
#[test]
fn sequences_of_several_lengths_share_a_launch() {
    let all = [
        ([2, 1, 128, 32], KeySharing::Neighbours),
        ([1, 1, 128, 80], KeySharing::Strided),
    ];
    for (turn, (widths, sharing)) in all.into_iter().enumerate() {
        let how = how(widths, sharing);
        if let Some(gpu) = with_chunks(how, turn) {
            let random = &mut Random(turn as u64);
            let inputs = inputs(&how.0, n_rows(&SEQUENCES), Inputs::Usual, random);
            let states = random_states(&how.0, random, |_| 1.0);
            let case = Case::new(&gpu, &SEQUENCES, how, (&inputs, states));
            check_sequences(&gpu, &case, &format!("{} {how:?}", common::name(&gpu)));
        }
    }
}

/// A sequence in launches of several lengths, each from the state that the one before left.
#[test]
fn states_go_from_launch_to_launch() {
    let how = how([1, 1, 128, 32], KeySharing::Neighbours);
    for gpu in common::gpus() {
        let random = &mut Random(5);
        let mut states = random_states(&how.0, random, |_| 0.0);
        for (i, n_rows) in [70, 5, 33].into_iter().enumerate() {
            let sequences = [Sequence {
                n_rows,
                slot: 3,
                start: if i == 0 { SeqState::EMPTY } else { 3 },
                kept: &[],
            }];
            let inputs = inputs(&how.0, n_rows as usize, Inputs::Alike, random);
            let case = Case::new(&gpu, &sequences, how, (&inputs, states));
            let (out, after) = case.run(&gpu, &sequences);
            let what = format!("{} launch {i}", common::name(&gpu));
            check(case.errors(&out, &after), BOUND, &what);
            states = after;
        }
    }
}

#[test]
fn long_sequences_are_computed_in_chunks() {
    let how = how([1, 1, 128, 32], KeySharing::Neighbours);
    let case = |gpu: &Gpu, sequences: &[Sequence]| {
        let random = &mut Random(1);
        let inputs = inputs(&how.0, n_rows(sequences), Inputs::Usual, random);
        let states = random_states(&how.0, random, |_| 1.0);
        Case::new(gpu, sequences, how, (&inputs, states))
    };
    check_kernels(case, "channel_chunks_128", "channel_decay_4");
}
