//! Indices into grids (IQ1 to IQ3), which are looked up eight values at a time: 256 values with integer scales per 16 or
//! 32.

use rocmforge_gguf::quant::grids::{EVEN_MASKS, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use rocmforge_gguf::quant::lattice::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Lattice};
use zerocopy::IntoBytes;

use super::k::block_of_256;
use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset, Scales, at};

/// The bit of each of 16 values in two bytes.
const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

/// For each group of 16 values, the places of its bits among those of eight groups. A table, since a vector made of a group
/// that is not known when it is compiled takes as long as the products.
static PLACES: [[u8; 16]; 8] = {
    let mut places = [[0; 16]; 8];
    let mut i = 0;
    while i < 128 {
        places[i / 16][i % 16] = (i / 8) as u8;
        i += 1;
    }
    places
};

/// A format whose groups of 16 values are in order.
trait Groups: Lattice {
    /// Unpacks group `g` of 16 of the rows of vector `i`.
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Self>, i: usize, g: usize) -> S::Bytes;
}

/// The definitions common to all of these formats.
macro_rules! lattice {
    ($block:ty, per_scale: $per_scale:literal) => {
        block_of_256!($block, per_scale: $per_scale);
        const UNSIGNED_SCALES: bool = true;

        #[inline(always)]
        fn codes<S: SimdBytes>(
            s: S,
            rows: &S::Rows<'_, $block>,
            i: usize,
            chunk: usize,
        ) -> [S::Bytes; 4] {
            [
                <$block>::codes16(s, rows, i, 4 * chunk),
                <$block>::codes16(s, rows, i, 4 * chunk + 1),
                <$block>::codes16(s, rows, i, 4 * chunk + 2),
                <$block>::codes16(s, rows, i, 4 * chunk + 3),
            ]
        }

        #[inline(always)]
        fn group(chunk: usize, place: usize) -> usize {
            4 * chunk + place
        }

        #[inline(always)]
        fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, $block>) -> S::F32 {
            let d = s.f16_of(rows, |b| b.d().bits());
            s.mul(d, s.splat(<$block>::UNIT))
        }
    };
}

/// Negates the bytes of `magnitudes` whose byte of `mask` is 255.
#[inline(always)]
fn negate<S: SimdBytes>(s: S, magnitudes: S::Bytes, mask: S::Bytes) -> S::Bytes {
    s.sub_u8(s.xor(magnitudes, mask), mask)
}

/// Two words of 255 for each negative value of group `g`, of whose 32 values the lower 28 bits have the signs.
#[inline(always)]
fn masks_of_28(bits: [u8; 4], g: usize) -> [u64; 2] {
    let two = u32::from_le_bytes(bits) >> (14 * (g % 2));
    [
        EVEN_MASKS[(two & 127) as usize],
        EVEN_MASKS[(two >> 7 & 127) as usize],
    ]
}

/// 255 for each value of group `g` of 16 whose bit is set; `bits` has those of eight groups.
#[inline(always)]
fn mask_of<S: SimdBytes>(s: S, bits: S::Bytes, g: usize) -> S::Bytes {
    let places = s.repeat_u8(&PLACES[g % 8]);
    s.has_bits(s.shuffle(bits, places), s.repeat_u8(&BITS))
}

/// 2 * x + 1, where x is the upper nibble of each byte.
#[inline(always)]
fn odd_of_upper<S: SimdBytes>(s: S, bytes: S::Bytes) -> S::Bytes {
    s.or(s.and(s.shr(bytes, 3), s.splat_u8(30)), s.splat_u8(1))
}

/// 2 * x + 1, where x is a nibble of each of the bytes at `places`, in turns the low and the high one.
#[inline(always)]
fn odd_of_nibbles<S: SimdBytes>(s: S, bytes: S::Bytes, places: &[u8; 16]) -> S::Bytes {
    let even = s.repeat_u8(&[30, 0, 30, 0, 30, 0, 30, 0, 30, 0, 30, 0, 30, 0, 30, 0]);
    let odd = s.repeat_u8(&[0, 30, 0, 30, 0, 30, 0, 30, 0, 30, 0, 30, 0, 30, 0, 30]);
    let bytes = s.shuffle(bytes, s.repeat_u8(places));
    let doubled = s.or(s.and(s.shl(bytes, 1), even), s.and(s.shr(bytes, 3), odd));
    s.or(doubled, s.splat_u8(1))
}

/// Scales of groups of 16: two in each of the last eight bytes of the block.
#[inline(always)]
fn scales_of_16<S: SimdBytes, B: Lattice>(s: S, rows: &S::Rows<'_, B>, i: usize) -> Scales<S> {
    let last = s.load16(rows, i, |b| at(b.as_bytes(), size_of::<B>() - 16));
    let places = [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15];
    Scales {
        scales: s.widen_u8(odd_of_nibbles(s, last, &places)),
        mins: [s.zero(); 2],
    }
}

