//! Each op, on each instruction set, against its formula in f64.

mod common;

use common::Rng;
use half::f16;
use rocmforge_cpu::{
    HeadCode, Isa, KvLayout, KvSlice, KvSliceMut, Pool, activate, add, add_gated, argmax,
    gated_activation, kv_append, kv_copy, kv_read, layer_norm, log_sum_exp, rms_norm, rope,
    soft_cap,
};
use rocmforge_gguf::quant::QuantizeBlock;
use rocmforge_gguf::quant::f8;
use rocmforge_gguf::quant::legacy::Q8_0;
use rocmforge_plan::{Activation, RopeStyle, SlotRun};

/// Widths around every boundary of vectors of 8 and 16 and runs of four of them.
const WIDTHS: [usize; 14] = [1, 2, 7, 8, 9, 15, 16, 31, 32, 33, 64, 100, 127, 1030];

fn check(what: &str, got: &[f32], want: impl IntoIterator<Item = f64>) {
    let want: Vec<f64> = want.into_iter().collect();
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(
            error <= 1e-6 * want.abs().max(1.0),
            "{what}: element {i} is {got}, not {want}"
        );
    }
}

/// Runs `op` on one thread and on several; both must give the same bits, which are returned.
fn same_on_any_pool(op: impl Fn(&Pool) -> Vec<f32>) -> Vec<f32> {
    let one = op(&Pool::new(1));
    let many = op(&Pool::new(3));
    assert!(
        one.iter()
            .zip(&many)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
    one
}

#[test]
fn rms_norm_follows_its_formula() {
    let mut rng = Rng(1);
    for isa in Isa::available() {
        for width in WIDTHS {
            for n_rows in [1, 3, 70] {
                let (x, weight) = (rng.vec(n_rows * width), rng.vec(width));
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; x.len()];
                    rms_norm(isa, pool, &x, &weight, 1e-5, &mut out);
                    out
                });
                let want = x.chunks(width).flat_map(|x| {
                    let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let scale = 1.0 / (squares / width as f64 + f64::from(1e-5f32)).sqrt();
                    x.iter()
                        .zip(&weight)
                        .map(move |(&x, &w)| f64::from(x) * scale * f64::from(w))
                });
                check(&format!("{isa} rms_norm {n_rows} x {width}"), &got, want);
                // A row alone has the bits it has in company.
                let mut alone = vec![0.0; width];
                let last = (n_rows - 1) * width;
                rms_norm(isa, &Pool::new(1), &x[last..], &weight, 1e-5, &mut alone);
                assert_eq!(alone, got[last..]);
            }
        }
    }
}

#[test]
fn layer_norm_follows_its_formula() {
    let mut rng = Rng(12);
    for isa in Isa::available() {
        for width in WIDTHS.into_iter().filter(|&width| width > 1) {
            for n_rows in [1, 3, 70] {
                // A mean far from zero, which a difference of squares would not survive.
                let x: Vec<f32> = rng.vec(n_rows * width).iter().map(|x| x + 30.0).collect();
                let (weight, bias) = (rng.vec(width), rng.vec(width));
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; x.len()];
                    layer_norm(isa, pool, &x, &weight, &bias, 1e-5, &mut out);
                    out
                });
                let what = format!("{isa} layer_norm {n_rows} x {width}");
                for (row, (x, got)) in x.chunks(width).zip(got.chunks(width)).enumerate() {
                    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                    let squares: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
                    let scale = 1.0 / (squares / width as f64 + f64::from(1e-5f32)).sqrt();
                    for i in 0..width {
                        let want = (f64::from(x[i]) - mean) * scale * f64::from(weight[i])
                            + f64::from(bias[i]);
                        // The mean is an f32 of 30, with an error of 2e-6 at most.
                        let allowed = 4e-6 * scale + 2e-6 * want.abs().max(1.0);
                        let error = (f64::from(got[i]) - want).abs();
                        assert!(
                            error <= allowed,
                            "{what}: {row}, {i}: {} not {want}",
                            got[i]
                        );
                    }
                }
                let mut alone = vec![0.0; width];
                let last = (n_rows - 1) * width;
                let pool = Pool::new(1);
                layer_norm(isa, &pool, &x[last..], &weight, &bias, 1e-5, &mut alone);
                assert_eq!(alone, got[last..]);
            }
        }
    }
}

