//! Mixture-of-experts layers against their definition in f64, and bit-equality for any batch and number of threads.

use rocmforge_cpu::{
    Acts, ExpertActs, ExpertMatrices, Isa, Pool, Product, Routing, combine_experts, expert_matmul,
    matmul,
};
use rocmforge_gguf::GgmlType;
use rocmforge_plan::{
    ExpertGroups, ExpertScores, ExpertStack, ExpertVectors, ExpertWeights, OutMode, Router, RowsOf,
    SharedWeight, Weighed, Weight, act_format,
};

use crate::random::Rng;

const N_EXPERTS: usize = 8;
const N_IN: usize = 512;
const N_FF: usize = 256;

fn router(n_used: usize, weights: ExpertWeights) -> Router {
    Router {
        n_used,
        scores: ExpertScores::Softmax,
        weights,
        groups: None,
        scale: 1.5,
    }
}

fn routed(router: &Router, logits: &[f32], n_experts: usize) -> Routing {
    let mut routing = Routing::new();
    routing.route(
        &Pool::new(2),
        (router, None),
        logits,
        (n_experts, ExpertVectors::NONE),
    );
    routing
}

#[test]
fn router_chooses_and_weights_the_best_experts() {
    let mut rng = Rng(1);
    for weights in [ExpertWeights::Scores, ExpertWeights::Normalized] {
        for (n_experts, n_used, n_tokens) in [(1, 1, 3), (8, 2, 5), (128, 8, 300), (7, 7, 2)] {
            let logits: Vec<f32> = rng
                .vec(n_tokens * n_experts)
                .iter()
                .map(|x| x * 4.0)
                .collect();
            let routing = routed(&router(n_used, weights), &logits, n_experts);
            assert_eq!(routing.n_tokens(), n_tokens);
            let mut rows = vec![false; n_tokens * n_used];
            for (token, logits) in logits.chunks(n_experts).enumerate() {
                let mut order: Vec<usize> = (0..n_experts).collect();
                order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
                let exp = |i: usize| f64::from(logits[i]).exp();
                let total: f64 = match weights {
                    ExpertWeights::Scores => (0..n_experts).map(exp).sum(),
                    ExpertWeights::Normalized => order[..n_used].iter().map(|&i| exp(i)).sum(),
                };
                for (choice, &expert) in routing.choices(token).iter().zip(&order) {
                    assert_eq!(choice.expert as usize, expert);
                    let want = 1.5 * exp(expert) / total;
                    assert!((f64::from(choice.weight) - want).abs() < 1e-6 * want);
                    assert!(!std::mem::replace(&mut rows[choice.row as usize], true));
                }
            }
            assert!(rows.iter().all(|&row| row), "every row has one owner");
        }
    }
}

/// `score` of a logit, with the sum that divides a softmax.
fn score(scores: ExpertScores, logit: f64, total: f64) -> f64 {
    match scores {
        ExpertScores::Softmax => logit.exp() / total,
        ExpertScores::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
        ExpertScores::SqrtSoftplus => (1.0 + logit.exp()).ln().sqrt(),
    }
}

