//! Vectors of small integers: what quantized weights are unpacked to and multiplied with.
//!
//! A [`SimdBytes::Bytes`] is a stack of lanes of 16 bytes. Weights are read in groups of as many
//! rows as a vector has f32 values ([`SimdF32::LANES`]): four vectors hold one lane of every row,
//! lane `p` of vector `i` belonging to row `i + 4 * p`. Two operations lead from there to vectors
//! with one 32-bit place per row, in row order: [`SimdBytes::transpose4`] for codes and
//! [`SimdBytes::reduce4`] for sums.

use rocmforge_gguf::quant::plain;

use super::simd::SimdF32;

/// Integer operations on a witness.
pub(crate) trait SimdBytes: SimdF32 {
    /// Largest magnitude that one place of a [`SimdBytes::Dot`] holds.
    const DOT_LIMIT: u32;
    /// Products that one step adds to a place.
    const DOT_PRODUCTS: u32;
    /// The power of two that [`SimdBytes::signed_codes`] adds to codes, if it does; whoever sums
    /// products has to take it away.
    const SIGNED_OFFSET: Option<u32>;

    /// `LANES / 4` lanes of 16 bytes or 8 i16.
    type Bytes: Copy;
    /// `LANES` i32; two or more of them per [`SimdBytes::Bytes`] lane.
    type I32: Copy;
    /// Sums of products of bytes: four neighbours belong to one place of an `I32`.
    type Dot: Copy;
    /// `[T; LANES]`.
    type Span<T: Copy>: Copy;
    /// A reference into each row of a group.
    type Rows<'a, B: ?Sized + 'a>: Copy;

