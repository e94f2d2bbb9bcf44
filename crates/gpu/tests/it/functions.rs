//! The device functions of `kernels/gpu.h`, one value for each thread, against plain loops and f64.

use crate::common;
use crate::common::any_order;
use crate::common::values::Random;
use half::f16;
use rocmforge_gpu::{Gpu, SelfTest, self_test};

const THREADS: usize = 128;

/// Runs `functions` of selftest.hip on `x[n]`; returns `[n_functions, n]`.
fn run(gpu: &Gpu, n_functions: usize, x: &[u32]) -> Vec<u32> {
    let (input, out) = (
        gpu.upload(x).unwrap(),
        gpu.upload(&vec![0u32; n_functions * x.len()]).unwrap(),
    );
    let test = SelfTest {
        kernel: "functions",
        x: input.as_slice(),
        out: out.as_slice(),
        n: x.len() as u32,
        which: 0,
        n_blocks: (x.len() / THREADS) as u32,
        shared_bytes: 0,
    };
    self_test(gpu, &test).unwrap();
    gpu.read(out.as_slice()).unwrap()
}

/// Whole blocks of random words, of numbers as in models, and of edge cases of f32 and f16.
fn inputs() -> Vec<u32> {
    let mut random = Random(5);
    let mut x: Vec<u32> = (0..THREADS).map(|_| random.bits() as u32).collect();
    for scale in [1.0, 20.0, 1e-3] {
        x.extend((0..THREADS).map(|_| (random.normal() * scale).to_bits()));
    }
    let hard = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.5,
        8388607.5,
        1e30,
        87.3,
        88.8,
        103.0,
        200.0,
        65504.0,
        65519.9,
        65520.0,
        6.1e-5,
        5.96e-8,
        2.98e-8,
        2.99e-8,
        1.000_488_3,
        1.001_464_8,
        1e-10,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    x.extend(
        hard.iter()
            .flat_map(|x: &f32| [x.to_bits(), (-x).to_bits()]),
    );
    x.resize(x.len().next_multiple_of(THREADS), 1.0f32.to_bits());
    x
}

/// The values of the wave or block (of `n` threads) that thread `i` is in.
fn around(x: &[u32], i: usize, n: usize) -> &[u32] {
    &x[i / n * n..(i / n + 1) * n]
}

fn floats(x: &[u32]) -> impl Iterator<Item = f64> + '_ {
    x.iter().map(|&x| f32::from_bits(x).into())
}

fn dot4(a: u32, b: u32, c: i32) -> i32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    pairs.fold(c, |sum, (a, b)| {
        sum.wrapping_add(i32::from(a as i8) * i32::from(b as i8))
    })
}

/// The expected result of a function.
enum Wanted {
    Bits(u32),
    /// A number and its largest error.
    Near(f64, f64),
    /// Unspecified for this input.
    Any,
}

use Wanted::{Any, Bits, Near};

/// A number that f32 represents exactly.
fn exactly(x: f64) -> Wanted {
    Near(x, 0.0)
}

fn sum(x: &[u32]) -> Wanted {
    if floats(x).any(|x| !x.is_finite()) || floats(x).map(f64::abs).sum::<f64>() > 1e38 {
        return Any;
    }
    Near(floats(x).sum(), floats(x).map(f64::abs).sum::<f64>() * 1e-6)
}

/// The results of thread `i`, in the order of the kernel.
fn wanted(x: &[u32], i: usize, warp_size: usize) -> Vec<Wanted> {
    let (v, wave, lane) = (x[i], around(x, i, warp_size), i % warp_size);
    let f = f64::from(f32::from_bits(v));
    let largest = floats(wave).fold(f64::NEG_INFINITY, f64::max);
    // Handles overflow of f32, and numbers near its smallest.
    let number = |y: f64, relative: f64| match y.abs() {
        _ if y.is_nan() => Near(y, 0.0),
        size if size > 3.4e38 => Near(f64::INFINITY.copysign(y), 0.0),
        size => Near(y, size * relative + 2.0 * f64::from(f32::MIN_POSITIVE)),
    };
    vec![
        sum(wave),
        if floats(wave).any(f64::is_nan) {
            Any
        } else {
            exactly(largest)
        },
        sum(around(x, i, THREADS)),
        Bits(wave[(lane * 5 + 3) % warp_size]),
        Bits(wave[lane ^ 1]),
        Bits(wave[lane ^ (warp_size / 2)]),
        Bits(dot4(v, v.wrapping_mul(2_654_435_761), (v >> 9) as i32) as u32),
        number(f.exp(), 4e-7),
        Near(f.tanh(), 3e-7),
        if (f.abs() as f32).is_normal() {
            Near(f.abs().ln(), f.abs().ln().abs() * 4e-7 + 4e-7)
        } else {
            Any
        },
        exactly(f.round_ties_even()),
        if f == 0.0 || (f.abs() as f32).is_normal() {
            number(f.abs().sqrt(), 1e-7)
        } else {
            Any
        },
        if f.is_nan() {
            Any
        } else {
            Bits(f16::from_f32(f as f32).to_bits().into())
        },
        exactly(f16::from_bits(v as u16).into()),
        Bits(wave.iter().map(|v| v % 1000).sum()),
        Bits(wave.iter().copied().max().unwrap_or(0)),
    ]
}

#[test]
fn device_functions_match_reference() {
    let x = inputs();
    for gpu in common::gpus() {
        let target = gpu.target();
        let warp_size = match target {
            "host-cdna" => 64,
            _ if target.starts_with("gfx9") => 64,
            _ => 32,
        };
        let n_functions = wanted(&x, 0, warp_size).len();
        let out = any_order(|| run(&gpu, n_functions, &x));
        for i in 0..x.len() {
            for (k, wanted) in wanted(&x, i, warp_size).into_iter().enumerate() {
                let bits = out[k * x.len() + i];
                let got = f64::from(f32::from_bits(bits));
                let (good, text) = match wanted {
                    Any => continue,
                    Bits(wanted) => (bits == wanted, format!("{wanted:#x}")),
                    Near(wanted, _) if wanted.is_nan() => (got.is_nan(), "NaN".into()),
                    Near(wanted, bound) => (
                        got == wanted || (got - wanted).abs() <= bound,
                        format!("{wanted} +- {bound}"),
                    ),
                };
                let of = f32::from_bits(x[i]);
                assert!(
                    good,
                    "{target}: function {k} of {of} ({:#x}) is {got} ({bits:#x}), not {text}",
                    x[i]
                );
            }
        }
    }
}
