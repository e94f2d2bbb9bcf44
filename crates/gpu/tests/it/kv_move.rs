//! Moves within the KV cache, against f64.

use crate::common;
use crate::common::any_order;
use crate::common::kv::{self, Stored};
use crate::common::values::Random;
use rocmforge_gpu::ops::{self, KeyTurn, KvMoves, RopeStyle, Rotation, SlotRun};
use rocmforge_gpu::{Gpu, KvLayer, KvShape, KvType, KvTypes};
use rocmforge_plan::Values;

const N_BLOCKS: usize = 5;
const N_CTX: usize = 50;
const BACK_BY: u32 = 33;

/// n_kv_heads, k_dim, v_dim, n_rot, first rotated value, page
const SHAPES: [[usize; 6]; 6] = [
    [2, 64, 64, 64, 0, 16],
    [1, 80, 48, 20, 0, 32],
    [3, 6, 10, 6, 0, 16],
    [1, 128, 128, 0, 0, 64],
    [2, 80, 48, 20, 30, 16],
    // Values in the keys.
    [1, 96, 64, 32, 64, 32],
];

/// Cosines and sines, scaled by `magnitude`.
fn table(n_rot: usize, magnitude: f64) -> Vec<f32> {
    let pairs = (0..N_CTX).flat_map(|position| (0..n_rot / 2).map(move |i| (position, i)));
    pairs
        .flat_map(|(position, i)| {
            let (sin, cos) = (position as f64 * frequency(i, n_rot)).sin_cos();
            [cos * magnitude, sin * magnitude].map(|x| x as f32)
        })
        .collect()
}

fn frequency(pair: usize, n_rot: usize) -> f64 {
    10000f64.powf(-2.0 * pair as f64 / n_rot as f64)
}

/// Runs within a block, between blocks, in place, and past the end of the cache.
fn runs(page: u32) -> Vec<SlotRun> {
    let run = |first, first_to, n_tokens| SlotRun {
        first,
        first_to,
        n_tokens,
    };
    vec![
        run(4, page + 3, 5),
        run(2 * page + page - 1, page, 1),
        // The runs before this one are copied without rotation.
        run(3 * page, 3 * page, page),
        run(4 * page + 2, 2 * page, 7),
        run(N_BLOCKS as u32 * page, 0, 2),
        run(4 * page, N_BLOCKS as u32 * page, 2),
    ]
}

const N_COPIED: usize = 2;

/// The cache row of a slot and head.
fn row(slot: u32, head: usize, shape: &KvShape) -> usize {
    let (block, offset) = (slot as usize / shape.page, slot as usize % shape.page);
    (block * shape.n_kv_heads + head) * shape.page + offset
}

/// The rows that move: (from, to, whether keys rotate).
fn row_moves(shape: &KvShape) -> Vec<(usize, usize, bool)> {
    let mut moves = Vec::new();
    for (index, run) in runs(shape.page as u32).into_iter().enumerate().take(4) {
        for token in 0..run.n_tokens {
            moves.extend((0..shape.n_kv_heads).map(|head| {
                let [from, to] =
                    [run.first, run.first_to].map(|slot| row(slot + token, head, shape));
                (from, to, index >= N_COPIED)
            }));
        }
    }
    moves
}

/// `values` with `n_rot` of them, from `start` on, rotated back.
fn turned(mut values: Vec<f64>, [n_rot, start]: [usize; 2], style: RopeStyle) -> Vec<f64> {
    for i in 0..n_rot / 2 {
        let (first, second) = match style {
            RopeStyle::Norm => (2 * i, 2 * i + 1),
            RopeStyle::Neox => (i, i + n_rot / 2),
        };
        let (sin, cos) = (-f64::from(BACK_BY) * frequency(i, n_rot)).sin_cos();
        let (first, second) = (start + first, start + second);
        let (a, b) = (values[first], values[second]);
        values[first] = a * cos - b * sin;
        values[second] = a * sin + b * cos;
    }
    values
}

