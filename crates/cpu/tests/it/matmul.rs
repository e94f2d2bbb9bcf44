//! Matrix products against f64 sums over the dequantized rows, for every format and instruction set.

use rocmforge_cpu::{Acts, Isa, Pool, Product, get_rows, is_fast, matmul};
use rocmforge_gguf::GgmlType;
use rocmforge_gguf::quant;
use rocmforge_plan::{ActFormat, OutMode, Weight, act_format};

use crate::random::Rng;

/// The byte offsets of the f16 fields in a block.
fn half_offsets(ty: GgmlType) -> &'static [usize] {
    match ty {
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::Q2_K => &[80, 82],
        GgmlType::Q3_K => &[108],
        GgmlType::Q6_K => &[208],
        GgmlType::TQ1_0 => &[52],
        GgmlType::TQ2_0 => &[64],
        GgmlType::MXFP4 | GgmlType::NVFP4 | GgmlType::IQ1_M => &[],
        ty if ty.block_len() == 1 => &[],
        _ => &[0],
    }
}

/// Random codes, with finite scales of typical size.
fn weights(random: &mut Rng, ty: GgmlType, halves: &[usize], n: usize) -> Vec<u8> {
    let mut bytes = vec![0; ty.row_bytes(n).unwrap()];
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {
            quant::quantize(ty, &random.vec(n), &mut bytes).unwrap();
        }
        _ => {
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                block.fill_with(|| random.next_u64() as u8);
                set_scales(block, ty, halves, |_| random.unit());
                if ty == GgmlType::MXFP4 {
                    block[0] = 120 + random.below(12) as u8;
                }
            }
        }
    }
    bytes
}

fn set_scales(
    block: &mut [u8],
    ty: GgmlType,
    halves: &[usize],
    mut value: impl FnMut(usize) -> f32,
) {
    for (i, at) in halves.iter().enumerate() {
        let half = &mut block[*at..at + 2];
        quant::quantize(GgmlType::F16, &[value(i)], half).unwrap();
    }
    if ty == GgmlType::MXFP4 {
        block[0] = 127;
    }
    if ty == GgmlType::IQ1_M {
        let mut half = [0; 2];
        quant::quantize(GgmlType::F16, &[value(0)], &mut half).unwrap();
        let bits = u16::from_le_bytes(half);
        for part in 0..4 {
            let byte = &mut block[49 + 2 * part];
            *byte = *byte & 15 | ((bits >> (4 * part)) as u8 & 15) << 4;
        }
    }
}

fn weight(ty: GgmlType, [n_out, n_in]: [usize; 2], data: &[u8]) -> Weight<'_> {
    Weight {
        ty,
        n_out,
        n_in,
        data,
    }
}

fn dequantized(w: &Weight<'_>) -> Vec<f32> {
    let mut out = vec![0.0; w.n_out * w.n_in];
    quant::dequantize(w.ty, w.data, &mut out).unwrap();
    out
}

fn quantized(isa: Isa, x: &[f32], n_tokens: usize, format: ActFormat) -> Acts {
    let mut acts = Acts::new();
    let shape = [n_tokens, x.len() / n_tokens];
    acts.quantize(isa, &Pool::new(1), x, shape, format);
    acts
}

/// Computes each element as a sum in f64, with the sum of magnitudes that rounding errors are relative to.
fn reference(w: &Weight<'_>, acts: &Acts) -> Vec<(f64, f64)> {
    let rows = dequantized(w);
    let mut x = vec![0.0; w.n_in];
    let mut out = Vec::new();
    for token in 0..acts.n_tokens() {
        acts.dequantize_row(token, &mut x);
        for row in rows.chunks_exact(w.n_in) {
            let products = row.iter().zip(&x);
            let products = products.map(|(w, x)| f64::from(*w) * f64::from(*x));
            out.push(products.fold((0.0, 0.0), |(s, m), p| (s + p, m + p.abs())));
        }
    }
    out
}

/// A product without bias that replaces `out`.
fn store<'a>(w: &Weight<'a>, out: &'a mut [f32]) -> Product<'a> {
    Product {
        w: *w,
        bias: None,
        mode: OutMode::Store,
        out,
    }
}

fn product(isa: Isa, pool: &Pool, w: &Weight<'_>, acts: &Acts) -> Vec<f32> {
    let mut out = vec![f32::NAN; acts.n_tokens() * w.n_out];
    matmul(isa, pool, acts, store(w, &mut out));
    out
}