/// Scales of groups of 32: the low eight bytes.
#[inline(always)]
fn scales_of_32<S: SimdBytes>(s: S, scales: S::Bytes) -> Scales<S> {
    Scales {
        scales: [s.widen_u8(scales)[0]; 2],
        mins: [s.zero(); 2],
    }
}

impl Groups for Iq2Xxs {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq2Xxs>, i: usize, g: usize) -> S::Bytes {
        let magnitudes = s.words16(rows, i, |b| {
            let (qs, first) = (&b.qs[g / 2], 2 * (g % 2));
            let at = |k: usize| IQ2_XXS[usize::from(qs[first + k])];
            [at(0), at(1)]
        });
        let masks = s.words16(rows, i, |b| {
            let [.., w, x, y, z] = b.qs[g / 2];
            masks_of_28([w, x, y, z], g)
        });
        negate(s, magnitudes, masks)
    }
}

impl Format for Iq2Xxs {
    lattice!(Iq2Xxs, per_scale: 2);
    const CODES: Codes = Codes::Signed { max: 43 };
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq2Xxs>, i: usize) -> Scales<S> {
        let mut sum = s.zero();
        for k in 0..4 {
            // The last byte of each eight.
            let mut places = [128; 16];
            (places[2 * k], places[2 * k + 1]) = (7, 15);
            let two = s.load16(rows, i, |b| at(b.qs.as_bytes(), 16 * k));
            sum = s.or(sum, s.shuffle(two, s.repeat_u8(&places)));
        }
        scales_of_32(s, odd_of_upper(s, sum))
    }
}

impl Groups for Iq2Xs {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq2Xs>, i: usize, g: usize) -> S::Bytes {
        let magnitudes = s.words16(rows, i, |b| {
            let at = |j: usize| IQ2_XS[usize::from(u16::from_le_bytes(b.qs[j]) & 511)];
            [at(2 * g), at(2 * g + 1)]
        });
        let masks = s.words16(rows, i, |b| {
            let at = |j: usize| EVEN_MASKS[usize::from(b.qs[j][1] >> 1)];
            [at(2 * g), at(2 * g + 1)]
        });
        negate(s, magnitudes, masks)
    }
}

impl Format for Iq2Xs {
    lattice!(Iq2Xs, per_scale: 1);
    const CODES: Codes = Codes::Signed { max: 43 };
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq2Xs>, i: usize) -> Scales<S> {
        scales_of_16(s, rows, i)
    }
}

impl Groups for Iq2S {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq2S>, i: usize, g: usize) -> S::Bytes {
        let magnitudes = s.words16(rows, i, |b| {
            let high = usize::from(b.qh[g / 2]) >> (4 * (g % 2));
            [
                IQ2_S[usize::from(b.qs[2 * g]) | (high & 3) << 8],
                IQ2_S[usize::from(b.qs[2 * g + 1]) | (high & 12) << 6],
            ]
        });
        let signs = s.load16(rows, i, |b| at(&b.signs, 16 * (g / 8)));
        negate(s, magnitudes, mask_of(s, signs, g))
    }
}

impl Format for Iq2S {
    lattice!(Iq2S, per_scale: 1);
    const CODES: Codes = Codes::Signed { max: 43 };
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq2S>, i: usize) -> Scales<S> {
        scales_of_16(s, rows, i)
    }
}

/// Two points of four values.
#[inline(always)]
fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Groups for Iq3Xxs {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq3Xxs>, i: usize, g: usize) -> S::Bytes {
        let magnitudes = s.words16(rows, i, |b| {
            let at = |k: usize| IQ3_XXS[usize::from(b.qs[4 * g + k])];
            [joined(at(0), at(1)), joined(at(2), at(3))]
        });
        let masks = s.words16(rows, i, |b| masks_of_28(b.signs[g / 2], g));
        negate(s, magnitudes, masks)
    }
}

impl Format for Iq3Xxs {
    lattice!(Iq3Xxs, per_scale: 2);
    const CODES: Codes = Codes::Signed { max: 62 };
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq3Xxs>, i: usize) -> Scales<S> {
        // The last byte of each four.
        let low = [
            3, 7, 11, 15, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        ];
        let mut high = low;
        high.rotate_right(4);
        let four = s.load16(rows, i, |b| at(b.signs.as_bytes(), 0));
        let more = s.load16(rows, i, |b| at(b.signs.as_bytes(), 16));
        let low = s.shuffle(four, s.repeat_u8(&low));
        let high = s.shuffle(more, s.repeat_u8(&high));
        scales_of_32(s, odd_of_upper(s, s.or(low, high)))
    }
}

impl Groups for Iq3S {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq3S>, i: usize, g: usize) -> S::Bytes {
        let magnitudes = s.words16(rows, i, |b| {
            // The ninth bit of an index.
            let high = usize::from(b.qh[g / 2]) << (8 - 4 * (g % 2));
            let at = |k: usize| IQ3_S[usize::from(b.qs[4 * g + k]) | high >> k & 256];
            [joined(at(0), at(1)), joined(at(2), at(3))]
        });
        let signs = s.load16(rows, i, |b| at(&b.signs, 16 * (g / 8)));
        let mask = mask_of(s, signs, g);
        // 16 more, so that codes are unsigned.
        let raised = s.sub_u8(mask, s.splat_u8(16));
        s.sub_u8(s.xor(magnitudes, mask), raised)
    }
}

