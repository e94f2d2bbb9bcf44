//! Argmax over each row of logits, against a plain loop.

use crate::common;
use crate::common::any_order;
use crate::common::values::Random;
use rocmforge_gpu::ops;

/// The index of the first maximum, ignoring NaN, if that maximum is finite.
fn expected(row: &[f32]) -> u32 {
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let at = row.iter().position(|&x| x == best);
    at.filter(|_| best.is_finite())
        .map_or(u32::MAX, |at| at as u32)
}

#[test]
fn picks_first_of_equal_maxima() {
    let mut random = Random(1);
    for gpu in common::gpus_with(&["loads=narrow"]) {
        for n_vocab in [1, 63, 1024, 4099, 17000] {
            let mut rows: Vec<Vec<f32>> = (0..3).map(|_| random.normals(n_vocab)).collect();
            // Equal maxima, far apart.
            let mut ties: Vec<f32> = (0..n_vocab)
                .map(|i| (i * 7919 % 13) as f32 - 20.0)
                .collect();
            rows.push(ties.clone());
            ties.fill(-0.0);
            ties[n_vocab / 2] = 0.0;
            rows.push(ties);
            for (special, rest) in [
                (f32::NAN, f32::NAN),
                (f32::NEG_INFINITY, f32::NEG_INFINITY),
                (-1.0, f32::NEG_INFINITY),
                (-1e38, f32::NAN),
                (-f32::NAN, -1.0),
                (f32::INFINITY, 1.0),
                (f32::MAX, 1.0),
                (1e-45, -1e-45),
            ] {
                let mut row = vec![rest; n_vocab];
                row[random.below(n_vocab)] = special;
                rows.push(row);
            }
            let wanted: Vec<u32> = rows.iter().map(|row| expected(row)).collect();
            // Also at an address that is not 16-byte aligned.
            for skip in if n_vocab == 1024 { 0..2 } else { 0..1 } {
                let logits = [vec![0.0; skip], rows.concat()].concat();
                let logits = gpu.upload(&logits).unwrap();
                let ids = gpu.alloc::<u32>(rows.len()).unwrap();
                let got = any_order(|| {
                    let logits = logits.as_slice::<f32>();
                    ops::argmax(&gpu, logits.part(skip..logits.len()), ids.as_slice()).unwrap();
                    gpu.read(ids.as_slice::<u32>()).unwrap()
                });
                assert_eq!(got, wanted, "{n_vocab} on {}", common::name(&gpu));
            }
        }
    }
}
