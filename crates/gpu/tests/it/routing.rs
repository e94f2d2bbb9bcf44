//! Routing of tokens to experts, and gathering and combining their rows, against plain loops.

use crate::common;
use crate::common::any_order;
use crate::common::mixture::{Choices, Logits, NONE, Step};
use crate::common::weights::Random;
use rocmforge_gpu::ops::{
    self, ExpertGroups, ExpertScores, ExpertTile, ExpertVectors, ExpertWeights, Routing,
    RoutingBuffer, SharedWeight, Weighed,
};
use rocmforge_gpu::{ActFormat, ActsBuffer, Gpu, OutMode};

/// Rows per tile, for each kind of tile.
const TILE_ROWS: [usize; 3] = [4, 32, 128];

/// `[n_tokens, n_experts, n_used]`, logits, weights, and the index of a padding token.
const ROUTES: [([usize; 3], Logits, ExpertWeights, Option<usize>); 25] = {
    use ExpertWeights::{Normalized, Scores};
    [
        ([1, 8, 2], Logits::Random, Normalized, None),
        ([5, 128, 8], Logits::Random, Normalized, Some(4)),
        ([64, 60, 4], Logits::Random, Scores, Some(0)),
        ([65, 300, 10], Logits::Crowd, Scores, Some(33)),
        ([130, 4, 4], Logits::Ties, Normalized, None),
        ([3, 1024, 1], Logits::Ties, Scores, None),
        ([9, 40, 7], Logits::Odd, Normalized, Some(8)),
        ([2, 3, 3], Logits::Odd, Normalized, None),
        ([200, 8, 2], Logits::Crowd, Normalized, None),
        ([1, 128, 8], Logits::Ties, Scores, None),
        ([1, 37, 5], Logits::Odd, Normalized, None),
        ([1, 3, 3], Logits::Odd, Scores, None),
        ([1, 100, 32], Logits::Ties, Normalized, None),
        ([1, 64, 4], Logits::Random, Normalized, Some(0)),
        ([1, 300, 33], Logits::Random, Scores, None),
        // As many tokens, experts and choices as a block takes, and one more.
        ([64, 1024, 32], Logits::Random, Normalized, Some(63)),
        ([8, 256, 32], Logits::Ties, Normalized, None),
        ([8, 257, 32], Logits::Random, Scores, Some(3)),
        // As many experts as all waves of a block but one have, of 32 lanes and of 64.
        ([8, 224, 4], Logits::Random, Scores, None),
        ([8, 192, 4], Logits::Random, Normalized, None),
        ([40, 992, 4], Logits::Crowd, Scores, None),
        ([40, 960, 4], Logits::Random, Scores, None),
        ([1, 200, 100], Logits::Random, Normalized, None),
        ([9, 300, 33], Logits::Crowd, Scores, None),
        // More tokens than a block marks at once.
        ([8196, 3, 2], Logits::Random, Normalized, Some(8193)),
    ]
};

#[test]
fn routes_match_reference() {
    for (turn, gpu) in common::gpus().enumerate() {
        let routes = ROUTES.into_iter().enumerate();
        for (i, (shape, kind, weights, filler)) in common::every_second(routes, turn) {
            let mut step = Step::new(shape, kind, &mut Random(i as u64));
            step.router.weights = weights;
            step.router.scale = [1.0, 2.5][i % 2];
            if let Some(filler) = filler {
                step.seq_of_row[filler] = NONE;
            }
            assert_routes(&gpu, &step, &format!("{shape:?} {kind:?} {weights:?}"));
        }
    }
}

/// Other scores than the softmax, a bias for the choice, and groups of experts.
#[test]
fn scores_biases_and_groups_match_reference() {
    use ExpertScores::{Sigmoid, Softmax, SqrtSoftplus};
    let shapes = [[3, 8, 2], [70, 64, 6], [1, 256, 8], [9, 60, 4], [1, 60, 7]];
    for (turn, gpu) in common::gpus().enumerate() {
        for i in common::every_second(0..30, turn) {
            let random = &mut Random(i as u64);
            let shape = shapes[i % 5];
            let mut step = Step::new(shape, Logits::Random, random);
            step.router.scores = [Softmax, Sigmoid, SqrtSoftplus][i % 3];
            step.router.weights = [ExpertWeights::Scores, ExpertWeights::Normalized][i / 3 % 2];
            step.router.scale = 2.5;
            step.bias = (i % 5 != 4).then(|| random.values(shape[1]));
            step.scales = (i % 3 != 2).then(|| random.values(shape[1]));
            step.router.groups = match i / 2 % 3 {
                0 => None,
                1 => Some(ExpertGroups { n: 4, n_used: 2 }),
                _ => Some(ExpertGroups { n: 2, n_used: 1 }),
            };
            assert_routes(&gpu, &step, &format!("{shape:?} {:?}", step.router));
        }
    }
}

