//! Residual streams side by side in a row, and sparse activations, against their formulas in f64 on every instruction set.

use rocmforge_cpu::{Isa, Pool, match_length, mix, sparsify};
use rocmforge_plan::OutMode;

use crate::random::Rng;

/// Values of a part, around the boundaries of vectors of 8 and 16 values.
const WIDTHS: [usize; 8] = [1, 2, 7, 16, 33, 64, 100, 1030];

fn check(what: &str, found: &[f32], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        let is_near = error <= 2e-6 * expected.abs().max(1.0);
        assert!(is_near, "{what}, {i}: {found}, not {expected}");
    }
}

/// Runs `op` on one thread and on several; both results must have the same bits.
fn on_any_pool(op: impl Fn(&Pool) -> Vec<f32>) -> Vec<f32> {
    let one = op(&Pool::new(1));
    assert_eq!(one, op(&Pool::new(3)));
    one
}

#[test]
fn mixes_parts_of_rows() {
    let mut rng = Rng(31);
    for isa in Isa::available() {
        for width in WIDTHS {
            for [n_rows, n_in, n_out] in [[1, 4, 4], [3, 1, 4], [70, 3, 1], [2, 2, 5]] {
                let x = rng.vec(n_rows * n_in * width);
                let before = rng.vec(n_rows * n_out * width);
                for (n_sets, mode) in [
                    (1, OutMode::Store),
                    (n_rows, OutMode::Store),
                    (n_rows, OutMode::Add),
                ] {
                    let weights = rng.vec(n_sets * n_in * n_out);
                    let shape = [n_rows, n_in, n_out];
                    let found = on_any_pool(|pool| {
                        let mut out = before.clone();
                        mix(isa, pool, shape, &weights, &x, (mode, &mut out));
                        out
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
                    check(
                        &format!("{isa} {shape:?} {width} {mode:?}"),
                        &found,
                        &expected,
                    );
                }
            }
        }
    }
}

#[test]
fn gives_parts_the_length_of_others() {
    let mut rng = Rng(32);
    for isa in Isa::available() {
        for width in WIDTHS {
            for [n_rows, n] in [[1, 1], [3, 3], [70, 2]] {
                let like = rng.vec(n_rows * width);
                let mut x = rng.vec(n_rows * n * width);
                x[..width].fill(0.0);
                let found = on_any_pool(|pool| {
                    let mut out = x.clone();
                    match_length(isa, pool, (&like, width), &mut out);
                    out
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
                check(
                    &format!("{isa} {n_rows} x {n} x {width}"),
                    &found,
                    &expected,
                );
            }
        }
    }
}

#[test]
fn keeps_what_exceeds_the_mean_by_deviations() {
    let mut rng = Rng(33);
    for isa in Isa::available() {
        for width in WIDTHS {
            for (n_rows, factor) in [(1, 0.3f32), (3, 1.6), (70, -0.5)] {
                let values = rng.vec(n_rows * width);
                let x = values.iter().map(|x| 5.0 * x + 2.0);
                let x: Vec<f32> = x.collect();
                let found = on_any_pool(|pool| {
                    let mut out = x.clone();
                    sparsify(isa, pool, factor, (&mut out, width));
                    out
                });
                let expected = x.chunks(width).flat_map(|x| {
                    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
                    let squares = x.iter().map(|&x| (f64::from(x) - mean).powi(2));
                    // A single value deviates by nothing.
                    let n_free = (width - 1).max(1) as f64;
                    let least = mean + f64::from(factor) * (squares.sum::<f64>() / n_free).sqrt();
                    x.iter().map(move |&x| (f64::from(x) - least).max(0.0))
                });
                let expected: Vec<f64> = expected.collect();
                check(
                    &format!("{isa} {n_rows} x {width}, {factor}"),
                    &found,
                    &expected,
                );
            }
        }
    }
}
