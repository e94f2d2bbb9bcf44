//! TQ1_0 and TQ2_0: -1, 0 and 1 in blocks of 256 with one scale.

use rocmforge_gguf::quant::ternary::{Tq1_0, Tq2_0};

use super::k::{block_of_256, two_bits};
use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset, Scales, at};

/// The definitions common to both: groups in order, and an integer scale of 1.
macro_rules! ternary {
    ($block:ty, chunk: $chunk:literal) => {
        block_of_256!($block, per_scale: 2, chunk: $chunk);
        const UNSIGNED_SCALES: bool = true;
        const CODES: Codes = Codes::Unsigned { max: 3 };
        const OFFSET: Offset = Offset::Power { log2: 0 };

        #[inline(always)]
        fn group(chunk: usize, place: usize) -> usize {
            $chunk * chunk + place
        }

        #[inline(always)]
        fn scales<S: SimdBytes>(s: S, _: &S::Rows<'_, $block>, _: usize) -> Scales<S> {
            Scales {
                scales: [s.repeat_i16(&[1; 8]); 2],
                mins: [s.zero(); 2],
            }
        }

        #[inline(always)]
        fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, $block>) -> S::F32 {
            s.f16_of(rows, |b| b.d.bits())
        }
    };
}

impl Format for Tq2_0 {
    ternary!(Tq2_0, chunk: 4);

    #[inline(always)]
    fn codes<S: SimdBytes>(
        s: S,
        rows: &S::Rows<'_, Tq2_0>,
        i: usize,
        chunk: usize,
    ) -> [S::Bytes; 4] {
        let first = two_bits(s, s.load16(rows, i, |b| at(&b.qs, 32 * (chunk / 2))));
        let second = two_bits(s, s.load16(rows, i, |b| at(&b.qs, 32 * (chunk / 2) + 16)));
        let n = 2 * (chunk % 2);
        [first[n], second[n], first[n + 1], second[n + 1]]
    }
}

/// Three times each byte, without carries.
#[inline(always)]
fn tripled<S: SimdBytes>(s: S, bytes: S::Bytes) -> S::Bytes {
    s.add_u8(bytes, s.add_u8(bytes, bytes))
}

/// The integer part of three times each byte as a fraction of 256. Bytes are 128 more than they stand for, which
/// [`tripled`] keeps, since comparisons are signed.
#[inline(always)]
fn first_digit<S: SimdBytes>(s: S, raised: S::Bytes) -> S::Bytes {
    let one = s.above_i8(raised, s.splat_u8(85 ^ 128));
    let two = s.above_i8(raised, s.splat_u8(170 ^ 128));
    s.sub_u8(s.sub_u8(s.zero(), one), two)
}

/// The 16 digits of four bytes that are repeated in each lane, each 128 more than it stands for.
#[inline(always)]
fn digits_of_4<S: SimdBytes>(s: S, four: S::Bytes) -> S::Bytes {
    let (mut rest, mut all) = (four, s.zero());
    for n in 0..4 {
        let mut mask = [0; 16];
        mask[4 * n..4 * n + 4].fill(255);
        all = s.or(all, s.and(first_digit(s, rest), s.repeat_u8(&mask)));
        rest = tripled(s, rest);
    }
    all
}

impl Format for Tq1_0 {
    // One chunk, since digits follow from those before them.
    ternary!(Tq1_0, chunk: 16);

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Tq1_0>, i: usize, _: usize) -> [S::Bytes; 16] {
        let high = s.splat_u8(128);
        let mut first = s.xor(s.load16(rows, i, |b| at(&b.qs, 0)), high);
        let mut second = s.xor(s.load16(rows, i, |b| at(&b.qs, 16)), high);
        let mut third = s.xor(s.load16(rows, i, |b| at(&b.qs, 32)), high);
        // Groups 0 to 9 are digits of the first 32 bytes, 10 to 14 of the next 16, 15 of the last four.
        let mut codes = [s.zero(); 16];
        for n in 0..5 {
            codes[2 * n] = first_digit(s, first);
            codes[2 * n + 1] = first_digit(s, second);
            codes[10 + n] = first_digit(s, third);
            (first, second, third) = (tripled(s, first), tripled(s, second), tripled(s, third));
        }
        codes[15] = digits_of_4(s, s.xor(s.load4(rows, i, |b| b.qh), high));
        codes
    }
}