type Formula = fn(f64) -> f64;

/// The definition of each activation.
const ACTIVATIONS: [(Activation, Formula); 2] = [
    (Activation::Silu, |x| x / (1.0 + (-x).exp())),
    (Activation::GeluTanh, |x| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        // As 1 / (1 + e^-2u), which keeps its digits for negative values.
        x / (1.0 + (-2.0 * inner).exp())
    }),
];

#[test]
fn add_and_activations_follow_their_formulas() {
    let mut rng = Rng(2);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([0, 40_000, 40_003]) {
            let (a, b) = (rng.vec(n), rng.vec(n));
            let got = same_on_any_pool(|pool| {
                let mut out = b.clone();
                add(isa, pool, &a, &mut out);
                out
            });
            let want = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) + f64::from(b));
            check(&format!("{isa} add {n}"), &got, want);

            let gate: Vec<f32> = a.iter().map(|a| a * 20.0).collect();
            for (activation, formula) in ACTIVATIONS {
                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; n];
                    gated_activation(isa, pool, activation, &gate, &b, &mut out);
                    out
                });
                let want = gate
                    .iter()
                    .zip(&b)
                    .map(|(&g, &u)| formula(f64::from(g)) * f64::from(u));
                check(&format!("{isa} gated {activation:?} {n}"), &got, want);

                let got = same_on_any_pool(|pool| {
                    let mut out = vec![f32::NAN; n];
                    activate(isa, pool, activation, &gate, &mut out);
                    out
                });
                let want = gate.iter().map(|&g| formula(f64::from(g)));
                check(&format!("{isa} {activation:?} {n}"), &got, want);
            }
        }
    }
}

/// The vector exponential, seen through the activations.
#[test]
fn activations_are_right_at_the_ends_of_the_range() {
    for isa in Isa::available() {
        for (activation, formula) in ACTIVATIONS {
            for x in [
                -1e4f32, -104.0, -89.0, -88.0, -87.0, -5.0, -3.0, -1.0, -1e-30, 0.0, 1e-30, 1.0,
                3.0, 88.0, 104.0, 1e4,
            ] {
                let mut out = [f32::NAN; 9];
                activate(isa, &Pool::new(1), activation, &[x; 9], &mut out);
                let want = formula(f64::from(x));
                for got in out {
                    // e^89 and more counts as infinite, so tiny results may be 0. The error of
                    // an exponent grows with it.
                    let error = (f64::from(got) - want).abs();
                    assert!(
                        error <= 3e-6 * want.abs() + 1e-36,
                        "{isa}: {activation:?}({x}) is {got}, not {want}"
                    );
                }
            }
            let mut out = [0.0; 9];
            activate(isa, &Pool::new(1), activation, &[f32::NAN; 9], &mut out);
            assert!(out.iter().all(|x| x.is_nan()), "{isa}: NaN goes through");
        }
    }
}

#[test]
fn add_gated_follows_its_formula() {
    let mut rng = Rng(14);
    for isa in Isa::available() {
        for width in WIDTHS {
            for n_rows in [0, 1, 90] {
                let (x, old) = (rng.vec(n_rows * width), rng.vec(n_rows * width));
                let gate: Vec<f32> = rng.vec(n_rows).iter().map(|x| x * 9.0).collect();
                let got = same_on_any_pool(|pool| {
                    let mut out = old.clone();
                    add_gated(isa, pool, &gate, &x, &mut out);
                    out
                });
                let want = (0..n_rows * width).map(|i| {
                    let factor = 1.0 / (1.0 + (-f64::from(gate[i / width])).exp());
                    f64::from(old[i]) + factor * f64::from(x[i])
                });
                check(&format!("{isa} add_gated {n_rows} x {width}"), &got, want);
            }
        }
    }
}

