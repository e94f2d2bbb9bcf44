//! Random numbers and comparison of results.

/// Pseudorandom bits (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// About normal, standard deviation 1.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.unit()).sum::<f64>().mul_add(2.0, -6.0) as f32 * 0.7
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Asserts that `got` is within `bound` times the largest magnitude of `wanted`, which must be finite.
pub(crate) fn assert_close(got: &[f32], wanted: &[f64], bound: f64, what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}: as many values");
    let largest = wanted.iter().fold(0.0f64, |max, w| max.max(w.abs()));
    for (i, (&got, &wanted)) in got.iter().zip(wanted).enumerate() {
        let error = (f64::from(got) - wanted).abs();
        assert!(
            error <= bound * largest,
            "{what}: value {i} is {got}, not {wanted} (largest {largest})"
        );
    }
}
