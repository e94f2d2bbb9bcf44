//! Q2_0: neighbouring codes of two bits without integer scales, a block of two times 32 values.

use rocmforge_gguf::quant::q2::Q2_0;

use super::k::two_bits;
use super::legacy::block_of_32;
use crate::generic::bytes::SimdBytes;
use crate::generic::format::{Codes, Format, Offset};

impl Format for Q2_0 {
    block_of_32!(Q2_0);
    const PARTS: usize = 2;
    const CODES: Codes = Codes::Unsigned { max: 3 };
    const OFFSET: Offset = Offset::Power { log2: 0 };

    #[inline(always)]
    fn codes<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q2_0>, i: usize, part: usize) -> [S::Bytes; 2] {
        // Every fourth value each.
        let [a, b, c, d] = two_bits(s, s.load16(rows, i, |b| &b.qs));
        let ab = s.interleave_u8(a, b)[part];
        let cd = s.interleave_u8(c, d)[part];
        s.interleave_u16(ab, cd)
    }

    #[inline(always)]
    fn d<S: SimdBytes>(s: S, rows: &S::Rows<'_, Q2_0>) -> S::F32 {
        s.f16_of(rows, |b| b.d.bits())
    }
}
