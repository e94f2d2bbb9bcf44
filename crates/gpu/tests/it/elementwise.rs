//! Elementwise operations against their formulas in f64.

use crate::common;
use crate::common::activations::{ACTIVATIONS, activated, of_up};
use crate::common::any_order;
use crate::common::values::{Random, assert_close};
use rocmforge_gpu::{Activation, ops};

const LENGTHS: [usize; 6] = [1, 3, 255, 1024, 1027, 2052];

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Asserts a small error of each value: relative to the value, or absolute where it is too small to matter.
fn assert_each_close(got: &[f32], wanted: &[f64], bound: f64, what: &str) {
    assert_each_within(got, wanted, wanted, bound, what);
}

/// As [`assert_each_close`], with errors relative to `sizes`.
fn assert_each_within(got: &[f32], wanted: &[f64], sizes: &[f64], bound: f64, what: &str) {
    assert_eq!((got.len(), sizes.len()), (wanted.len(), wanted.len()));
    for (i, ((&got, &wanted), size)) in got.iter().zip(wanted).zip(sizes).enumerate() {
        let error = (f64::from(got) - wanted).abs();
        let allowed = bound * size.abs() + 1e-30;
        assert!(error <= allowed, "{what}: value {i} is {got}, not {wanted}");
    }
}

/// The size of the terms that an activation adds: they cancel where xIELU crosses 0.
fn size_of_terms(activation: Activation, x: f64, y: f64) -> f64 {
    match activation {
        Activation::Xielu { beta, .. } => y.abs() + (f64::from(beta) * x).abs(),
        _ => y.abs(),
    }
}

/// `[n]` inputs over the range that activations see.
fn inputs(random: &mut Random, n: usize) -> Vec<f32> {
    let scales = [1.0, 0.0, 20.0, 1e-20, 5.0, 1e4];
    (0..n)
        .map(|i| random.normal() * scales[i % scales.len()])
        .collect()
}

#[test]
fn add() {
    let mut random = Random(1);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for n in LENGTHS {
            // Also at an address that is not 16-byte aligned.
            for skip in [0, 1] {
                let (x, y) = (random.normals(n + skip), random.normals(n + skip));
                let dx = gpu.upload(&x).unwrap();
                let got = any_order(|| {
                    let dy = gpu.upload(&y).unwrap();
                    let [dx, out] = [&dx, &dy].map(|buffer| buffer.as_slice().part(skip..n + skip));
                    ops::add(&gpu, dx, out).unwrap();
                    gpu.read(dy.as_slice::<f32>()).unwrap()
                });
                let sums = x.iter().zip(&y).map(|(x, y)| x + y).skip(skip);
                let expected: Vec<f32> = y[..skip].iter().copied().chain(sums).collect();
                assert_eq!(got, expected);
            }
        }
    }
}

#[test]
fn add_gated() {
    let mut random = Random(2);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (n_rows, width) in [(1, 1), (6, 5), (6, 1028), (3, 2050)] {
            let (x, y) = (
                random.normals(n_rows * width),
                random.normals(n_rows * width),
            );
            let mut gate = random.normals(n_rows);
            for (gate, special) in gate.iter_mut().zip([0.0, 200.0, -200.0, f32::NEG_INFINITY]) {
                *gate = special;
            }
            let (dx, dg) = (gpu.upload(&x).unwrap(), gpu.upload(&gate).unwrap());
            let got = any_order(|| {
                let out = gpu.upload(&y).unwrap();
                ops::add_gated(&gpu, dg.as_slice(), dx.as_slice(), out.as_slice()).unwrap();
                gpu.read(out.as_slice::<f32>()).unwrap()
            });
            let wanted: Vec<f64> = (0..x.len())
                .map(|i| f64::from(y[i]) + f64::from(x[i]) * sigmoid(f64::from(gate[i / width])))
                .collect();
            assert_close(&got, &wanted, 1e-6, &common::name(&gpu));
        }
    }
}

