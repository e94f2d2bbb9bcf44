//! [`SimdBytes`] for AVX-512 with VNNI: four lanes of 16 bytes, so groups of 16 rows.
//!
//! `vpdpbusd` adds four products of an unsigned and a signed byte to an i32. Signed codes are made unsigned by adding
//! 128; the sums of the activations correct for that.

use std::arch::asm;
use std::arch::x86_64::*;

use rocmforge_gguf::quant::plain;

use super::bytes_avx2::{four_of, two_of};
use super::{Avx2, Avx512};
use crate::generic::bytes::{Quantize, SimdBytes};

impl SimdBytes for Avx512 {
    const DOT_LIMIT: u32 = i32::MAX as u32;
    const DOT_PRODUCTS: u32 = 4;
    const SIGNED_OFFSET: Option<u32> = Some(7);

    type Bytes = __m512i;
    type I32 = __m512i;
    type Dot = __m512i;
    type Span<T: Copy> = [T; 16];
    type Rows<'a, B: ?Sized + 'a> = [&'a B; 16];

    #[inline(always)]
    fn rows<'a, B: ?Sized>(self, row: impl Fn(usize) -> &'a B) -> [&'a B; 16] {
        [
            row(0),
            row(1),
            row(2),
            row(3),
            row(4),
            row(5),
            row(6),
            row(7),
            row(8),
            row(9),
            row(10),
            row(11),
            row(12),
            row(13),
            row(14),
            row(15),
        ]
    }

