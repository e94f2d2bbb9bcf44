//! Values to quantize. They use integer arithmetic and exact or correctly rounded f64 operations only, so that another
//! program (`xtask/src/quant_errors.py`) can make the same values.

/// Values per row.
pub(crate) const ROW: usize = 1024;

/// Word `i` of the splitmix64 sequence of a seed.
fn word(seed: u64, i: usize) -> u64 {
    let mut z = seed.wrapping_add((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A sum of twelve uniform numbers, which is nearly normal.
fn normal(seed: u64, i: usize) -> f64 {
    let uniform = |k| (word(seed, 12 * i + k) >> 40) as f64 / (1 << 24) as f64;
    (0..12).map(uniform).sum::<f64>() - 6.0
}

/// Student's t with three degrees of freedom.
fn student(seed: u64, i: usize) -> f64 {
    let [a, b, c, d] = [0, 1, 2, 3].map(|k| normal(seed, 4 * i + k));
    a / ((b * b + c * c + d * d) / 3.0).sqrt()
}

/// Eight rows of each kind, with its name.
pub(crate) fn inputs() -> Vec<(&'static str, Vec<f32>)> {
    let make = |value: &dyn Fn(usize) -> f64| (0..8 * ROW).map(|i| value(i) as f32).collect();
    let outlier = |i: usize| match (word(4, i / 32) >> 59) as usize == i % 32 {
        true => normal(3, i) * 0.02 * 30.0,
        false => normal(3, i) * 0.02,
    };
    let tiny = |i: usize| normal(6, i) * 2f64.powi(-14 - 2 * (i / ROW) as i32);
    vec![
        ("gaussian", make(&|i| normal(1, i) * 0.02)),
        ("student", make(&|i| student(2, i) * 0.02)),
        ("zeros", make(&|_| 0.0)),
        ("outlier", make(&outlier)),
        ("constant", make(&|i| normal(5, i / ROW))),
        ("tiny", make(&tiny)),
        ("offset", make(&|i| normal(7, i) * 0.02 + 0.1)),
    ]
}

/// Importance of the columns of a row. Every 61st column is never active.
pub(crate) fn importance(row_len: usize) -> Vec<f32> {
    let of = |i: usize| {
        if i % 61 == 60 {
            0.0
        } else {
            student(8, i).powi(2) as f32
        }
    };
    (0..row_len).map(of).collect()
}

/// Blocks of every magnitude from the smallest subnormal number to the largest that formats with f16 scales accept,
/// also mixed within blocks.
pub(crate) fn extremes() -> Vec<f32> {
    let value = |i: usize| {
        let exponent = match i / ROW {
            0 => (word(10, i) % 165) as i32 - 149,
            // Groups of the smallest numbers beside groups of ordinary ones.
            1 => [0, -149 + (i % ROW / 64) as i32][i / 32 % 2],
            row => (i % ROW / 256 * 37 + row * 4) as i32 % 165 - 149,
        };
        let x = (normal(9, i) * 2f64.powi(exponent)) as f32;
        x.clamp(-65504.0, 65504.0)
    };
    (0..16 * ROW).map(value).collect()
}
