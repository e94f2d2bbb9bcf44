//! K-quants: super-blocks of 256 values with f16 super-scales and small integer
//! scales per group of 16 or 32. After ggml `ggml-quants.c`
//! (`dequantize_row_q*_K`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::plain::F16;
use super::{Block, GgmlType};

/// Values per super-block.
pub const QK_K: usize = 256;

/// x = d * sc * q - dmin * m, groups of 16
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q2K {
    /// per group of 16: scale in the low nibble, minimum in the high
    pub scales: [u8; QK_K / 16],
    /// 2-bit values; byte l of half h holds values l, 32 + l, 64 + l, 96 + l of
    /// its 128, lowest bits first
    pub qs: [u8; QK_K / 4],
    /// scale of the scales
    pub d: F16,
    /// scale of the minimums
    pub dmin: F16,
}

/// x = d * (sc - 32) * q, groups of 16, q in -4..=3
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q3K {
    /// third bits: bit i of byte l belongs to value 32 * i + l; 0 subtracts 4
    pub hmask: [u8; QK_K / 8],
    /// lower two bits, placed as in [`Q2K`]
    pub qs: [u8; QK_K / 4],
    /// sixteen 6-bit scales, see [`q3_scales`]
    pub scales: [u8; 12],
    /// scale of the scales
    pub d: F16,
}

/// x = d * sc * q - dmin * m, groups of 32
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q4K {
    /// scale of the scales
    pub d: F16,
    /// scale of the minimums
    pub dmin: F16,
    /// eight 6-bit scales and minimums, see [`scale_min_k4`]
    pub scales: [u8; 12],
    /// 4-bit values; byte l of quarter c holds values l and 32 + l of its 64
    pub qs: [u8; QK_K / 2],
}

/// x = d * sc * q - dmin * m, groups of 32
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q5K {
    /// scale of the scales
    pub d: F16,
    /// scale of the minimums
    pub dmin: F16,
    /// eight 6-bit scales and minimums, see [`scale_min_k4`]
    pub scales: [u8; 12],
    /// fifth bits: bit i of byte l belongs to value 32 * i + l
    pub qh: [u8; QK_K / 8],
    /// lower four bits, placed as in [`Q4K`]
    pub qs: [u8; QK_K / 2],
}

/// x = d * sc * (q - 32), groups of 16
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q6K {
    /// lower four bits; byte l (of 64) of half h holds values l and 64 + l of
    /// its 128
    pub ql: [u8; QK_K / 2],
    /// upper two bits, placed as in [`Q2K`]
    pub qh: [u8; QK_K / 4],
    /// per group of 16
    pub scales: [i8; QK_K / 16],
    /// scale of the scales
    pub d: F16,
}

/// Unpacks the 6-bit scale and minimum of group `j` of 8 in Q4_K and Q5_K. Groups 0..4 have bytes of their own. Groups
/// 4..8 have their lower four bits in bytes 8..12 and their upper two in the high bits of bytes 0..8.
#[inline]
pub fn scale_min_k4(j: usize, scales: &[u8; 12]) -> (u8, u8) {
    if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        (
            (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4,
            (scales[j + 4] >> 4) | (scales[j] >> 6) << 4,
        )
    }
}

/// Unpacks the sixteen scales of a Q3_K block and subtracts their offset of 32. Bytes 0..8 hold the lower four bits
/// (groups 0..8 in the low nibbles, 8..16 in the high ones), bytes 8..12 the upper two.
#[inline]
pub fn q3_scales(scales: &[u8; 12]) -> [i8; 16] {
    std::array::from_fn(|j| {
        let low = scales[j % 8] >> (4 * (j / 8)) & 15;
        let high = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
        (low | high << 4) as i8 - 32
    })
}

/// Extracts a bit field from each of `N` bytes from `start` on: shifts down by `shift`, then masks.
#[inline]
fn fields<const N: usize>(bytes: &[u8], start: usize, shift: usize, mask: u8) -> [u8; N] {
    let bytes: &[u8; N] = bytes[start..]
        .first_chunk()
        .expect("a group lies within its block");
    bytes.map(|b| b >> shift & mask)
}

/// Extracts group `g` of 16 values from 2-bit fields placed as in [`Q2K`].
#[inline]
fn two_bits(bytes: &[u8; QK_K / 4], g: usize) -> [u8; 16] {
    fields(bytes, g / 8 * 32 + g % 2 * 16, g % 8 / 2 * 2, 3)
}

/// Extracts group `g` of 32 values from 4-bit fields placed as in [`Q4K`].
#[inline]
fn four_bits(bytes: &[u8; QK_K / 2], g: usize) -> [u8; 32] {
    fields(bytes, g / 2 * 32, g % 2 * 4, 15)
}

impl Block for Q2K {
    const TYPE: GgmlType = GgmlType::Q2_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[g] & 15);
            let min = dmin * f32::from(self.scales[g] >> 4);
            for (x, q) in group.iter_mut().zip(two_bits(&self.qs, g)) {
                *x = scale * f32::from(q) - min;
            }
        }
    }
}

impl Block for Q3K {
    const TYPE: GgmlType = GgmlType::Q3_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        let scales = q3_scales(&self.scales);
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(scales[g]);
            let low = two_bits(&self.qs, g);
            let high: [u8; 16] = fields(&self.hmask, g % 2 * 16, g / 2, 1);
            for (x, (low, high)) in group.iter_mut().zip(low.iter().zip(high)) {
                *x = scale * (f32::from(low | high << 2) - 4.0);
            }
        }
    }
}

impl Block for Q4K {
    const TYPE: GgmlType = GgmlType::Q4_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (g, group) in out.chunks_exact_mut(32).enumerate() {
            let (sc, m) = scale_min_k4(g, &self.scales);
            let (scale, min) = (d * f32::from(sc), dmin * f32::from(m));
            for (x, q) in group.iter_mut().zip(four_bits(&self.qs, g)) {
                *x = scale * f32::from(q) - min;
            }
        }
    }
}

impl Block for Q5K {
    const TYPE: GgmlType = GgmlType::Q5_K;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        for (g, group) in out.chunks_exact_mut(32).enumerate() {
            let (sc, m) = scale_min_k4(g, &self.scales);
            let (scale, min) = (d * f32::from(sc), dmin * f32::from(m));
            let low = four_bits(&self.qs, g);
            let high: [u8; 32] = fields(&self.qh, 0, g, 1);
            for (x, (low, high)) in group.iter_mut().zip(low.iter().zip(high)) {
                *x = scale * f32::from(low | high << 4) - min;
            }
        }
    }
}

impl Block for Q6K {
    const TYPE: GgmlType = GgmlType::Q6_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (g, group) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(self.scales[g]);
            let low: [u8; 16] = fields(&self.ql, g / 8 * 64 + g % 4 * 16, g % 8 / 4 * 4, 15);
            let high = two_bits(&self.qh, g);
            for (x, (low, high)) in group.iter_mut().zip(low.iter().zip(high)) {
                *x = scale * (f32::from(low | high << 4) - 32.0);
            }
        }
    }
}
