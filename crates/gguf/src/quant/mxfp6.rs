//! MXFP6 of the OCP Microscaling Formats specification v1.0: 32 numbers of 6 bits that share an E8M0 scale. GGUF has no
//! id for it, so it has no [`super::GgmlType`] and serves library users only.
//!
//! A block has 25 bytes: the scale, then the codes as one little-endian integer of six bits per value, so that value i
//! has bits 6i to 6i + 5. A code has a sign, an exponent and a mantissa, from the highest bit down (section 5.3); there
//! is no infinity and no NaN.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mxfp::e8m0_half;

/// Values per block.
pub const LEN: usize = 32;

/// Two exponent bits, three mantissa bits: up to 7.5 in steps of at least 1/8.
pub type E2M3 = Mxfp6<3>;

/// Three exponent bits, two mantissa bits: up to 28 in steps of at least 1/16.
pub type E3M2 = Mxfp6<2>;

/// x = 2^(e - 127) * number(code), with `MANTISSA` bits of mantissa (2 or 3)
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Mxfp6<const MANTISSA: u32> {
    /// E8M0 scale; 255 makes every value of the block a NaN
    pub e: u8,
    /// codes, four in three bytes
    pub codes: [u8; LEN * 6 / 8],
}

const _: () = assert!(size_of::<E2M3>() == 25 && size_of::<E3M2>() == 25);

/// The E8M0 code of NaN.
const NAN: u8 = 255;
/// 2^0 in E8M0.
const ONE: i32 = 127;
/// Code of the largest number.
const LARGEST: i32 = 31;

impl<const MANTISSA: u32> Mxfp6<MANTISSA> {
    /// The exponent field that means 2^0.
    const BIAS: i32 = (1 << (4 - MANTISSA)) - 1;
    /// Exponent of the largest number; `emax_elem` of the specification.
    const MAX_EXPONENT: i32 = (1 << (5 - MANTISSA)) - 1 - Self::BIAS;

    /// Converts a code to f32.
    #[inline]
    pub fn number(code: u8) -> f32 {
        let mantissa = i32::from(code) & ((1 << MANTISSA) - 1);
        let exponent = i32::from(code) >> MANTISSA & ((1 << (5 - MANTISSA)) - 1);
        // Exponent field 0 means the exponent of field 1 without the leading one.
        let integer = if exponent == 0 {
            mantissa
        } else {
            mantissa | 1 << MANTISSA
        };
        let step = exponent.max(1) - Self::BIAS - MANTISSA as i32;
        let magnitude = integer as f32 * power_of_two(step);
        if code & 32 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }

    /// Converts `x`, which must not be NaN, to the nearest code, ties to even; larger magnitudes saturate.
    #[inline]
    pub fn nearest(x: f32) -> u8 {
        // Far above the largest number of either format.
        let magnitude = x.abs().min(64.0);
        let exponent = exponent(magnitude).max(1 - Self::BIAS);
        let step = power_of_two(exponent - MANTISSA as i32);
        let integer = (magnitude / step).round_ties_even() as i32;
        // A mantissa rounded up to the next power of two carries into the exponent. Without a leading one the exponent
        // field becomes 0.
        let code = ((exponent + Self::BIAS) << MANTISSA) + integer - (1 << MANTISSA);
        let sign = if x.is_sign_negative() { 32 } else { 0 };
        code.min(LARGEST) as u8 | sign
    }

    /// Quantizes `values` as in section 6.3 of the specification: the scale is the power of two of the largest
    /// magnitude over that of the largest number, and each value is rounded to nearest. Blocks of zeros get the
    /// smallest scale. If a value is not finite, the whole block is NaN.
    pub fn quantize(values: &[f32; LEN]) -> Self {
        let mut block = Self {
            e: NAN,
            codes: [0; LEN * 6 / 8],
        };
        if !values.iter().all(|x| x.is_finite()) {
            return block;
        }
        let largest = values.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        let scale = (exponent(largest) - Self::MAX_EXPONENT).clamp(-ONE, ONE);
        block.e = (scale + ONE) as u8;
        let four = values.as_chunks::<4>().0;
        for (values, bytes) in four.iter().zip(block.codes.as_chunks_mut::<3>().0) {
            let code = |x: &f32| u32::from(Self::nearest(scaled(*x, -scale)));
            let bits = values.iter().rev().fold(0, |bits, x| bits << 6 | code(x));
            let [a, b, c, _] = bits.to_le_bytes();
            *bytes = [a, b, c];
        }
        block
    }

    /// Converts the block to f32.
    pub fn dequantize(&self, out: &mut [f32; LEN]) {
        let scale = if self.e == NAN {
            f32::NAN
        } else {
            2.0 * e8m0_half(self.e)
        };
        let four = out.as_chunks_mut::<4>().0;
        for (out, bytes) in four.iter_mut().zip(self.codes.as_chunks::<3>().0) {
            let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
            for (i, x) in out.iter_mut().enumerate() {
                *x = scale * Self::number((bits >> (6 * i) & 63) as u8);
            }
        }
    }
}

/// The exponent floor(log2 |x|) of a finite number; for zero, one far below all others.
fn exponent(x: f32) -> i32 {
    // No f32 is subnormal as an f64.
    let bits = f64::from(x).to_bits();
    (bits >> 52 & 0x7ff) as i32 - 1023
}

/// 2^n, for exponents of normal numbers.
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// x * 2^n, for n from -127 to 127; exact unless the result is subnormal.
fn scaled(x: f32, n: i32) -> f32 {
    (f64::from(x) * f64::from_bits(((n + 1023) as u64) << 52)) as f32
}
