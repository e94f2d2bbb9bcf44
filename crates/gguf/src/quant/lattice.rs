//! Formats of 1.5 to 3.5 bits whose codes are indices into grids ([`super::grids`]): 256 values with integer scales per
//! 16 or 32. After ggml `ggml-quants.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids::{self, EVEN_MASKS, MASKS};
use super::k::QK_K;
use super::plain::F16;
use super::{Block, GgmlType};

/// x = d * UNIT * scale * code, with an integer scale for each group of 16 and an integer code for each value.
pub trait Lattice: Block {
    /// The power of two that makes scales and codes integers.
    const UNIT: f32;

    /// Scale of the scales.
    fn d(&self) -> F16;
    /// Integer scale of group `g` of 16 values.
    fn scale(&self, g: usize) -> i8;
    /// Codes of values `8 * j..8 * j + 8`, as bytes of i8.
    fn eight(&self, j: usize) -> u64;
}

/// Negates the bytes of `magnitudes` where `mask` is 255; they are below 128 and not zero.
#[inline]
pub fn negate(magnitudes: u64, mask: u64) -> u64 {
    // ~x + 1 does not carry into the next byte, since x is not 0.
    (magnitudes ^ mask) + (mask & 0x0101_0101_0101_0101)
}

/// 2 * x + 1 of scale `i`, of which two are in a byte, even ones low.
#[inline]
fn odd_nibble(scales: &[u8], i: usize) -> i8 {
    (2 * (scales[i / 2] >> (4 * (i % 2)) & 15) + 1) as i8
}

/// Two bits: 256 points, seven of eight signs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq2Xxs {
    /// scale of the scales
    pub d: F16,
    /// 32 values each: four indices, then a u32: four times seven signs from the lowest bit on, and the scale in the
    /// upper four bits
    pub qs: [[u8; 8]; QK_K / 32],
}

impl Iq2Xxs {
    /// The mask of the signs of values `8 * j..8 * j + 8`.
    #[inline]
    pub fn mask(&self, j: usize) -> u64 {
        let [.., a, b, c, d] = self.qs[j / 4];
        let seven = u32::from_le_bytes([a, b, c, d]) >> (7 * (j % 4));
        EVEN_MASKS[(seven & 127) as usize]
    }

    /// The magnitudes of values `8 * j..8 * j + 8`.
    #[inline]
    pub fn magnitudes(&self, j: usize) -> u64 {
        grids::IQ2_XXS[usize::from(self.qs[j / 4][j % 4])]
    }
}

impl Lattice for Iq2Xxs {
    const UNIT: f32 = 0.125;

    fn d(&self) -> F16 {
        self.d
    }

    fn scale(&self, g: usize) -> i8 {
        (2 * (self.qs[g / 2][7] >> 4) + 1) as i8
    }

    #[inline]
    fn eight(&self, j: usize) -> u64 {
        negate(self.magnitudes(j), self.mask(j))
    }
}

/// Two bits: 512 points, seven of eight signs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq2Xs {
    /// scale of the scales
    pub d: F16,
    /// eight values each, a little-endian u16: an index of nine bits, then seven signs
    pub qs: [[u8; 2]; QK_K / 8],
    /// scales of groups of 16, two a byte, even groups low
    pub scales: [u8; QK_K / 32],
}

impl Lattice for Iq2Xs {
    const UNIT: f32 = 0.125;

    fn d(&self) -> F16 {
        self.d
    }

    fn scale(&self, g: usize) -> i8 {
        odd_nibble(&self.scales, g)
    }

    #[inline]
    fn eight(&self, j: usize) -> u64 {
        let q = usize::from(u16::from_le_bytes(self.qs[j]));
        negate(grids::IQ2_XS[q & 511], EVEN_MASKS[q >> 9])
    }
}

/// Two and a half bits: 1024 points, all signs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq2S {
    /// scale of the scales
    pub d: F16,
    /// lower eight bits of the indices
    pub qs: [u8; QK_K / 8],
    /// a sign for each value
    pub signs: [u8; QK_K / 8],
    /// upper two bits of the indices, four a byte
    pub qh: [u8; QK_K / 32],
    /// scales of groups of 16, two a byte, even groups low
    pub scales: [u8; QK_K / 32],
}

impl Lattice for Iq2S {
    const UNIT: f32 = 0.125;

    fn d(&self) -> F16 {
        self.d
    }

    fn scale(&self, g: usize) -> i8 {
        odd_nibble(&self.scales, g)
    }

    #[inline]
    fn eight(&self, j: usize) -> u64 {
        let high = usize::from(self.qh[j / 4]) >> (2 * (j % 4)) & 3;
        let index = usize::from(self.qs[j]) | high << 8;
        negate(grids::IQ2_S[index], MASKS[usize::from(self.signs[j])])
    }
}

/// Three bits: 256 points of four values, seven of eight signs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq3Xxs {
    /// scale of the scales
    pub d: F16,
    /// indices
    pub qs: [u8; QK_K / 4],
    /// 32 values each, a little-endian u32: four times seven signs from the lowest bit on, and the scale in the upper
    /// four bits
    pub signs: [[u8; 4]; QK_K / 32],
}

impl Lattice for Iq3Xxs {
    const UNIT: f32 = 0.25;

    fn d(&self) -> F16 {
        self.d
    }

    fn scale(&self, g: usize) -> i8 {
        (2 * (self.signs[g / 2][3] >> 4) + 1) as i8
    }

