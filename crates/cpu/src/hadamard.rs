//! Rotation of heads by a Hadamard matrix, before a KV cache stores them in few bits (as in QuaRot, Ashkboos et al. 2024).

use std::ops::{Add, Mul, Sub};

/// Multiplies each run of `len` values, a power of two, by the normalized Hadamard matrix of that size, which is symmetric
/// and its own inverse; 1 changes nothing. Bits are the same on every device: steps of 1, 2, 4, ... values in this order,
/// then one factor.
///
/// # Panics
/// If `x` is not whole runs.
#[inline(always)]
pub fn hadamard<T>(x: &mut [T], len: usize)
where
    T: Copy + Add<Output = T> + Sub<Output = T> + Mul<Output = T> + From<f32>,
{
    if len <= 1 {
        return;
    }
    assert!(
        len.is_power_of_two() && x.len().is_multiple_of(len),
        "runs of {len} values"
    );
    let factor = T::from((1.0 / (len as f64).sqrt()) as f32);
    for run in x.chunks_exact_mut(len) {
        let mut step = 1;
        while step < len {
            for pair in run.chunks_exact_mut(2 * step) {
                let (a, b) = pair.split_at_mut(step);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            step *= 2;
        }
        for x in run {
            *x = *x * factor;
        }
    }
}
