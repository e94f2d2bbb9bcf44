//! [`Lanes`] for AVX2.

use std::arch::x86_64::*;

use super::Avx2;
use crate::generic::floats::SimdF32;
use crate::generic::lanes::Lanes;

impl Lanes for Avx2 {
    type Chunk = [f32; 8];
    type HalfChunk = [u16; 8];
    type Sums = __m256;

    #[inline(always)]
    fn chunks(x: &[f32]) -> (&[[f32; 8]], &[f32]) {
        x.as_chunks()
    }

    #[inline(always)]
    fn chunks_mut(x: &mut [f32]) -> (&mut [[f32; 8]], &mut [f32]) {
        x.as_chunks_mut()
    }

    #[inline(always)]
    fn half_chunks(x: &[u16]) -> &[[u16; 8]] {
        x.as_chunks().0
    }

    #[inline(always)]
    fn load_half_chunk(self, x: &[u16; 8]) -> __m256 {
        self.load_f16(x)
    }

    #[inline(always)]
    fn load_chunk(self, x: &[f32; 8]) -> __m256 {
        // SAFETY: `self` proves AVX, and eight f32 are readable at `x`.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store_chunk(self, v: __m256, x: &mut [f32; 8]) {
        // SAFETY: `self` proves AVX, and eight f32 are writable at `x`.
        unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> __m256 {
        let mut chunk = [fill; 8];
        chunk[..x.len()].copy_from_slice(x);
        self.load(&chunk)
    }

    #[inline(always)]
    fn store_part(self, v: __m256, x: &mut [f32]) {
        let mut chunk = [0.0; 8];
        self.store(v, &mut chunk);
        x.copy_from_slice(&chunk[..x.len()]);
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
    fn sum_8(self, v: [__m256; 8]) -> __m256 {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
        // Three levels of adding halves, with the two inputs of a level side by side in one vector. A blend runs on
        // more ports than a shuffle, so each level uses one of each if possible.
        // SAFETY: `self` proves AVX; register-to-register.
        unsafe {
            let s04 = halves_of_256(v0, v4);
            let s15 = halves_of_256(v1, v5);
            let s26 = halves_of_256(v2, v6);
            let s37 = halves_of_256(v3, v7);
            let s0145 = halves_of_128(s04, s15);
            let s2367 = halves_of_128(s26, s37);
            _mm256_add_ps(
                _mm256_shuffle_ps::<0b10_00_10_00>(s0145, s2367),
                _mm256_shuffle_ps::<0b11_01_11_01>(s0145, s2367),
            )
        }
    }

    #[inline(always)]
    fn zip_halves(self, a: __m256, b: __m256) -> (__m256, __m256) {
        // SAFETY: `self` proves AVX; register-to-register.
        unsafe {
            (
                _mm256_permute2f128_ps::<0x20>(a, b),
                _mm256_permute2f128_ps::<0x31>(a, b),
            )
        }
    }

    #[inline(always)]
    fn store_sums(self, sums: __m256, x: &mut [f32; 8]) {
        self.store_chunk(sums, x);
    }

    #[inline(always)]
    fn mul_sub_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` proves FMA; register-to-register.
        unsafe { _mm256_fmaddsub_ps(a, b, c) }
    }

    #[inline(always)]
    fn swap_pairs(self, v: __m256) -> __m256 {
        // SAFETY: `self` proves AVX; register-to-register.
        unsafe { _mm256_permute_ps::<0b10_11_00_01>(v) }
    }

    #[inline(always)]
    fn dup_even(self, v: __m256) -> __m256 {
        // SAFETY: `self` proves AVX; register-to-register.
        unsafe { _mm256_moveldup_ps(v) }
    }

    #[inline(always)]
    fn dup_odd(self, v: __m256) -> __m256 {
        // SAFETY: `self` proves AVX; register-to-register.
        unsafe { _mm256_movehdup_ps(v) }
    }

    #[inline(always)]
    fn unzip(self, a: __m256, b: __m256) -> (__m256, __m256) {
        // SAFETY: `self` proves AVX2; register-to-register.
        unsafe {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            (
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(even)),
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(odd)),
            )
        }
    }
}

/// `[a.low + a.high, b.high + b.low]`.
#[inline]
#[target_feature(enable = "avx")]
fn halves_of_256(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(
        _mm256_blend_ps::<0xf0>(a, b),
        _mm256_permute2f128_ps::<0x21>(a, b),
    )
}

/// In each 128-bit half: `[a0 + a2, a1 + a3, b2 + b0, b3 + b1]`.
#[inline]
#[target_feature(enable = "avx")]
fn halves_of_128(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(
        _mm256_blend_ps::<0b1100_1100>(a, b),
        _mm256_shuffle_ps::<0b01_00_11_10>(a, b),
    )
}
