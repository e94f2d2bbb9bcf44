//! K-quants: 256 values with integer scales per 16 or 32.

use rocmforge_gguf::quant::k::{Q2K, Q3K, Q4K, Q5K, Q6K};
use zerocopy::IntoBytes;

use super::legacy::nibbles;
use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset, Scales, at};

/// The definitions common to all blocks of 256: four chunks of four groups.
macro_rules! block_of_256 {
    ($block:ty, per_scale: $per_scale:literal) => {
        block_of_256!($block, per_scale: $per_scale, chunk: 4);
    };
    ($block:ty, per_scale: $per_scale:literal, chunk: $chunk:literal) => {
        type Block = $block;
        const GROUPS: usize = 16;
        const GROUPS_PER_SCALE: usize = $per_scale;
        const SCALED: bool = true;
        type ActCodes = [[i8; 16]; 16];
        type ActSums = [i16; 16 / $per_scale];
        type PackedCodes = [[i8; 16]; 64];
        type PackedSums = [[i16; 8]; 8 / $per_scale];
        type Chunk<V: Copy> = [V; $chunk];
        const CHUNKS: usize = 16 / $chunk;
    };
}

/// Order of groups in Q2_K, Q3_K and Q6_K: chunk `2 * half + part` holds value groups `part`, `2 + part`, `4 + part`
/// and `6 + part` of that half.
#[inline(always)]
fn interleaved_group(chunk: usize, place: usize) -> usize {
    8 * (chunk / 2) + chunk % 2 + 2 * place
}

/// Unpacks the four 2-bit fields of each byte, lowest first.
#[inline(always)]
pub(super) fn two_bits<S: SimdBytes>(s: S, qs: S::Bytes) -> [S::Bytes; 4] {
    let mask = s.splat_u8(3);
    [
        s.and(qs, mask),
        s.and(s.shr(qs, 2), mask),
        s.and(s.shr(qs, 4), mask),
        s.and(s.shr(qs, 6), mask),
    ]
}

/// Moves bit `from` of each byte to bit `to`.
#[inline(always)]
fn move_bit<S: SimdBytes>(s: S, bytes: S::Bytes, from: u32, to: u32) -> S::Bytes {
    let moved = if from > to {
        s.shr(bytes, from - to)
    } else {
        s.shl(bytes, to - from)
    };
    s.and(moved, s.splat_u8(1 << to))
}

/// Unpacks the scales and minimums of Q4_K and Q5_K. `head` is d, dmin and the 12 bytes that
/// [`rocmforge_gguf::quant::k::scale_min_k4`] reads.
#[inline(always)]
fn scales_k4<S: SimdBytes>(s: S, head: S::Bytes) -> Scales<S> {
    // Bytes 0..8 of the result are scales, 8..16 minimums; bytes 4..8 and 12..16 share their sources of low bits.
    let low_from = s.repeat_u8(&[4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15]);
    let high_from = s.repeat_u8(&[
        128, 128, 128, 128, 4, 5, 6, 7, 128, 128, 128, 128, 8, 9, 10, 11,
    ]);
    let low_mask = s.repeat_u8(&[63, 63, 63, 63, 15, 15, 15, 15, 63, 63, 63, 63, 0, 0, 0, 0]);
    let nibble_mask = s.repeat_u8(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 15, 15]);
    let low = s.shuffle(head, low_from);
    let low = s.or(s.and(low, low_mask), s.and(s.shr(low, 4), nibble_mask));
    let high = s.and(s.shr(s.shuffle(head, high_from), 2), s.splat_u8(0x30));
    let [scales, mins] = s.widen_u8(s.or(low, high));
    Scales {
        scales: [scales; 2],
        mins: [mins; 2],
    }
}

pub(super) use block_of_256;

impl Format for Q2K {
    block_of_256!(Q2K, per_scale: 1);
    const UNSIGNED_SCALES: bool = true;
    const CODES: Codes = Codes::Unsigned { max: 3 };
    const OFFSET: Offset = Offset::Min;

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q2K>, i: usize, chunk: usize) -> [S::Bytes; 4] {
        two_bits(s, s.load16(rows, i, |b| at(&b.qs, 16 * chunk)))
    }

    #[inline(always)]
    fn group(chunk: usize, place: usize) -> usize {
        interleaved_group(chunk, place)
    }

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q2K>, i: usize) -> Scales<S> {
        let [scales, mins] = nibbles(s, s.load16(rows, i, |b| &b.scales));
        Scales {
            scales: s.widen_u8(scales),
            mins: s.widen_u8(mins),
        }
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q2K>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }

    #[inline(always)]
    fn m<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q2K>) -> S::F32 {
        s.sub(s.splat(0.0), s.f16_of(rows, |b| b.dmin.bits()))
    }
}

