//! Norms and quantization of activations, against formulas in f64 and quantization in plain loops.

use crate::common;
use crate::common::any_order;
use crate::common::values::{Random, assert_close};
use half::f16;
use rocmforge_gpu::{ActFormat, ActsBuffer, Buffer, Gpu, ops};

const EPS: f32 = 1e-6;

/// Codes, bits of the scales, sums of 16 codes.
type Quantized = (Vec<i8>, Vec<u32>, Vec<i16>);

/// Quantizes by the definitions of `ActFormat`.
fn quantized(x: &[f32], form: ActFormat) -> Quantized {
    let (mut codes, mut scales, mut sums) = (vec![], vec![], vec![]);
    for block in x.chunks(form.block_len()) {
        // Compares bits, so that NaN is the largest.
        let max = block.iter().map(|x| x.abs().to_bits()).max().unwrap();
        let max = f32::from_bits(max);
        let (factor, scale) = if form == ActFormat::Q8x32 {
            let d = max / 127.0;
            (1.0 / d, f16::from_f32(d).to_f32())
        } else {
            (127.0 / max, 1.0 / (127.0 / max))
        };
        scales.push(if max.is_finite() { scale } else { f32::NAN }.to_bits());
        for half in block.chunks(16) {
            let mut sum = 0;
            for x in half {
                let usable = max.is_finite() && factor.is_finite();
                let code = if usable {
                    (x * factor).round_ties_even() as i8
                } else {
                    0
                };
                codes.push(code);
                sum += i16::from(code);
            }
            sums.push(sum);
        }
    }
    (codes, scales, sums)
}

fn read(gpu: &Gpu, acts: &ActsBuffer, n_rows: usize) -> Quantized {
    let acts = acts.rows(n_rows);
    let scales = gpu.read(acts.scales).unwrap();
    (
        gpu.read(acts.codes).unwrap(),
        scales.iter().map(|scale| scale.to_bits()).collect(),
        gpu.read(acts.sums).unwrap(),
    )
}

/// Rows of 1024 values; each block of 256 is another edge case.
fn adversarial() -> Vec<f32> {
    let mut random = Random(1);
    let mut x = Vec::new();
    let mut scaled =
        |factor: f32| -> Vec<f32> { random.normals(256).iter().map(|x| x * factor).collect() };
    for factor in [
        1.0, 0.0, -0.0, 1e-37, 3e-39, 1e-42, 1e-45, 1e-30, 6e-8, 1e6, 1e7, 1e37,
    ] {
        x.extend(scaled(factor));
    }
    // Ties: half codes with a largest magnitude of 127.
    x.extend((0..256).map(|i| i as f32 / 2.0 - 63.5));
    x.extend((0..256).map(|i| {
        if i % 32 == 0 {
            127.0
        } else {
            i as f32 / 2.0 - 64.0
        }
    }));
    for special in [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
    ] {
        let mut block = scaled(1.0);
        block[77] = special;
        x.extend(block);
    }
    x
}

#[test]
fn quantization_matches_reference_bits() {
    let mut random = Random(2);
    for gpu in common::gpus_with(&["norms=block", "loads=narrow"]) {
        for (n_rows, width, x) in [
            (1, 32, random.normals(32)),
            (3, 96, random.normals(3 * 96)),
            (2, 2304, random.normals(2 * 2304)),
            (5, 1024, adversarial()),
        ] {
            assert_eq!(x.len(), n_rows * width);
            for form in [ActFormat::Q8x32, ActFormat::Q8x256] {
                if !width.is_multiple_of(form.block_len()) {
                    continue;
                }
                let dx = gpu.upload(&x).unwrap();
                let acts = ActsBuffer::new(&gpu, form, n_rows, width).unwrap();
                let run = || {
                    ops::quantize(&gpu, dx.as_slice(), &acts.rows(n_rows)).unwrap();
                    read(&gpu, &acts, n_rows)
                };
                for _ in 0..3 {
                    assert!(
                        run() == quantized(&x, form),
                        "{form:?} {n_rows} x {width} on {}",
                        common::name(&gpu)
                    );
                }
            }
        }
    }
}

#[test]
fn f32_form_is_a_copy() {
    let x = Random(3).normals(3 * 77);
    for gpu in common::gpus_with(&["norms=block", "loads=narrow"]) {
        let dx = gpu.upload(&x).unwrap();
        let acts = ActsBuffer::new(&gpu, ActFormat::F32, 3, 77).unwrap();
        ops::quantize(&gpu, dx.as_slice(), &acts.rows(3)).unwrap();
        assert_eq!(gpu.read(acts.rows(3).values).unwrap(), x);
    }
}

fn rms_norm(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let n = x.len() as f64;
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let scale = 1.0 / (squares / n + f64::from(EPS)).sqrt();
    x.iter()
        .zip(weight)
        .map(|(&x, &w)| f64::from(x) * scale * f64::from(w))
        .collect()
}

fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
    let scale = 1.0 / (squares / n + f64::from(EPS)).sqrt();
    let normed = x.iter().map(|&x| (f64::from(x) - mean) * scale);
    normed
        .zip(weight)
        .zip(bias)
        .map(|((x, &w), &b)| x * f64::from(w) + f64::from(b))
        .collect()
}

/// Rows of many widths (heads, tails, more than a block keeps in registers), some all zero, tiny, huge or with one
/// value.
fn rows() -> Vec<(usize, Vec<Vec<f32>>)> {
    let mut random = Random(4);
    let widths = [
        (1, 3),
        (7, 9),
        (64, 17),
        (100, 3),
        (128, 4),
        (1024, 2),
        (1028, 2),
        (2048, 2),
        (16384, 1),
        (17000, 1),
    ];
    let mut all = Vec::new();
    for (width, n_rows) in widths {
        let mut rows: Vec<Vec<f32>> = (0..n_rows).map(|_| random.normals(width)).collect();
        if n_rows >= 9 {
            rows[1].fill(0.0);
            rows[2].iter_mut().for_each(|x| *x *= 1e15);
            rows[3].iter_mut().for_each(|x| *x *= 1e-20);
            rows[4].fill(0.0);
            rows[4][width / 2] = -3.0;
            rows[5].iter_mut().for_each(|x| *x += 100.0);
        }
        all.push((width, rows));
    }
    all
}

#[test]
fn norms_of_rows_and_heads() {
    let mut random = Random(5);
    for gpu in common::gpus_with(&["norms=block", "loads=narrow"]) {
        for (width, rows) in rows() {
            let (weight, bias) = (random.normals(width), random.normals(width));
            let x = gpu.upload(&rows.concat()).unwrap();
            let (dw, db) = (gpu.upload(&weight).unwrap(), gpu.upload(&bias).unwrap());
            let out = gpu.alloc::<f32>(rows.len() * width).unwrap();
            let rms = any_order(|| {
                ops::rms_norm(&gpu, x.as_slice(), dw.as_slice(), EPS, out.as_slice()).unwrap();
                gpu.read(out.as_slice::<f32>()).unwrap()
            });
            let layer = any_order(|| {
                let [x, w, b, out] = [&x, &dw, &db, &out].map(|buffer| buffer.as_slice());
                ops::layer_norm(&gpu, x, w, b, EPS, out).unwrap();
                gpu.read(out).unwrap()
            });
            for (i, row) in rows.iter().enumerate() {
                let at = i * width..(i + 1) * width;
                let what = format!("row {i} of {width} on {}", common::name(&gpu));
                assert_close(&rms[at.clone()], &rms_norm(row, &weight), 1e-6, &what);
                // With a mean far from zero, the differences to it carry its rounding error.
                let bound = if i == 5 { 1e-4 } else { 2e-6 };
                assert_close(&layer[at], &layer_norm(row, &weight, &bias), bound, &what);
            }
        }
    }
}

#[test]
fn fused_norm_matches_separate_kernels() {
    let mut random = Random(6);
    for gpu in common::gpus_with(&["norms=block", "loads=narrow"]) {
        for (width, n_rows) in [(32, 3), (77, 2), (256, 9), (1024, 2), (2816, 2), (16640, 1)] {
            let values = random.normals(n_rows * width);
            let weight = gpu.upload(&random.normals(width)).unwrap();
            let x = gpu.upload(&values).unwrap();
            let normed = gpu.alloc::<f32>(values.len()).unwrap();
            ops::rms_norm(
                &gpu,
                x.as_slice(),
                weight.as_slice(),
                EPS,
                normed.as_slice(),
            )
            .unwrap();
            let normed = gpu.read(normed.as_slice::<f32>()).unwrap();
            for form in [ActFormat::F32, ActFormat::Q8x32, ActFormat::Q8x256] {
                if !width.is_multiple_of(form.block_len()) {
                    continue;
                }
                let what = format!("{form:?} {n_rows} x {width} on {}", common::name(&gpu));
                let acts = ActsBuffer::new(&gpu, form, n_rows, width).unwrap();
                let check = |acts: &ActsBuffer, what: &str| {
                    if form == ActFormat::F32 {
                        assert_eq!(
                            gpu.read(acts.rows(n_rows).values).unwrap(),
                            normed,
                            "{what}"
                        );
                    } else {
                        assert!(
                            read(&gpu, acts, n_rows) == quantized(&normed, form),
                            "{what}"
                        );
                    }
                };
                let (w, out) = (weight.as_slice(), acts.rows(n_rows));
                ops::rms_norm_quantize(&gpu, x.as_slice(), w, EPS, None, &out).unwrap();
                check(&acts, &what);
                let kept = gpu.alloc::<f32>(values.len()).unwrap();
                let acts = ActsBuffer::new(&gpu, form, n_rows, width).unwrap();
                let (also, out) = (Some(kept.as_slice()), acts.rows(n_rows));
                ops::rms_norm_quantize(&gpu, x.as_slice(), w, EPS, also, &out).unwrap();
                check(&acts, &format!("and f32: {what}"));
                assert_eq!(gpu.read(kept.as_slice::<f32>()).unwrap(), normed, "{what}");
            }
        }
    }
}