/// Scores of all kinds, with and without a bias, factors and groups, against the definition: groups by the sum of their
/// best two, experts by score plus bias, weights by the score alone times the expert's factor.
#[test]
fn scores_biases_and_groups_choose_by_definition() {
    let mut rng = Rng(5);
    let kinds = [
        ExpertScores::Softmax,
        ExpertScores::Sigmoid,
        ExpertScores::SqrtSoftplus,
    ];
    for (i, scores) in kinds.into_iter().cycle().take(36).enumerate() {
        let (n_experts, n_used) = [(8, 2), (64, 6), (60, 4)][i / 3 % 3];
        let weights = [ExpertWeights::Scores, ExpertWeights::Normalized][i / 9 % 2];
        let groups = [None, Some([4, 2]), Some([2, 1]), None][i / 3 % 4];
        let router = Router {
            scores,
            groups: groups.map(|[n, n_used]| ExpertGroups { n, n_used }),
            ..router(n_used, weights)
        };
        let bias = rng.vec(n_experts);
        let bias = (i % 4 != 3).then_some(&bias[..]);
        let scales = rng.vec(n_experts);
        let scales = (i % 3 != 2).then_some(&scales[..]);
        let logits: Vec<f32> = rng.vec(n_experts * 7).iter().map(|x| x * 3.0).collect();
        let mut routing = Routing::new();
        let vectors = ExpertVectors { bias, scales };
        routing.route(
            &Pool::new(2),
            (&router, None),
            &logits,
            (n_experts, vectors),
        );
        for (token, logits) in logits.chunks(n_experts).enumerate() {
            let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            let scores: Vec<f64> = logits
                .iter()
                .map(|&x| score(router.scores, x.into(), total))
                .collect();
            let keys: Vec<f64> = (0..n_experts)
                .map(|i| scores[i] + bias.map_or(0.0, |bias| f64::from(bias[i])))
                .collect();
            let [n_groups, n_groups_used] = groups.unwrap_or([1, 1]);
            let mut by_sum: Vec<(f64, usize)> = keys
                .chunks(n_experts / n_groups)
                .enumerate()
                .map(|(group, keys)| {
                    let mut keys = keys.to_vec();
                    keys.sort_by(|a, b| b.total_cmp(a));
                    (keys[0] + keys[1], group)
                })
                .collect();
            by_sum.sort_by(|a, b| b.0.total_cmp(&a.0));
            let mut order: Vec<usize> = (0..n_experts)
                .filter(|i| {
                    let group = i / (n_experts / n_groups);
                    by_sum[..n_groups_used].iter().any(|(_, g)| *g == group)
                })
                .collect();
            order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
            let chosen = &order[..n_used];
            let sum: f64 = match weights {
                ExpertWeights::Scores => 1.0,
                ExpertWeights::Normalized => chosen.iter().map(|&i| scores[i]).sum(),
            };
            for (choice, &expert) in routing.choices(token).iter().zip(chosen) {
                assert_eq!(choice.expert as usize, expert, "{router:?}");
                let scale = scales.map_or(1.0, |scales| f64::from(scales[expert]));
                let want = 1.5 * scores[expert] / sum * scale;
                let error = (f64::from(choice.weight) - want).abs();
                assert!(
                    error < 1e-6 * want.abs(),
                    "{router:?}: {} not {want}",
                    choice.weight
                );
            }
        }
    }
}

#[test]
fn ties_and_nan_choose_distinct_experts() {
    let chosen = |logits: &[f32]| -> Vec<u32> {
        let routing = routed(&router(3, ExpertWeights::Scores), logits, logits.len());
        routing.choices(0).iter().map(|c| c.expert).collect()
    };
    assert_eq!(chosen(&[1.0; 6]), [0, 1, 2]);
    assert_eq!(chosen(&[0.0, 2.0, 1.0, 2.0, 1.0]), [1, 3, 2]);
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    assert_eq!(chosen(&[nan, 1.0, nan, inf, -1.0]), [3, 1, 4]);
    assert_eq!(chosen(&[nan; 4]), [0, 1, 2]);
    assert_eq!(chosen(&[-inf; 4]), [0, 1, 2]);
}

#[test]
#[should_panic(expected = "9 of 8 experts")]
fn rejects_more_experts_than_exist() {
    routed(&router(9, ExpertWeights::Scores), &[0.0; 8], 8);
}

/// Bytes of `[rows, n_in]` in the format, from random values.
fn weights(ty: GgmlType, rows: usize, n_in: usize, rng: &mut Rng) -> Vec<u8> {
    match ty {
        GgmlType::F32 => rng
            .vec(rows * n_in)
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect(),
        // Small codes, which have finite scales when read as f16.
        _ => (0..ty.row_bytes(n_in).unwrap() * rows)
            .map(|_| rng.below(48) as u8)
            .collect(),
    }
}

/// A layer of experts, each an `up` and a `down` matrix.
struct Mixture {
    ty: GgmlType,
    up: Vec<u8>,
    down: Vec<u8>,
    /// [n_experts, n_out].
    up_scales: Vec<f32>,
    up_bias: Vec<f32>,
    down_bias: Vec<f32>,
}