impl Format for Q3K {
    block_of_256!(Q3K, per_scale: 1);
    const UNSIGNED_SCALES: bool = false;
    const CODES: Codes = Codes::Unsigned { max: 7 };
    const OFFSET: Offset = Offset::Power { log2: 2 };

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q3K>, i: usize, chunk: usize) -> [S::Bytes; 4] {
        let [a, b, c, d] = two_bits(s, s.load16(rows, i, |b| at(&b.qs, 16 * chunk)));
        let high = s.load16(rows, i, |b| at(&b.hmask, 16 * (chunk % 2)));
        let bit = 4 * (chunk as u32 / 2);
        [
            s.or(a, move_bit(s, high, bit, 2)),
            s.or(b, move_bit(s, high, bit + 1, 2)),
            s.or(c, move_bit(s, high, bit + 2, 2)),
            s.or(d, move_bit(s, high, bit + 3, 2)),
        ]
    }

    #[inline(always)]
    fn group(chunk: usize, place: usize) -> usize {
        interleaved_group(chunk, place)
    }

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q3K>, i: usize) -> Scales<S> {
        // The last 16 bytes of the block: 2 of qs, 12 of scales, 2 of d.
        let tail = s.load16(rows, i, |b| at(b.as_bytes(), size_of::<Q3K>() - 16));
        let low = s.shuffle(
            tail,
            s.repeat_u8(&[2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5, 6, 7, 8, 9]),
        );
        let first_half = s.repeat_u8(&[15, 15, 15, 15, 15, 15, 15, 15, 0, 0, 0, 0, 0, 0, 0, 0]);
        let second_half = s.repeat_u8(&[0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 15, 15, 15, 15, 15, 15]);
        let low = s.or(s.and(low, first_half), s.and(s.shr(low, 4), second_half));
        let high = s.shuffle(
            tail,
            s.repeat_u8(&[
                10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13, 10, 11, 12, 13,
            ]),
        );
        let mut sum = low;
        let shifted = [s.shl(high, 4), s.shl(high, 2), high, s.shr(high, 2)];
        for (k, shifted) in shifted.into_iter().enumerate() {
            let mut mask = [0; 16];
            mask[4 * k..4 * k + 4].fill(0x30);
            sum = s.or(sum, s.and(shifted, s.repeat_u8(&mask)));
        }
        let [a, b] = s.widen_u8(sum);
        let bias = s.repeat_i16(&[32; 8]);
        Scales {
            scales: [s.sub_i16(a, bias), s.sub_i16(b, bias)],
            mins: [s.zero(); 2],
        }
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q3K>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}

impl Format for Q4K {
    block_of_256!(Q4K, per_scale: 2);
    const UNSIGNED_SCALES: bool = true;
    const CODES: Codes = Codes::Unsigned { max: 15 };
    const OFFSET: Offset = Offset::Min;

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4K>, i: usize, chunk: usize) -> [S::Bytes; 4] {
        let [a, c] = nibbles(s, s.load16(rows, i, |b| at(&b.qs, 32 * chunk)));
        let [b, d] = nibbles(s, s.load16(rows, i, |b| at(&b.qs, 32 * chunk + 16)));
        [a, b, c, d]
    }

    #[inline(always)]
    fn group(chunk: usize, place: usize) -> usize {
        4 * chunk + place
    }

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4K>, i: usize) -> Scales<S> {
        scales_k4(s, s.load16(rows, i, |b| at(b.as_bytes(), 0)))
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4K>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }

    #[inline(always)]
    fn m<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4K>) -> S::F32 {
        s.sub(s.splat(0.0), s.f16_of(rows, |b| b.dmin.bits()))
    }
}

impl Format for Q5K {
    block_of_256!(Q5K, per_scale: 2);
    const UNSIGNED_SCALES: bool = true;
    const CODES: Codes = Codes::Unsigned { max: 31 };
    const OFFSET: Offset = Offset::Min;

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5K>, i: usize, chunk: usize) -> [S::Bytes; 4] {
        let [a, c] = nibbles(s, s.load16(rows, i, |b| at(&b.qs, 32 * chunk)));
        let [b, d] = nibbles(s, s.load16(rows, i, |b| at(&b.qs, 32 * chunk + 16)));
        let high_a = s.load16(rows, i, |b| at(&b.qh, 0));
        let high_b = s.load16(rows, i, |b| at(&b.qh, 16));
        let bit = 2 * chunk as u32;
        [
            s.or(a, move_bit(s, high_a, bit, 4)),
            s.or(b, move_bit(s, high_b, bit, 4)),
            s.or(c, move_bit(s, high_a, bit + 1, 4)),
            s.or(d, move_bit(s, high_b, bit + 1, 4)),
        ]
    }

    #[inline(always)]
    fn group(chunk: usize, place: usize) -> usize {
        4 * chunk + place
    }

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5K>, i: usize) -> Scales<S> {
        scales_k4(s, s.load16(rows, i, |b| at(b.as_bytes(), 0)))
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5K>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }

    #[inline(always)]
    fn m<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5K>) -> S::F32 {
        s.sub(s.splat(0.0), s.f16_of(rows, |b| b.dmin.bits()))
    }
}

impl Format for Q6K {
    block_of_256!(Q6K, per_scale: 1);
    const UNSIGNED_SCALES: bool = false;
    const CODES: Codes = Codes::Unsigned { max: 63 };
    const OFFSET: Offset = Offset::Power { log2: 5 };

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q6K>, i: usize, chunk: usize) -> [S::Bytes; 4] {
        let (half, part) = (chunk / 2, chunk % 2);
        let [a, c] = nibbles(s, s.load16(rows, i, |b| at(&b.ql, 64 * half + 16 * part)));
        let [b, d] = nibbles(
            s,
            s.load16(rows, i, |b| at(&b.ql, 64 * half + 32 + 16 * part)),
        );
        let high = s.load16(rows, i, |b| at(&b.qh, 16 * chunk));
        let mask = s.splat_u8(0x30);
        [
            s.or(a, s.and(s.shl(high, 4), mask)),
            s.or(b, s.and(s.shl(high, 2), mask)),
            s.or(c, s.and(high, mask)),
            s.or(d, s.and(s.shr(high, 2), mask)),
        ]
    }

    #[inline(always)]
    fn group(chunk: usize, place: usize) -> usize {
        interleaved_group(chunk, place)
    }

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q6K>, i: usize) -> Scales<S> {
        let scales = s.load16(rows, i, |b| at(b.scales.as_bytes(), 0));
        Scales {
            scales: s.widen_i8(scales),
            mins: [s.zero(); 2],
        }
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q6K>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}