/// The bytes of keys and values after the moves.
fn moved(
    gpu: &Gpu,
    shape: &KvShape,
    caches: [&[u8]; 2],
    [n_rot, start]: [usize; 2],
    (style, magnitude): (RopeStyle, f32),
) -> Vec<u8> {
    let memory = caches.map(|cache| gpu.upload(cache).unwrap());
    let runs = gpu.upload(&runs(shape.page as u32)).unwrap();
    let table = gpu.upload(&table(n_rot, f64::from(magnitude))).unwrap();
    let moves = KvMoves {
        runs: runs.as_slice(),
        n_copied: N_COPIED,
        back_by: BACK_BY,
    };
    let turn = KeyTurn {
        rotation: Rotation {
            style,
            table: table.as_slice(),
            n_rot,
            start,
        },
        magnitude,
    };
    let layer = KvLayer::new(*shape, &memory);
    ops::kv_move(gpu, &layer, &moves, (n_rot > 0).then_some(&turn)).unwrap();
    let [k, v] = [0, 1].map(|i| gpu.read(memory[i].as_slice::<u8>()).unwrap());
    [k, v].concat()
}

#[test]
fn moves_copy_bits_and_rotate_keys() {
    let mut random = Random(11);
    for (turn, gpu) in common::gpus().enumerate() {
        let styles = [RopeStyle::Norm, RopeStyle::Neox];
        let kinds = { styles.iter() }.flat_map(|s| KvTypes::ALL.iter().map(|types| (*s, *types)));
        let all = { SHAPES.iter() }.flat_map(|s| kinds.clone().map(move |k| (s, k)));
        for (sizes, (style, types)) in common::every_second(all, turn) {
            let &[n_kv_heads, k_dim, v_dim, n_rot, start, page] = sizes;
            let values = match start + n_rot == k_dim && start == v_dim {
                true if types.keys() != types.values() => continue,
                true => Values::InKeys,
                false => Values::Apart,
            };
            let ty = types.keys();
            let shape = KvShape {
                types,
                n_blocks: N_BLOCKS,
                n_kv_heads,
                page,
                k_dim,
                v_dim,
                values,
            };
            let mut stored = |which: usize, ty: KvType, dim: usize| {
                let mut stored = Stored::of_bytes(&shape, which, &vec![0; shape.n_bytes()[which]]);
                if shape.n_bytes()[which] == 0 {
                    return stored;
                }
                for row in 0..N_BLOCKS * n_kv_heads * page {
                    let [codes, scales] = &kv::encode(ty, &random.normals(dim));
                    stored.set(row, [codes, scales]);
                }
                stored
            };
            let before = [stored(0, ty, k_dim), stored(1, types.values(), v_dim)];
            let bytes = [before[0].bytes(), before[1].bytes()];
            let caches = [&bytes[0][..], &bytes[1][..]];
            let got = any_order(|| moved(&gpu, &shape, caches, [n_rot, start], (style, 1.19)));
            let (got_k, got_v) = got.split_at(bytes[0].len());
            let what = format!("{types:?} {sizes:?}, {style:?} on {}", gpu.target());

            // Rows that do not rotate keep their bits. Rotated rows are checked here, then excluded from the
            // comparison.
            let mut wanted = [0, 1].map(|i| Stored::of_bytes(&shape, i, &bytes[i]));
            let got_keys = Stored::of_bytes(&shape, 0, got_k);
            for (from, to, turns) in row_moves(&shape) {
                if values == Values::Apart {
                    wanted[1].set(to, before[1].row(from));
                }
                if !turns || n_rot == 0 {
                    wanted[0].set(to, before[0].row(from));
                    continue;
                }
                let [codes, scales] = before[0].row(from);
                // As they are stored: rotated by a Hadamard matrix or not.
                let len = shape.hadamard_lens()[0];
                let mut exact = kv::decode(ty, codes, scales, k_dim);
                kv::hadamard(&mut exact, len);
                let mut exact = turned(exact, [n_rot, start], style);
                kv::hadamard(&mut exact, len);
                let [codes, scales] = got_keys.row(to);
                wanted[0].set(to, [codes, scales]);
                let largest = exact.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
                for (got, exact) in kv::decode(ty, codes, scales, k_dim).iter().zip(&exact) {
                    // Half a quantization step, and f32's error.
                    let step = match ty {
                        KvType::F16 => exact.abs() / 2048.0 * 1.001,
                        KvType::Q8_0 | KvType::Q5_1 | KvType::Q4_0 => kv::block_error(ty, largest),
                        KvType::F8E4M3 => {
                            (exact.abs() / 16.0).max(largest / 224.0 / 1024.0) * 1.001
                        }
                    };
                    assert!(
                        (got - exact).abs() <= step + 2e-6,
                        "{what}: {got}, not {exact}"
                    );
                }
            }
            assert!(got_k == wanted[0].bytes(), "{what}: keys");
            assert!(got_v == wanted[1].bytes(), "{what}: values");
        }
    }
}