impl Mixture {
    /// The matrices of all experts as one weight.
    fn stack<'a>(&self, data: &'a [u8], n_out: usize, n_in: usize) -> Weight<'a> {
        Weight {
            ty: self.ty,
            n_out,
            n_in,
            data,
        }
    }

    /// `sum(weight * down(up(x)))` for every token.
    fn run(&self, isa: Isa, pool: &Pool, x: &[f32], logits: &[f32]) -> Vec<f32> {
        self.run_weighed(isa, pool, (x, Weighed::Outputs), logits)
    }

    /// `sum(down(up(weight * x)))` if the weights multiply the inputs.
    fn run_weighed(
        &self,
        isa: Isa,
        pool: &Pool,
        (x, weighed): (&[f32], Weighed),
        logits: &[f32],
    ) -> Vec<f32> {
        let (mut routing, mut acts) = (Routing::new(), ExpertActs::new());
        routing.route(
            pool,
            (&router(2, ExpertWeights::Normalized), None),
            logits,
            (N_EXPERTS, ExpertVectors::NONE),
        );
        let n_rows = routing.n_rows();
        let format = act_format(self.ty);
        let rows_of = match weighed {
            Weighed::Outputs => RowsOf::Tokens,
            Weighed::Inputs => RowsOf::WeighedTokens,
        };
        acts.quantize(isa, pool, &routing, (x, rows_of), format);
        let mut hidden = vec![f32::NAN; n_rows * N_FF];
        let matrices = |w, scales, bias| ExpertMatrices {
            w,
            scales,
            bias: Some(bias),
            stack: ExpertStack::whole(N_EXPERTS),
            shared: None,
        };
        let up = self.stack(&self.up, N_EXPERTS * N_FF, N_IN);
        let up = matrices(up, Some(&self.up_scales[..]), &self.up_bias[..]);
        expert_matmul(isa, pool, up, &routing, &acts, &mut hidden);
        acts.quantize(isa, pool, &routing, (&hidden, RowsOf::Choices), format);
        let mut rows = vec![f32::NAN; n_rows * N_IN];
        let down = self.stack(&self.down, N_EXPERTS * N_IN, N_FF);
        let down = matrices(down, None, &self.down_bias[..]);
        expert_matmul(isa, pool, down, &routing, &acts, &mut rows);
        let mut out = vec![f32::NAN; x.len()];
        combine_experts(isa, pool, (&routing, weighed), &rows, &mut out);
        out
    }

    /// The same with single products, token by token and expert by expert.
    fn one_by_one(&self, isa: Isa, (x, weighed): (&[f32], Weighed), logits: &[f32]) -> Vec<f64> {
        let pool = Pool::new(1);
        let routing = routed(&router(2, ExpertWeights::Normalized), logits, N_EXPERTS);
        let product = |up: bool, expert: u32, x: &[f32]| {
            let (data, bias, n_out, n_in) = match up {
                true => (&self.up, &self.up_bias, N_FF, N_IN),
                false => (&self.down, &self.down_bias, N_IN, N_FF),
            };
            let scale = match up {
                true => self.up_scales[expert as usize],
                false => 1.0,
            };
            let bytes = data.len() / N_EXPERTS;
            let w = self.stack(&data[expert as usize * bytes..][..bytes], n_out, n_in);
            let bias = &bias[expert as usize * n_out..][..n_out];
            let mut acts = Acts::new();
            acts.quantize(isa, &pool, x, [1, n_in], act_format(self.ty));
            let mut out = vec![f32::NAN; n_out];
            let product = Product {
                w,
                bias: None,
                mode: OutMode::Store,
                out: &mut out,
            };
            matmul(isa, &pool, &acts, product);
            let pairs = out.iter().zip(bias);
            pairs
                .map(|(y, bias)| y * scale + bias)
                .collect::<Vec<f32>>()
        };
        let mut all = Vec::new();
        for (token, x) in x.chunks(N_IN).enumerate() {
            let mut sum = vec![0.0; N_IN];
            for choice in routing.choices(token) {
                let (before, after) = match weighed {
                    Weighed::Outputs => (1.0, choice.weight),
                    Weighed::Inputs => (choice.weight, 1.0),
                };
                let x: Vec<f32> = x.iter().map(|x| x * before).collect();
                let hidden = product(true, choice.expert, &x);
                let row = product(false, choice.expert, &hidden);
                for (sum, y) in sum.iter_mut().zip(row) {
                    *sum += f64::from(after) * f64::from(y);
                }
            }
            all.extend(sum);
        }
        all
    }
}