#[test]
fn soft_cap_follows_its_formula() {
    let mut rng = Rng(13);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([0, 40_003]) {
            for cap in [0.5f32, 30.0] {
                let x: Vec<f32> = rng.vec(n).iter().map(|x| x * x * x * 60.0).collect();
                let got = same_on_any_pool(|pool| {
                    let mut out = x.clone();
                    soft_cap(isa, pool, cap, &mut out);
                    out
                });
                for (&x, got) in x.iter().zip(got) {
                    let want = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                    let error = (f64::from(got) - want).abs();
                    assert!(
                        error <= 5e-7 * want.abs(),
                        "{isa}: {x} to {got}, not {want}"
                    );
                }
            }
        }
        let mut ends = [0.0, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        soft_cap(isa, &Pool::new(1), 30.0, &mut ends);
        assert_eq!(ends[..5], [0.0, 30.0, -30.0, 30.0, -30.0]);
        assert!(ends[5].is_nan());
    }
}

#[test]
fn rope_follows_its_formula() {
    let mut rng = Rng(3);
    for isa in Isa::available() {
        for style in [RopeStyle::Norm, RopeStyle::Neox] {
            for (head_dim, n_rot) in [
                (64, 64),
                (128, 128),
                (80, 32),
                (64, 20),
                (40, 40),
                (7, 6),
                (2, 2),
                (5, 0),
            ] {
                for (n_tokens, n_heads) in [(1, 1), (3, 5), (200, 4)] {
                    let width = n_heads * head_dim;
                    let x = rng.vec(n_tokens * width);
                    let angles: Vec<f64> = (0..n_tokens * n_rot / 2)
                        .map(|_| f64::from(rng.unit()) * std::f64::consts::PI)
                        .collect();
                    let cos_sin: Vec<f32> = angles
                        .iter()
                        .flat_map(|a| [a.cos() as f32, a.sin() as f32])
                        .collect();
                    let got = same_on_any_pool(|pool| {
                        let mut x = x.clone();
                        rope(
                            isa, pool, &mut x, n_tokens, head_dim, n_rot, style, &cos_sin,
                        );
                        x
                    });
                    let mut want: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                    for (i, head) in want.chunks_mut(head_dim).enumerate() {
                        let token = i / n_heads;
                        let original = head.to_vec();
                        for pair in 0..n_rot / 2 {
                            let angle = angles[token * n_rot / 2 + pair];
                            let (i, j) = match style {
                                RopeStyle::Norm => (2 * pair, 2 * pair + 1),
                                RopeStyle::Neox => (pair, pair + n_rot / 2),
                            };
                            let turned = |x: f64, y: f64| x * angle.cos() + y * angle.sin();
                            head[i] = turned(original[i], -original[j]);
                            head[j] = turned(original[j], original[i]);
                        }
                    }
                    let what =
                        format!("{isa} {style:?} {head_dim}/{n_rot}, {n_tokens} x {n_heads}");
                    check(&what, &got, want);
                }
            }
        }
    }
}

/// Every f16 value and the midpoints between neighbours, with their f32 neighbours.
fn f16_corner_cases() -> Vec<f32> {
    let mut x = Vec::new();
    for bits in 0..=u16::MAX {
        let low = f16::from_bits(bits).to_f32();
        let high = f16::from_bits(bits.wrapping_add(1)).to_f32();
        let mid = (low + high) / 2.0;
        let near = |x: f32, step: i32| f32::from_bits(x.to_bits().wrapping_add_signed(step));
        x.extend([low, mid, near(mid, 1), near(mid, -1), near(low, 1)]);
    }
    x.extend([
        1e-10,
        -1e-10,
        65519.9,
        65520.0,
        1e9,
        f32::MAX,
        f32::MIN_POSITIVE,
    ]);
    x.resize(x.len().next_multiple_of(64), 0.0);
    x
}

