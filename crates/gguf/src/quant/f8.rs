//! FP8 rows for the KV cache: E4M3 numbers (OCP 8-bit Floating Point Specification 1.0; Micikevicius et al. 2022, "FP8
//! Formats for Deep Learning") with one bf16 scale per row. GGUF has no id for them.
//!
//! A code has a sign, four exponent bits (bias 7) and three mantissa bits. There is no infinity; 0x7f and 0xff are NaN.
//! The scale maps the largest magnitude of a row to 448, so that keys in the hundreds do not saturate and values in the
//! thousandths keep their bits. Codes have 4 significant bits and scales 8, so their product is exact in f32.
//!
//! A power of two would fit in one byte, but leaves up to one bit of the largest codes unused: the squared error is
//! then 1.8 times as large for rows of 8 Gaussian values, and 1.06 times for rows of 128.

use half::bf16;

/// The largest finite number.
pub const LARGEST: f32 = 448.0;
/// Bytes of a scale, stored before the codes of its row.
pub const SCALE_BYTES: usize = 2;
/// The smallest scale, 2^-126 as bf16 bits. It is not zero, so that rows of zeros can be divided by it.
const LEAST_SCALE: u16 = 0x0080;

/// Converts a code to f32.
#[inline]
pub fn number(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code) >> 3 & 15, u32::from(code) & 7);
    if code & 0x7f == 0x7f {
        return f32::NAN;
    }
    // Exponent field 0 means the exponent of field 1 without the leading one.
    let integer = if exponent == 0 {
        mantissa
    } else {
        mantissa | 8
    };
    let step = f32::from_bits((exponent.max(1) + 127 - 10) << 23);
    let magnitude = integer as f32 * step;
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// Converts `x` to the nearest code, ties to even; larger magnitudes saturate. Both zeros become 0, because other
/// variants of E4M3 have NaN in place of -0.
#[inline]
pub fn nearest(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let magnitude = x.abs().min(512.0);
    // The exponent field of f32, at least that of 2^-6.
    let exponent = (magnitude.to_bits() >> 23).max(127 - 6);
    let step = f32::from_bits((exponent - 3) << 23);
    let integer = (magnitude / step).round_ties_even() as u32;
    // A mantissa rounded up to the next power of two carries into the exponent. Without a leading one the exponent
    // field becomes 0.
    let code = ((exponent - 120) << 3) + integer - 8;
    let sign = if code > 0 && x.is_sign_negative() {
        0x80
    } else {
        0
    };
    code.min(0x7e) as u8 | sign
}

/// Quantizes `row` and returns its scale: the largest magnitude over 448, rounded to nearest even. If a value is not
/// finite, the scale is NaN and the codes are 0.
///
/// Codes are nearest to the exact `x / scale`, although the quotient is rounded to f32 first: the midpoint of two codes
/// has 5 significant bits, so midpoint times scale is an f32, and no other f32 `x` is so close to it that the quotient
/// would round to the midpoint.
///
/// # Panics
/// If `codes` and `row` differ in length.
#[inline]
pub fn quantize(row: &[f32], codes: &mut [u8]) -> bf16 {
    assert_eq!(row.len(), codes.len(), "a code for each value");
    let largest = row
        .iter()
        .fold(0, |max, x| (x.to_bits() & 0x7fff_ffff).max(max));
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        codes.fill(0);
        return bf16::NAN;
    }
    // Rounded up, it is at most 146 * 2^112, so 448 times the scale is finite like all values of the row.
    let scale = bf16::from_f32(largest / LARGEST).to_bits();
    let scale = bf16::from_bits(scale.max(LEAST_SCALE));
    let divisor = scale.to_f32();
    for (code, x) in codes.iter_mut().zip(row) {
        *code = nearest(x / divisor);
    }
    scale
}

/// Quantizes a row to its stored form: the scale, then the codes.
///
/// # Panics
/// If `to` is not [`SCALE_BYTES`] longer than `row`.
#[inline]
pub fn store(row: &[f32], to: &mut [u8]) {
    let (scale, codes) = to
        .split_first_chunk_mut::<SCALE_BYTES>()
        .expect("a row begins with its scale");
    *scale = quantize(row, codes).to_le_bytes();
}