/// A shared expert, with and without a gate: for few tokens, for a block of them, and for many.
#[test]
fn shared_experts_are_the_last_choices() {
    let shapes = [
        [1, 8, 2],
        [5, 128, 8],
        [40, 64, 4],
        [90, 1023, 6],
        [3, 4, 4],
    ];
    for (turn, gpu) in common::gpus().enumerate() {
        for (i, shape) in shapes.into_iter().enumerate() {
            for is_gated in common::every_second([false, true], turn + i) {
                let random = &mut Random(i as u64);
                let mut step = Step::new(shape, Logits::Random, random);
                let gates = random.values(shape[0]);
                let shared = match is_gated {
                    false => SharedWeight::One,
                    true => SharedWeight::Sigmoid(gates.iter().map(|x| x * 5.0).collect()),
                };
                step.router.scores = [ExpertScores::Softmax, ExpertScores::Sigmoid][i % 2];
                step.bias = (i % 2 == 1).then(|| random.values(shape[1]));
                step.scales = (i % 3 == 1).then(|| random.values(shape[1]));
                if shape[0] > 1 {
                    step.seq_of_row[1] = NONE;
                }
                let step = step.with_shared(shared);
                assert_routes(&gpu, &step, &format!("{shape:?} with a shared expert"));
            }
        }
    }
}

fn assert_routes(gpu: &Gpu, step: &Step, what: &str) {
    let what = format!("{} {what}", gpu.target());
    let expected = step.choices();
    let words = any_order(|| {
        let buffer = step.route(gpu);
        let routing = buffer.of(step.n_tokens());
        let mut words = gpu.read(routing.experts).unwrap();
        words.extend(gpu.read(routing.weights.cast::<u32>()).unwrap());
        words.extend(gpu.read(routing.rows).unwrap());
        words
    });
    let n = step.n_tokens() * step.n_used;
    assert_eq!(words[..n], expected.experts, "{what}");
    assert_eq!(words[2 * n..], expected.rows, "{what}");
    for (&got, &weight) in words[n..2 * n].iter().zip(&expected.weights) {
        let got = f64::from(f32::from_bits(got));
        let same = got.is_nan() && weight.is_nan();
        let near = (got - weight).abs() <= 2e-6 * f64::from(step.router.scale) * weight.max(1.0);
        assert!(same || near, "{what}: {got}, not {weight}");
    }
    let buffer = step.route(gpu);
    let routing = buffer.of(step.n_tokens());
    let n_rows = gpu.read(routing.n_rows).unwrap();
    assert_eq!(n_rows, [expected.of_row.len() as u32], "{what}");
    let tokens = gpu.read(routing.tokens).unwrap();
    let expected_tokens = expected.of_row.iter().map(|(token, _)| token);
    assert!(
        tokens.iter().zip(expected_tokens).all(|(a, b)| a == b),
        "{what}"
    );
    for (tiles, rows) in routing.tiles.iter().zip(TILE_ROWS) {
        let tiles = gpu.read(*tiles).unwrap();
        assert_tiles(&tiles, &expected, rows, &what);
    }
}

/// Asserts that tiles have up to `rows` consecutive rows of one expert and cover all rows once, in order.
fn assert_tiles(tiles: &[ExpertTile], choices: &Choices, rows: usize, what: &str) {
    let mut next = 0;
    let n_tiles = tiles.iter().filter(|tile| tile.expert != NONE).count();
    for tile in tiles {
        assert_eq!(tile.n_tiles as usize, n_tiles, "{what}: {tile:?}");
        if next == choices.of_row.len() {
            assert_eq!(tile.expert, NONE, "{what}: after the last tile");
            continue;
        }
        let (first, n) = (tile.first_row as usize, tile.n_rows as usize);
        assert_eq!(first, next, "{what}");
        let same = choices.of_row[first..].iter();
        let n_left = same
            .take_while(|(_, expert)| *expert == tile.expert)
            .count();
        assert_eq!(n, n_left.min(rows), "{what}: {tile:?}");
        next += n;
    }
    assert_eq!(next, choices.of_row.len(), "{what}: all rows are in tiles");
}