#[test]
fn expert_products_match_single_products_for_any_batch_and_threads() {
    let mut rng = Rng(3);
    for ty in [GgmlType::F32, GgmlType::Q8_0, GgmlType::Q4_K] {
        let mixture = Mixture {
            ty,
            up: weights(ty, N_EXPERTS * N_FF, N_IN, &mut rng),
            down: weights(ty, N_EXPERTS * N_IN, N_FF, &mut rng),
            up_scales: rng.vec(N_EXPERTS),
            up_bias: rng.vec(N_EXPERTS * N_FF),
            down_bias: rng.vec(N_EXPERTS * N_IN),
        };
        for isa in Isa::available() {
            let n_tokens = if isa == Isa::Scalar { 9 } else { 70 };
            let x = rng.vec(n_tokens * N_IN);
            // Prefer one expert, so that group sizes differ widely and some groups are empty.
            let logits: Vec<f32> = (0..n_tokens * N_EXPERTS)
                .map(|i| rng.unit() + if i % N_EXPERTS == 5 { 1.2 } else { 0.0 })
                .collect();
            for weighed in [Weighed::Inputs, Weighed::Outputs] {
                let x = (&x[..], weighed);
                let got = mixture.run_weighed(isa, &Pool::new(1), x, &logits);
                let want = mixture.one_by_one(isa, x, &logits);
                let reach = want.iter().fold(0f64, |most, x| most.max(x.abs()));
                assert!(reach > 0.0);
                for (&got, want) in got.iter().zip(&want) {
                    let error = (f64::from(got) - want).abs();
                    let is_near = error <= 1e-6 * reach;
                    assert!(is_near, "{isa} {ty:?} {weighed:?}: {got}, not {want}");
                }
            }
            let got = mixture.run(isa, &Pool::new(1), &x, &logits);
            for n_threads in [2, 5] {
                assert_eq!(got, mixture.run(isa, &Pool::new(n_threads), &x, &logits));
            }
            // The first token alone, the last token alone, and the last six.
            for first in [0, n_tokens - 1, n_tokens - 6] {
                let n = if first == 0 { 1 } else { n_tokens - first };
                let part = mixture.run(
                    isa,
                    &Pool::new(3),
                    &x[first * N_IN..][..n * N_IN],
                    &logits[first * N_EXPERTS..][..n * N_EXPERTS],
                );
                assert_eq!(part, got[first * N_IN..][..n * N_IN], "{isa} {ty:?}");
            }
        }
    }
}

#[test]
fn accepts_empty_batches() {
    let mixture = Mixture {
        ty: GgmlType::F32,
        up: vec![0; 4 * N_EXPERTS * N_FF * N_IN],
        down: vec![0; 4 * N_EXPERTS * N_FF * N_IN],
        up_scales: vec![1.0; N_EXPERTS],
        up_bias: vec![0.0; N_EXPERTS * N_FF],
        down_bias: vec![0.0; N_EXPERTS * N_IN],
    };
    for isa in Isa::available() {
        assert!(mixture.run(isa, &Pool::new(2), &[], &[]).is_empty());
    }
}

