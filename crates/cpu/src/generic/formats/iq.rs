//! 4-bit codes into a table: IQ4_NL without integer scales, IQ4_XS with one per 32 values.

use rocmforge_gguf::quant::iq::{Iq4Nl, Iq4Xs, KVALUES_IQ4NL};
use zerocopy::IntoBytes;

use super::legacy::{block_of_32, nibbles};
use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset, Scales, at};

#[inline(always)]
fn look_up<S: SimdBytes>(s: S, qs: S::Bytes) -> [S::Bytes; 2] {
    let table = s.repeat_i8(&KVALUES_IQ4NL);
    let [low, high] = nibbles(s, qs);
    [s.shuffle(table, low), s.shuffle(table, high)]
}

impl Format for Iq4Nl {
    block_of_32!(Iq4Nl);
    const CODES: Codes = Codes::Signed { max: 127 };
    const OFFSET: Offset = Offset::None;

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq4Nl>, i: usize, _: usize) -> [S::Bytes; 2] {
        look_up(s, s.load16(rows, i, |b| &b.qs))
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq4Nl>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}

impl Format for Iq4Xs {
    type Block = Iq4Xs;
    const CODES: Codes = Codes::Signed { max: 127 };
    const OFFSET: Offset = Offset::None;
    const GROUPS: usize = 16;
    const GROUPS_PER_SCALE: usize = 2;
    const SCALED: bool = true;
    const UNSIGNED_SCALES: bool = false;
    type ActCodes = [[i8; 16]; 16];
    type ActSums = [i16; 8];
    type PackedCodes = [[i8; 16]; 64];
    type PackedSums = [[i16; 8]; 4];
    type Chunk<V: Copy> = [V; 4];
    const CHUNKS: usize = 4;

    #[inline(always)]
    fn codes<S: SimdBytes>(
        s: S,
        rows: &S::Rows<'_, Iq4Xs>,
        i: usize,
        chunk: usize,
    ) -> [S::Bytes; 4] {
        let [a, b] = look_up(s, s.load16(rows, i, |b| at(&b.qs, 32 * chunk)));
        let [c, d] = look_up(s, s.load16(rows, i, |b| at(&b.qs, 32 * chunk + 16)));
        [a, b, c, d]
    }

    #[inline(always)]
    fn group(chunk: usize, place: usize) -> usize {
        4 * chunk + place
    }

    #[inline(always)]
    fn scales<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq4Xs>, i: usize) -> Scales<S> {
        // d (2 bytes), scales_h (2), scales_l (4); the rest is unused.
        let head = s.load16(rows, i, |b| at(b.as_bytes(), 0));
        let pairs = s.repeat_u8(&[4, 4, 5, 5, 6, 6, 7, 7, 4, 4, 5, 5, 6, 6, 7, 7]);
        let quads = s.repeat_u8(&[2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 2, 2, 3, 3, 3, 3]);
        let even = s.repeat_u8(&[15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0]);
        let odd = s.repeat_u8(&[0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15, 0, 15]);
        let low = s.shuffle(head, pairs);
        let low = s.or(s.and(low, even), s.and(s.shr(low, 4), odd));
        let high = s.shuffle(head, quads);
        let mut sum = low;
        let shifted = [s.shl(high, 4), s.shl(high, 2), high, s.shr(high, 2)];
        for (k, shifted) in shifted.into_iter().enumerate() {
            let mut mask = [0; 16];
            for j in 0..4 {
                mask[4 * j + k] = 0x30;
            }
            sum = s.or(sum, s.and(shifted, s.repeat_u8(&mask)));
        }
        let scales = s.widen_u8(sum)[0];
        let scales = s.sub_i16(scales, s.repeat_i16(&[32; 8]));
        Scales {
            scales: [scales; 2],
            mins: [s.zero(); 2],
        }
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Iq4Xs>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}
