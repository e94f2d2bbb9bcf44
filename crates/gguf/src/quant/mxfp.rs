//! MXFP4 of the OCP Microscaling Formats specification v1.0 (GGUF type 39): 32 E2M1 values that share an E8M0 scale, a
//! power of two. After ggml `ggml-quants.c` (`dequantize_row_mxfp4`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, GgmlType, QuantizeBlock, nibbles};

/// Twice the values of the sixteen E2M1 codes, so that they are integers; the scale is halved to match. Code 8, minus
/// zero, is 0 as in ggml.
pub const KVALUES_MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// x = 2^(e - 127) / 2 * table\[q\]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Mxfp4 {
    /// E8M0 scale
    pub e: u8,
    /// codes, placed as in [`super::legacy::Q4_0`]
    pub qs: [u8; 16],
}

/// Half of an E8M0 scale: 2^(e - 128), exact for every `e` (0 and 1 give
/// subnormal numbers, 255 is not treated as NaN, as in ggml).
#[inline]
pub fn e8m0_half(e: u8) -> f32 {
    match e {
        0 | 1 => f32::from_bits(0x0020_0000 << e),
        _ => f32::from_bits(u32::from(e - 1) << 23),
    }
}

impl Block for Mxfp4 {
    const TYPE: GgmlType = GgmlType::MXFP4;

    fn dequantize(&self, out: &mut [f32]) {
        let d = e8m0_half(self.e);
        for (x, q) in out.iter_mut().zip(nibbles::<_, 32>(&self.qs)) {
            *x = d * f32::from(KVALUES_MXFP4[usize::from(q)]);
        }
    }
}

impl QuantizeBlock for Mxfp4 {
    /// The scale maps the largest magnitude to between 4 and 8, where 6 is the largest number, as in section 6.3 of the
    /// specification. Ties round towards zero as in ggml, not to even as the specification prefers.
    fn quantize(values: &[f32]) -> Self {
        let amax = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        if amax == 0.0 {
            return Mxfp4 { e: 0, qs: [0; 16] };
        }
        // Rounded to f32 before the floor as in ggml: just below a large power of two, the logarithm becomes that of
        // the power.
        let exponent = f64::from(amax).log2() as f32;
        let e = (exponent.floor() as i32 - 2 + 127).clamp(0, 254) as u8;
        // Comparisons with the midpoints times the scale are exact.
        let half = e8m0_half(e);
        let code = |x: f32| {
            let above = |q: usize| {
                let middle = f32::from(KVALUES_MXFP4[q]) + f32::from(KVALUES_MXFP4[q + 1]);
                x.abs() > middle * half * 0.5
            };
            let magnitude: u8 = (0..7).map(|q| u8::from(above(q))).sum();
            if x < 0.0 && magnitude > 0 {
                magnitude | 8
            } else {
                magnitude
            }
        };
        Mxfp4 {
            e,
            qs: std::array::from_fn(|j| code(values[j]) | code(values[j + 16]) << 4),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e8m0_is_a_power_of_two() {
        for e in 0..=254u8 {
            let expected = 2f64.powi(i32::from(e) - 128);
            assert_eq!(f64::from(e8m0_half(e)), expected, "{e}");
        }
    }
}
