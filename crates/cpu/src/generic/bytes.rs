//! Vectors of small integers, to which quantized weights are unpacked for products.
//!
//! A [`SimdBytes::Bytes`] consists of lanes of 16 bytes. Weights are read in groups of as many rows as a vector has f32
//! values ([`SimdF32::LANES`]). Four vectors hold one lane of every row: lane `p` of vector `i` belongs to row `i + 4 *
//! p`. Two operations convert these to vectors with one 32-bit place per row, in row order: [`SimdBytes::transpose4`]
//! for codes and [`SimdBytes::reduce4`] for sums.

use rocmforge_gguf::quant::plain;

use super::floats::SimdF32;

/// Integer operations of a witness.
pub(crate) trait SimdBytes: SimdF32 {
    /// Largest magnitude that a place of a [`SimdBytes::Dot`] can hold.
    const DOT_LIMIT: u32;
    /// Number of products that one step adds to a place.
    const DOT_PRODUCTS: u32;
    /// log2 of what [`SimdBytes::signed_codes`] adds to codes, if anything. Sums of products must be corrected for it.
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
    /// Loads the field of row `i + 4 * p` into lane `p`; `i` is below 4.
    fn load16<B>(
        self,
        rows: &Self::Rows<'_, B>,
        i: usize,
        field: impl Fn(&B) -> &[u8; 16],
    ) -> Self::Bytes;
    /// Loads the field of row `i + 4 * p` into lane `p`, repeated; `i` is below 4.
    fn load4<B>(
        self,
        rows: &Self::Rows<'_, B>,
        i: usize,
        field: impl Fn(&B) -> [u8; 4],
    ) -> Self::Bytes;
    /// Loads two words for row `i + 4 * p` into lane `p`; `i` is below 4. For values that are looked up in memory.
    fn words16<B>(
        self,
        rows: &Self::Rows<'_, B>,
        i: usize,
        words: impl Fn(&B) -> [u64; 2],
    ) -> Self::Bytes;
    /// [`SimdBytes::words16`] with four words.
    fn quads16<B>(
        self,
        rows: &Self::Rows<'_, B>,
        i: usize,
        words: impl Fn(&B) -> [u32; 4],
    ) -> Self::Bytes;
    /// Looks up two words for each lane, by the 16-bit places `2 * k` and `2 * k + 1` of `index`, modulo `N`. `N` is a
    /// power of two, `k` below 4.
    fn look_up<const N: usize>(self, table: &[u64; N], index: Self::Bytes, k: usize)
    -> Self::Bytes;
    /// [`SimdBytes::look_up`] with four words, by the places from `4 * k` on; `k` is below 2.
    fn look_up_quads<const N: usize>(
        self,
        table: &[u32; N],
        index: Self::Bytes,
        k: usize,
    ) -> Self::Bytes;
    /// Converts the field of each row, the bits of an IEEE half.
    fn f16_of<B>(self, rows: &Self::Rows<'_, B>, field: impl Fn(&B) -> u16) -> Self::F32;
    /// Loads the field of each row.
    fn f32_of<B>(self, rows: &Self::Rows<'_, B>, field: impl Fn(&B) -> f32) -> Self::F32;

    /// Splits `x` into whole vectors and the rest.
    fn spans<T: Copy>(x: &[T]) -> (&[Self::Span<T>], &[T]);
    fn load_span(self, x: &Self::Span<f32>) -> Self::F32;
    fn load_f32_span(self, x: &Self::Span<plain::F32>) -> Self::F32;
    fn load_f16_span(self, x: &Self::Span<plain::F16>) -> Self::F32;
    fn load_bf16_span(self, x: &Self::Span<plain::BF16>) -> Self::F32;

    fn zero(self) -> Self::Bytes;
    fn splat_u8(self, x: u8) -> Self::Bytes;
    /// Repeats `x` in every lane.
    fn repeat_u8(self, x: &[u8; 16]) -> Self::Bytes;
    /// Repeats `x` in every lane.
    fn repeat_i8(self, x: &[i8; 16]) -> Self::Bytes;
    /// Repeats `x` in every lane.
    fn repeat_i16(self, x: &[i16; 8]) -> Self::Bytes;
    /// Repeats values `4 * k..4 * k + 4` in every 32-bit place.
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
    /// Repeats values `2 * k..2 * k + 2` in every 32-bit place.
    fn splat_i16x2(self, x: &[i16], k: usize) -> Self::Bytes;

    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    fn xor(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// a + b in bytes, without carries.
    fn add_u8(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// a - b in bytes, without borrows.
    fn sub_u8(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// 255 for bytes of `a` that are greater than those of `b`, as i8, else 0.
    fn above_i8(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Takes bytes of `a` and `b` in turns, from the low and from the high 8 bytes of each lane.
    fn interleave_u8(self, a: Self::Bytes, b: Self::Bytes) -> [Self::Bytes; 2];
    /// [`SimdBytes::interleave_u8`] for 16-bit places.
    fn interleave_u16(self, a: Self::Bytes, b: Self::Bytes) -> [Self::Bytes; 2];
    /// Shifts 16-bit places right by `n`, filling with zeros.
    fn shr(self, a: Self::Bytes, n: u32) -> Self::Bytes;
    /// Shifts 16-bit places left by `n`.
    fn shl(self, a: Self::Bytes, n: u32) -> Self::Bytes;
    /// Shifts 32-bit places left by `n`.
    fn shl_32(self, a: Self::Bytes, n: u32) -> Self::Bytes;
    /// a - b in i16.
    fn sub_i16(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// 255 for bytes of `a` in which all bits of `mask` are set, else 0.
    fn has_bits(self, a: Self::Bytes, mask: Self::Bytes) -> Self::Bytes;
    /// Selects byte `index[i] % 16` of the same lane of `a`, or 0 if `index[i]` is 128 or more.
    fn shuffle(self, a: Self::Bytes, index: Self::Bytes) -> Self::Bytes;
    /// Widens the low and the high 8 bytes of each lane from u8 to i16.
    fn widen_u8(self, a: Self::Bytes) -> [Self::Bytes; 2];
    /// Widens the low and the high 8 bytes of each lane from i8 to i16.
    fn widen_i8(self, a: Self::Bytes) -> [Self::Bytes; 2];
    /// Repeats the i16 in place `j` (below 8) of each lane, as a factor of [`SimdBytes::add_scaled`] for all 32-bit
    /// places of the lane.
    fn repeat_place(self, a: Self::Bytes, j: usize) -> Self::Bytes;
    /// Splits each 32-bit place into its lower and upper i16, as factors of [`SimdBytes::add_scaled`].
    fn split_pairs(self, a: Self::Bytes) -> [Self::Bytes; 2];
    /// Transposes 32-bit places: vector `k` of the result has places `k` of every lane of `a`, in row order.
    fn transpose4(self, a: [Self::Bytes; 4]) -> [Self::Bytes; 4];

    fn zero_dot(self) -> Self::Dot;
    /// Adds the products of `codes` (u8) and `acts` (i8, not -128) to `sum`.
    fn dot(self, sum: Self::Dot, codes: Self::Bytes, acts: Self::Bytes) -> Self::Dot;
    /// Leaves `dots` unchanged, but forces all of them to be computed at this point. If the compiler orders independent
    /// chains one after the other, most of the processor is idle.
    fn in_step<const R: usize>(self, dots: &mut [[Self::Dot; 4]; R]);
    /// Converts codes (i8) to the form that [`SimdBytes::dot_signed`] takes.
    fn signed_codes(self, codes: Self::Bytes) -> Self::Bytes;
    /// Adds the products of [`SimdBytes::signed_codes`] and `acts` (i8, not -128) to `sum`.
    fn dot_signed(self, sum: Self::Dot, codes: Self::Bytes, acts: Self::Bytes) -> Self::Dot;

    fn zero_i32(self) -> Self::I32;
    fn splat_i32(self, x: i32) -> Self::I32;
    fn sub_i32(self, a: Self::I32, b: Self::I32) -> Self::I32;
    fn shl_i32(self, a: Self::I32, n: u32) -> Self::I32;
    /// `sum + dot`.
    fn add_dot(self, sum: Self::I32, dot: Self::Dot) -> Self::I32;
    /// `sum + scale * dot`. [`SimdBytes::repeat_place`] and [`SimdBytes::split_pairs`] make the factors.
    fn add_scaled(self, sum: Self::I32, dot: Self::Dot, scale: Self::Bytes) -> Self::I32;
    /// [`SimdBytes::add_scaled`] for dots that fit in i16 and scales that are not negative.
    fn add_scaled_small(self, sum: Self::I32, dot: Self::Dot, scale: Self::Bytes) -> Self::I32;
    /// Adds the products of the i16 places of `a` and `b` to `sum`, neighbours added.
    fn dot_i16(self, sum: Self::I32, a: Self::Bytes, b: Self::Bytes) -> Self::I32;
    /// Sums every lane of the four vectors: one sum per row, in row order.
    fn reduce4(self, a: [Self::I32; 4]) -> Self::I32;
    /// [`SimdBytes::transpose4`] for sums.
    fn transpose4_i32(self, a: [Self::I32; 4]) -> [Self::I32; 4];
    /// Converts to f32, rounding to nearest even.
    fn to_f32(self, a: Self::I32) -> Self::F32;
}

/// The steps of quantizing activations that benefit from vectors. Implemented by witnesses and, with the same bits, by
/// the scalar reference.
pub(crate) trait Quantize: Copy {
    /// Returns the largest |x| as the bits of an f32. Infinity and NaN compare greater than all numbers.
    fn max_abs_bits(self, x: &[f32; 32]) -> u32;
    /// Rounds `x * factor` to nearest even and returns the sums of both halves. The products are in -127.5..127.5.
    fn quantize(self, x: &[f32; 32], factor: f32, q: &mut [[i8; 16]; 2]) -> [i16; 2];
    /// Rounds to the nearest IEEE half, ties to even; overflow becomes infinity.
    fn round_to_f16(self, x: f32) -> f32;
}
