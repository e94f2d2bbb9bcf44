//! Formats without blocks: F32, F16 and BF16, as little-endian bytes of alignment 1. [`F16`] is also the scale inside
//! the blocks of other formats.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Block, GgmlType, QuantizeBlock};

/// An IEEE single, as stored in files.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct F32(pub [u8; 4]);

/// An IEEE half, as stored in files.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct F16(pub [u8; 2]);

/// The upper half of an IEEE single, as stored in files.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BF16(pub [u8; 2]);

impl F16 {
    /// The bit pattern.
    #[inline]
    pub fn bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    /// Converts to f32, exactly.
    #[inline]
    pub fn to_f32(self) -> f32 {
        // The exponent is rebased by a multiplication, which also normalizes subnormal halves; infinity and NaN keep an
        // exponent of all ones. Gives the same result as the crate `half`, but vectorizes.
        const REBASE: f32 = f32::from_bits((127 + 127 - 15) << 23);
        let bits = u32::from(self.bits());
        let magnitude = (bits & 0x7fff) << 13;
        let rebased = (f32::from_bits(magnitude) * REBASE).to_bits();
        let special = if bits & 0x7c00 == 0x7c00 {
            0x7f80_0000
        } else {
            0
        };
        f32::from_bits(rebased | special | (bits & 0x8000) << 16)
    }

    /// Rounds to nearest, ties to even; overflow becomes infinity.
    #[inline]
    pub fn from_f32(x: f32) -> Self {
        F16(half::f16::from_f32(x).to_bits().to_le_bytes())
    }
}

impl BF16 {
    /// The bit pattern.
    #[inline]
    pub fn bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    /// Converts to f32, exactly.
    #[inline]
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.bits()) << 16)
    }

    /// Rounds to nearest, ties to even; NaN stays NaN.
    #[inline]
    pub fn from_f32(x: f32) -> Self {
        BF16(half::bf16::from_f32(x).to_bits().to_le_bytes())
    }
}

impl Block for F32 {
    const TYPE: GgmlType = GgmlType::F32;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = f32::from_le_bytes(self.0);
    }
}

impl QuantizeBlock for F32 {
    #[inline]
    fn quantize(values: &[f32]) -> Self {
        F32(values[0].to_le_bytes())
    }
}

impl Block for F16 {
    const TYPE: GgmlType = GgmlType::F16;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.to_f32();
    }
}

impl QuantizeBlock for F16 {
    #[inline]
    fn quantize(values: &[f32]) -> Self {
        F16::from_f32(values[0])
    }
}

impl Block for BF16 {
    const TYPE: GgmlType = GgmlType::BF16;

    #[inline]
    fn dequantize(&self, out: &mut [f32]) {
        out[0] = self.to_f32();
    }
}

impl QuantizeBlock for BF16 {
    #[inline]
    fn quantize(values: &[f32]) -> Self {
        BF16::from_f32(values[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_conversion_matches_the_half_crate() {
        for bits in 0..=u16::MAX {
            let got = F16(bits.to_le_bytes()).to_f32();
            let expected = half::f16::from_bits(bits).to_f32();
            let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(same, "{bits:#06x}: {got:e}, expected {expected:e}");
        }
    }
}