/// Compares with [`reference`]. The bound allows for a chain of f32 additions, one per block.
fn check(isa: Isa, w: &Weight<'_>, acts: &Acts, what: &str) {
    let out = product(isa, &Pool::new(1), w, acts);
    for (i, (y, (sum, magnitude))) in out.iter().zip(reference(w, acts)).enumerate() {
        let error = (f64::from(*y) - sum).abs();
        assert!(
            error <= 1e-6 * magnitude,
            "{isa} {} {what}: element {i} is {y}, expected {sum}, magnitude {magnitude}",
            w.ty.name()
        );
    }
}

fn formats() -> impl Iterator<Item = (GgmlType, &'static [usize], usize)> {
    GgmlType::COMPUTED.iter().map(|&ty| {
        (
            ty,
            half_offsets(ty),
            act_format(ty).block_len().max(ty.block_len()),
        )
    })
}

/// Formats with blocks of `block_len` values.
fn formats_of(block_len: usize) -> impl Iterator<Item = (GgmlType, &'static [usize], usize)> {
    formats().filter(move |(ty, ..)| ty.block_len() == block_len)
}

#[test]
fn every_format_that_can_be_dequantized_is_computed() {
    for ty in GgmlType::ALL {
        let listed = GgmlType::COMPUTED.contains(ty);
        assert_eq!(listed, ty.can_dequantize(), "{}", ty.name());
    }
}

#[test]
fn every_vector_instruction_set_supports_every_format() {
    for isa in Isa::available() {
        for &ty in GgmlType::COMPUTED {
            assert_eq!(is_fast(isa, ty), isa != Isa::Scalar, "{isa} {}", ty.name());
        }
    }
}

#[test]
fn random_products_match_f64() {
    let mut random = Rng(1);
    for isa in Isa::available() {
        for (ty, halves, block) in formats() {
            for n_blocks in [1, 2, 3, 5, 9] {
                for n_tokens in [1, 2, 3, 7] {
                    let (n_in, n_out) = (n_blocks * block, 11);
                    let data = weights(&mut random, ty, halves, n_in * n_out);
                    let w = weight(ty, [n_out, n_in], &data);
                    let x = random.vec(n_in * n_tokens);
                    let acts = quantized(isa, &x, n_tokens, act_format(ty));
                    check(isa, &w, &acts, &format!("{n_in} in, {n_tokens} tokens"));
                }
            }
        }
    }
}

#[test]
fn float_rows_of_any_length_match_f64() {
    let mut random = Rng(2);
    for isa in Isa::available() {
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
            for n_in in (1..40).chain([511, 512, 513, 1030, 1537]) {
                for n_tokens in [1, 3, 5] {
                    let data = weights(&mut random, ty, &[0], n_in * 5);
                    let w = weight(ty, [5, n_in], &data);
                    let x = random.vec(n_in * n_tokens);
                    // A buffer that was larger before must not leave old values in the tail.
                    let mut acts = quantized(isa, &[9.0; 3000], 1, ActFormat::F32);
                    acts.quantize(isa, &Pool::new(1), &x, [n_tokens, n_in], ActFormat::F32);
                    check(isa, &w, &acts, &format!("{n_in} in, {n_tokens} tokens"));
                }
            }
        }
    }
}

/// The sum of a row in a float format, in the order that `float_dot.rs` documents: one sum per lane, in the order of the
/// row, then halves are added until one sum is left.
fn lane_sum<const LANES: usize>(row: &[f32], x: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    for (i, (w, x)) in row.iter().zip(x).enumerate() {
        sums[i % LANES] = w.mul_add(*x, sums[i % LANES]);
    }
    let mut n = LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            sums[i] += sums[i + n];
        }
    }
    sums[0]
}

/// For rows shorter and longer than what is prefetched, and any number of tokens and rows, the bits are those of the
/// documented order of additions.
#[test]
fn float_rows_are_added_in_the_documented_order() {
    let mut random = Rng(12);
    for isa in Isa::available() {
        let lane_sum = match isa {
            Isa::Scalar => continue,
            Isa::Avx2(_) => lane_sum::<8>,
            Isa::Avx512(_) => lane_sum::<16>,
        };
        for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16] {
            for n_in in [1, 15, 16, 17, 100, 896, 4864, 5003] {
                for n_out in [1, 7, 45] {
                    let data = weights(&mut random, ty, &[], n_in * n_out);
                    let w = weight(ty, [n_out, n_in], &data);
                    let rows = dequantized(&w);
                    for n_tokens in [1, 2, 3, 4] {
                        let x = random.vec(n_in * n_tokens);
                        let acts = quantized(isa, &x, n_tokens, ActFormat::F32);
                        let y = product(isa, &Pool::new(2), &w, &acts);
                        let expected = x.chunks_exact(n_in).flat_map(|x| {
                            let rows = rows.chunks_exact(n_in);
                            rows.map(|row| lane_sum(row, x).to_bits())
                        });
                        assert!(
                            y.iter().map(|y| y.to_bits()).eq(expected),
                            "{isa} {}: {n_in} in, {n_out} out, {n_tokens} tokens",
                            ty.name()
                        );
                    }
                }
            }
        }
    }
}

