//! Masks of constrained rows, against a plain loop.

use crate::common;
use crate::common::any_order;
use crate::common::values::Random;
use rocmforge_gpu::ops;

#[test]
fn forbids_tokens_that_a_mask_does_not_allow() {
    let mut random = Random(1);
    for gpu in common::gpus() {
        for n_vocab in [1, 31, 33, 4099, 17_000] {
            let n_rows = 4;
            let mut logits = random.normals(n_rows * n_vocab);
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                logits[random.below(n_rows * n_vocab)] = special;
            }
            // Rows 3 and 1 have masks; there is no row 7.
            let n_words = n_vocab.div_ceil(32);
            let masks: Vec<Vec<u32>> = [3, 1, 7]
                .into_iter()
                .map(|row| {
                    let words = (0..n_words).map(|_| random.below(1 << 32) as u32);
                    std::iter::once(row).chain(words).collect()
                })
                .collect();
            let mut expected = logits.clone();
            for mask in &masks[..2] {
                let row = &mut expected[mask[0] as usize * n_vocab..][..n_vocab];
                for (id, logit) in row.iter_mut().enumerate() {
                    let is_allowed = mask[1 + id / 32] >> (id % 32) & 1 == 1;
                    if !is_allowed && *logit < f32::INFINITY {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            let masks = gpu.upload(&masks.concat()).unwrap();
            let got = any_order(|| {
                let logits = gpu.upload(&logits).unwrap();
                ops::forbid(&gpu, logits.as_slice(), n_rows, masks.as_slice()).unwrap();
                let got: Vec<f32> = gpu.read(logits.as_slice()).unwrap();
                got.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            });
            let expected: Vec<u32> = expected.into_iter().map(f32::to_bits).collect();
            assert!(got == expected, "{n_vocab} on {}", common::name(&gpu));
        }
    }
}
