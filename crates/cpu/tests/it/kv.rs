//! Writing to, reading from and copying within the paged KV cache, for every cache type.

use half::f16;
use rocmforge_cpu::{
    HeadCode, Isa, KvLayout, KvSlice, KvSliceMut, Pool, hadamard, kv_append, kv_copy, kv_read,
};
use rocmforge_gguf::quant::legacy::{Q4_0, Q5_1, Q8_0};
use rocmforge_gguf::quant::{QuantizeBlock, f8};
use rocmforge_plan::SlotRun;

use crate::random::Rng;

fn layout(n_kv_heads: usize, dim: usize, page: usize) -> KvLayout {
    KvLayout {
        n_kv_heads,
        dim,
        page,
        hadamard: 1,
    }
}

/// Every f16 value and every midpoint of two, with their f32 neighbours.
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
fn kv_append_rounds_to_nearest_f16() {
    let x = f16_corner_cases();
    let want: Vec<u16> = x.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
    for isa in Isa::available() {
        for dim in [64, 1] {
            let n = x.len() / dim;
            let slots: Vec<u32> = (0..n as u32).collect();
            let mut cache = vec![0; x.len()];
            let to = KvSliceMut::F16(&mut cache);
            kv_append(isa, &Pool::new(2), &layout(1, dim, n), &x, &slots, to);
            for ((&x, &want), &got) in x.iter().zip(&want).zip(&cache) {
                assert_eq!(got, want, "{isa}: {x} ({:#x})", x.to_bits());
            }
        }
    }
}

/// Checks that `block` holds the values over the unrounded scale, rounded to nearest even, with codes up to 127.
fn check_block(what: &str, x: &[f32], block: &Q8_0) {
    let scale = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    assert_eq!(block.d.bits(), f16::from_f32(scale).to_bits(), "{what}");
    for (&x, &code) in x.iter().zip(&block.qs) {
        let want = (x * (1.0 / scale)).round_ties_even();
        assert_eq!(f32::from(code), want, "{what}: {x} by {scale}");
    }
}

#[test]
fn kv_append_to_q8_0_matches_ggml() {
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
            kv_append(isa, &Pool::new(2), &layout(1, dim, 50), &x, &slots, to);
            assert_eq!(cache[0].qs[..4], [-127, 2, 4, -2]);
            for (i, (x, block)) in x.chunks_exact(32).zip(&cache).enumerate() {
                check_block(&format!("{isa}: block {i} of {dim}"), x, block);
            }
        }
        // Zeros and scales that vanish give zeros; NaN stays NaN.
        for (x, d) in [(0.0, 0.0), (1e-42, 0.0), (f32::NAN, f32::NAN)] {
            for other in [0.0, x] {
                let mut row = [other; 32];
                row[7] = x;
                let mut cache = [Q8_0::quantize(&[1.0; 32])];
                let to = KvSliceMut::Q8_0(&mut cache);
                kv_append(isa, &Pool::new(1), &layout(1, 32, 1), &row, &[0], to);
                let got = cache[0].d.to_f32();
                assert!(got == d || got.is_nan() && d.is_nan(), "{isa}: {x}");
                assert_eq!(cache[0].qs, [0; 32]);
            }
        }
        let mut row = [0.5; 32];
        row[31] = f32::NEG_INFINITY;
        let mut cache = [Q8_0::quantize(&row[..31])];
        let to = KvSliceMut::Q8_0(&mut cache);
        kv_append(isa, &Pool::new(1), &layout(1, 32, 1), &row, &[0], to);
        assert!(cache[0].d.to_f32().is_nan());
    }
}

/// The largest magnitude of a head gets the largest code, other values the code nearest to `x` over the scale.
#[test]
fn kv_append_to_fp8_scales_each_head() {
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
        kv_append(isa, &Pool::new(2), &layout(1, dim, n), &x, &slots, to);
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
                // Half a step: three mantissa bits, or steps of 2^-9. A scale rounded down costs no more by saturation.
                let allowed = (x.abs() / 16.0).max(1.0 / 1024.0);
                assert!((got(at) - x).abs() <= allowed, "{isa}: {} for {x}", got(at));
            }
        }
    }
}