/// Several matrices of each expert in one tensor are computed as those of a tensor each.
#[test]
fn parts_of_stacks() {
    let (n_experts, n_in, n_out, n_parts) = (3, 64, 5, 2);
    let mut rng = Rng(3);
    let data = weights(GgmlType::Q8_0, n_experts * n_parts * n_out, n_in, &mut rng);
    let (x, logits) = (rng.vec(4 * n_in), rng.vec(4 * n_experts));
    let (isa, pool) = (Isa::Scalar, Pool::new(1));
    let routing = routed(&router(2, ExpertWeights::Scores), &logits, n_experts);
    let mut acts = ExpertActs::new();
    let format = act_format(GgmlType::Q8_0);
    acts.quantize(isa, &pool, &routing, (&x, RowsOf::Tokens), format);
    let product = |data: &[u8], stack: ExpertStack| {
        let w = Weight {
            ty: GgmlType::Q8_0,
            n_out: stack.n_matrices() * n_out,
            n_in,
            data,
        };
        let mut out = vec![f32::NAN; routing.n_rows() * n_out];
        let bias = None;
        let matrices = ExpertMatrices {
            w,
            scales: None,
            bias,
            stack,
            shared: None,
        };
        expert_matmul(isa, &pool, matrices, &routing, &acts, &mut out);
        out
    };
    let matrix_bytes = data.len() / n_experts / n_parts;
    for part in 0..n_parts {
        let alone = data.chunks(matrix_bytes).skip(part).step_by(n_parts);
        let alone: Vec<u8> = alone.flatten().copied().collect();
        let stack = ExpertStack {
            n_experts,
            n_parts,
            part,
        };
        assert_eq!(
            product(&data, stack),
            product(&alone, ExpertStack::whole(n_experts)),
            "part {part}"
        );
    }
}

/// A shared expert is the last choice of every token, and its matrix is as the last one of a longer stack.
#[test]
fn shared_experts() {
    let (n_experts, n_in, n_out, n_tokens) = (3, 64, 5, 9);
    let mut rng = Rng(5);
    let ty = GgmlType::Q8_0;
    let data = weights(ty, (n_experts + 1) * n_out, n_in, &mut rng);
    let (x, logits) = (rng.vec(n_tokens * n_in), rng.vec(n_tokens * n_experts));
    let gates: Vec<f32> = rng.vec(n_tokens).iter().map(|x| x * 5.0).collect();
    let router = router(2, ExpertWeights::Normalized);
    let alone = routed(&router, &logits, n_experts);
    for shared in [SharedWeight::One, SharedWeight::Sigmoid(&gates[..])] {
        let (pool, vectors) = (Pool::new(2), ExpertVectors::NONE);
        let mut routing = Routing::new();
        routing.route(
            &pool,
            (&router, Some(shared)),
            &logits,
            (n_experts, vectors),
        );
        for (token, gate) in gates.iter().enumerate() {
            let (last, chosen) = routing.choices(token).split_last().unwrap();
            let same = chosen.iter().zip(alone.choices(token));
            for (a, b) in same {
                assert_eq!((a.expert, a.weight), (b.expert, b.weight));
            }
            assert_eq!(chosen.len(), 2);
            let weight = match shared {
                SharedWeight::One => 1.0,
                SharedWeight::Sigmoid(_) => 1.0 / (1.0 + (-f64::from(*gate)).exp()),
            };
            assert_eq!(last.expert as usize, n_experts);
            assert!((f64::from(last.weight) - weight).abs() <= 1e-7);
        }
        let stacked = |n: usize| Weight {
            ty,
            n_out: n * n_out,
            n_in,
            data: &data[..data.len() / (n_experts + 1) * n],
        };
        let of_shared = Weight {
            data: &data[data.len() / (n_experts + 1) * n_experts..],
            ..stacked(1)
        };
        for isa in Isa::available() {
            let mut acts = ExpertActs::new();
            acts.quantize(isa, &pool, &routing, (&x, RowsOf::Tokens), act_format(ty));
            let product = |n: usize, shared: Option<Weight<'_>>| {
                let matrices = ExpertMatrices {
                    w: stacked(n),
                    scales: None,
                    bias: None,
                    stack: ExpertStack::whole(n),
                    shared,
                };
                let mut out = vec![f32::NAN; routing.n_rows() * n_out];
                expert_matmul(isa, &pool, matrices, &routing, &acts, &mut out);
                out
            };
            let separate = product(n_experts, Some(of_shared));
            assert_eq!(separate, product(n_experts + 1, None), "{isa}");
        }
    }
}