/// Gathered rows are quantized to the same bits as single rows, and combine to weighted sums.
#[test]
fn gathers_and_combines_rows() {
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (i, (form, width)) in [
            (ActFormat::F32, 100),
            (ActFormat::F32, 97),
            (ActFormat::Q8x32, 2080),
            (ActFormat::Q8x256, 768),
            // More than a block keeps in registers.
            (ActFormat::Q8x256, 4352),
        ]
        .into_iter()
        .enumerate()
        {
            let random = &mut Random(i as u64);
            // Ten choices are more than `combine_norm` reads early.
            let shape = [[7, 5, 3], [7, 12, 10]][i % 2];
            let mut step = Step::new(shape, Logits::Crowd, random);
            step.seq_of_row[2] = NONE;
            let choices = step.choices();
            let (n_tokens, max_rows) = (step.n_tokens(), step.n_tokens() * step.n_used);
            let x = random.values(n_tokens * width);
            let buffer = step.route(&gpu);
            let routing = buffer.of(n_tokens);
            let what = format!("{} {form:?} {width}", common::name(&gpu));

            let weights = gpu.read(routing.weights).unwrap();
            let n_rows = choices.of_row.len();
            for weighed in [Weighed::Outputs, Weighed::Inputs] {
                let weight_of = |row: usize| {
                    let choice = choices.rows.iter().position(|it| *it as usize == row);
                    match weighed {
                        Weighed::Outputs => 1.0,
                        Weighed::Inputs => weights[choice.unwrap()],
                    }
                };
                let rows = choices.of_row.iter().enumerate();
                let gathered = rows.flat_map(|(row, (token, _))| {
                    let values = x[*token as usize * width..][..width].iter();
                    let weight = weight_of(row);
                    values.map(|x| x * weight).collect::<Vec<f32>>()
                });
                let gathered: Vec<f32> = gathered.collect();
                let expected = ActsBuffer::new(&gpu, form, n_rows, width).unwrap();
                let from = gpu.upload(&gathered).unwrap();
                ops::quantize(&gpu, from.as_slice(), &expected.rows(n_rows)).unwrap();
                let expected = bits(&gpu, &expected, n_rows);
                let from = gpu.upload(&x).unwrap();
                let found = any_order(|| {
                    let found = ActsBuffer::new(&gpu, form, max_rows, width).unwrap();
                    let to = found.rows(max_rows);
                    let routing = (&routing, weighed);
                    ops::quantize_experts(&gpu, from.as_slice(), routing, &to).unwrap();
                    bits(&gpu, &found, n_rows)
                });
                assert_eq!(found, expected, "{what} {weighed:?}");
            }

            let y = random.values(max_rows * width);
            let before = random.values(n_tokens * width);
            let from = gpu.upload(&y).unwrap();
            for (mode, weighed) in [
                (OutMode::Store, Weighed::Outputs),
                (OutMode::Add, Weighed::Outputs),
                (OutMode::Store, Weighed::Inputs),
            ] {
                let found = any_order(|| {
                    let out = gpu.upload(&before).unwrap();
                    let routing = (&routing, weighed);
                    ops::combine_experts(&gpu, from.as_slice(), routing, mode, out.as_slice())
                        .unwrap();
                    gpu.read(out.as_slice::<f32>()).unwrap()
                });
                for (at, &found) in found.iter().enumerate() {
                    let (token, column) = (at / width, at % width);
                    let part = |k: &usize| {
                        let row = choices.rows[*k] as usize;
                        let weight = match weighed {
                            Weighed::Outputs => f64::from(weights[*k]),
                            Weighed::Inputs => 1.0,
                        };
                        weight * f64::from(y[row * width + column])
                    };
                    let of_token = token * step.n_used..(token + 1) * step.n_used;
                    let mut expected: f64 = of_token
                        .filter(|k| choices.rows[*k] != NONE)
                        .map(|k| part(&k))
                        .sum();
                    if mode == OutMode::Add {
                        expected += f64::from(before[at]);
                    }
                    let error = (f64::from(found) - expected).abs();
                    assert!(error <= 1e-6, "{what} {mode:?}: {found}, not {expected}");
                }
            }

            // The norm of the sum in the same launch gives the same bits.
            let weight = gpu.upload(&random.values(width)).unwrap();
            let norm = (weight.as_slice::<f32>(), 1e-5);
            let run = |in_one: bool| {
                let sum = gpu.upload(&before).unwrap();
                let normed = gpu.alloc::<f32>(n_tokens * width).unwrap();
                let acts = ActsBuffer::new(&gpu, form, n_tokens, width).unwrap();
                let (sum, normed, to) = (sum.as_slice(), normed.as_slice(), acts.rows(n_tokens));
                let experts = (&routing, Weighed::Outputs);
                let (from, kept) = (from.as_slice(), Some(normed));
                if in_one {
                    ops::combine_and_norm(&gpu, from, experts, sum, norm, (kept, &to)).unwrap();
                } else {
                    ops::combine_experts(&gpu, from, experts, OutMode::Add, sum).unwrap();
                    ops::rms_norm_quantize(&gpu, sum, norm.0, norm.1, kept, &to).unwrap();
                }
                let floats = [sum, normed].map(|values| gpu.read(values.cast::<u32>()).unwrap());
                [floats.concat(), bits(&gpu, &acts, n_tokens)].concat()
            };
            assert_eq!(any_order(|| run(true)), run(false), "{what}");
        }
    }
}