#[test]
fn kv_append_rounds_as_half_does() {
    let x = f16_corner_cases();
    let want: Vec<u16> = x.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
    for isa in Isa::available() {
        for dim in [64, 1] {
            let n = x.len() / dim;
            let slots: Vec<u32> = (0..n as u32).collect();
            let mut cache = vec![0; x.len()];
            let to = KvSliceMut::F16(&mut cache);
            kv_append(isa, &Pool::new(2), &x, 1, dim, n, &slots, to);
            for ((&x, &want), &got) in x.iter().zip(&want).zip(&cache) {
                assert_eq!(got, want, "{isa}: {x} ({:#x})", x.to_bits());
            }
        }
    }
}

/// What `block` should hold: codes of at most 127 that are nearest, ties to even, to the values over
/// an unrounded scale.
fn check_block(what: &str, x: &[f32], block: &Q8_0) {
    let scale = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    assert_eq!(block.d.bits(), f16::from_f32(scale).to_bits(), "{what}");
    for (&x, &code) in x.iter().zip(&block.qs) {
        let want = (x * (1.0 / scale)).round_ties_even();
        assert_eq!(f32::from(code), want, "{what}: {x} by {scale}");
    }
}

#[test]
fn kv_append_quantizes_as_ggml_does() {
    let mut rng = Rng(8);
    for isa in Isa::available() {
        for dim in [32, 64, 96] {
            let mut x = rng.vec(dim * 50);
            for (i, x) in x.chunks_mut(32).enumerate() {
                let magnitude = (i as f32 - 40.0).exp2();
                x.iter_mut().for_each(|x| *x *= magnitude.max(1e-4));
            }
            // A tie for each sign: the scale is 1.
            x[..4].copy_from_slice(&[-127.0, 2.5, 3.5, -2.5]);
            x[4..32].fill(0.0);
            let slots: Vec<u32> = (0..50).collect();
            let mut cache = vec![Q8_0::quantize(&[1.0; 32]); 50 * dim / 32];
            let to = KvSliceMut::Q8_0(&mut cache);
            kv_append(isa, &Pool::new(2), &x, 1, dim, 50, &slots, to);
            assert_eq!(cache[0].qs[..4], [-127, 2, 4, -2]);
            for (i, (x, block)) in x.chunks_exact(32).zip(&cache).enumerate() {
                check_block(&format!("{isa}: block {i} of {dim}"), x, block);
            }
        }
        // Nothing to divide by is zero; what is no number stays none.
        for (x, d) in [(0.0, 0.0), (1e-42, 0.0), (f32::NAN, f32::NAN)] {
            for other in [0.0, x] {
                let mut row = [other; 32];
                row[7] = x;
                let mut cache = [Q8_0::quantize(&[1.0; 32])];
                let to = KvSliceMut::Q8_0(&mut cache);
                kv_append(isa, &Pool::new(1), &row, 1, 32, 1, &[0], to);
                let got = cache[0].d.to_f32();
                assert!(got == d || got.is_nan() && d.is_nan(), "{isa}: {x}");
                assert_eq!(cache[0].qs, [0; 32]);
            }
        }
        let mut row = [0.5; 32];
        row[31] = f32::NEG_INFINITY;
        let mut cache = [Q8_0::quantize(&row[..31])];
        let to = KvSliceMut::Q8_0(&mut cache);
        kv_append(isa, &Pool::new(1), &row, 1, 32, 1, &[0], to);
        assert!(cache[0].d.to_f32().is_nan());
    }
}

