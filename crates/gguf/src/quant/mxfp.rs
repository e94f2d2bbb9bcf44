//! Microscaling formats of the OCP MX specification v1.0. MXFP4 is GGUF type 39:
//! 32 E2M1 values that share an E8M0 scale, a power of two. After ggml
//! `ggml-quants.c` (`dequantize_row_mxfp4`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, GgmlType, nibbles};

/// Twice what the sixteen E2M1 codes stand for, so that they are integers; the
/// scale is halved to match. Code 8, minus zero, is plain zero here as in ggml.
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
