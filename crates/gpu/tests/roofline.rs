//! The measurement of bandwidth reads every word once.

mod common;

use common::three_orders;
use common::values::Random;
use rocmforge_gpu::read_all;

#[test]
fn every_word_is_read_once() {
    let mut random = Random(1);
    for gpu in common::gpus() {
        // Nothing, a tail alone, one round of loads and a rest, rounds of 8 loads for each thread with a tail.
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
            let sums = three_orders(|| {
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