/// The largest magnitude of a head takes the largest code; others are the nearest to `x` over the scale.
#[test]
fn kv_append_scales_heads_in_f8() {
    let (dim, n) = (40, 50);
    let mut rng = Rng(8);
    let mut x = rng.vec(dim * n);
    for (i, x) in x.chunks_mut(dim).enumerate() {
        let magnitude = (i as f32 - 25.0).exp2();
        x.iter_mut().for_each(|x| *x *= magnitude);
    }
    x[3 * dim + 5] = f32::NAN;
    x[4 * dim..5 * dim].fill(0.0);
    let slots: Vec<u32> = (0..n as u32).rev().collect();
    for isa in Isa::available() {
        let len = dim + f8::SCALE_BYTES;
        let mut heads = vec![7; n * len];
        let to = KvSliceMut::Heads {
            code: HeadCode::F8E4M3,
            heads: &mut heads,
            dim,
        };
        kv_append(isa, &Pool::new(2), &x, 1, dim, n, &slots, to);
        for (i, (x, head)) in x
            .chunks_exact(dim)
            .zip(heads.rchunks_exact(len))
            .enumerate()
        {
            let (factor, codes) = f8::load(head);
            let factor = f64::from(factor);
            let got = |i: usize| f64::from(f8::number(codes[i]));
            if i == 3 {
                assert!(factor.is_nan());
                continue;
            }
            let largest = (0..dim).map(|i| got(i).abs()).fold(0.0, f64::max);
            assert!(largest == 448.0 || i == 4, "{isa}: {largest}");
            for (at, &x) in x.iter().enumerate() {
                let x = f64::from(x) / factor;
                // Half a step: three bits of mantissa, or steps of 2^-9. A scale that was rounded down saturates no more.
                let allowed = (x.abs() / 16.0).max(1.0 / 1024.0);
                assert!((got(at) - x).abs() <= allowed, "{isa}: {} for {x}", got(at));
            }
        }
    }
}

/// A head of less than 32 values is a block of its own: what a whole block of it and zeros is.
#[test]
fn kv_append_takes_small_heads_as_blocks() {
    let mut rng = Rng(10);
    for (dim, magnitude) in [(8, 1.0), (16, 1e-5), (31, 300.0), (8, f32::NAN), (1, 0.0)] {
        let (n, len) = (6, HeadCode::Q8_0.head_bytes(dim));
        let x: Vec<f32> = rng.vec(n * dim).iter().map(|x| x * magnitude).collect();
        let slots: Vec<u32> = (0..n as u32).rev().collect();
        let mut small = vec![7; n * len];
        let to = KvSliceMut::Heads {
            code: HeadCode::Q8_0,
            heads: &mut small,
            dim,
        };
        kv_append(Isa::detect(), &Pool::new(1), &x, 1, dim, n, &slots, to);
        let mut padded = vec![0.0; n * 32];
        for (x, padded) in x.chunks_exact(dim).zip(padded.chunks_exact_mut(32)) {
            padded[..dim].copy_from_slice(x);
        }
        let mut whole = vec![Q8_0::quantize(&[1.0; 32]); n];
        let to = KvSliceMut::Q8_0(&mut whole);
        kv_append(Isa::detect(), &Pool::new(1), &padded, 1, 32, n, &slots, to);
        for (head, block) in small.chunks_exact(len).zip(&whole) {
            assert_eq!(head[..2], block.d.0, "{dim}");
            assert!(
                head[2..].iter().zip(&block.qs).all(|(&a, &b)| a as i8 == b),
                "{dim}"
            );
        }
    }
}

#[test]
#[should_panic(expected = "not blocks of 32")]
fn kv_append_refuses_heads_that_are_not_whole_blocks() {
    let to = KvSliceMut::Q8_0(&mut []);
    kv_append(Isa::detect(), &Pool::new(1), &[], 1, 48, 16, &[], to);
}

