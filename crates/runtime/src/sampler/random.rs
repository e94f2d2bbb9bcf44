//! Random numbers that depend only on the seed and the token's index in its sequence: two rounds of SplitMix64's
//! finalizer (Steele, Lea, Flood 2014).

/// The use of a random number. Numbers of different uses are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Token = 0,
    Xtc = 1,
}

/// Returns a number in `[0, 1)` for the `index`-th token of `seed`.
pub(crate) fn uniform(seed: u64, index: u64, use_: Use) -> f64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    // The use is in the highest bits, so (index, use) pairs are distinct below 2^56 tokens.
    let at = index.wrapping_add(1) ^ ((use_ as u64) << 56);
    let stream = mix(seed.wrapping_add(STEP));
    let bits = mix(stream.wrapping_add(at.wrapping_mul(STEP)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns the index in `probabilities` that `uniform` falls on.
pub(crate) fn pick(probabilities: &[f64], uniform: f64) -> usize {
    let mut left = uniform * probabilities.iter().sum::<f64>();
    let hit = probabilities.iter().position(|p| {
        left -= p;
        left < 0.0
    });
    hit.unwrap_or(0)
}