/// As many tokens as the emulator has blocks at once are combined and normalized in one launch, more in two, with the same bits.
#[test]
fn sums_of_many_tokens_have_a_launch() {
    const AT_ONCE: usize = 2048;
    let width = 1024;
    let emulated = common::gpus().find(|gpu| gpu.target().starts_with("host-"));
    let Some(gpu) = emulated else { return };
    let random = &mut Random(1);
    let weight = gpu.upload(&random.values(width)).unwrap();
    let x = random.values((AT_ONCE + 1) * width);
    let run = |n_tokens: usize| {
        let step = Step::new([n_tokens, 1, 1], Logits::Random, &mut Random(2));
        let buffer = step.route(&gpu);
        let routing = buffer.of(n_tokens);
        let from = gpu.upload(&x[..n_tokens * width]).unwrap();
        let sum = gpu.upload(&vec![0.5f32; n_tokens * width]).unwrap();
        let acts = ActsBuffer::new(&gpu, ActFormat::F32, n_tokens, width).unwrap();
        let norm = (weight.as_slice(), 1e-5);
        let kernels = common::kernels(&gpu, || {
            let experts = (&routing, Weighed::Outputs);
            let to = acts.rows(n_tokens);
            ops::combine_and_norm(
                &gpu,
                from.as_slice(),
                experts,
                sum.as_slice(),
                norm,
                (None, &to),
            )
        });
        (kernels, bits(&gpu, &acts, AT_ONCE))
    };
    let [in_one, apart] = [AT_ONCE, AT_ONCE + 1].map(run);
    assert_eq!(in_one.0, ["combine_norm_f32"]);
    assert_eq!(apart.0[..], ["combine", "rms_norm_block_f32"]);
    assert!(in_one.1 == apart.1);
}

/// Everything that a product reads of the first rows.
fn bits(gpu: &Gpu, acts: &ActsBuffer, n_rows: usize) -> Vec<u32> {
    let acts = acts.rows(n_rows);
    let values = gpu.read(acts.values.cast::<u32>()).unwrap();
    let scales = gpu.read(acts.scales.cast::<u32>()).unwrap();
    let codes = gpu.read(acts.codes).unwrap();
    let sums = gpu.read(acts.sums).unwrap();
    let codes = codes.iter().map(|code| *code as u32);
    let sums = sums.iter().map(|sum| *sum as u32);
    values
        .into_iter()
        .chain(scales)
        .chain(codes)
        .chain(sums)
        .collect()
}

/// A replayed graph routes by the logits of the replay.
#[test]
fn graph_replay_routes_again() {
    for gpu in common::gpus() {
        let random = &mut Random(3);
        let steps: Vec<Step> = (0..3)
            .map(|_| Step::new([4, 16, 3], Logits::Random, random))
            .collect();
        let buffer = RoutingBuffer::new(&gpu, [16, 3], 4).unwrap();
        let logits = gpu.upload(&steps[0].logits).unwrap();
        let seqs = gpu.upload(&steps[0].seq_of_row).unwrap();
        let routing: Routing<'_> = buffer.of(4);
        let route = || {
            ops::route(
                &gpu,
                (logits.as_slice(), ExpertVectors::NONE),
                (steps[0].router, None),
                seqs.as_slice(),
                &routing,
            )
        };
        route().unwrap();
        let graph = gpu.capture(route).unwrap();
        for step in &steps {
            gpu.write(logits.as_slice(), &step.logits).unwrap();
            graph.launch().unwrap();
            let choices = step.choices();
            assert_eq!(gpu.read(routing.experts).unwrap(), choices.experts);
            assert_eq!(gpu.read(routing.rows).unwrap(), choices.rows);
        }
    }
}