#[test]
fn kv_append_writes_the_slots_and_nothing_else() {
    let mut rng = Rng(4);
    for isa in Isa::available() {
        for (n_kv_heads, dim, page, n_tokens) in [
            (2, 64, 16, 1),
            (3, 40, 16, 5),
            (8, 64, 32, 300),
            (1, 9, 64, 40),
            (4, 128, 16, 0),
        ] {
            let n_blocks = n_tokens / page + 4;
            let mut free: Vec<u32> = (0..(n_blocks * page) as u32).collect();
            let mut slots: Vec<u32> = (0..n_tokens)
                .map(|_| free.swap_remove(rng.below(free.len())))
                .collect();
            if n_tokens > 2 {
                // The later of two tokens with one slot stays.
                slots[n_tokens - 1] = slots[0];
            }
            let x = rng.vec(n_tokens * n_kv_heads * dim);
            let mut want = vec![-7.0; n_blocks * n_kv_heads * page * dim];
            for (token, &slot) in slots.iter().enumerate() {
                let (block, offset) = (slot as usize / page, slot as usize % page);
                for head in 0..n_kv_heads {
                    let to = ((block * n_kv_heads + head) * page + offset) * dim;
                    let from = (token * n_kv_heads + head) * dim;
                    want[to..to + dim].copy_from_slice(&x[from..from + dim]);
                }
            }
            let half = |x: f32| f16::from_f32(x).to_bits();
            let old = Q8_0::quantize(&[-7.0; 32]);
            for n_threads in [1, 3] {
                let pool = Pool::new(n_threads);
                let mut cache = vec![-7.0; want.len()];
                let to = KvSliceMut::F32(&mut cache);
                kv_append(isa, &pool, &x, n_kv_heads, dim, page, &slots, to);
                assert_eq!(cache, want);
                let mut cache = vec![half(-7.0); want.len()];
                let to = KvSliceMut::F16(&mut cache);
                kv_append(isa, &pool, &x, n_kv_heads, dim, page, &slots, to);
                assert!(
                    cache
                        .iter()
                        .zip(&want)
                        .all(|(&got, &want)| got == half(want))
                );
                if dim % 32 != 0 {
                    continue;
                }
                let mut cache = vec![old; want.len() / 32];
                let to = KvSliceMut::Q8_0(&mut cache);
                kv_append(isa, &pool, &x, n_kv_heads, dim, page, &slots, to);
                for (x, block) in want.chunks_exact(32).zip(&cache) {
                    check_block("slots", x, block);
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "range end index")]
fn kv_append_refuses_a_slot_outside_of_the_cache() {
    let mut cache = vec![0.0; 16 * 8];
    let to = KvSliceMut::F32(&mut cache);
    kv_append(Isa::detect(), &Pool::new(1), &[1.0; 8], 1, 8, 16, &[16], to);
}

#[test]
fn log_sum_exp_follows_its_formula() {
    let mut rng = Rng(5);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([150_001]) {
            for offset in [0.0, 300.0, -300.0] {
                let x: Vec<f32> = rng.vec(n).iter().map(|x| x * 15.0 + offset).collect();
                let want = x
                    .iter()
                    .map(|&x| (f64::from(x) - f64::from(offset)).exp())
                    .sum::<f64>()
                    .ln()
                    + f64::from(offset);
                check(
                    &format!("{isa} log_sum_exp {n}"),
                    &[log_sum_exp(isa, &x)],
                    [want],
                );
            }
        }
        let inf = f32::INFINITY;
        assert_eq!(log_sum_exp(isa, &[]), -inf);
        assert_eq!(log_sum_exp(isa, &[-inf; 9]), -inf);
        assert_eq!(log_sum_exp(isa, &[0.0, inf]), inf);
        assert_eq!(log_sum_exp(isa, &[2.5, -inf, -inf]), 2.5);
        for x in [[1.0, f32::NAN], [-inf, f32::NAN], [inf, f32::NAN]] {
            assert!(log_sum_exp(isa, &x).is_nan());
        }
    }
}

#[test]
fn argmax_is_the_first_largest() {
    let mut rng = Rng(6);
    for isa in Isa::available() {
        for n in WIDTHS.into_iter().chain([3000]) {
            for _ in 0..20 {
                // Few distinct values, so that there are ties.
                let mut x: Vec<f32> = (0..n).map(|_| rng.below(5) as f32 - 9.0).collect();
                x[rng.below(n)] = f32::NAN;
                x[rng.below(n)] = f32::NEG_INFINITY;
                let want = (0..n)
                    .filter(|&i| !x[i].is_nan())
                    .reduce(|a, b| if x[b] > x[a] { b } else { a });
                assert_eq!(argmax(isa, &x), want, "{isa}: {x:?}");
            }
        }
        assert_eq!(argmax(isa, &[]), None);
        assert_eq!(argmax(isa, &[f32::NAN; 9]), None);
        assert_eq!(argmax(isa, &[f32::NEG_INFINITY; 9]), Some(0));
    }
}

#[test]
fn cached_tokens_are_read_and_moved() {
    let mut rng = Rng(9);
    let pool = Pool::new(3);
    for isa in Isa::available() {
        for (n_kv_heads, dim, page) in [(2, 64, 16), (3, 32, 16), (1, 96, 64)] {
            let layout = KvLayout {
                n_kv_heads,
                dim,
                page,
            };
            let n_blocks = 4;
            let width = n_kv_heads * dim;
            let slots: Vec<u32> = (0..(n_blocks * page) as u32).collect();
            let mut x = vec![0.0; slots.len() * width];
            for block in x.chunks_exact_mut(32) {
                block.fill_with(|| (rng.vec(1)[0] * 8.0).round_ties_even());
            }
            let mut f16 = vec![0; x.len()];
            let mut f32 = vec![0.0; x.len()];
            let mut q8_0 = vec![Q8_0::quantize(&[0.0; 32]); x.len() / 32];
            let mut f8 = vec![0; x.len() / dim * (dim + f8::SCALE_BYTES)];
            let runs = [(3, page + 1, 5), (2 * page - 1, 3 * page, 1), (7, 7, 2)].map(
                |(from, to, n_tokens)| SlotRun {
                    from: from as u32,
                    to: to as u32,
                    n_tokens,
                },
            );
            type AsMut<'a> = &'a mut dyn FnMut(&mut dyn FnMut(KvSliceMut<'_>));
            // The largest value of each block is one that all others of its type are held exactly beside.
            let caches: [(f32, AsMut<'_>); 4] = [
                (127.0, &mut |f| f(KvSliceMut::F16(&mut f16))),
                (127.0, &mut |f| f(KvSliceMut::F32(&mut f32))),
                (127.0, &mut |f| f(KvSliceMut::Q8_0(&mut q8_0))),
                (448.0, &mut |f| {
                    f(KvSliceMut::Heads {
                        code: HeadCode::F8E4M3,
                        heads: &mut f8,
                        dim,
                    })
                }),
            ];
            for (largest, cache) in caches {
                x.iter_mut().step_by(32).for_each(|x| *x = largest);
                let mut wanted = x.clone();
                for run in &runs {
                    let [from, to] = [run.from, run.to].map(|slot| slot as usize * width);
                    let n = run.n_tokens as usize * width;
                    wanted[to..to + n].copy_from_slice(&x[from..from + n]);
                }
                cache(&mut |to| kv_append(isa, &pool, &x, n_kv_heads, dim, page, &slots, to));
                let read = |cache: AsMut<'_>| {
                    let mut out = vec![f32::NAN; x.len()];
                    cache(&mut |from| {
                        let from = match from {
                            KvSliceMut::F16(x) => KvSlice::F16(x),
                            KvSliceMut::F32(x) => KvSlice::F32(x),
                            KvSliceMut::Q8_0(x) => KvSlice::Q8_0(x),
                            KvSliceMut::Heads { code, heads, dim } => {
                                KvSlice::Heads { code, heads, dim }
                            }
                        };
                        kv_read(isa, &pool, &layout, &slots, from, &mut out);
                    });
                    out
                };
                assert_eq!(read(cache), x, "{isa}");
                cache(&mut |to| kv_copy(&layout, &runs, to));
                assert_eq!(read(cache), wanted, "{isa}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "is in a block")]
fn tokens_of_two_blocks_are_no_run() {
    let layout = KvLayout {
        n_kv_heads: 1,
        dim: 2,
        page: 4,
    };
    let run = SlotRun {
        from: 2,
        to: 8,
        n_tokens: 3,
    };
    kv_copy(&layout, &[run], KvSliceMut::F32(&mut [0.0; 32]));
}