    fn rows<'a, B: ?Sized>(self, row: impl Fn(usize) -> &'a B) -> Self::Rows<'a, B>;
    /// Element `index` of each row.
    fn each<'a, B: 'a>(self, rows: &Self::Rows<'a, [B]>, index: usize) -> Self::Rows<'a, B>;
    /// Lane `p` is the field of row `i + 4 * p`; `i` is below 4.
    fn load16<B>(
        self,
        rows: &Self::Rows<'_, B>,
        i: usize,
        field: impl Fn(&B) -> &[u8; 16],
    ) -> Self::Bytes;
    /// Lane `p` is the field of row `i + 4 * p`, repeated; `i` is below 4.
    fn load4<B>(
        self,
        rows: &Self::Rows<'_, B>,
        i: usize,
        field: impl Fn(&B) -> [u8; 4],
    ) -> Self::Bytes;
    /// The field of each row, bits of an IEEE half.
    fn f16_of<B>(self, rows: &Self::Rows<'_, B>, field: impl Fn(&B) -> u16) -> Self::F32;
    /// The field of each row.
    fn f32_of<B>(self, rows: &Self::Rows<'_, B>, field: impl Fn(&B) -> f32) -> Self::F32;

    /// `x` as whole vectors and what is left over.
    fn spans<T: Copy>(x: &[T]) -> (&[Self::Span<T>], &[T]);
    fn load_span(self, x: &Self::Span<f32>) -> Self::F32;
    fn load_f32_span(self, x: &Self::Span<plain::F32>) -> Self::F32;
    fn load_f16_span(self, x: &Self::Span<plain::F16>) -> Self::F32;
    fn load_bf16_span(self, x: &Self::Span<plain::BF16>) -> Self::F32;

    fn zero(self) -> Self::Bytes;
    fn splat_u8(self, x: u8) -> Self::Bytes;
    /// `x` in every lane.
    fn repeat_u8(self, x: &[u8; 16]) -> Self::Bytes;
    /// `x` in every lane.
    fn repeat_i8(self, x: &[i8; 16]) -> Self::Bytes;
    /// `x` in every lane.
    fn repeat_i16(self, x: &[i16; 8]) -> Self::Bytes;
    /// Values `4 * k..4 * k + 4` in every 32-bit place.
    fn splat_i8x4(self, x: &[i8; 16], k: usize) -> Self::Bytes;
    /// [`SimdBytes::splat_i8x4`] for each `k`.
    #[inline(always)]
    fn splat_each_i8x4(self, x: &[i8; 16]) -> [Self::Bytes; 4] {
        [
            self.splat_i8x4(x, 0),
            self.splat_i8x4(x, 1),
            self.splat_i8x4(x, 2),
            self.splat_i8x4(x, 3),
        ]
    }
    /// Values `2 * k..2 * k + 2` in every 32-bit place.
    fn splat_i16x2(self, x: &[i16], k: usize) -> Self::Bytes;

    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts 16-bit places right by `n`, filling with zeros.
    fn shr(self, a: Self::Bytes, n: u32) -> Self::Bytes;
    /// Shifts 16-bit places left by `n`.
    fn shl(self, a: Self::Bytes, n: u32) -> Self::Bytes;
    /// a - b in i16.
    fn sub_i16(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// 255 where all bits of `mask` are set in `a`, else 0.
    fn has_bits(self, a: Self::Bytes, mask: Self::Bytes) -> Self::Bytes;
    /// Byte `index[i] % 16` of the same lane of `a`, or 0 where `index[i]` is 128 or more.
    fn shuffle(self, a: Self::Bytes, index: Self::Bytes) -> Self::Bytes;
    /// The low and the high 8 bytes of each lane as i16 that were u8.
    fn widen_u8(self, a: Self::Bytes) -> [Self::Bytes; 2];
    /// The low and the high 8 bytes of each lane as i16 that were i8.
    fn widen_i8(self, a: Self::Bytes) -> [Self::Bytes; 2];
    /// The i16 in place `j` (below 8) of each lane as a factor of [`SimdBytes::add_scaled`] for all
    /// 32-bit places of the lane.
    fn repeat_place(self, a: Self::Bytes, j: usize) -> Self::Bytes;
    /// The lower and the upper i16 of each 32-bit place as factors of [`SimdBytes::add_scaled`].
    fn split_pairs(self, a: Self::Bytes) -> [Self::Bytes; 2];
    /// Vector `k` of the result has the 32-bit places `k` of every lane of `a`, in row order.
    fn transpose4(self, a: [Self::Bytes; 4]) -> [Self::Bytes; 4];

    fn zero_dot(self) -> Self::Dot;
    /// `sum` + products of `codes` (u8) and `acts` (i8, not -128).
    fn dot(self, sum: Self::Dot, codes: Self::Bytes, acts: Self::Bytes) -> Self::Dot;
    /// Does nothing to `dots`, but computes all of them up to here before any goes on: a compiler
    /// that orders independent chains one after the other leaves most of the processor idle.
    fn in_step<const R: usize>(self, dots: &mut [[Self::Dot; 4]; R]);
    /// Codes (i8) as [`SimdBytes::dot_signed`] takes them.
    fn signed_codes(self, codes: Self::Bytes) -> Self::Bytes;
    /// `sum` + products of [`SimdBytes::signed_codes`] and `acts` (i8, not -128).
    fn dot_signed(self, sum: Self::Dot, codes: Self::Bytes, acts: Self::Bytes) -> Self::Dot;

    fn zero_i32(self) -> Self::I32;
    fn splat_i32(self, x: i32) -> Self::I32;
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    fn shl_i32(self, a: Self::I32, n: u32) -> Self::I32;
    /// `sum + dot`.
    fn add_dot(self, sum: Self::I32, dot: Self::Dot) -> Self::I32;
    /// `sum + scale * dot`; [`SimdBytes::repeat_place`] and [`SimdBytes::split_pairs`] make the factors.
    fn add_scaled(self, sum: Self::I32, dot: Self::Dot, scale: Self::Bytes) -> Self::I32;
    /// [`SimdBytes::add_scaled`] of dots within i16 and a scale that is not negative.
    fn add_scaled_small(self, sum: Self::I32, dot: Self::Dot, scale: Self::Bytes) -> Self::I32;
    /// `sum` + products of the i16 places of `a` and `b`, neighbours added.
    fn dot_i16(self, sum: Self::I32, a: Self::Bytes, b: Self::Bytes) -> Self::I32;
    /// Adds up every lane of the four vectors: one sum per row, in row order.
    fn reduce4(self, a: [Self::I32; 4]) -> Self::I32;
    /// Rounded to nearest even.
    fn to_f32(self, a: Self::I32) -> Self::F32;
}

/// The steps of quantizing activations that are worth vectors. Implemented by witnesses, and by the
/// scalar oracle with the same bits.
pub(crate) trait Quantize: Copy {
    /// The largest |x| as the bits of an f32; those of infinity and NaN are above all numbers.
    fn max_abs_bits(self, x: &[f32; 32]) -> u32;
    /// `x * factor` rounded to nearest even, and the sums of both halves. The products lie in
    /// -127.5..127.5.
    fn quantize(self, x: &[f32; 32], factor: f32, q: &mut [[i8; 16]; 2]) -> [i16; 2];
    /// The nearest IEEE half, ties to even; too large becomes infinite.
    fn round_to_f16(self, x: f32) -> f32;
}
