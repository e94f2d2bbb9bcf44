//! [`SimdBytes`] for AVX2: two lanes of 16 bytes, so groups of 8 rows.
//!
//! Products of bytes use `vpmaddubsw`, which adds two of them and saturates at i16. A [`SimdBytes::Dot`] is such a
//! vector; how many steps it can accumulate depends on the codes.

use std::arch::x86_64::*;

use rocmforge_gguf::quant::plain;

use super::Avx2;
use crate::generic::bytes::{Quantize, SimdBytes};

impl SimdBytes for Avx2 {
    const DOT_LIMIT: u32 = i16::MAX as u32;
    const DOT_PRODUCTS: u32 = 2;
    const SIGNED_OFFSET: Option<u32> = None;

    type Bytes = __m256i;
    type I32 = __m256i;
    type Dot = __m256i;
    type Span<T: Copy> = [T; 8];
    type Rows<'a, B: ?Sized + 'a> = [&'a B; 8];

    #[inline(always)]
    fn rows<'a, B: ?Sized>(self, row: impl Fn(usize) -> &'a B) -> [&'a B; 8] {
        [
            row(0),
            row(1),
            row(2),
            row(3),
            row(4),
            row(5),
            row(6),
            row(7),
        ]
    }

    #[inline(always)]
    fn each<'a, B: 'a>(self, rows: &[&'a [B]; 8], index: usize) -> [&'a B; 8] {
        [
            &rows[0][index],
            &rows[1][index],
            &rows[2][index],
            &rows[3][index],
            &rows[4][index],
            &rows[5][index],
            &rows[6][index],
            &rows[7][index],
        ]
    }

    #[inline(always)]
    fn load16<B>(self, rows: &[&B; 8], i: usize, field: impl Fn(&B) -> &[u8; 16]) -> __m256i {
        let (low, high) = (field(rows[i]), field(rows[i + 4]));
        // SAFETY: AVX2 is witnessed, and both references are to 16 bytes.
        unsafe {
            let low = _mm_loadu_si128(low.as_ptr().cast());
            let high = _mm_loadu_si128(high.as_ptr().cast());
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
        }
    }

    #[inline(always)]
    fn load4<B>(self, rows: &[&B; 8], i: usize, field: impl Fn(&B) -> [u8; 4]) -> __m256i {
        let low = i32::from_le_bytes(field(rows[i]));
        let high = i32::from_le_bytes(field(rows[i + 4]));
        values!(_mm256_set_m128i(_mm_set1_epi32(high), _mm_set1_epi32(low)))
    }

    #[inline(always)]
    fn words16<B>(self, rows: &[&B; 8], i: usize, words: impl Fn(&B) -> [u64; 2]) -> __m256i {
        let ([a, b], [c, d]) = (words(rows[i]), words(rows[i + 4]));
        let (a, b, c, d) = (a as i64, b as i64, c as i64, d as i64);
        values!(_mm256_set_epi64x(d, c, b, a))
    }

    #[inline(always)]
    fn quads16<B>(self, rows: &[&B; 8], i: usize, words: impl Fn(&B) -> [u32; 4]) -> __m256i {
        let (low, high) = (words(rows[i]), words(rows[i + 4]));
        values!(eight(low, high))
    }

    #[inline(always)]
    fn look_up<const N: usize>(self, table: &[u64; N], index: __m256i, k: usize) -> __m256i {
        values!({
            let [a, b] = two_of(table, _mm256_castsi256_si128(index), k);
            let [c, d] = two_of(table, _mm256_extracti128_si256::<1>(index), k);
            _mm256_setr_epi64x(a, b, c, d)
        })
    }

    #[inline(always)]
    fn look_up_quads<const N: usize>(self, table: &[u32; N], index: __m256i, k: usize) -> __m256i {
        values!({
            let low = four_of(table, _mm256_castsi256_si128(index), k);
            eight(low, four_of(table, _mm256_extracti128_si256::<1>(index), k))
        })
    }

    #[inline(always)]
    fn f16_of<B>(self, rows: &[&B; 8], field: impl Fn(&B) -> u16) -> __m256 {
        let at = |i: usize| field(rows[i]) as i16;
        let (a, b, c, d) = (at(0), at(1), at(2), at(3));
        let (e, f, g, h) = (at(4), at(5), at(6), at(7));
        values!(_mm256_cvtph_ps(_mm_setr_epi16(a, b, c, d, e, f, g, h)))
    }

    #[inline(always)]
    fn f32_of<B>(self, rows: &[&B; 8], field: impl Fn(&B) -> f32) -> __m256 {
        let at = |i: usize| field(rows[i]);
        let (a, b, c, d) = (at(0), at(1), at(2), at(3));
        let (e, f, g, h) = (at(4), at(5), at(6), at(7));
        values!(_mm256_setr_ps(a, b, c, d, e, f, g, h))
    }

    #[inline(always)]
    fn spans<T: Copy>(x: &[T]) -> (&[[T; 8]], &[T]) {
        x.as_chunks()
    }

    #[inline(always)]
    fn load_span(self, x: &[f32; 8]) -> __m256 {
        // SAFETY: AVX2 is witnessed, and `x` has 8 values of 4 bytes.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_f32_span(self, x: &[plain::F32; 8]) -> __m256 {
        // SAFETY: AVX2 is witnessed, and `x` has 8 values of 4 bytes.
        unsafe { _mm256_loadu_ps(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16_span(self, x: &[plain::F16; 8]) -> __m256 {
        // SAFETY: F16C is witnessed, and `x` has 8 values of 2 bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16_span(self, x: &[plain::BF16; 8]) -> __m256 {
        // SAFETY: AVX2 is witnessed, and `x` has 8 values of 2 bytes.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn zero(self) -> __m256i {
        values!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn splat_u8(self, x: u8) -> __m256i {
        values!(_mm256_set1_epi8(x as i8))
    }

    #[inline(always)]
    fn repeat_u8(self, x: &[u8; 16]) -> __m256i {
        // SAFETY: AVX2 is witnessed, and `x` has 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn repeat_i8(self, x: &[i8; 16]) -> __m256i {
        // SAFETY: AVX2 is witnessed, and `x` has 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn repeat_i16(self, x: &[i16; 8]) -> __m256i {
        // SAFETY: AVX2 is witnessed, and `x` has 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn splat_i8x4(self, x: &[i8; 16], k: usize) -> __m256i {
        let x = &x[4 * k..4 * k + 4];
        let x = i32::from_le_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8]);
        values!(_mm256_set1_epi32(x))
    }

    #[inline(always)]
    fn splat_i16x2(self, x: &[i16], k: usize) -> __m256i {
        let x = &x[2 * k..2 * k + 2];
        let x = i32::from(x[0] as u16) | i32::from(x[1]) << 16;
        values!(_mm256_set1_epi32(x))
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_and_si256(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_xor_si256(a, b))
    }

    #[inline(always)]
    fn add_u8(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_add_epi8(a, b))
    }

    #[inline(always)]
    fn sub_u8(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_sub_epi8(a, b))
    }

    #[inline(always)]
    fn above_i8(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_cmpgt_epi8(a, b))
    }

