//! Numbers of eight bits: E4M3 of the OCP 8-bit Floating Point Specification 1.0 (after Micikevicius et al. 2022,
//! "FP8 Formats for Deep Learning"), in rows that share a scale in bf16. GGUF has no id for them; caches of keys and
//! values are kept so.
//!
//! A code is a sign, four bits of exponent (bias 7) and three of mantissa; there is no infinity, and 0x7f and 0xff are
//! NaN. The scale of a row brings its largest magnitude to 448, so that keys of hundreds do not saturate and values of
//! thousandths keep their bits. A code has 4 bits and a scale 8: their product is exact in f32.
//!
//! A power of two would do in one byte, but leaves up to a bit of the largest codes unused: a row of 8 Gaussian values has
//! 1.8 times the squared error then, one of 128 values 1.06 times.

use half::bf16;

/// The largest number.
pub const LARGEST: f32 = 448.0;
/// Bytes of a scale, which is stored before the codes of its row.
pub const SCALE_BYTES: usize = 2;
/// The least scale, 2^-126: what is divided by it is a number, and zeros have one.
const LEAST_SCALE: u16 = 0x0080;

/// What a code stands for.
#[inline]
pub fn number(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code) >> 3 & 15, u32::from(code) & 7);
    if code & 0x7f == 0x7f {
        return f32::NAN;
    }
    // Exponent field 0 has that of field 1 and no leading one.
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

/// The code of the number nearest to `x`, ties to the even code; larger magnitudes saturate. Zeros of both signs become
/// 0: other forms of E4M3 have a NaN in place of -0.
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
    // A mantissa that is rounded up to the next power of two carries into the exponent; without a leading one the
    // exponent field becomes 0.
    let code = ((exponent - 120) << 3) + integer - 8;
    let sign = if code > 0 && x.is_sign_negative() {
        0x80
    } else {
        0
    };
    code.min(0x7e) as u8 | sign
}

/// Writes the codes of `row` and returns its scale: the largest magnitude over 448, rounded to nearest even; NaN, with
/// codes of 0, if a value is not finite.
///
/// Codes are the nearest to `x / scale`, although that is rounded to f32 before: the middle of two numbers has 5 bits, so
/// times the scale it is an f32 that `x` is equal to, above or below, and neighbours of that are further from it than a
/// rounding.
///
/// # Panics
/// If there are not as many codes as values.
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
    // Rounded up it is at most 146 * 2^112: 448 times as much is finite, as all values of the row are.
    let scale = bf16::from_f32(largest / LARGEST).to_bits();
    let scale = bf16::from_bits(scale.max(LEAST_SCALE));
    let divisor = scale.to_f32();
    for (code, x) in codes.iter_mut().zip(row) {
        *code = nearest(x / divisor);
    }
    scale
}

/// [`quantize`] to a row as it is stored: its scale, then its codes.
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

/// What the codes of a stored row are multiplied with, and the codes.
///
/// # Panics
/// If there is no scale.
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
    fn every_code_is_its_number() {
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

    /// Of all numbers the nearest; of two, that with the even mantissa.
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
    fn values_round_to_the_nearest_number() {
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

    /// The bf16 nearest to `x` >= 2^-126, ties to the even one, by search among all that are positive and finite.
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

    /// Largest magnitudes over all of f32, among them quotients that lie between two scales, with values on and around
    /// every middle of two numbers.
    #[test]
    fn rows_have_the_nearest_codes_to_the_quotient() {
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
    fn rows_of_nothing_and_of_what_is_no_number() {
        let mut codes = [1; 2];
        let scale = quantize(&[0.0, -0.0], &mut codes);
        assert_eq!((scale.to_f32(), codes), (f32::MIN_POSITIVE, [0, 0]));
        assert_eq!(f32::from(quantize(&[], &mut [])), f32::MIN_POSITIVE);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            codes.fill(1);
            let scale = quantize(&[1.0, wrong], &mut codes);
            assert!(scale.is_nan() && codes == [0, 0], "{wrong}");
        }
        // Memory that was never written is zeros.
        assert_eq!(load(&[0; 4]), (0.0, &[0, 0][..]));
    }
}
