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
        lattice!($block, per_scale: $per_scale, chunk: 4 of [0 1 2 3]);
    };
    ($block:ty, per_scale: $per_scale:literal, whole) => {
        lattice!(
            $block,
            per_scale: $per_scale,
            chunk: 16 of [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]
        );
    };
    ($block:ty, per_scale: $per_scale:literal, chunk: $chunk:literal of [$($place:literal)*]) => {
        block_of_256!($block, per_scale: $per_scale, chunk: $chunk);
        const UNSIGNED_SCALES: bool = true;

        #[inline(always)]
        fn codes<S: SimdBytes>(
            s: S,
            rows: &S::Rows<'_, $block>,
            i: usize,
            chunk: usize,
        ) -> [S::Bytes; $chunk] {
            [$(<$block>::codes16(s, rows, i, $chunk * chunk + $place)),*]
        }

        #[inline(always)]
        fn group(chunk: usize, place: usize) -> usize {
            $chunk * chunk + place
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

/// Seven bits of one byte of each 32-bit place.
static SEVENS: [[u8; 16]; 4] = {
    let mut masks = [[0; 16]; 4];
    let mut i = 0;
    while i < 16 {
        masks[i % 4][i] = 127;
        i += 1;
    }
    masks
};

/// Eight bits for seven in each byte of 32-bit places: the eighth makes the number of set bits even. The lower 28 bits
/// of a place have four times seven bits.
#[inline(always)]
fn even_signs<S: SimdBytes>(s: S, words: S::Bytes) -> S::Bytes {
    let [first, second, third, fourth] = [
        s.and(words, s.repeat_u8(&SEVENS[0])),
        s.and(s.shl_32(words, 1), s.repeat_u8(&SEVENS[1])),
        s.and(s.shl_32(words, 2), s.repeat_u8(&SEVENS[2])),
        s.and(s.shl_32(words, 3), s.repeat_u8(&SEVENS[3])),
    ];
    let signs = s.or(s.or(first, second), s.or(third, fourth));
    // 128 where the number of set bits of a nibble is odd.
    let odd = s.repeat_u8(&[
        0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0,
    ]);
    let upper = s.and(s.shr(signs, 4), s.splat_u8(7));
    s.or(signs, s.xor(s.shuffle(odd, signs), s.shuffle(odd, upper)))
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
            let two = u32::from_le_bytes([w, x, y, z]) >> (14 * (g % 2));
            [
                EVEN_MASKS[(two & 127) as usize],
                EVEN_MASKS[(two >> 7 & 127) as usize],
            ]
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

impl Groups for Iq3Xxs {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq3Xxs>, i: usize, g: usize) -> S::Bytes {
        let magnitudes = s.quads16(rows, i, |b| {
            let at = |k: usize| IQ3_XXS[usize::from(b.qs[4 * g + k])];
            [at(0), at(1), at(2), at(3)]
        });
        let words = s.load16(rows, i, |b| at(b.signs.as_bytes(), 16 * (g / 8)));
        negate(s, magnitudes, mask_of(s, even_signs(s, words), g))
    }
}

impl Format for Iq3Xxs {
    lattice!(Iq3Xxs, per_scale: 2, whole);
    const CODES: Codes = Codes::Signed { max: 62 };
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq3Xxs>, i: usize) -> Scales<S> {
        // The last byte of each four.
        let low = [
            3, 7, 11, 15, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        ];
        let high = [
            128, 128, 128, 128, 3, 7, 11, 15, 128, 128, 128, 128, 128, 128, 128, 128,
        ];
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
        let low = s.load16(rows, i, |b| at(&b.qs, 16 * (g / 4)));
        // The ninth bits of the indices, of which 16 make a chunk.
        let ninth = s.load16(rows, i, |b| {
            at(b.as_bytes(), std::mem::offset_of!(Iq3S, qh))
        });
        let index = s.interleave_u8(low, mask_of(s, ninth, g / 4));
        let magnitudes = s.look_up_quads(&IQ3_S, index[g % 4 / 2], g % 2);
        let signs = s.load16(rows, i, |b| at(&b.signs, 16 * (g / 8)));
        let mask = mask_of(s, signs, g);
        // 16 more, so that codes are unsigned.
        let raised = s.sub_u8(mask, s.splat_u8(16));
        s.sub_u8(s.xor(magnitudes, mask), raised)
    }
}

impl Format for Iq3S {
    lattice!(Iq3S, per_scale: 2, whole);
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

/// For each chunk, the places of its four bytes of `qh`, each twice.
static PAIRS: [[u8; 16]; 4] = {
    let mut pairs = [[0; 16]; 4];
    let mut i = 0;
    while i < 32 {
        pairs[i / 8][i % 8] = (i / 2) as u8;
        i += 1;
    }
    pairs
};

impl Groups for Iq1M {
    #[inline(always)]
    fn codes16<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq1M>, i: usize, g: usize) -> S::Bytes {
        // The eight points of the chunk: the lower byte of each index, and a nibble with three bits more and a direction.
        let low = s.load16(rows, i, |b| at(b.as_bytes(), 8 * (g / 4)));
        let qh = s.load16(rows, i, |b| &b.qh);
        let pairs = s.shuffle(qh, s.repeat_u8(&PAIRS[g / 4]));
        let even = s.repeat_u8(&[15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0]);
        let odd = s.repeat_u8(&[0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15]);
        let nibbles = s.or(s.and(pairs, even), s.and(s.shr(pairs, 4), odd));
        let [index, _] = s.interleave_u8(low, nibbles);
        let points = s.look_up(&IQ1_S, index, g % 4);
        // As in [`moved`].
        let less = s.repeat_u8(&[
            0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf2, 0xf2, 0xf2, 0xf2, 0xf2, 0xf2,
            0xf2, 0xf2,
        ]);
        let less = s.shuffle(less, nibbles);
        let mut places = [2 * (g % 4) as u8; 16];
        places[8..].fill(2 * (g % 4) as u8 + 1);
        s.sub_u8(points, s.shuffle(less, s.repeat_u8(&places)))
    }
}

impl Format for Iq1M {
    lattice!(Iq1M, per_scale: 1, whole);
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