#[test]
fn activations() {
    let mut random = Random(3);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (n, activation) in LENGTHS.iter().flat_map(|&n| ACTIVATIONS.map(|a| (n, a))) {
            let (x, up) = (inputs(&mut random, n), random.normals(n));
            let (dx, dup) = (gpu.upload(&x).unwrap(), gpu.upload(&up).unwrap());
            let out = gpu.alloc::<f32>(n).unwrap();
            let what = format!("{activation:?} of {n} on {}", common::name(&gpu));
            let got = any_order(|| {
                ops::activate(&gpu, activation, dx.as_slice(), out.as_slice()).unwrap();
                gpu.read(out.as_slice::<f32>()).unwrap()
            });
            let wanted: Vec<f64> = x.iter().map(|&x| activated(activation, x.into())).collect();
            let sizes = x.iter().zip(&wanted);
            let sizes: Vec<f64> = sizes
                .map(|(&x, &y)| size_of_terms(activation, x.into(), y))
                .collect();
            assert_each_within(&got, &wanted, &sizes, 1e-5, &what);
            let got = any_order(|| {
                let [x, up, out] = [&dx, &dup, &out].map(|buffer| buffer.as_slice());
                ops::gated_activation(&gpu, activation, x, up, out).unwrap();
                gpu.read(out).unwrap()
            });
            let gated = |of: &[f64]| -> Vec<f64> {
                let pairs = of.iter().zip(&up);
                pairs
                    .map(|(y, &up)| y * of_up(activation, up.into()))
                    .collect()
            };
            assert_each_within(&got, &gated(&wanted), &gated(&sizes), 1e-5, &what);
        }
    }
}

#[test]
fn activations_of_extreme_inputs() {
    let x = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e30,
        -1e30,
        -90.0,
        0.0,
    ];
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
            let dx = gpu.upload(&x).unwrap();
            ops::activate(&gpu, activation, dx.as_slice(), dx.as_slice()).unwrap();
            let y = gpu.read(dx.as_slice::<f32>()).unwrap();
            let what = format!("{activation:?} on {}: {y:?}", common::name(&gpu));
            assert_eq!(y[0], f32::INFINITY, "{what}");
            assert!(y[1].is_nan() || y[1] == 0.0, "{what}");
            assert!(y[2].is_nan(), "{what}");
            assert_eq!(y[3], 1e30, "{what}");
            assert!(y[4] == 0.0 && y[5].abs() < 1e-37 && y[6] == 0.0, "{what}");
        }
        for activation in ACTIVATIONS {
            let dx = gpu.upload(&x).unwrap();
            ops::activate(&gpu, activation, dx.as_slice(), dx.as_slice()).unwrap();
            let y = gpu.read(dx.as_slice::<f32>()).unwrap();
            let what = format!("{activation:?} on {}: {y:?}", common::name(&gpu));
            assert!(y[2].is_nan(), "{what}: NaN goes through");
            let up = gpu.upload(&[f32::NAN; 7]).unwrap();
            let ones = gpu.upload(&[1.0f32; 7]).unwrap();
            let out = ones.as_slice();
            ops::gated_activation(&gpu, activation, out, up.as_slice(), out).unwrap();
            let y = gpu.read(ones.as_slice::<f32>()).unwrap();
            assert!(
                y.iter().all(|y| y.is_nan()),
                "{what}: NaN of up goes through"
            );
        }
    }
}

/// A gate for each group of values, such as a head of attention.
#[test]
fn gates_of_groups() {
    let mut random = Random(6);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (n_groups, group) in [(1, 3), (6, 64), (5, 1027), (7, 8)] {
            for activation in ACTIVATIONS {
                let (gate, up) = (
                    inputs(&mut random, n_groups),
                    random.normals(n_groups * group),
                );
                let (dgate, dup) = (gpu.upload(&gate).unwrap(), gpu.upload(&up).unwrap());
                let out = gpu.alloc::<f32>(up.len()).unwrap();
                let got = any_order(|| {
                    let [gate, up, out] = [&dgate, &dup, &out].map(|buffer| buffer.as_slice());
                    ops::gated_activation(&gpu, activation, gate, up, out).unwrap();
                    gpu.read(out).unwrap()
                });
                let wanted: Vec<f64> = (0..up.len())
                    .map(|i| {
                        let gate = activated(activation, gate[i / group].into());
                        gate * of_up(activation, up[i].into())
                    })
                    .collect();
                let what = format!("{activation:?} {group} on {}", common::name(&gpu));
                assert_each_close(&got, &wanted, 1e-5, &what);
            }
        }
    }
}

