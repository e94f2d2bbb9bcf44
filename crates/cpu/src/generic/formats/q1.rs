//! Q1_0: signs without integer scales, a block of four times 32 values.

use rocmforge_gguf::quant::q1::Q1_0;

use super::legacy::block_of_32;
use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset};

impl Format for Q1_0 {
    block_of_32!(Q1_0);
    const PARTS: usize = 4;
    /// Twice the bits, so that the offset is an integer.
    const CODES: Codes = Codes::Unsigned { max: 2 };
    const OFFSET: Offset = Offset::Power { log2: 0 };

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q1_0>, i: usize, part: usize) -> [S::Bytes; 2] {
        let qs = s.load16(rows, i, |b| &b.qs);
        let bit = s.repeat_u8(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
        let two = s.splat_u8(2);
        BYTES[part].each_ref().map(|bytes| {
            let bytes = s.repeat_u8(bytes);
            s.and(s.has_bits(s.shuffle(qs, bytes), bit), two)
        })
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q1_0>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}

/// The byte with the bit of each value, for the groups of each part.
const BYTES: [[[u8; 16]; 2]; 4] = {
    let mut bytes = [[[0; 16]; 2]; 4];
    let mut i = 0;
    while i < 128 {
        bytes[i / 32][i / 16 % 2][i % 16] = (i / 8) as u8;
        i += 1;
    }
    bytes
};
