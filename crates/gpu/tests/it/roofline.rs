//! The bandwidth benchmark reads every word once, and the arithmetic benchmark computes every product.

use crate::common;
use crate::common::any_order;
use crate::common::values::Random;
use half::f16;
use rocmforge_gpu::{Factors, MatrixStep, multiply_all, read_all};

#[test]
fn reads_every_word_once() {
    let mut random = Random(1);
    for gpu in common::gpus() {
        // No words, only a tail, one round of loads with a tail, rounds of 8 loads per thread with a tail.
        for (n_words, n_blocks) in [
            (0, 2),
            (3, 2),
            (4 * 700 + 1, 2),
            (4 * 256 * 19 + 2, 1),
            (4 * 256 * 3 * 9, 3),
        ] {
            let words: Vec<u32> = random
                .normals(n_words)
                .iter()
                .map(|x| x.to_bits())
                .collect();
            let device = gpu.upload(&words).unwrap();
            let sums = any_order(|| {
                let sums = gpu.upload(&vec![7u32; n_blocks]).unwrap();
                read_all(&gpu, device.as_slice(), sums.as_slice()).unwrap();
                gpu.read(sums.as_slice::<u32>()).unwrap()
            });
            let add = |words: &[u32]| words.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
            assert_eq!(
                add(&sums),
                add(&words),
                "{n_words} words, {n_blocks} blocks"
            );
        }
    }
}

#[test]
fn computes_every_product() {
    const N_BLOCKS: usize = 2;
    const N_STEPS: u32 = 3;
    // Small whole numbers, so that all sums are exact.
    let value = |i: usize, seed: usize| ((i * 7 + seed) % 9) as i32 - 4;
    for gpu in common::gpus() {
        for (factors, k) in [(Factors::I8, 32), (Factors::F16, 16)] {
            let operand = |seed: usize| -> (Vec<i32>, Vec<u8>) {
                let values: Vec<i32> = (0..16 * k).map(|i| value(i, seed)).collect();
                let bytes = values.iter().flat_map(|&v| match factors {
                    Factors::I8 => vec![v as i8 as u8],
                    Factors::F16 => f16::from_f32(v as f32).to_le_bytes().to_vec(),
                });
                let bytes = bytes.collect();
                (values, bytes)
            };
            let ((a, a_bytes), (b, b_bytes)) = (operand(1), operand(5));
            let step = MatrixStep::of(&gpu).unwrap();
            let tile: i32 = (0..256)
                .map(|i| -> i32 { (0..k).map(|j| a[i / 16 * k + j] * b[i % 16 * k + j]).sum() })
                .sum();
            let begins = 256 * (0..step.n_tiles as i32).sum::<i32>();
            let n_products = (step.n_tiles * step.n_products) as i32 * N_STEPS as i32;
            let of_wave = n_products * tile + begins;
            let (a, b) = (gpu.upload(&a_bytes).unwrap(), gpu.upload(&b_bytes).unwrap());
            let sums = any_order(|| {
                let sums = gpu.alloc::<u32>(N_BLOCKS * 256).unwrap();
                let operands = [a.as_slice(), b.as_slice()];
                multiply_all(&gpu, factors, operands, sums.as_slice(), N_STEPS).unwrap();
                gpu.read(sums.as_slice::<u32>()).unwrap()
            });
            let number = |bits: &u32| match factors {
                Factors::I8 => *bits as i32,
                Factors::F16 => f32::from_bits(*bits) as i32,
            };
            for (wave, sums) in sums.chunks(step.wave_size).enumerate() {
                let sum: i32 = sums.iter().map(number).sum();
                assert_eq!(
                    sum,
                    of_wave,
                    "{factors:?}, wave {wave} on {}",
                    common::name(&gpu)
                );
            }
        }
    }
}