    #[inline(always)]
    fn each<'a, B: 'a>(self, rows: &[&'a [B]; 16], index: usize) -> [&'a B; 16] {
        [
            &rows[0][index],
            &rows[1][index],
            &rows[2][index],
            &rows[3][index],
            &rows[4][index],
            &rows[5][index],
            &rows[6][index],
            &rows[7][index],
            &rows[8][index],
            &rows[9][index],
            &rows[10][index],
            &rows[11][index],
            &rows[12][index],
            &rows[13][index],
            &rows[14][index],
            &rows[15][index],
        ]
    }

    #[inline(always)]
    fn load16<B>(self, rows: &[&B; 16], i: usize, field: impl Fn(&B) -> &[u8; 16]) -> __m512i {
        let (a, b) = (field(rows[i]), field(rows[i + 4]));
        let (c, d) = (field(rows[i + 8]), field(rows[i + 12]));
        // SAFETY: AVX-512 is witnessed, and all references are to 16 bytes.
        unsafe {
            let v = _mm512_castsi128_si512(_mm_loadu_si128(a.as_ptr().cast()));
            let v = _mm512_inserti32x4::<1>(v, _mm_loadu_si128(b.as_ptr().cast()));
            let v = _mm512_inserti32x4::<2>(v, _mm_loadu_si128(c.as_ptr().cast()));
            _mm512_inserti32x4::<3>(v, _mm_loadu_si128(d.as_ptr().cast()))
        }
    }

    #[inline(always)]
    fn load4<B>(self, rows: &[&B; 16], i: usize, field: impl Fn(&B) -> [u8; 4]) -> __m512i {
        let at = |row: usize| i32::from_le_bytes(field(rows[row]));
        let (a, b, c, d) = (at(i), at(i + 4), at(i + 8), at(i + 12));
        values!({
            let v = _mm512_castsi128_si512(_mm_setr_epi32(a, b, c, d));
            let lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
            _mm512_permutexvar_epi32(lanes, v)
        })
    }

    #[inline(always)]
    fn words16<B>(self, rows: &[&B; 16], i: usize, words: impl Fn(&B) -> [u64; 2]) -> __m512i {
        let ([a, b], [c, d]) = (words(rows[i]), words(rows[i + 4]));
        let ([e, f], [g, h]) = (words(rows[i + 8]), words(rows[i + 12]));
        let (a, b, c, d) = (a as i64, b as i64, c as i64, d as i64);
        let (e, f, g, h) = (e as i64, f as i64, g as i64, h as i64);
        values!(_mm512_set_epi64(h, g, f, e, d, c, b, a))
    }

    #[inline(always)]
    fn quads16<B>(self, rows: &[&B; 16], i: usize, words: impl Fn(&B) -> [u32; 4]) -> __m512i {
        let [a, b] = [words(rows[i]), words(rows[i + 4])];
        let [c, d] = [words(rows[i + 8]), words(rows[i + 12])];
        values!(lanes([four(a), four(b), four(c), four(d)]))
    }

    #[inline(always)]
    fn look_up<const N: usize>(self, table: &[u64; N], index: __m512i, k: usize) -> __m512i {
        values!({
            let [first, second, third, fourth] = parts(index);
            let ([a, b], [c, d]) = (two_of(table, first, k), two_of(table, second, k));
            let ([e, f], [g, h]) = (two_of(table, third, k), two_of(table, fourth, k));
            _mm512_setr_epi64(a, b, c, d, e, f, g, h)
        })
    }

    #[inline(always)]
    fn look_up_quads<const N: usize>(self, table: &[u32; N], index: __m512i, k: usize) -> __m512i {
        values!({
            let [a, b, c, d] = parts(index);
            let [a, b] = [four(four_of(table, a, k)), four(four_of(table, b, k))];
            let [c, d] = [four(four_of(table, c, k)), four(four_of(table, d, k))];
            lanes([a, b, c, d])
        })
    }

    #[inline(always)]
    fn f16_of<B>(self, rows: &[&B; 16], field: impl Fn(&B) -> u16) -> __m512 {
        let pair = |i: usize| {
            let (a, b) = (field(rows[i]), field(rows[i + 1]));
            (u32::from(a) | u32::from(b) << 16) as i32
        };
        let (a, b, c, d) = (pair(0), pair(2), pair(4), pair(6));
        let (e, f, g, h) = (pair(8), pair(10), pair(12), pair(14));
        values!(_mm512_cvtph_ps(_mm256_setr_epi32(a, b, c, d, e, f, g, h)))
    }

    #[inline(always)]
    fn f32_of<B>(self, rows: &[&B; 16], field: impl Fn(&B) -> f32) -> __m512 {
        let values = [
            field(rows[0]),
            field(rows[1]),
            field(rows[2]),
            field(rows[3]),
            field(rows[4]),
            field(rows[5]),
            field(rows[6]),
            field(rows[7]),
            field(rows[8]),
            field(rows[9]),
            field(rows[10]),
            field(rows[11]),
            field(rows[12]),
            field(rows[13]),
            field(rows[14]),
            field(rows[15]),
        ];
        self.load_span(&values)
    }

    #[inline(always)]
    fn spans<T: Copy>(x: &[T]) -> (&[[T; 16]], &[T]) {
        x.as_chunks()
    }

    #[inline(always)]
    fn load_span(self, x: &[f32; 16]) -> __m512 {
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values of 4 bytes.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_f32_span(self, x: &[plain::F32; 16]) -> __m512 {
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values of 4 bytes.
        unsafe { _mm512_loadu_ps(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16_span(self, x: &[plain::F16; 16]) -> __m512 {
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values of 2 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16_span(self, x: &[plain::BF16; 16]) -> __m512 {
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values of 2 bytes.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn zero(self) -> __m512i {
        values!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn splat_u8(self, x: u8) -> __m512i {
        values!(_mm512_set1_epi8(x as i8))
    }

    #[inline(always)]
    fn repeat_u8(self, x: &[u8; 16]) -> __m512i {
        // SAFETY: AVX-512 is witnessed, and `x` has 16 bytes.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn repeat_i8(self, x: &[i8; 16]) -> __m512i {
        // SAFETY: AVX-512 is witnessed, and `x` has 16 bytes.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn repeat_i16(self, x: &[i16; 8]) -> __m512i {
        // SAFETY: AVX-512 is witnessed, and `x` has 16 bytes.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn splat_i8x4(self, x: &[i8; 16], k: usize) -> __m512i {
        let x = &x[4 * k..4 * k + 4];
        let x = i32::from_le_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8]);
        values!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn splat_i16x2(self, x: &[i16], k: usize) -> __m512i {
        let x = &x[2 * k..2 * k + 2];
        let x = i32::from(x[0] as u16) | i32::from(x[1]) << 16;
        values!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn add_u8(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_add_epi8(a, b))
    }

    #[inline(always)]
    fn sub_u8(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_sub_epi8(a, b))
    }

    #[inline(always)]
    fn above_i8(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_movm_epi8(_mm512_cmpgt_epi8_mask(a, b)))
    }

    #[inline(always)]
    fn interleave_u8(self, a: __m512i, b: __m512i) -> [__m512i; 2] {
        values!([_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)])
    }

    #[inline(always)]
    fn interleave_u16(self, a: __m512i, b: __m512i) -> [__m512i; 2] {
        values!([_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)])
    }

    #[inline(always)]
    fn shr(self, a: __m512i, n: u32) -> __m512i {
        values!(_mm512_srl_epi16(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn shl(self, a: __m512i, n: u32) -> __m512i {
        values!(_mm512_sll_epi16(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn shl_32(self, a: __m512i, n: u32) -> __m512i {
        values!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn sub_i16(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_sub_epi16(a, b))
    }

    #[inline(always)]
    fn has_bits(self, a: __m512i, mask: __m512i) -> __m512i {
        // Compare for equality as in AVX2, since `mask` may have several bits set.
        values!(_mm512_movm_epi8(_mm512_cmpeq_epi8_mask(
            _mm512_and_si512(a, mask),
            mask
        )))
    }

    #[inline(always)]
    fn shuffle(self, a: __m512i, index: __m512i) -> __m512i {
        values!(_mm512_shuffle_epi8(a, index))
    }

    #[inline(always)]
    fn widen_u8(self, a: __m512i) -> [__m512i; 2] {
        values!({
            let zero = _mm512_setzero_si512();
            [_mm512_unpacklo_epi8(a, zero), _mm512_unpackhi_epi8(a, zero)]
        })
    }

    #[inline(always)]
    fn widen_i8(self, a: __m512i) -> [__m512i; 2] {
        values!({
            let sign = _mm512_movm_epi8(_mm512_movepi8_mask(a));
            [_mm512_unpacklo_epi8(a, sign), _mm512_unpackhi_epi8(a, sign)]
        })
    }

    #[inline(always)]
    fn repeat_place(self, a: __m512i, j: usize) -> __m512i {
        let place = (2 * j) as i16;
        values!(_mm512_srai_epi32::<16>(_mm512_shuffle_epi8(
            a,
            _mm512_set1_epi16(place | (place + 1) << 8)
        )))
    }

    #[inline(always)]
    fn split_pairs(self, a: __m512i) -> [__m512i; 2] {
        values!([
            _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(a)),
            _mm512_srai_epi32::<16>(a),
        ])
    }

    #[inline(always)]
    fn transpose4(self, a: [__m512i; 4]) -> [__m512i; 4] {
        values!({
            let ab_low = _mm512_unpacklo_epi32(a[0], a[1]);
            let ab_high = _mm512_unpackhi_epi32(a[0], a[1]);
            let cd_low = _mm512_unpacklo_epi32(a[2], a[3]);
            let cd_high = _mm512_unpackhi_epi32(a[2], a[3]);
            [
                _mm512_unpacklo_epi64(ab_low, cd_low),
                _mm512_unpackhi_epi64(ab_low, cd_low),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
        })
    }

    #[inline(always)]
    fn zero_dot(self) -> __m512i {
        values!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn dot(self, sum: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        values!(_mm512_dpbusd_epi32(sum, codes, acts))
    }

    #[inline(always)]
    fn in_step<const R: usize>(self, dots: &mut [[__m512i; 4]; R]) {
        if let [first, second] = &mut dots[..] {
            // SAFETY: AVX-512 is witnessed.
            [*first, *second] = unsafe { in_step(*first, *second) };
        }
    }

    #[inline(always)]
    fn signed_codes(self, codes: __m512i) -> __m512i {
        values!(_mm512_xor_si512(codes, _mm512_set1_epi8(-128)))
    }

    #[inline(always)]
    fn dot_signed(self, sum: __m512i, codes: __m512i, acts: __m512i) -> __m512i {
        self.dot(sum, codes, acts)
    }

    #[inline(always)]
    fn zero_i32(self) -> __m512i {
        values!(_mm512_setzero_si512())
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> __m512i {
        values!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn sub_i32(self, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_sub_epi32(a, b))
    }

    #[inline(always)]
    fn shl_i32(self, a: __m512i, n: u32) -> __m512i {
        values!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32)))
    }

    #[inline(always)]
    fn add_dot(self, sum: __m512i, dot: __m512i) -> __m512i {
        values!(_mm512_add_epi32(sum, dot))
    }

    #[inline(always)]
    fn add_scaled(self, sum: __m512i, dot: __m512i, scale: __m512i) -> __m512i {
        values!(_mm512_add_epi32(sum, _mm512_mullo_epi32(dot, scale)))
    }

    #[inline(always)]
    fn add_scaled_small(self, sum: __m512i, dot: __m512i, scale: __m512i) -> __m512i {
        // SAFETY: AVX-512 is witnessed.
        unsafe { add_pairs(sum, dot, scale) }
    }

    #[inline(always)]
    fn dot_i16(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        values!(_mm512_dpwssd_epi32(sum, a, b))
    }

    #[inline(always)]
    fn reduce4(self, a: [__m512i; 4]) -> __m512i {
        let [a, b, c, d] = self.transpose4(a);
        values!(_mm512_add_epi32(
            _mm512_add_epi32(a, b),
            _mm512_add_epi32(c, d)
        ))
    }

    #[inline(always)]
    fn transpose4_i32(self, a: [__m512i; 4]) -> [__m512i; 4] {
        self.transpose4(a)
    }

    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        values!(_mm512_cvtepi32_ps(a))
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn four([a, b, c, d]: [u32; 4]) -> __m128i {
    _mm_setr_epi32(a as i32, b as i32, c as i32, d as i32)
}

/// Joins four lanes.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes([a, b, c, d]: [__m128i; 4]) -> __m512i {
    let v = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(v, c), d)
}

/// The inverse of [`lanes`].
#[inline]
#[target_feature(enable = "avx512f")]
fn parts(a: __m512i) -> [__m128i; 4] {
    [
        _mm512_castsi512_si128(a),
        _mm512_extracti32x4_epi32::<1>(a),
        _mm512_extracti32x4_epi32::<2>(a),
        _mm512_extracti32x4_epi32::<3>(a),
    ]
}

/// Returns the same vectors, but forces all of them to be computed first.
#[inline]
#[target_feature(enable = "avx512f")]
fn in_step(first: [__m512i; 4], second: [__m512i; 4]) -> [[__m512i; 4]; 2] {
    let ([mut a, mut b, mut c, mut d], [mut e, mut f, mut g, mut h]) = (first, second);
    // SAFETY: no instruction at all.
    unsafe {
        asm!(
            "/* {0} {1} {2} {3} {4} {5} {6} {7} */",
            inout(zmm_reg) a, inout(zmm_reg) b, inout(zmm_reg) c, inout(zmm_reg) d,
            inout(zmm_reg) e, inout(zmm_reg) f, inout(zmm_reg) g, inout(zmm_reg) h,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    [[a, b, c, d], [e, f, g, h]]
}

/// Computes `sum + dot * scale`, where the upper half of `scale` is 0 and `dot` fits in its lower half. One
/// instruction, where `vpmulld` alone takes two micro-operations. Inline assembly, because the compiler would split the
/// last one of a loop into two.
#[inline]
#[target_feature(enable = "avx512vnni")]
fn add_pairs(mut sum: __m512i, dot: __m512i, scale: __m512i) -> __m512i {
    // SAFETY: it computes with registers only.
    unsafe {
        asm!(
            "vpdpwssd {0}, {1}, {2}",
            inout(zmm_reg) sum, in(zmm_reg) dot, in(zmm_reg) scale,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Blocks of 32 values are short, so this reuses the code of AVX2, compiled for this instruction set.
impl Quantize for Avx512 {
    #[inline(always)]
    fn max_abs_bits(self, x: &[f32; 32]) -> u32 {
        Avx2::from(self).max_abs_bits(x)
    }

    #[inline(always)]
    fn quantize(self, x: &[f32; 32], factor: f32, q: &mut [[i8; 16]; 2]) -> [i16; 2] {
        Avx2::from(self).quantize(x, factor, q)
    }

    #[inline(always)]
    fn round_to_f16(self, x: f32) -> f32 {
        Avx2::from(self).round_to_f16(x)
    }
}