/// The largest integer sums that formats of `block_len` values can produce must not saturate or wrap. The scalar code
/// has no integer sums.
fn check_extreme_codes(block_len: usize) {
    for isa in Isa::available()
        .into_iter()
        .filter(|isa| *isa != Isa::Scalar)
    {
        for (ty, halves, block) in formats_of(block_len) {
            let (n_in, n_out) = (4 * block, 9);
            for fill in [0x00, 0xff, 0x7f, 0x80, 0x88, 0x77, 0xf0, 0x0f, 0x20, 0xdf] {
                let mut data = vec![fill; ty.row_bytes(n_in * n_out).unwrap()];
                for block in data.chunks_exact_mut(ty.block_bytes()) {
                    set_scales(block, ty, halves, |i| 1.0 - 0.5 * i as f32);
                }
                let w = weight(ty, [n_out, n_in], &data);
                let patterns: [fn(usize) -> f32; 5] = [
                    |_| 1.0,
                    |_| -1.0,
                    |_| 0.0,
                    |i| if i % 2 == 0 { 1.0 } else { -1.0 },
                    |i| if i % 32 < 16 { 1.0 } else { -1.0 },
                ];
                for (p, pattern) in patterns.iter().enumerate() {
                    for n_tokens in [1, 2, 5] {
                        let x: Vec<f32> = (0..n_in * n_tokens).map(pattern).collect();
                        let acts = quantized(isa, &x, n_tokens, act_format(ty));
                        let what = format!("fill {fill:#x}, pattern {p}, {n_tokens} tokens");
                        check(isa, &w, &acts, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn extreme_codes_of_blocks_of_32_match_f64() {
    check_extreme_codes(32);
}

#[test]
fn extreme_codes_of_blocks_of_64_and_128_match_f64() {
    check_extreme_codes(64);
    check_extreme_codes(128);
}

#[test]
fn extreme_codes_of_blocks_of_256_match_f64() {
    check_extreme_codes(256);
}

/// Each token of a batch must have the bits it has alone, for any number of rows and threads.
fn check_batches(block_len: usize) {
    let mut random = Rng(3);
    let pools = [Pool::new(1), Pool::new(3)];
    for isa in Isa::available() {
        for (ty, halves, block) in formats_of(block_len) {
            let n_in = match ty.block_len() {
                1 => 1111,
                32 => 37 * 32,
                _ => 5 * block,
            };
            for n_out in [1, 8, 29, 67] {
                let data = weights(&mut random, ty, halves, n_in * n_out);
                let w = weight(ty, [n_out, n_in], &data);
                let x = random.vec(n_in * 17);
                let alone: Vec<u32> = x
                    .chunks_exact(n_in)
                    .flat_map(|x| {
                        product(isa, &pools[0], &w, &quantized(isa, x, 1, act_format(ty)))
                    })
                    .map(f32::to_bits)
                    .collect();
                // The scalar code computes each token on its own.
                let step = if isa == Isa::Scalar { 8 } else { 1 };
                for n_tokens in (1..=17).step_by(step) {
                    for pool in &pools {
                        let x = &x[..n_tokens * n_in];
                        let acts = quantized(isa, x, n_tokens, act_format(ty));
                        let y = product(isa, pool, &w, &acts);
                        let y: Vec<u32> = y.into_iter().map(f32::to_bits).collect();
                        assert!(
                            y == alone[..n_tokens * n_out],
                            "{isa} {}: {n_tokens} tokens, {n_out} rows, {} threads",
                            ty.name(),
                            pool.n_threads()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_batching_with_float_formats() {
    check_batches(1);
}

#[test]
fn bits_do_not_depend_on_batching_with_blocks_of_32() {
    check_batches(32);
}

#[test]
fn bits_do_not_depend_on_batching_with_blocks_of_64_and_128() {
    check_batches(64);
    check_batches(128);
}

#[test]
fn bits_do_not_depend_on_batching_with_blocks_of_256() {
    check_batches(256);
}

/// Enough tokens and rows for several tasks in both directions.
#[test]
fn tiles_cover_the_output() {
    let mut random = Rng(4);
    for isa in Isa::available() {
        for (ty, n_in) in [(GgmlType::Q4_K, 16384), (GgmlType::F16, 8192)] {
            let (n_out, n_tokens) = (37, 101);
            let data = weights(&mut random, ty, &[0, 2], n_in * n_out);
            let w = weight(ty, [n_out, n_in], &data);
            let x = random.vec(n_in * n_tokens);
            let acts = quantized(isa, &x, n_tokens, act_format(ty));
            let y = product(isa, &Pool::new(2), &w, &acts);
            for token in [0, 47, 48, 64, 100] {
                let x = &x[token * n_in..][..n_in];
                let alone = product(
                    isa,
                    &Pool::new(1),
                    &w,
                    &quantized(isa, x, 1, act_format(ty)),
                );
                assert_eq!(y[token * n_out..][..n_out], alone, "{isa} {}", ty.name());
            }
        }
    }
}

#[test]
fn bias_and_residual_are_added() {
    let mut random = Rng(5);
    for isa in Isa::available() {
        for (ty, halves, block) in formats() {
            for n_tokens in [1, 2, 6] {
                let (n_in, n_out) = (2 * block, 21);
                let data = weights(&mut random, ty, halves, n_in * n_out);
                let w = weight(ty, [n_out, n_in], &data);
                let acts = quantized(isa, &random.vec(n_in * n_tokens), n_tokens, act_format(ty));
                let pool = Pool::new(1);
                let plain = product(isa, &pool, &w, &acts);
                let bias = random.vec(n_out);
                let old = random.vec(n_out * n_tokens);
                for (bias, mode) in [
                    (Some(&bias), OutMode::Store),
                    (None, OutMode::Add),
                    (Some(&bias), OutMode::Add),
                ] {
                    let mut out = old.clone();
                    let product = Product {
                        w,
                        bias: bias.map(|b| &b[..]),
                        mode,
                        out: &mut out,
                    };
                    matmul(isa, &pool, &acts, product);
                    for (i, y) in out.iter().enumerate() {
                        let mut expected = plain[i];
                        if let Some(bias) = bias {
                            expected += bias[i % n_out];
                        }
                        if mode == OutMode::Add {
                            expected += old[i];
                        }
                        assert_eq!(*y, expected, "{isa} {} {mode:?}", ty.name());
                    }
                }
            }
        }
    }
}

/// ggml's `quantize_row_q8_0` and `quantize_row_q8_K`, implemented from their definitions.
fn expected_codes(x: &[f32], format: ActFormat) -> Vec<(f32, Vec<i8>)> {
    let blocks = x.chunks_exact(format.block_len());
    blocks
        .map(|x| {
            let max = x
                .iter()
                .fold(0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
            let (factor, scale) = match format {
                ActFormat::Q8x32 => {
                    let d = max.abs() / 127.0;
                    (1.0 / d, half::f16::from_f32(d).to_f32())
                }
                _ => {
                    let factor = -127.0 / max;
                    (factor, 1.0 / factor)
                }
            };
            let codes = x
                .iter()
                .map(|x| (x * factor).round_ties_even().min(127.0) as i8);
            (scale, codes.collect())
        })
        .collect()
}

#[test]
fn quantized_activations_match_ggml() {
    let mut random = Rng(6);
    for isa in Isa::available() {
        for format in [ActFormat::Q8x32, ActFormat::Q8x256] {
            for magnitude in [1e-3, 1.0, 300.0] {
                let x: Vec<f32> = random.vec(2048).iter().map(|x| x * magnitude).collect();
                let acts = quantized(isa, &x, 2, format);
                for (token, x) in x.chunks_exact(1024).enumerate() {
                    let mut y = vec![0.0; 1024];
                    acts.dequantize_row(token, &mut y);
                    let expected = expected_codes(x, format).into_iter();
                    let expected: Vec<f32> = expected
                        .flat_map(|(d, q)| q.into_iter().map(move |q| d * f32::from(q)))
                        .collect();
                    assert_eq!(y, expected, "{isa} {format:?}");
                }
            }
        }
    }
}

#[test]
fn quantized_activations_are_equal_on_every_instruction_set() {
    let mut random = Rng(7);
    let magnitudes = [0.0, 1e-45, 1e-39, 1e-36, 1e-20, 1e-4, 1.0, 1e4, 1e9, 1e38];
    for format in [ActFormat::F32, ActFormat::Q8x32, ActFormat::Q8x256] {
        for (i, magnitude) in magnitudes.iter().enumerate() {
            let mut x: Vec<f32> = random.vec(512).iter().map(|x| x * magnitude).collect();
            // Rounding ties, both zeros, and the largest value at either end.
            x[3] = 0.5 / 127.0 * magnitude;
            x[4] = -1.5 / 127.0 * magnitude;
            x[5] = -0.0;
            x[i % 2 * 511] = -magnitude;
            let bits = |isa| {
                let acts = quantized(isa, &x, 1, format);
                let mut y = vec![0.0; 512];
                acts.dequantize_row(0, &mut y);
                y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            for isa in Isa::available() {
                assert_eq!(bits(isa), bits(Isa::Scalar), "{isa} {format:?} {magnitude}");
            }
        }
    }
}

/// A value that is not finite must not become finite.
#[test]
fn nan_and_infinity_propagate_to_the_output() {
    let mut random = Rng(8);
    for isa in Isa::available() {
        for (ty, halves, block) in formats() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for n_tokens in [1, 4] {
                    let n_in = 2 * block.max(32);
                    let data = weights(&mut random, ty, halves, n_in * 3);
                    let w = weight(ty, [3, n_in], &data);
                    let mut x = random.vec(n_in * n_tokens);
                    x[n_in - 7] = bad;
                    let acts = quantized(isa, &x, n_tokens, act_format(ty));
                    let y = product(isa, &Pool::new(1), &w, &acts);
                    let ty = ty.name();
                    assert!(y[..3].iter().all(|y| !y.is_finite()), "{isa} {ty} {bad}");
                    assert!(y[3..].iter().all(|y| y.is_finite()), "{isa} {ty} {bad}");
                }
            }
        }
    }
}

#[test]
fn get_rows_dequantizes() {
    let mut random = Rng(9);
    for (ty, halves, block) in formats() {
        let (n_in, n_out) = (2 * block, 7);
        let data = weights(&mut random, ty, halves, n_in * n_out);
        let w = weight(ty, [n_out, n_in], &data);
        let all = dequantized(&w);
        let ids = [6, 0, 3, 3];
        let mut out = vec![0.0; ids.len() * n_in];
        get_rows(&w, &ids, &mut out);
        for (id, row) in ids.iter().zip(out.chunks_exact(n_in)) {
            assert_eq!(row, &all[*id as usize * n_in..][..n_in], "{}", ty.name());
        }
    }
}

#[test]
fn accepts_empty_batches() {
    for isa in Isa::available() {
        let pool = Pool::new(2);
        let mut acts = Acts::new();
        acts.quantize(isa, &pool, &[], [0, 256], ActFormat::Q8x256);
        let ty = GgmlType::Q4_K;
        let data = [0; 144];
        let w = weight(ty, [1, 256], &data);
        matmul(isa, &pool, &acts, store(&w, &mut []));
        get_rows(&w, &[], &mut []);
    }
}

#[test]
fn wrong_shapes_panic() {
    let case = |n_out: usize, n_in: usize, bias: Option<usize>, out: usize, format| {
        std::panic::catch_unwind(|| {
            let data = [0; 34 * 4];
            let w = weight(GgmlType::Q8_0, [n_out, n_in], &data);
            let acts = quantized(Isa::detect(), &[0.0; 128], 2, format);
            let bias = bias.map(|n| vec![0.0; n]);
            let mut out = vec![0.0; out];
            let product = Product {
                bias: bias.as_deref(),
                ..store(&w, &mut out)
            };
            matmul(Isa::detect(), &Pool::new(1), &acts, product);
        })
        .is_ok()
    };
    assert!(case(2, 64, None, 4, ActFormat::Q8x32));
    assert!(case(2, 64, Some(2), 4, ActFormat::Q8x32));
    assert!(!case(2, 64, Some(3), 4, ActFormat::Q8x32));
    assert!(!case(2, 64, None, 5, ActFormat::Q8x32));
    assert!(!case(3, 64, None, 6, ActFormat::Q8x32));
    assert!(!case(4, 32, None, 8, ActFormat::Q8x32));
    assert!(!case(2, 63, None, 4, ActFormat::Q8x32));
    assert!(!case(2, 64, None, 4, ActFormat::F32));
}
