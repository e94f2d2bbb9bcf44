//! Matrix-unit tiles against plain loops, with random operands and with the identity as either operand, which
//! shows where each value goes.

use crate::common;
use half::f16;
use rocmforge_gpu::Gpu;
use rocmforge_gpu::ops::{Tile, multiply_tiles};

const TILES: [Tile; 6] = [
    Tile::I8K16,
    Tile::I8K32,
    Tile::I8K32Float,
    Tile::F16K8,
    Tile::F16,
    Tile::F16Transposed,
];

fn is_int(tile: Tile) -> bool {
    matches!(tile, Tile::I8K16 | Tile::I8K32 | Tile::I8K32Float)
}

fn k_of(tile: Tile) -> usize {
    tile.operand_bytes() / 16 / if is_int(tile) { 1 } else { 2 }
}

/// Small integers, so that every sum is exact, `[16, k]`.
fn values(seed: u64, k: usize) -> Vec<i32> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 56) as i32 - 128
    };
    (0..16 * k).map(|_| next()).collect()
}

fn identity(k: usize) -> Vec<i32> {
    (0..16 * k)
        .map(|i| i32::from(i / k == i % k % 16))
        .collect()
}

fn bytes(tile: Tile, values: &[i32]) -> Vec<u8> {
    if is_int(tile) {
        return values.iter().map(|&v| v as i8 as u8).collect();
    }
    let half = |&v: &i32| f16::from_f32(v as f32).to_le_bytes();
    values.iter().flat_map(half).collect()
}

fn product(gpu: &Gpu, tile: Tile, a: &[i32], b: &[i32]) -> Vec<i32> {
    let k = k_of(tile);
    let mut b_as_read = b.to_vec();
    if tile == Tile::F16Transposed {
        for (i, v) in b_as_read.iter_mut().enumerate() {
            *v = b[i % 16 * k + i / 16];
        }
    }
    let a = gpu.upload(&bytes(tile, a)).unwrap();
    let b = gpu.upload(&bytes(tile, &b_as_read)).unwrap();
    let c = gpu.alloc::<u32>(256).unwrap();
    multiply_tiles(gpu, tile, a.as_slice(), b.as_slice(), c.as_slice()).unwrap();
    let number = |bits: u32| {
        if is_int(tile) {
            bits as i32
        } else {
            f32::from_bits(bits) as i32
        }
    };
    let bits = gpu.read(c.as_slice::<u32>()).unwrap();
    bits.into_iter().map(number).collect()
}

#[test]
fn tiles_match_reference() {
    for gpu in common::gpus() {
        for tile in TILES {
            let k = k_of(tile);
            let (random, other, one) = (values(1, k), values(2, k), identity(k));
            for (a, b) in [(&random, &other), (&one, &other), (&random, &one)] {
                let expected: Vec<i32> = (0..256)
                    .map(|i| (0..k).map(|j| a[i / 16 * k + j] * b[i % 16 * k + j]).sum())
                    .collect();
                assert_eq!(
                    product(&gpu, tile, a, b),
                    expected,
                    "{tile:?} on {}",
                    gpu.target()
                );
            }
        }
    }
}
