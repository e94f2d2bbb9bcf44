//! Numbers of eight bits: E4M3 of the OCP 8-bit Floating Point Specification 1.0 (after Micikevicius et al. 2022,
//! "FP8 Formats for Deep Learning"), in rows that share a scale of E8M0, a power of two. GGUF has no id for them; caches
//! of keys and values are kept so.
//!
//! A code is a sign, four bits of exponent (bias 7) and three of mantissa; there is no infinity, and 0x7f and 0xff are
//! NaN. The scale of a row is the least that keeps its largest magnitude within 448, so that keys of hundreds do not
//! saturate and values of thousandths keep their bits.

use super::mxfp::e8m0_half;

/// The largest number.
pub const LARGEST: f32 = 448.0;
/// The scale of a row with a value that is not finite.
pub const SCALE_NAN: u8 = 255;
/// The largest scale that rows get: that of magnitudes up to 1.75 * 2^121. Larger ones count as not finite.
const LARGEST_SCALE: u32 = 240;

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

/// What the codes of a row are multiplied with: 2^(scale - 127), or NaN.
#[inline]
pub fn factor(scale: u8) -> f32 {
    if scale == SCALE_NAN {
        return f32::NAN;
    }
    2.0 * e8m0_half(scale)
}

/// Writes the codes of `row` and returns its scale; all codes are 0 if a value is not finite.
///
/// # Panics
/// If there are not as many codes as values.
#[inline]
pub fn quantize(row: &[f32], codes: &mut [u8]) -> u8 {
    assert_eq!(row.len(), codes.len(), "a code for each value");
    let largest = row
        .iter()
        .fold(0, |max, x| (x.to_bits() & 0x7fff_ffff).max(max));
    // 448 is 1.75 * 2^8.
    let above = u32::from(largest & 0x7f_ffff > 0x60_0000);
    let scale = ((largest >> 23) + above).max(9) - 8;
    if scale > LARGEST_SCALE {
        codes.fill(0);
        return SCALE_NAN;
    }
    let inverse = f32::from_bits((254 - scale) << 23);
    for (code, x) in codes.iter_mut().zip(row) {
        *code = nearest(x * inverse);
    }
    scale as u8
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn scales_keep_rows_within_range() {
        for largest in [
            448.0f32, 448.1, 224.0, 224.1, 1.0, 1.75, 1.76, 3e-5, 65504.0, 7e9, 1e36,
        ] {
            let row = [largest, -largest / 3.0, largest / 500.0, 0.0];
            let mut codes = [1; 4];
            let scale = quantize(&row, &mut codes);
            let over = f64::from(largest) / f64::from(factor(scale));
            assert!((224.0..=448.0).contains(&over), "{largest}: {over}");
            for (&x, &code) in row.iter().zip(&codes) {
                let got = f64::from(number(code)) * f64::from(factor(scale));
                assert!(
                    (got - f64::from(x)).abs() <= f64::from(x.abs()) / 16.0,
                    "{x}: {got}"
                );
                assert!(![0x7f, 0x80, 0xff].contains(&code), "{x}: {code:#x}");
            }
        }
        // What cannot be scaled up further keeps what codes can say of it; -0 has no code.
        let mut codes = [1; 2];
        assert_eq!((quantize(&[0.0, -0.0], &mut codes), codes), (1, [0, 0]));
        assert_eq!(quantize(&[1e-40, -1e-45], &mut codes), 1);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            let scale = quantize(&[1.0, wrong], &mut codes);
            assert_eq!((scale, codes), (SCALE_NAN, [0, 0]));
            assert!(factor(scale).is_nan());
        }
    }
}
