//! [`Lanes`] for AVX-512.

use std::arch::x86_64::*;

use super::Avx512;
use crate::generic::lanes::Lanes;

/// A mask of the first `n` lanes, `n` at most 16.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

impl Lanes for Avx512 {
    type Chunk = [f32; 16];
    type HalfChunk = [u16; 16];
    type Sums = __m256;

    #[inline(always)]
    fn chunks(x: &[f32]) -> (&[[f32; 16]], &[f32]) {
        x.as_chunks()
    }

    #[inline(always)]
    fn chunks_mut(x: &mut [f32]) -> (&mut [[f32; 16]], &mut [f32]) {
        x.as_chunks_mut()
    }

    #[inline(always)]
    fn half_chunks(x: &[u16]) -> &[[u16; 16]] {
        x.as_chunks().0
    }

    #[inline(always)]
    fn load_half_chunk(self, x: &[u16; 16]) -> __m512 {
        // SAFETY: AVX-512 is witnessed, and `x` has 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_chunk(self, x: &[f32; 16]) -> __m512 {
        // SAFETY: AVX-512 is witnessed, and sixteen f32 are readable at `x`.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store_chunk(self, v: __m512, x: &mut [f32; 16]) {
        // SAFETY: AVX-512 is witnessed, and sixteen f32 are writable at `x`.
        unsafe { _mm512_storeu_ps(x.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> __m512 {
        let x = &x[..x.len().min(16)];
        // SAFETY: AVX-512 is witnessed; lanes that the mask leaves out are not read.
        unsafe { _mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(x.len()), x.as_ptr()) }
    }

    #[inline(always)]
    fn store_part(self, v: __m512, x: &mut [f32]) {
        let n = x.len().min(16);
        // SAFETY: AVX-512 is witnessed; lanes that the mask leaves out are not written.
        unsafe { _mm512_mask_storeu_ps(x.as_mut_ptr(), first(n), v) }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: every x86-64 CPU has SSE; a prefetch is a hint, of no effect where nothing is
        // mapped.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    fn prefetch_once(self, address: *const u8) {
        // SAFETY: every x86-64 CPU has SSE; a prefetch is a hint, of no effect where nothing is
        // mapped.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(address.cast()) }
    }

    #[inline(always)]
    fn sum_8(self, v: [__m512; 8]) -> __m256 {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
        // Four levels of adding halves: first across two vectors of 512 bits, then within them.
        // SAFETY: `self` proves AVX-512; register-to-register.
        unsafe {
            let s04 = halves_of_512(v0, v4);
            let s15 = halves_of_512(v1, v5);
            let s26 = halves_of_512(v2, v6);
            let s37 = halves_of_512(v3, v7);
            // The 256-bit halves belong to 0 and 4; the 128-bit lanes of each are added next.
            let s0246 = lanes_of_128(s04, s26);
            let s1357 = lanes_of_128(s15, s37);
            // Lanes of 128 bits: 0 2 4 6, and 1 3 5 7.
            let pairs = _mm512_add_ps(
                _mm512_unpacklo_ps(s0246, s1357),
                _mm512_unpackhi_ps(s0246, s1357),
            );
            // In a lane: 0 1 0 1.
            let sums = _mm512_add_ps(pairs, _mm512_shuffle_ps::<0b01_00_11_10>(pairs, pairs));
            let order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0);
            _mm512_castps512_ps256(_mm512_permutexvar_ps(order, sums))
        }
    }

    #[inline(always)]
    fn zip_halves(self, a: __m256, b: __m256) -> (__m256, __m256) {
        values!((
            _mm256_permute2f128_ps::<0x20>(a, b),
            _mm256_permute2f128_ps::<0x31>(a, b),
        ))
    }

    #[inline(always)]
    fn store_sums(self, sums: __m256, x: &mut [f32; 8]) {
        // SAFETY: AVX is witnessed, and eight f32 are writable at `x`.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), sums) }
    }

    #[inline(always)]
    fn mul_sub_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        values!(_mm512_fmaddsub_ps(a, b, c))
    }

    #[inline(always)]
    fn swap_pairs(self, v: __m512) -> __m512 {
        values!(_mm512_permute_ps::<0b10_11_00_01>(v))
    }

    #[inline(always)]
    fn dup_even(self, v: __m512) -> __m512 {
        values!(_mm512_moveldup_ps(v))
    }

    #[inline(always)]
    fn dup_odd(self, v: __m512) -> __m512 {
        values!(_mm512_movehdup_ps(v))
    }

    #[inline(always)]
    fn unzip(self, a: __m512, b: __m512) -> (__m512, __m512) {
        values!({
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
            (
                _mm512_permutex2var_ps(a, even, b),
                _mm512_permutex2var_ps(a, odd, b),
            )
        })
    }
}

/// `[a.low + a.high, b.low + b.high]`.
#[inline]
#[target_feature(enable = "avx512f")]
fn halves_of_512(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(
        _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
        _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
    )
}

/// `[a0 + a1, b0 + b1, a2 + a3, b2 + b3]` of 128-bit lanes. `a` and `b` hold two sums each, so the lanes of the result
/// belong to `a.low`, `b.low`, `a.high`, `b.high`.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of_128(a: __m512, b: __m512) -> __m512 {
    let even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
    _mm512_add_ps(
        _mm512_castpd_ps(_mm512_permutex2var_pd(a, even, b)),
        _mm512_castpd_ps(_mm512_permutex2var_pd(a, odd, b)),
    )
}
