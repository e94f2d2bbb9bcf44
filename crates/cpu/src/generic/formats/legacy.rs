//! Blocks of 32 values without integer scales.

use rocmforge_gguf::quant::legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use rocmforge_gguf::quant::mxfp::{KVALUES_MXFP4, Mxfp4, e8m0_half};
use zerocopy::IntoBytes;

use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset, at};

/// Unpacks the low nibbles of `qs`, then the high ones.
#[inline(always)]
pub(super) fn nibbles<S: SimdBytes>(s: S, qs: S::Bytes) -> [S::Bytes; 2] {
    let mask = s.splat_u8(15);
    [s.and(qs, mask), s.and(s.shr(qs, 4), mask)]
}

/// Unpacks `qs` with the bits of `qh`, four bytes repeated in each lane, as fifth bits.
#[inline(always)]
fn five_bits<S: SimdBytes>(s: S, qs: S::Bytes, qh: S::Bytes) -> [S::Bytes; 2] {
    let [low, high] = nibbles(s, qs);
    let bit = s.repeat_u8(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
    let first = s.repeat_u8(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    let second = s.repeat_u8(&[2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
    let sixteen = s.splat_u8(16);
    let low_bits = s.and(s.has_bits(s.shuffle(qh, first), bit), sixteen);
    let high_bits = s.and(s.has_bits(s.shuffle(qh, second), bit), sixteen);
    [s.or(low, low_bits), s.or(high, high_bits)]
}

/// The definitions common to all blocks, or parts of blocks, of 32: one chunk of two groups, no integer scales.
macro_rules! block_of_32 {
    ($block:ty) => {
        type Block = $block;
        const GROUPS: usize = 2;
        const GROUPS_PER_SCALE: usize = 2;
        const SCALED: bool = false;
        const UNSIGNED_SCALES: bool = false;
        type ActCodes = [[i8; 16]; 2];
        type ActSums = [i16; 1];
        type PackedCodes = [[i8; 16]; 8];
        type PackedSums = [[i16; 8]; 1];
        type Chunk<V: Copy> = [V; 2];
        const CHUNKS: usize = 1;

        #[inline(always)]
        fn group(_: usize, place: usize) -> usize {
            place
        }
    };
}
pub(super) use block_of_32;

impl Format for Q4_0 {
    block_of_32!(Q4_0);
    const CODES: Codes = Codes::Unsigned { max: 15 };
    const OFFSET: Offset = Offset::Power { log2: 3 };

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4_0>, i: usize, _: usize) -> [S::Bytes; 2] {
        nibbles(s, s.load16(rows, i, |b| &b.qs))
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4_0>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}

impl Format for Q4_1 {
    block_of_32!(Q4_1);
    const CODES: Codes = Codes::Unsigned { max: 15 };
    const OFFSET: Offset = Offset::Min;

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4_1>, i: usize, _: usize) -> [S::Bytes; 2] {
        nibbles(s, s.load16(rows, i, |b| &b.qs))
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4_1>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }

    #[inline(always)]
    fn m<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q4_1>) -> S::F32 {
        s.f16_of(rows, |b| b.m.bits())
    }
}

impl Format for Q5_0 {
    block_of_32!(Q5_0);
    const CODES: Codes = Codes::Unsigned { max: 31 };
    const OFFSET: Offset = Offset::Power { log2: 4 };

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5_0>, i: usize, _: usize) -> [S::Bytes; 2] {
        five_bits(s, s.load16(rows, i, |b| &b.qs), s.load4(rows, i, |b| b.qh))
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5_0>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}

impl Format for Q5_1 {
    block_of_32!(Q5_1);
    const CODES: Codes = Codes::Unsigned { max: 31 };
    const OFFSET: Offset = Offset::Min;

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5_1>, i: usize, _: usize) -> [S::Bytes; 2] {
        five_bits(s, s.load16(rows, i, |b| &b.qs), s.load4(rows, i, |b| b.qh))
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5_1>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }

    #[inline(always)]
    fn m<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q5_1>) -> S::F32 {
        s.f16_of(rows, |b| b.m.bits())
    }
}

impl Format for Q8_0 {
    block_of_32!(Q8_0);
    const CODES: Codes = Codes::Signed { max: 128 };
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q8_0>, i: usize, _: usize) -> [S::Bytes; 2] {
        [
            s.load16(rows, i, |b| at(b.qs.as_bytes(), 0)),
            s.load16(rows, i, |b| at(b.qs.as_bytes(), 16)),
        ]
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q8_0>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}

/// Values of E2M1 codes, twice and 16 more, so that they are unsigned.
pub(super) const RAISED: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (KVALUES_MXFP4[i] + 16) as u8;
        i += 1;
    }
    table
};

impl Format for Mxfp4 {
    block_of_32!(Mxfp4);
    /// Table values are -12 to 12; adding 16 avoids signed products.
    const CODES: Codes = Codes::Unsigned { max: 28 };
    const OFFSET: Offset = Offset::Power { log2: 4 };

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Mxfp4>, i: usize, _: usize) -> [S::Bytes; 2] {
        let table = s.repeat_u8(&RAISED);
        let [low, high] = nibbles(s, s.load16(rows, i, |b| &b.qs));
        [s.shuffle(table, low), s.shuffle(table, high)]
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Mxfp4>) -> S::F32 {
        s.f32_of(rows, |b| e8m0_half(b.e))
    }
}
