//! GEMM on Hopper's asynchronous matrix units, against sums in f64 of the same f16 values.

use half::f16;
use rocmforge_gguf::GgmlType;
use rocmforge_gpu::ops::{Product, matmul_f16};
use rocmforge_gpu::{Gpu, GpuError, OutMode};

use crate::common;
use crate::common::any_order;
use crate::common::weights::{Packed, Random};

/// Rows, outputs and values of k: whole tiles, parts of tiles in each direction, one row, less than a step, more steps
/// than are in flight.
const SHAPES: [[usize; 3]; 7] = [
    [64, 64, 64],
    [65, 130, 256],
    [1, 64, 512],
    [100, 7, 40],
    [3, 200, 8],
    [128, 64, 1000],
    [70, 70, 2048],
];

/// Whether the device has the kernel.
fn has_units(gpu: &Gpu) -> bool {
    matches!(gpu.target(), "sm_90a" | "host-nv")
}

fn values(n: usize, random: &mut Random) -> Vec<f16> {
    (0..n).map(|_| f16::from_f32(random.value())).collect()
}

#[test]
fn products_match_sums_in_f64() {
    for gpu in common::all_gpus().into_iter().filter(has_units) {
        for shape in SHAPES {
            for mode in [OutMode::Store, OutMode::Add] {
                check(&gpu, shape, mode);
            }
        }
        println!(
            "{}: {} shapes, stored and added",
            gpu.target(),
            SHAPES.len()
        );
    }
}

fn check(gpu: &Gpu, [n_rows, n_out, n_in]: [usize; 3], mode: OutMode) {
    let random = &mut Random((n_rows * n_out + n_in) as u64);
    let w = values(n_out * n_in, random);
    let x = values(n_rows * n_in, random);
    let floats = |n: usize, random: &mut Random| (0..n).map(|_| random.value()).collect();
    let bias: Vec<f32> = floats(n_out, random);
    let before: Vec<f32> = floats(n_rows * n_out, random);
    let file: Vec<u8> = w.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect();
    let packed = Packed::new(gpu, GgmlType::F16, n_out, n_in, &file);
    let bits: Vec<u16> = x.iter().map(|v| v.to_bits()).collect();
    let (x_device, bias_device) = (gpu.upload(&bits).unwrap(), gpu.upload(&bias).unwrap());
    let found: Vec<f32> = any_order(|| {
        let out = gpu.upload(&before).unwrap();
        let product = Product {
            matrix: packed.matrix(),
            bias: Some(bias_device.as_slice()),
            mode,
            out: out.as_slice(),
        };
        matmul_f16(gpu, x_device.as_slice(), &product).unwrap();
        gpu.read(out.as_slice()).unwrap()
    });
    for (at, &found) in found.iter().enumerate() {
        let (row, o) = (at / n_out, at % n_out);
        let terms = (0..n_in).map(|k| x[row * n_in + k].to_f64() * w[o * n_in + k].to_f64());
        let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| {
            (sum + term, size + term.abs())
        });
        let old = match mode {
            OutMode::Store => 0.0,
            OutMode::Add => f64::from(before[at]),
        };
        let expected = sum + f64::from(bias[o]) + old;
        // The units round or cut off each sum of 16 terms.
        let steps = n_in.div_ceil(16) + 16;
        let bound = (size + 2.0) * steps as f64 * f64::powi(2.0, -23);
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= bound,
            "{} [{n_rows}, {n_out}, {n_in}] at [{row}, {o}]: {found} is not {expected}, error {error:e}, bound {bound:e}",
            gpu.target()
        );
    }
}

#[test]
fn other_devices_say_that_there_is_no_kernel() {
    for gpu in common::all_gpus() {
        let file = vec![0; 64 * 64 * 2];
        let packed = Packed::new(&gpu, GgmlType::F16, 64, 64, &file);
        let (x, out) = (
            gpu.upload(&[0u16; 64]).unwrap(),
            gpu.upload(&[0f32; 64]).unwrap(),
        );
        let product = Product {
            matrix: packed.matrix(),
            bias: None,
            mode: OutMode::Store,
            out: out.as_slice(),
        };
        let result = matmul_f16(&gpu, x.as_slice(), &product);
        match has_units(&gpu) {
            true => assert!(result.is_ok()),
            false => assert!(
                matches!(result, Err(GpuError::NoSymbol { .. })),
                "{result:?}"
            ),
        }
    }
}