impl Format for Iq3S {
    lattice!(Iq3S, per_scale: 2);
    const CODES: Codes = Codes::Unsigned { max: 31 };
    const OFFSET: Offset = Offset::Power { log2: 4 };

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq3S>, i: usize) -> Scales<S> {
        let last = s.load16(rows, i, |b| at(b.as_bytes(), size_of::<Iq3S>() - 16));
        let places = [
            12, 12, 13, 13, 14, 14, 15, 15, 12, 12, 13, 13, 14, 14, 15, 15,
        ];
        scales_of_32(s, odd_of_nibbles(s, last, &places))
    }
}

/// Codes of IQ1: `points` less two where `down` is 255, and 16 more, so that they are unsigned.
#[inline(always)]
fn moved<S: SimdBytes>(s: S, points: S::Bytes, down: S::Bytes) -> S::Bytes {
    // 2 - 16 or -16, as bytes.
    let less = s.or(s.and(down, s.splat_u8(2)), s.splat_u8(0xf0));
    s.sub_u8(points, less)
}

impl Groups for Iq1S {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq1S>, i: usize, g: usize) -> S::Bytes {
        let points = s.words16(rows, i, |b| {
            let high = usize::from(u16::from_le_bytes(b.qh[g / 2])) >> (6 * (g % 2));
            [
                IQ1_S[usize::from(b.qs[2 * g]) | (high & 7) << 8],
                IQ1_S[usize::from(b.qs[2 * g + 1]) | (high & 56) << 5],
            ]
        });
        let qh = s.load16(rows, i, |b| at(b.qh.as_bytes(), 0));
        let word = s.shuffle(qh, s.splat_u8((g / 2 * 2 + 1) as u8));
        moved(s, points, s.has_bits(word, s.splat_u8(0x80)))
    }
}

impl Format for Iq1S {
    lattice!(Iq1S, per_scale: 2);
    const CODES: Codes = Codes::Unsigned { max: 25 };
    const OFFSET: Offset = Offset::Power { log2: 4 };

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq1S>, i: usize) -> Scales<S> {
        let qh = s.load16(rows, i, |b| at(b.qh.as_bytes(), 0));
        let doubled = s.and(s.shr(qh, 11), s.repeat_i16(&[14; 8]));
        Scales {
            scales: [s.or(doubled, s.repeat_i16(&[1; 8])); 2],
            mins: [s.zero(); 2],
        }
    }
}

impl Groups for Iq1M {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq1M>, i: usize, g: usize) -> S::Bytes {
        let points = s.words16(rows, i, |b| {
            let high = usize::from(b.qh[g]);
            [
                IQ1_S[usize::from(b.qs[2 * g]) | (high & 7) << 8],
                IQ1_S[usize::from(b.qs[2 * g + 1]) | (high & 0x70) << 4],
            ]
        });
        let qh = s.load16(rows, i, |b| &b.qh);
        let byte = s.shuffle(qh, s.splat_u8(g as u8));
        let bit = [
            8, 8, 8, 8, 8, 8, 8, 8, 128, 128, 128, 128, 128, 128, 128, 128,
        ];
        moved(s, points, s.has_bits(byte, s.repeat_u8(&bit)))
    }
}

impl Format for Iq1M {
    lattice!(Iq1M, per_scale: 1);
    const CODES: Codes = Codes::Unsigned { max: 25 };
    const OFFSET: Offset = Offset::Power { log2: 4 };

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq1M>, i: usize) -> Scales<S> {
        // Four words with four scales of three bits each are the last eight bytes of the block.
        let last = s.load16(rows, i, |b| at(b.as_bytes(), size_of::<Iq1M>() - 16));
        let words = [
            [8, 9, 8, 9, 8, 9, 8, 9, 10, 11, 10, 11, 10, 11, 10, 11],
            [
                12, 13, 12, 13, 12, 13, 12, 13, 14, 15, 14, 15, 14, 15, 14, 15,
            ],
        ];
        let mut scales = [s.repeat_i16(&[1; 8]); 2];
        for (scales, words) in scales.iter_mut().zip(&words) {
            let word = s.shuffle(last, s.repeat_u8(words));
            let doubled = [
                s.shl(word, 1),
                s.shr(word, 2),
                s.shr(word, 5),
                s.shr(word, 8),
            ];
            for (k, doubled) in doubled.into_iter().enumerate() {
                let mut mask = [0; 8];
                (mask[k], mask[k + 4]) = (14, 14);
                *scales = s.or(*scales, s.and(doubled, s.repeat_i16(&mask)));
            }
        }
        Scales {
            scales,
            mins: [s.zero(); 2],
        }
    }
}
