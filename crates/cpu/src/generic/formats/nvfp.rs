//! NVFP4: 4-bit codes into a table, a block of four times 16 values with a scale each, of which two share a scale of the
//! activations.

use rocmforge_gguf::quant::nvfp::{Nvfp4, e4m3_half};
use zerocopy::IntoBytes;

use super::legacy::RAISED;
use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset, at};

/// What scales stand for, halved.
static SCALES: [f32; 256] = {
    let mut scales = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        scales[code] = e4m3_half(code as u8);
        code += 1;
    }
    scales
};

/// The eight bytes of an even and of an odd part, twice. A table, since a vector made when the part is known takes longer
/// than the products.
static PLACES: [[u8; 16]; 2] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7],
    [8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15],
];

impl Format for Nvfp4 {
    type Block = Nvfp4;
    const CODES: Codes = Codes::Unsigned { max: 28 };
    const OFFSET: Offset = Offset::Power { log2: 4 };
    const PARTS: usize = 4;
    const PARTS_PER_SCALE: usize = 2;
    const GROUPS: usize = 1;
    const GROUPS_PER_SCALE: usize = 1;
    const SCALED: bool = false;
    const UNSIGNED_SCALES: bool = false;
    type ActCodes = [[i8; 16]; 1];
    type ActSums = [i16; 1];
    type PackedCodes = [[i8; 16]; 4];
    type PackedSums = [[i16; 8]; 1];
    type Chunk<V: Copy> = [V; 1];
    const CHUNKS: usize = 1;

    #[inline(always)]
    fn codes<S: SimdBytes>(
        s: S,
        rows: &S::Rows<'_, Nvfp4>,
        i: usize,
        part: usize,
    ) -> [S::Bytes; 1] {
        let qs = s.load16(rows, i, |b| at(b.qs.as_bytes(), 16 * (part / 2)));
        let qs = s.shuffle(qs, s.repeat_u8(&PLACES[part % 2]));
        let low = s.repeat_u8(&[15, 15, 15, 15, 15, 15, 15, 15, 0, 0, 0, 0, 0, 0, 0, 0]);
        let high = s.repeat_u8(&[0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 15, 15, 15, 15, 15, 15]);
        let codes = s.or(s.and(qs, low), s.and(s.shr(qs, 4), high));
        [s.shuffle(s.repeat_u8(&RAISED), codes)]
    }

    #[inline(always)]
    fn group(_: usize, place: usize) -> usize {
        place
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Nvfp4>) -> S::F32 {
        Nvfp4::d_of_part(s, rows, 0)
    }

    #[inline(always)]
    fn d_of_part<S: SimdBytes>(s: S, rows: &S::Rows<'_, Nvfp4>, part: usize) -> S::F32 {
        s.f32_of(rows, |b| SCALES[usize::from(b.d[part])])
    }
}
