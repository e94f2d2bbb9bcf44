//! Fused operations have the same bits as the separate operations.

use rocmforge_cpu::{
    Acts, Gate, Isa, Pool, Product, gated_activation, matmul, matmul_all, matmul_gated,
    rms_norm_acts, rms_norm_groups,
};
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant;
use rocmforge_plan::{ActFormat, OutMode, Weight, act_format};

use crate::activations::ACTIVATIONS;
use crate::random::Rng;

const N_IN: usize = 512;

/// Batch sizes: one decode step, a few, a prompt of one task, a prompt of several tasks.
const TOKENS: [usize; 4] = [1, 3, 19, 130];

fn weights(random: &mut Rng, ty: GgmlType, n_out: usize) -> Vec<u8> {
    let mut data = vec![0; ty.row_bytes(N_IN).unwrap() * n_out];
    let values = random.vec(N_IN * n_out);
    quant::quantize_rows(ty, &values, N_IN, None, &mut data).unwrap();
    data
}

fn weight(ty: GgmlType, n_out: usize, data: &[u8]) -> Weight<'_> {
    Weight {
        ty,
        n_out,
        n_in: N_IN,
        data,
    }
}

fn acts(isa: Isa, pool: &Pool, x: &[f32], format: ActFormat) -> Acts {
    let mut acts = Acts::new();
    acts.quantize(isa, pool, x, [x.len() / N_IN, N_IN], format);
    acts
}

/// Every instruction set, with one thread and with three.
fn machines() -> impl Iterator<Item = (Isa, Pool)> {
    let with = |isa| [1, 3].map(|n| (isa, Pool::new(n)));
    Isa::available().into_iter().flat_map(with)
}

#[test]
fn several_products_in_one_pass() {
    let mut random = Rng(1);
    // Formats with the same activation format; only some have rows enough to fill a task.
    let shapes = [
        (GgmlType::Q4_K, 96),
        (GgmlType::Q6_K, 17),
        (GgmlType::Q4_K, 1),
    ];
    let data = shapes.map(|(ty, n_out)| weights(&mut random, ty, n_out));
    let bias = random.vec(17);
    for (isa, pool) in machines() {
        for n_tokens in TOKENS {
            let x = random.vec(n_tokens * N_IN);
            let acts = acts(isa, &pool, &x, ActFormat::Q8x256);
            let old = shapes.map(|(_, n_out)| random.vec(n_tokens * n_out));
            let (mut one, mut all) = (old.clone(), old);
            let options = [
                (None, OutMode::Store),
                (Some(&bias[..]), OutMode::Store),
                (None, OutMode::Add),
            ];
            let mut products = Vec::new();
            for (i, (one, all)) in one.iter_mut().zip(&mut all).enumerate() {
                let ((ty, n_out), (bias, mode)) = (shapes[i], options[i]);
                let w = weight(ty, n_out, &data[i]);
                let product = |out| Product { w, bias, mode, out };
                matmul(isa, &pool, &acts, product(one));
                products.push(product(all));
            }
            matmul_all(isa, &pool, &acts, products);
            assert_eq!(one, all, "{isa} {n_tokens}");
        }
    }
}

#[test]
fn gated_products_in_one_pass() {
    let mut random = Rng(2);
    let n_out = 200;
    let bias = random.vec(n_out);
    for ty in [GgmlType::Q4_0, GgmlType::F16] {
        let data = [(); 2].map(|()| weights(&mut random, ty, n_out));
        let [gate, up] = [&data[0], &data[1]].map(|data| weight(ty, n_out, data));
        for (isa, pool) in machines() {
            for n_tokens in TOKENS {
                let activation = ACTIVATIONS[random.below(ACTIVATIONS.len())];
                let x = random.vec(n_tokens * N_IN);
                let acts = acts(isa, &pool, &x, act_format(ty));
                let mut products = [(); 3].map(|()| vec![f32::NAN; n_tokens * n_out]);
                let [gates, ups, want] = &mut products;
                for (w, bias, out) in [(gate, Some(&bias[..]), &mut *gates), (up, None, &mut *ups)]
                {
                    let mode = OutMode::Store;
                    matmul(isa, &pool, &acts, Product { w, bias, mode, out });
                }
                gated_activation(isa, &pool, activation, gates, ups, want);
                let mut out = vec![f32::NAN; n_tokens * n_out];
                let sides = [(gate, Some(&bias[..])), (up, None)];
                let sides = sides.map(|(w, bias)| Gate { w, bias });
                matmul_gated(isa, &pool, &acts, sides, activation, &mut out);
                assert_eq!(&out, want, "{isa} {} {n_tokens}", ty.name());
            }
        }
    }
}

#[test]
fn norm_and_quantization_in_one_pass() {
    let mut random = Rng(3);
    let weight = random.vec(N_IN);
    for (isa, pool) in machines() {
        for n_tokens in TOKENS {
            for (format, n_groups) in [
                (ActFormat::F32, 1),
                (ActFormat::F32, 4),
                (ActFormat::Q8x32, 1),
                (ActFormat::Q8x32, 4),
                (ActFormat::Q8x256, 1),
                (ActFormat::Q8x256, 2),
            ] {
                let x = random.vec(n_tokens * N_IN);
                let mut normed = vec![0.0; x.len()];
                let weights = (&weight[..], n_groups);
                rms_norm_groups(isa, &pool, &x, weights, 1e-5, &mut normed);
                let want = acts(isa, &pool, &normed, format);
                let mut got = Acts::new();
                let norm = (&weight[..], n_groups, 1e-5);
                rms_norm_acts(isa, &pool, &x, norm, format, &mut got);
                assert_eq!((got.n_tokens(), got.n_in()), (n_tokens, N_IN));
                let (mut a, mut b) = (vec![0.0; N_IN], vec![0.0; N_IN]);
                for token in 0..n_tokens {
                    want.dequantize_row(token, &mut a);
                    got.dequantize_row(token, &mut b);
                    assert_eq!(a, b, "{isa} {format:?} {n_tokens}");
                }
            }
        }
    }
}