    #[inline(always)]
    fn interleave_u8(self, a: __m256i, b: __m256i) -> [__m256i; 2] {
        values!([_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)])
    }

    #[inline(always)]
    fn interleave_u16(self, a: __m256i, b: __m256i) -> [__m256i; 2] {
        values!([_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)])
    }

    #[inline(always)]
    fn shr(self, a: __m256i, n: u32) -> __m256i {
        values!(_mm256_srl_epi16(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn shl(self, a: __m256i, n: u32) -> __m256i {
        values!(_mm256_sll_epi16(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn shl_32(self, a: __m256i, n: u32) -> __m256i {
        values!(_mm256_sll_epi32(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn sub_i16(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_sub_epi16(a, b))
    }

    #[inline(always)]
    fn has_bits(self, a: __m256i, mask: __m256i) -> __m256i {
        values!(_mm256_cmpeq_epi8(_mm256_and_si256(a, mask), mask))
    }

    #[inline(always)]
    fn shuffle(self, a: __m256i, index: __m256i) -> __m256i {
        values!(_mm256_shuffle_epi8(a, index))
    }

    #[inline(always)]
    fn widen_u8(self, a: __m256i) -> [__m256i; 2] {
        values!({
            let zero = _mm256_setzero_si256();
            [_mm256_unpacklo_epi8(a, zero), _mm256_unpackhi_epi8(a, zero)]
        })
    }

    #[inline(always)]
    fn widen_i8(self, a: __m256i) -> [__m256i; 2] {
        values!({
            let sign = _mm256_cmpgt_epi8(_mm256_setzero_si256(), a);
            [_mm256_unpacklo_epi8(a, sign), _mm256_unpackhi_epi8(a, sign)]
        })
    }

    #[inline(always)]
    fn repeat_place(self, a: __m256i, j: usize) -> __m256i {
        let place = (2 * j) as i16;
        values!(_mm256_shuffle_epi8(
            a,
            _mm256_set1_epi16(place | (place + 1) << 8)
        ))
    }

    #[inline(always)]
    fn split_pairs(self, a: __m256i) -> [__m256i; 2] {
        values!({
            let low = _mm256_set_epi8(
                13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0, //
                13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0,
            );
            let high = _mm256_add_epi8(low, _mm256_set1_epi8(2));
            [_mm256_shuffle_epi8(a, low), _mm256_shuffle_epi8(a, high)]
        })
    }

    #[inline(always)]
    fn transpose4(self, a: [__m256i; 4]) -> [__m256i; 4] {
        values!({
            let ab_low = _mm256_unpacklo_epi32(a[0], a[1]);
            let ab_high = _mm256_unpackhi_epi32(a[0], a[1]);
            let cd_low = _mm256_unpacklo_epi32(a[2], a[3]);
            let cd_high = _mm256_unpackhi_epi32(a[2], a[3]);
            [
                _mm256_unpacklo_epi64(ab_low, cd_low),
                _mm256_unpackhi_epi64(ab_low, cd_low),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ]
        })
    }

    #[inline(always)]
    fn zero_dot(self) -> __m256i {
        values!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn dot(self, sum: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        values!(_mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, acts)))
    }

    #[inline(always)]
    fn in_step<const R: usize>(self, _: &mut [[__m256i; 4]; R]) {}

    #[inline(always)]
    fn signed_codes(self, codes: __m256i) -> __m256i {
        codes
    }

    #[inline(always)]
    fn dot_signed(self, sum: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
        // `vpmaddubsw` needs an unsigned first factor, so the sign moves to the second. The magnitude of -128 is
        // correct as a u8.
        values!({
            let magnitude = _mm256_abs_epi8(codes);
            let acts = _mm256_sign_epi8(acts, codes);
            _mm256_add_epi16(sum, _mm256_maddubs_epi16(magnitude, acts))
        })
    }

    #[inline(always)]
    fn zero_i32(self) -> __m256i {
        values!(_mm256_setzero_si256())
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m256i {
        values!(_mm256_set1_epi32(x))
    }

    #[inline(always)]
    fn sub_i32(self, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_sub_epi32(a, b))
    }

    #[inline(always)]
    fn shl_i32(self, a: __m256i, n: u32) -> __m256i {
        values!(_mm256_sll_epi32(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn add_dot(self, sum: __m256i, dot: __m256i) -> __m256i {
        values!(_mm256_add_epi32(
            sum,
            _mm256_madd_epi16(dot, _mm256_set1_epi16(1))
        ))
    }

    #[inline(always)]
    fn add_scaled(self, sum: __m256i, dot: __m256i, scale: __m256i) -> __m256i {
        values!(_mm256_add_epi32(sum, _mm256_madd_epi16(dot, scale)))
    }

    #[inline(always)]
    fn add_scaled_small(self, sum: __m256i, dot: __m256i, scale: __m256i) -> __m256i {
        self.add_scaled(sum, dot, scale)
    }

    #[inline(always)]
    fn dot_i16(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        values!(_mm256_add_epi32(sum, _mm256_madd_epi16(a, b)))
    }

    #[inline(always)]
    fn reduce4(self, a: [__m256i; 4]) -> __m256i {
        values!(_mm256_hadd_epi32(
            _mm256_hadd_epi32(a[0], a[1]),
            _mm256_hadd_epi32(a[2], a[3])
        ))
    }

    #[inline(always)]
    fn transpose4_i32(self, a: [__m256i; 4]) -> [__m256i; 4] {
        self.transpose4(a)
    }

    #[inline(always)]
    fn to_f32(self, a: __m256i) -> __m256 {
        values!(_mm256_cvtepi32_ps(a))
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn eight([a, b, c, d]: [u32; 4], [e, f, g, h]: [u32; 4]) -> __m256i {
    let (a, b, c, d) = (a as i32, b as i32, c as i32, d as i32);
    let (e, f, g, h) = (e as i32, f as i32, g as i32, h as i32);
    _mm256_setr_epi32(a, b, c, d, e, f, g, h)
}

/// Entries of `table` by the 16-bit places `2 * k` and `2 * k + 1` of `index`, modulo `N`. `N` is a power of two.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn two_of<const N: usize>(table: &[u64; N], index: __m128i, k: usize) -> [i64; 2] {
    let places = match k {
        0 => _mm_extract_epi32::<0>(index),
        1 => _mm_extract_epi32::<1>(index),
        2 => _mm_extract_epi32::<2>(index),
        _ => _mm_extract_epi32::<3>(index),
    } as u32;
    let (a, b) = ((places & 0xffff) as usize, (places >> 16) as usize);
    [table[a & (N - 1)] as i64, table[b & (N - 1)] as i64]
}

/// Entries of `table` by the 16-bit places from `4 * k` on of `index`, modulo `N`. `N` is a power of two.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn four_of<const N: usize>(table: &[u32; N], index: __m128i, k: usize) -> [u32; 4] {
    let places = match k {
        0 => _mm_extract_epi64::<0>(index),
        _ => _mm_extract_epi64::<1>(index),
    } as usize;
    let (a, b, c, d) = (places, places >> 16, places >> 32, places >> 48);
    [
        table[a & (N - 1)],
        table[b & (N - 1)],
        table[c & (N - 1)],
        table[d & (N - 1)],
    ]
}

impl Quantize for Avx2 {
    #[inline(always)]
    fn max_abs_bits(self, x: &[f32; 32]) -> u32 {
        // SAFETY: AVX2 is witnessed, and the loads cover the 128 bytes of `x`.
        unsafe {
            let p: *const __m256i = x.as_ptr().cast();
            // Without the sign bit, the order of the bits is the order of the magnitudes.
            let magnitude = _mm256_set1_epi32(i32::MAX);
            let a = _mm256_and_si256(_mm256_loadu_si256(p), magnitude);
            let b = _mm256_and_si256(_mm256_loadu_si256(p.add(1)), magnitude);
            let c = _mm256_and_si256(_mm256_loadu_si256(p.add(2)), magnitude);
            let d = _mm256_and_si256(_mm256_loadu_si256(p.add(3)), magnitude);
            let m = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
            let m = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
            let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b01_00_11_10>(m));
            let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b10_11_00_01>(m));
            _mm_cvtsi128_si32(m) as u32
        }
    }

    #[inline(always)]
    fn quantize(self, x: &[f32; 32], factor: f32, q: &mut [[i8; 16]; 2]) -> [i16; 2] {
        // SAFETY: AVX2 is witnessed, the loads cover the 128 bytes of `x`, the store the 32 of `q`.
        unsafe {
            let p = x.as_ptr();
            let factor = _mm256_set1_ps(factor);
            let a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p), factor));
            let b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p.add(8)), factor));
            let c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p.add(16)), factor));
            let d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p.add(24)), factor));
            // Packing works in lanes; the permutation puts groups of four back in order.
            let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let packed = _mm256_permutevar8x32_epi32(packed, order);
            _mm256_storeu_si256(q.as_mut_ptr().cast(), packed);
            // |a - b| of bytes made unsigned, summed by eight: each is 128 too large.
            let biased = _mm256_xor_si256(packed, _mm256_set1_epi8(-128));
            let sums = _mm256_sad_epu8(biased, _mm256_setzero_si256());
            let low = _mm256_castsi256_si128(sums);
            let high = _mm256_extracti128_si256::<1>(sums);
            let sums = _mm_add_epi64(_mm_unpacklo_epi64(low, high), _mm_unpackhi_epi64(low, high));
            [
                (_mm_cvtsi128_si64(sums) - 16 * 128) as i16,
                (_mm_extract_epi64::<1>(sums) - 16 * 128) as i16,
            ]
        }
    }

    #[inline(always)]
    fn round_to_f16(self, x: f32) -> f32 {
        values!({
            let half = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(x));
            _mm_cvtss_f32(_mm_cvtph_ps(half))
        })
    }
}
