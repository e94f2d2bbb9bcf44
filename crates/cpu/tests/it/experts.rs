//! Mixture-of-experts layers against their definition in f64, and bit-equality for any batch and number of threads.

use rocmforge_cpu::{
    Acts, ExpertActs, Isa, Pool, Product, Routing, combine_experts, expert_matmul, matmul,
};
use rocmforge_gguf::GgmlType;
use rocmforge_plan::{ExpertWeights, OutMode, Router, RowsOf, Weight, act_format};

use crate::random::Rng;

const N_EXPERTS: usize = 8;
const N_IN: usize = 512;
const N_FF: usize = 256;

fn router(n_used: usize, weights: ExpertWeights) -> Router {
    Router {
        n_used,
        weights,
        scale: 1.5,
    }
}

fn routed(router: &Router, logits: &[f32], n_experts: usize) -> Routing {
    let mut routing = Routing::new();
    routing.route(&Pool::new(2), router, logits, n_experts);
    routing
}

#[test]
fn router_chooses_and_weights_the_best_experts() {
    let mut rng = Rng(1);
    for weights in [ExpertWeights::Softmax, ExpertWeights::Normalized] {
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
                    ExpertWeights::Softmax => (0..n_experts).map(exp).sum(),
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

#[test]
fn ties_and_nan_choose_distinct_experts() {
    let chosen = |logits: &[f32]| -> Vec<u32> {
        let routing = routed(&router(3, ExpertWeights::Softmax), logits, logits.len());
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
    routed(&router(9, ExpertWeights::Softmax), &[0.0; 8], 8);
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
        let (mut routing, mut acts) = (Routing::new(), ExpertActs::new());
        routing.route(
            pool,
            &router(2, ExpertWeights::Normalized),
            logits,
            N_EXPERTS,
        );
        let n_rows = routing.n_rows();
        let format = act_format(self.ty);
        acts.quantize(isa, pool, &routing, (x, RowsOf::Tokens), format);
        let mut hidden = vec![f32::NAN; n_rows * N_FF];
        let up = self.stack(&self.up, N_EXPERTS * N_FF, N_IN);
        expert_matmul(isa, pool, (&up, N_EXPERTS), &routing, &acts, &mut hidden);
        acts.quantize(isa, pool, &routing, (&hidden, RowsOf::Choices), format);
        let mut rows = vec![f32::NAN; n_rows * N_IN];
        let down = self.stack(&self.down, N_EXPERTS * N_IN, N_FF);
        expert_matmul(isa, pool, (&down, N_EXPERTS), &routing, &acts, &mut rows);
        let mut out = vec![f32::NAN; x.len()];
        combine_experts(isa, pool, &routing, &rows, &mut out);
        out
    }

    /// The same with single products, token by token and expert by expert.
    fn one_by_one(&self, isa: Isa, x: &[f32], logits: &[f32]) -> Vec<f64> {
        let pool = Pool::new(1);
        let routing = routed(&router(2, ExpertWeights::Normalized), logits, N_EXPERTS);
        let product = |data: &[u8], n_out: usize, n_in: usize, expert: u32, x: &[f32]| {
            let bytes = data.len() / N_EXPERTS;
            let w = self.stack(&data[expert as usize * bytes..][..bytes], n_out, n_in);
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
            out
        };
        let mut all = Vec::new();
        for (token, x) in x.chunks(N_IN).enumerate() {
            let mut sum = vec![0.0; N_IN];
            for choice in routing.choices(token) {
                let hidden = product(&self.up, N_FF, N_IN, choice.expert, x);
                let row = product(&self.down, N_IN, N_FF, choice.expert, &hidden);
                for (sum, y) in sum.iter_mut().zip(row) {
                    *sum += f64::from(choice.weight) * f64::from(y);
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
        };
        for isa in Isa::available() {
            let n_tokens = if isa == Isa::Scalar { 9 } else { 70 };
            let x = rng.vec(n_tokens * N_IN);
            // Prefer one expert, so that group sizes differ widely and some groups are empty.
            let logits: Vec<f32> = (0..n_tokens * N_EXPERTS)
                .map(|i| rng.unit() + if i % N_EXPERTS == 5 { 1.2 } else { 0.0 })
                .collect();
            let got = mixture.run(isa, &Pool::new(1), &x, &logits);
            let want = mixture.one_by_one(isa, &x, &logits);
            let reach = want.iter().fold(0f64, |most, x| most.max(x.abs()));
            assert!(reach > 0.0);
            for (&got, want) in got.iter().zip(&want) {
                let error = (f64::from(got) - want).abs();
                assert!(error <= 1e-6 * reach, "{isa} {ty:?}: {got}, not {want}");
            }
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
    };
    for isa in Isa::available() {
        assert!(mixture.run(isa, &Pool::new(2), &[], &[]).is_empty());
    }
}