#[test]
fn scale() {
    let mut random = Random(7);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for n in LENGTHS {
            let x = random.normals(3 * n);
            let by = random.normals(n);
            let (all, dby) = (gpu.upload(&x).unwrap(), gpu.upload(&by).unwrap());
            ops::scale(&gpu, by[0], all.as_slice()).unwrap();
            let expected: Vec<f32> = x.iter().map(|x| x * by[0]).collect();
            assert_eq!(gpu.read(all.as_slice::<f32>()).unwrap(), expected);
            let got = any_order(|| {
                let rows = gpu.upload(&x).unwrap();
                ops::scale_rows(&gpu, dby.as_slice(), rows.as_slice()).unwrap();
                gpu.read(rows.as_slice::<f32>()).unwrap()
            });
            let expected: Vec<f32> = (0..x.len()).map(|i| x[i] * by[i % n]).collect();
            assert_eq!(got, expected);
        }
    }
}

#[test]
fn soft_cap() {
    let mut random = Random(4);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (n, cap) in LENGTHS
            .iter()
            .flat_map(|&n| [30.0f32, 50.0].map(|cap| (n, cap)))
        {
            let mut x = inputs(&mut random, n);
            x[0] = f32::INFINITY;
            let got = any_order(|| {
                let dx = gpu.upload(&x).unwrap();
                ops::soft_cap(&gpu, cap, dx.as_slice()).unwrap();
                gpu.read(dx.as_slice::<f32>()).unwrap()
            });
            let wanted = |&x: &f32| f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
            let wanted: Vec<f64> = x.iter().map(wanted).collect();
            assert_close(&got, &wanted, 1e-6, &common::name(&gpu));
        }
    }
}

#[test]
fn select_rows() {
    let mut random = Random(5);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (n, width) in [(1, 1), (5, 7), (4, 1028)] {
            let x = random.normals(n * width);
            let rows = [n as u32 - 1, 0, 0, n as u32 / 2, u32::MAX];
            let (dx, dr) = (gpu.upload(&x).unwrap(), gpu.upload(&rows).unwrap());
            let out = gpu.alloc::<f32>(rows.len() * width).unwrap();
            ops::select_rows(&gpu, dx.as_slice(), dr.as_slice(), width, out.as_slice()).unwrap();
            let taken = rows.map(|row| (row as usize).min(n - 1) * width);
            let expected: Vec<f32> = taken
                .iter()
                .flat_map(|&at| x[at..at + width].to_vec())
                .collect();
            assert_eq!(gpu.read(out.as_slice::<f32>()).unwrap(), expected);
        }
    }
}

#[test]
fn copy_part() {
    let mut random = Random(6);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for (n, x_width, first, width) in [
            (1, 1, 0, 1),
            (5, 7, 3, 4),
            (3, 512, 256, 256),
            (2, 2060, 4, 1028),
            (4, 24, 2, 8),
        ] {
            let x = random.normals(n * x_width);
            let dx = gpu.upload(&x).unwrap();
            let out = gpu.alloc::<f32>(n * width).unwrap();
            ops::copy_part(
                &gpu,
                (dx.as_slice(), x_width),
                first,
                (out.as_slice(), width),
            )
            .unwrap();
            let expected: Vec<f32> = x
                .chunks(x_width)
                .flat_map(|row| row[first..first + width].to_vec())
                .collect();
            assert_eq!(gpu.read(out.as_slice::<f32>()).unwrap(), expected);
        }
    }
}