/// A head of less than 32 values is stored like a block padded with zeros.
#[test]
fn kv_append_stores_small_heads_as_q8_0_blocks() {
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
        kv_append(
            Isa::detect(),
            &Pool::new(1),
            &layout(1, dim, n),
            &x,
            &slots,
            to,
        );
        let mut padded = vec![0.0; n * 32];
        for (x, padded) in x.chunks_exact(dim).zip(padded.chunks_exact_mut(32)) {
            padded[..dim].copy_from_slice(x);
        }
        let mut whole = vec![Q8_0::quantize(&[1.0; 32]); n];
        let to = KvSliceMut::Q8_0(&mut whole);
        kv_append(
            Isa::detect(),
            &Pool::new(1),
            &layout(1, 32, n),
            &padded,
            &slots,
            to,
        );
        for (head, block) in small.chunks_exact(len).zip(&whole) {
            assert_eq!(head[..2], block.d.0, "{dim}");
            assert!(
                head[2..].iter().zip(&block.qs).all(|(&a, &b)| a as i8 == b),
                "{dim}"
            );
        }
    }
}

/// Appends one row per slot to heads in `code`, and returns these and what they are read as.
fn through(code: HeadCode, layout: &KvLayout, x: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (isa, pool, dim) = (Isa::detect(), Pool::new(2), layout.dim);
    let slots: Vec<u32> = (0..layout.page as u32).collect();
    let mut heads = vec![7; layout.page * code.head_bytes(dim)];
    let to = KvSliceMut::Heads {
        code,
        heads: &mut heads,
        dim,
    };
    kv_append(isa, &pool, layout, x, &slots, to);
    let mut out = vec![f32::NAN; x.len()];
    let from = KvSlice::Heads {
        code,
        heads: &heads,
        dim,
    };
    kv_read(isa, &pool, layout, &slots, from, &mut out);
    (heads, out)
}

#[test]
fn heads_in_few_bits_are_blocks_of_their_rotation() {
    let mut rng = Rng(12);
    let n = 40;
    for (dim, len) in [(128, 128), (64, 64), (96, 32), (32, 1)] {
        let mut x = rng.vec(n * dim);
        for (i, x) in x.chunks_exact_mut(dim).enumerate() {
            let magnitude = (i as f32 - 30.0).exp2();
            x.iter_mut().for_each(|x| *x *= magnitude);
        }
        x[3 * dim..4 * dim].fill(0.0);
        x[4 * dim] = f32::NAN;
        let mut rotated = x.clone();
        hadamard(&mut rotated, len);
        for (head, rotated) in x.chunks_exact(len).zip(rotated.chunks_exact(len)) {
            // Entry (i, j) of the matrix is -1 if i and j have an odd number of bits in common.
            for (i, &got) in rotated.iter().enumerate() {
                let term = |(j, &x): (usize, &f32)| match (i & j).count_ones() % 2 {
                    0 => f64::from(x),
                    _ => -f64::from(x),
                };
                let want = head.iter().enumerate().map(term).sum::<f64>() / (len as f64).sqrt();
                let largest = head.iter().fold(0f32, |max, x| max.max(x.abs()));
                let near = (f64::from(got) - want).abs() <= f64::from(largest) * 1e-5;
                assert!(near || got.is_nan() && want.is_nan(), "{got}, not {want}");
            }
        }
        let layout = KvLayout {
            hadamard: len,
            ..layout(1, dim, n)
        };
        for code in [HeadCode::Q5_1, HeadCode::Q4_0] {
            let (heads, _) = through(code, &layout, &x);
            let n_bytes = code.head_bytes(32);
            for (block, x) in heads.chunks_exact(n_bytes).zip(rotated.chunks_exact(32)) {
                let scale = f16::from_le_bytes([block[0], block[1]]);
                if x.iter().any(|x| x.is_nan()) {
                    assert!(scale.is_nan());
                    continue;
                }
                let wanted = match code {
                    HeadCode::Q5_1 => {
                        let Q5_1 { d, m, qh, qs } = Q5_1::quantize(x);
                        [&d.0[..], &m.0, &qh, &qs].concat()
                    }
                    _ => {
                        let Q4_0 { d, qs } = Q4_0::quantize(x);
                        [&d.0[..], &qs].concat()
                    }
                };
                assert_eq!(block, wanted, "{code:?}, heads of {dim}");
            }
        }
    }
}

