//! Operations on one value at a time, against plain loops.

mod common;

use rocmforge_gpu::ops;

#[test]
fn add() {
    for gpu in common::gpus() {
        for n in [1usize, 255, 256, 1000] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
            let y: Vec<f32> = (0..n).map(|i| 1.0 - i as f32).collect();
            let sums = common::three_orders(|| {
                let (dx, dy) = (gpu.upload(&x).unwrap(), gpu.upload(&y).unwrap());
                ops::add(&gpu, dx.as_slice(), dy.as_slice()).unwrap();
                gpu.read(dy.as_slice::<f32>()).unwrap()
            });
            let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            assert_eq!(sums, expected);
        }
    }
}