/// Norms of three inputs in one launch, where results replace inputs, and in several if rows are wide.
#[test]
fn norms_of_three_inputs_have_the_bits_of_separate_launches() {
    let mut random = Random(11);
    for gpu in common::gpus_with(&["loads=narrow", "norms=block"]) {
        for (widths, form, n_rows) in [
            ([16, 16, 256], ActFormat::Q8x256, 1),
            ([16, 16, 96], ActFormat::Q8x32, 5),
            ([7, 7, 300], ActFormat::F32, 3),
            ([512, 512, 512], ActFormat::Q8x256, 2),
            ([16, 16, 1024], ActFormat::Q8x32, 2),
        ] {
            let inputs = widths.map(|width| random.normals(n_rows * width));
            let weights = widths.map(|width| gpu.upload(&random.normals(width)).unwrap());
            let acts = || ActsBuffer::new(&gpu, form, n_rows, widths[2]).unwrap();
            let read = |[a, b]: [&Buffer; 2], acts: &ActsBuffer| {
                let acts = acts.rows(n_rows);
                let mut all: Vec<u32> = Vec::new();
                for values in [a.as_slice(), b.as_slice(), acts.values, acts.scales] {
                    all.extend(gpu.read(values).unwrap().iter().map(|x: &f32| x.to_bits()));
                }
                all.extend(gpu.read(acts.codes).unwrap().iter().map(|&x| x as u32));
                all.extend(gpu.read(acts.sums).unwrap().iter().map(|&x| x as u32));
                all
            };
            let upload = || inputs.each_ref().map(|values| gpu.upload(values).unwrap());
            let ([x, y, z], acts_of_last) = (upload(), acts());
            let outs = [&x, &y].map(|x| gpu.alloc::<f32>(x.as_slice::<f32>().len()).unwrap());
            for (i, x) in [&x, &y].into_iter().enumerate() {
                let (weight, out) = (weights[i].as_slice(), outs[i].as_slice());
                ops::rms_norm(&gpu, x.as_slice(), weight, EPS, out).unwrap();
            }
            let (weight, out) = (weights[2].as_slice(), acts_of_last.rows(n_rows));
            ops::rms_norm_quantize(&gpu, z.as_slice(), weight, EPS, None, &out).unwrap();
            let expected = read(outs.each_ref(), &acts_of_last);

            let found = any_order(|| {
                let ([x, y, z], acts) = (upload(), acts());
                let apart = gpu.alloc::<f32>(inputs[0].len()).unwrap();
                let [first, second, last] = [(&x, 0), (&y, 1), (&z, 2)].map(|(x, index)| {
                    let weight = weights[index].as_slice();
                    let x = x.as_slice();
                    ops::RowNorm {
                        x,
                        weight,
                        eps: EPS,
                    }
                });
                // The second result is where the first input was.
                let norms = [(first, apart.as_slice()), (second, x.as_slice())];
                ops::rms_norms(&gpu, norms, (last, &acts.rows(n_rows))).unwrap();
                read([&apart, &x], &acts)
            });
            let what = format!("{widths:?} {form:?} on {}", common::name(&gpu));
            assert!(found == expected, "{what}");
        }
    }
}

/// Groups of a row, each with weights of its own, against the formula, and their conversion in the same launch.
#[test]
fn norms_of_groups_with_their_weights() {
    let mut random = Random(7);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for ([width, n_groups], n_rows) in [
            ([512, 1], 3),
            ([1024, 8], 2),
            ([60, 12], 5),
            ([99, 3], 4),
            ([4096, 8], 2),
            ([5120, 2], 3),
        ] {
            let of_group = width / n_groups;
            let (values, weight) = (random.normals(n_rows * width), random.normals(width));
            let groups = values.chunks(of_group);
            let expected = groups.zip(weight.chunks(of_group).cycle());
            let expected: Vec<f64> = expected
                .flat_map(|(x, weight)| rms_norm(x, weight))
                .collect();
            let [x, weight] = [&values, &weight].map(|values| gpu.upload(values).unwrap());
            let weights = (weight.as_slice(), n_groups);
            let normed = any_order(|| {
                let out = gpu.alloc::<f32>(values.len()).unwrap();
                ops::rms_norm_groups(&gpu, x.as_slice(), weights, EPS, out.as_slice()).unwrap();
                gpu.read(out.as_slice::<f32>()).unwrap()
            });
            let what = format!("{n_groups} groups of {width} on {}", common::name(&gpu));
            assert_close(&normed, &expected, 1e-6, &what);
            for form in [ActFormat::Q8x32, ActFormat::Q8x256] {
                if !of_group.is_multiple_of(form.block_len()) {
                    continue;
                }
                let acts = ActsBuffer::new(&gpu, form, n_rows, width).unwrap();
                let out = acts.rows(n_rows);
                ops::rms_norm_groups_quantize(&gpu, x.as_slice(), weights, EPS, &out).unwrap();
                let is_same = read(&gpu, &acts, n_rows) == quantized(&normed, form);
                assert!(is_same, "{form:?}: {what}");
            }
        }
    }
}