/// One large value in each head, as keys have them: without a rotation it takes the precision of its block.
#[test]
fn rotated_heads_keep_precision_beside_outliers() {
    let mut rng = Rng(13);
    let (dim, n) = (128, 64);
    let mut x = rng.vec(n * dim);
    x.iter_mut().skip(5).step_by(dim).for_each(|x| *x = 40.0);
    for code in [HeadCode::Q5_1, HeadCode::Q4_0] {
        let [plain, rotated] = [1, dim].map(|hadamard| {
            let layout = KvLayout {
                hadamard,
                ..layout(1, dim, n)
            };
            let (_, read) = through(code, &layout, &x);
            let squares = x.iter().zip(&read).map(|(a, b)| f64::from(a - b).powi(2));
            // Of the other values of the large one's block.
            let in_block = squares
                .enumerate()
                .filter(|(i, _)| i % dim < 32 && i % dim != 5);
            in_block.map(|(_, square)| square).sum::<f64>().sqrt()
        });
        assert!(
            rotated < plain / 2.0,
            "{code:?}: {rotated}, {plain} without"
        );
    }
}

/// A head of less than 32 values is a block whose other codes are 0.
#[test]
fn small_heads_take_a_whole_block_in_few_bits() {
    let mut rng = Rng(14);
    for code in [HeadCode::Q5_1, HeadCode::Q4_0] {
        for dim in [1, 8, 16, 31] {
            let x = rng.vec(3 * dim);
            let (heads, read) = through(code, &layout(1, dim, 3), &x);
            for (x, read) in x.chunks_exact(dim).zip(read.chunks_exact(dim)) {
                let largest = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                // Half of a step of 2 / 31; and of 1 / 8, or a whole one at the end that has no code.
                let bound = match code {
                    HeadCode::Q5_1 => largest * 0.034,
                    _ => largest * 0.126,
                };
                for (x, read) in x.iter().zip(read) {
                    assert!((x - read).abs() <= bound, "{code:?}: {read} for {x}");
                }
            }
            for block in heads.chunks_exact(code.head_bytes(dim)) {
                let codes = &block[block.len() - 16..];
                let nibble = |i: usize| codes[i % 16] >> (i / 16 * 4) & 15;
                assert!((dim..32).all(|i| nibble(i) == 0), "{code:?} of {dim}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "not blocks of 32")]
fn kv_append_rejects_heads_that_are_not_whole_blocks() {
    let to = KvSliceMut::Q8_0(&mut []);
    kv_append(
        Isa::detect(),
        &Pool::new(1),
        &layout(1, 48, 16),
        &[],
        &[],
        to,
    );
}

#[test]
fn kv_append_writes_only_the_given_slots() {
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
                kv_append(isa, &pool, &layout(n_kv_heads, dim, page), &x, &slots, to);
                assert_eq!(cache, want);
                let mut cache = vec![half(-7.0); want.len()];
                let to = KvSliceMut::F16(&mut cache);
                kv_append(isa, &pool, &layout(n_kv_heads, dim, page), &x, &slots, to);
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
                kv_append(isa, &pool, &layout(n_kv_heads, dim, page), &x, &slots, to);
                for (x, block) in want.chunks_exact(32).zip(&cache) {
                    check_block("slots", x, block);
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "range end index")]
fn kv_append_rejects_slots_outside_the_cache() {
    let mut cache = vec![0.0; 16 * 8];
    let to = KvSliceMut::F32(&mut cache);
    kv_append(
        Isa::detect(),
        &Pool::new(1),
        &layout(1, 8, 16),
        &[1.0; 8],
        &[16],
        to,
    );
}

#[test]
fn kv_read_and_kv_copy_round_trip() {
    let mut rng = Rng(9);
    let pool = Pool::new(3);
    for isa in Isa::available() {
        for (n_kv_heads, dim, page) in [(2, 64, 16), (3, 32, 16), (1, 96, 64)] {
            let layout = layout(n_kv_heads, dim, page);
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
            // With this largest value in each block, the type holds all other values exactly.
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
                cache(&mut |to| kv_append(isa, &pool, &layout, &x, &slots, to));
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
fn kv_copy_rejects_runs_across_blocks() {
    let run = SlotRun {
        from: 2,
        to: 8,
        n_tokens: 3,
    };
    kv_copy(&layout(1, 2, 4), &[run], KvSliceMut::F32(&mut [0.0; 32]));
}
