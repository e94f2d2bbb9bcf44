//! 4-bit formats whose codes index a non-linear table: IQ4_NL (blocks of 32) and
//! IQ4_XS (super-blocks of 256 with 6-bit scales). After ggml `ggml-quants.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::k::QK_K;
use super::plain::F16;
use super::{Block, GgmlType, nibbles};

/// Values of the sixteen codes of IQ4_NL and IQ4_XS.
pub const KVALUES_IQ4NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// x = d * table\[q\]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq4Nl {
    /// scale
    pub d: F16,
    /// codes, placed as in [`super::legacy::Q4_0`]
    pub qs: [u8; 16],
}

/// x = d * (sc - 32) * table\[q\], groups of 32
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq4Xs {
    /// scale of the scales
    pub d: F16,
    /// upper two bits of the scales, a little-endian u16, group 0 lowest
    pub scales_h: [u8; 2],
    /// lower four bits of the scales, two a byte, even groups low
    pub scales_l: [u8; QK_K / 64],
    /// codes; each group of 32 is placed as in [`Iq4Nl`]
    pub qs: [u8; QK_K / 2],
}

impl Iq4Xs {
    /// Integer scale of group `g` of 8, its offset of 32 subtracted.
    #[inline]
    pub fn scale(&self, g: usize) -> i8 {
        let low = self.scales_l[g / 2] >> (4 * (g % 2)) & 15;
        let high = (u16::from_le_bytes(self.scales_h) >> (2 * g) & 3) as u8;
        (low | high << 4) as i8 - 32
    }
}

impl Block for Iq4Nl {
    const TYPE: GgmlType = GgmlType::IQ4_NL;

    fn dequantize(&self, out: &mut [f32]) {
        look_up(self.d.to_f32(), &self.qs, out);
    }
}

impl Block for Iq4Xs {
    const TYPE: GgmlType = GgmlType::IQ4_XS;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let codes = self.qs.as_chunks().0;
        for (g, (group, qs)) in out.chunks_exact_mut(32).zip(codes).enumerate() {
            look_up(d * f32::from(self.scale(g)), qs, group);
        }
    }
}

fn look_up(scale: f32, qs: &[u8; 16], out: &mut [f32]) {
    for (x, q) in out.iter_mut().zip(nibbles::<_, 32>(qs)) {
        *x = scale * f32::from(KVALUES_IQ4NL[usize::from(q)]);
    }
}
