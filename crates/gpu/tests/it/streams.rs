//! Residual streams side by side in a row, and sparse activations, against their formulas in f64.

use rocmforge_gpu::OutMode;
use rocmforge_gpu::ops;

use crate::common;
use crate::common::any_order;
use crate::common::weights::Random;

/// Rows, parts of a row before and after, and values of a part.
const MIXES: [([usize; 3], usize); 5] = [
    ([1, 4, 4], 64),
    ([3, 1, 4], 100),
    ([2, 3, 1], 1030),
    ([70, 2, 5], 33),
    ([1, 1, 1], 1),
];

/// Rows, parts of a row, and values of a part.
const ROWS: [[usize; 3]; 5] = [
    [1, 1, 2],
    [3, 3, 100],
    [2, 4, 1030],
    [70, 2, 33],
    [1, 1, 3000],
];

fn check(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        let is_near = error <= 2e-6 * expected.abs().max(1.0);
        assert!(is_near, "{what}, {i}: {found}, not {expected}");
    }
}

#[test]
fn mixes_parts_of_rows() {
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (seed, (shape, width)) in MIXES.into_iter().enumerate() {
            let [n_rows, n_in, n_out] = shape;
            let random = &mut Random(seed as u64);
            let x = random.values(n_rows * n_in * width);
            let before = random.values(n_rows * n_out * width);
            for n_sets in [1, n_rows] {
                let weights = random.values(n_sets * n_in * n_out);
                for mode in [OutMode::Store, OutMode::Add] {
                    let [dx, dw] = [&x, &weights].map(|values| gpu.upload(values).unwrap());
                    let found = any_order(|| {
                        let out = gpu.upload(&before).unwrap();
                        let to = (mode, out.as_slice());
                        ops::mix(&gpu, shape, dw.as_slice(), dx.as_slice(), to).unwrap();
                        gpu.read(out.as_slice::<f32>()).unwrap()
                    });
                    let expected = (0..before.len()).map(|at| {
                        let (row, i, column) =
                            (at / (n_out * width), at / width % n_out, at % width);
                        let set = if n_sets == 1 { 0 } else { row };
                        let term = |j: usize| {
                            let weight = weights[(set * n_out + i) * n_in + j];
                            f64::from(weight) * f64::from(x[(row * n_in + j) * width + column])
                        };
                        let sum: f64 = (0..n_in).map(term).sum();
                        match mode {
                            OutMode::Store => sum,
                            OutMode::Add => sum + f64::from(before[at]),
                        }
                    });
                    let expected: Vec<f64> = expected.collect();
                    let what = format!("{} {shape:?} {width} {mode:?}", common::name(&gpu));
                    check(&what, &found, &expected);
                }
            }
        }
    }
}

#[test]
fn gives_parts_the_length_of_others() {
    for gpu in common::gpus() {
        for (seed, [n_rows, n, width]) in ROWS.into_iter().enumerate() {
            let random = &mut Random(seed as u64);
            let like = random.values(n_rows * width);
            let mut x = random.values(n_rows * n * width);
            x[..width].fill(0.0);
            let of_like = gpu.upload(&like).unwrap();
            let found = any_order(|| {
                let out = gpu.upload(&x).unwrap();
                let like = (of_like.as_slice(), width);
                ops::match_length(&gpu, like, out.as_slice()).unwrap();
                gpu.read(out.as_slice::<f32>()).unwrap()
            });
            let length = |x: &[f32]| {
                let squares = x.iter().map(|&x| f64::from(x).powi(2));
                squares.sum::<f64>().sqrt()
            };
            let parts = x.chunks(width).enumerate();
            let expected = parts.flat_map(|(part, x)| {
                let wanted = length(&like[part / n * width..][..width]);
                let factor = if part == 0 { 0.0 } else { wanted / length(x) };
                x.iter().map(move |&x| f64::from(x) * factor)
            });
            let expected: Vec<f64> = expected.collect();
            let what = format!("{} {n_rows} x {n} x {width}", common::name(&gpu));
            check(&what, &found, &expected);
        }
    }
}

#[test]
fn keeps_what_exceeds_the_mean_by_deviations() {
    for gpu in common::gpus() {
        for (seed, [n_rows, _, width]) in ROWS.into_iter().enumerate() {
            let random = &mut Random(seed as u64);
            let values = random.values(n_rows * width);
            let x = values.iter().map(|x| 5.0 * x + 2.0);
            let x: Vec<f32> = x.collect();
            for factor in [0.3, -0.5] {
                let found = any_order(|| {
                    let out = gpu.upload(&x).unwrap();
                    ops::sparsify(&gpu, factor, (out.as_slice(), width)).unwrap();
                    gpu.read(out.as_slice::<f32>()).unwrap()
                });
                let expected = x.chunks(width).flat_map(|x| {
                    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                    let squares = x.iter().map(|&x| (f64::from(x) - mean).powi(2));
                    let deviation = (squares.sum::<f64>() / (width - 1) as f64).sqrt();
                    let least = mean + f64::from(factor) * deviation;
                    x.iter().map(move |&x| (f64::from(x) - least).max(0.0))
                });
                let expected: Vec<f64> = expected.collect();
                assert!(width < 9 || expected.contains(&0.0));
                let what = format!("{} {n_rows} x {width}, {factor}", common::name(&gpu));
                check(&what, &found, &expected);
            }
        }
    }
}