    #[inline]
    fn eight(&self, j: usize) -> u64 {
        let four = |i: usize| u64::from(grids::IQ3_XXS[usize::from(self.qs[i])]);
        let seven = u32::from_le_bytes(self.signs[j / 4]) >> (7 * (j % 4));
        let mask = EVEN_MASKS[(seven & 127) as usize];
        negate(four(2 * j) | four(2 * j + 1) << 32, mask)
    }
}

/// Three and a half bits: 512 points of four values, all signs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq3S {
    /// scale of the scales
    pub d: F16,
    /// lower eight bits of the indices
    pub qs: [u8; QK_K / 4],
    /// ninth bit of the indices, eight a byte
    pub qh: [u8; QK_K / 32],
    /// a sign for each value
    pub signs: [u8; QK_K / 8],
    /// scales of groups of 32, two a byte, even groups low
    pub scales: [u8; QK_K / 64],
}

impl Lattice for Iq3S {
    const UNIT: f32 = 1.0;

    fn d(&self) -> F16 {
        self.d
    }

    fn scale(&self, g: usize) -> i8 {
        odd_nibble(&self.scales, g / 2)
    }

    #[inline]
    fn eight(&self, j: usize) -> u64 {
        let four = |i: usize| {
            let high = usize::from(self.qh[i / 8]) >> (i % 8) & 1;
            u64::from(grids::IQ3_S[usize::from(self.qs[i]) | high << 8])
        };
        let mask = MASKS[usize::from(self.signs[j])];
        negate(four(2 * j) | four(2 * j + 1) << 32, mask)
    }
}

/// The codes of a point of IQ1 that is moved by one eighth, up as in the grid or down.
#[inline]
fn moved(point: u64, down: bool) -> u64 {
    if !down {
        return point;
    }
    // Less two in each byte. The highest bits are set against a borrow from the next byte, then corrected.
    let high = 0x8080_8080_8080_8080;
    ((point | high) - 0x0202_0202_0202_0202) ^ (!point & high)
}

/// One and a half bits: 2048 points of -1, 0 and 1, moved by an eighth.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq1S {
    /// scale of the scales
    pub d: F16,
    /// lower eight bits of the indices
    pub qs: [u8; QK_K / 8],
    /// 32 values each, a little-endian u16: four times the upper three bits of an index, the scale in three bits, and
    /// whether points are moved down
    pub qh: [[u8; 2]; QK_K / 32],
}

impl Lattice for Iq1S {
    const UNIT: f32 = 0.125;

    fn d(&self) -> F16 {
        self.d
    }

    fn scale(&self, g: usize) -> i8 {
        (2 * (self.qh[g / 2][1] >> 4 & 7) + 1) as i8
    }

    #[inline]
    fn eight(&self, j: usize) -> u64 {
        let qh = usize::from(u16::from_le_bytes(self.qh[j / 4]));
        let index = usize::from(self.qs[j]) | (qh >> (3 * (j % 4)) & 7) << 8;
        moved(grids::IQ1_S[index], qh & 0x8000 != 0)
    }
}

/// 1.75 bits: as [`Iq1S`], with a scale for 16 values and a direction for 8.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Iq1M {
    /// lower eight bits of the indices
    pub qs: [u8; QK_K / 8],
    /// two a byte, the first low: upper three bits of an index, and whether the point is moved down
    pub qh: [u8; QK_K / 16],
    /// four groups of 16 each, a little-endian u16: four scales of three bits, and in the upper four bits a part of
    /// `d`, the first the lowest
    pub scales: [[u8; 2]; QK_K / 64],
}

impl Lattice for Iq1M {
    const UNIT: f32 = 0.125;

    #[inline]
    fn d(&self) -> F16 {
        let part = |i: usize| u16::from(self.scales[i][1] >> 4) << (4 * i);
        F16((part(0) | part(1) | part(2) | part(3)).to_le_bytes())
    }

    fn scale(&self, g: usize) -> i8 {
        let four = u16::from_le_bytes(self.scales[g / 4]);
        (2 * (four >> (3 * (g % 4)) & 7) + 1) as i8
    }

    #[inline]
    fn eight(&self, j: usize) -> u64 {
        let high = usize::from(self.qh[j / 2]) >> (4 * (j % 2));
        let index = usize::from(self.qs[j]) | (high & 7) << 8;
        moved(grids::IQ1_S[index], high & 8 != 0)
    }
}

macro_rules! blocks {
    ($($name:ident = $ty:ident,)*) => {
        $(impl Block for $name {
            const TYPE: GgmlType = GgmlType::$ty;

            fn dequantize(&self, out: &mut [f32]) {
                dequantize(self, out);
            }
        })*
    };
}

blocks! {
    Iq2Xxs = IQ2_XXS,
    Iq2Xs = IQ2_XS,
    Iq2S = IQ2_S,
    Iq3Xxs = IQ3_XXS,
    Iq3S = IQ3_S,
    Iq1S = IQ1_S,
    Iq1M = IQ1_M,
}

fn dequantize<B: Lattice>(block: &B, out: &mut [f32]) {
    let d = block.d().to_f32() * B::UNIT;
    for (j, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block.scale(j / 2));
        for (x, code) in out.iter_mut().zip(block.eight(j).to_le_bytes()) {
            *x = scale * f32::from(code as i8);
        }
    }
}