/// Returns the scale and the codes of a stored row.
///
/// # Panics
/// If `row` is too short for a scale.
#[inline]
pub fn load(row: &[u8]) -> (f32, &[u8]) {
    let (scale, codes) = row
        .split_first_chunk::<SCALE_BYTES>()
        .expect("a row begins with its scale");
    (bf16::from_le_bytes(*scale).to_f32(), codes)
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;

    /// Sign, exponent and mantissa by table 1 of the specification, in f64.
    fn by_definition(code: u8) -> f64 {
        let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
        let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        match (e, code & 7) {
            (15, 7) => f64::NAN,
            (0, _) => sign * 2f64.powi(-6) * (m / 8.0),
            _ => sign * 2f64.powi(e - 7) * (1.0 + m / 8.0),
        }
    }

    #[test]
    fn codes_convert_as_in_the_specification() {
        for code in 0..=255 {
            let (got, wanted) = (f64::from(number(code)), by_definition(code));
            assert!(
                got == wanted || got.is_nan() && wanted.is_nan(),
                "{code:#x}"
            );
        }
        let of = [
            (0x7e, 448.0),
            (0x01, 0.001_953_125),
            (0x38, 1.0),
            (0xb8, -1.0),
        ];
        for (code, wanted) in of {
            assert_eq!(number(code), wanted);
        }
    }

    /// Finds the nearest code among all; of two, the one with the even mantissa.
    fn nearest_by_search(x: f64) -> u8 {
        let codes = (0..0x7f).chain(0x81..0xff);
        let distance = |code: u8| (by_definition(code) - x).abs();
        codes.fold(0, |best, code| {
            let (d, least) = (distance(code), distance(best));
            match d < least || d == least && code & 1 == 0 {
                true => code,
                false => best,
            }
        })
    }

    #[test]
    fn values_round_to_the_nearest_code() {
        let mut x = vec![0.0, -0.0, 448.1, 463.9, 464.0, 464.1, 480.0, 1e9, f32::MAX];
        x.extend([
            f32::INFINITY,
            f32::MIN_POSITIVE,
            1e-42,
            2f32.powi(-10),
            0.001,
            0.01,
        ]);
        for code in 0..0x7e {
            let (a, b) = (number(code), number(code + 1));
            let middle = (a + b) / 2.0;
            let near = |x: f32, by: i32| f32::from_bits(x.to_bits().wrapping_add_signed(by));
            x.extend([a, middle, near(middle, 1), near(middle, -1), near(a, 1)]);
        }
        for x in x.iter().flat_map(|&x| [x, -x]) {
            let wanted = nearest_by_search(f64::from(x).clamp(-448.0, 448.0));
            assert_eq!(nearest(x), wanted, "{x}");
        }
        assert_eq!(nearest(f32::NAN), 0x7f);
    }

    /// Finds the bf16 nearest to `x` >= 2^-126, ties to even, among all positive finite ones.
    fn bf16_by_search(x: f64) -> f64 {
        let value = |bits: u32| f64::from(f32::from_bits(bits << 16));
        let above = (0x80..=0x7f80).find(|&bits| value(bits) >= x).unwrap();
        let (a, b) = (value(above - 1), value(above));
        match (x - a).total_cmp(&(b - x)) {
            Ordering::Less => a,
            Ordering::Equal if above % 2 == 1 => a,
            _ => b,
        }
    }

    /// Tests largest magnitudes over the whole range of f32, some with quotients halfway between two scales, and values
    /// at and around the midpoint of every two codes.
    #[test]
    fn rows_get_the_nearest_scale_and_codes() {
        let mut largest = vec![
            448.0f32,
            448.1,
            1.0,
            3e-5,
            65504.0,
            7e9,
            1e36,
            1e38,
            f32::MAX,
        ];
        largest.extend([1e-33, 5.3e-36, 1e-36, 1e-38, 1e-40]);
        // 448 * (1 + 1 / 256), between 1 and the next scale, and 448 * (1 + 3 / 256), between that and its next.
        for tie in [449.75, 453.25] {
            let near = |by: i32| f32::from_bits(f32::to_bits(tie).wrapping_add_signed(by));
            largest.extend([near(-1), tie, near(1)]);
        }
        for largest in largest {
            let quotient = f64::from((f64::from(largest) / 448.0) as f32);
            let wanted = bf16_by_search(quotient.max(2f64.powi(-126)));
            let mut row = vec![largest, -largest, 0.0, -0.0];
            for code in 0..0x7e {
                let middle = (by_definition(code) + by_definition(code + 1)) / 2.0;
                let near = (middle * wanted) as f32;
                let around =
                    [-1, 0, 1].map(|by| f32::from_bits(near.to_bits().wrapping_add_signed(by)));
                row.extend(around.into_iter().filter(|x| x.abs() <= largest));
            }
            let mut stored = vec![1; row.len() + SCALE_BYTES];
            store(&row, &mut stored);
            let (factor, codes) = load(&stored);
            assert_eq!(f64::from(factor), wanted, "{largest}");
            for (&x, &code) in row.iter().zip(codes) {
                let quotient = (f64::from(x) / wanted).clamp(-448.0, 448.0);
                assert_eq!(code, nearest_by_search(quotient), "{x} of {largest}");
                assert!((number(code) * factor).is_finite(), "{x} of {largest}");
                assert!(![0x7f, 0x80, 0xff].contains(&code), "{x}: {code:#x}");
            }
        }
    }

    #[test]
    fn zeros_empty_rows_and_non_finite_values() {
        let mut codes = [1; 2];
        let scale = quantize(&[0.0, -0.0], &mut codes);
        assert_eq!((scale.to_f32(), codes), (f32::MIN_POSITIVE, [0, 0]));
        assert_eq!(f32::from(quantize(&[], &mut [])), f32::MIN_POSITIVE);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            codes.fill(1);
            let scale = quantize(&[1.0, wrong], &mut codes);
            assert!(scale.is_nan() && codes == [0, 0], "{wrong}");
        }
        // Zero-initialized memory reads as zeros.
        assert_eq!(load(&[0; 4]), (0.0, &[0, 0][..]));
    }
}
