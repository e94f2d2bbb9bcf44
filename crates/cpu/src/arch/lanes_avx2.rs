//! [`Lanes`] for AVX2 with FMA and F16C: eight f32 per vector.

use std::arch::x86_64::*;

use crate::generic::lanes::{Kernel, Lanes};
use crate::isa::Avx2;

/// Methods that take and return vectors, each a few register-to-register intrinsics.
macro_rules! vector_ops {
    ($($name:ident($($arg:ident),*) $body:block)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: __m256),*) -> __m256 {
            // SAFETY: an `Avx2` exists only where detection found AVX2, FMA and F16C, and these
            // intrinsics touch no memory.
            unsafe { $body }
        }
    )*};
}

impl Lanes for Avx2 {
    const N: usize = 8;
    type Vector = __m256;
    type Chunk = [f32; 8];

    #[inline]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn entry<K: Kernel>(s: Avx2, kernel: K) -> K::Out {
            kernel.run(s)
        }
        // SAFETY: an `Avx2` exists only where detection found AVX2, FMA and F16C.
        unsafe { entry(self, kernel) }
    }

    vector_ops! {
        add(a, b) { _mm256_add_ps(a, b) }
        sub(a, b) { _mm256_sub_ps(a, b) }
        mul(a, b) { _mm256_mul_ps(a, b) }
        div(a, b) { _mm256_div_ps(a, b) }
        mul_add(a, b, c) { _mm256_fmadd_ps(a, b, c) }
        neg_mul_add(a, b, c) { _mm256_fnmadd_ps(a, b, c) }
        mul_sub_add(a, b, c) { _mm256_fmaddsub_ps(a, b, c) }
        max(a, b) { _mm256_max_ps(a, b) }
        min(a, b) { _mm256_min_ps(a, b) }
        round(v) { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
        swap_pairs(v) { _mm256_permute_ps::<0b10_11_00_01>(v) }
        dup_even(v) { _mm256_moveldup_ps(v) }
        dup_odd(v) { _mm256_movehdup_ps(v) }
        scale_by_pow2(v, n) {
            // In two factors, so that neither leaves the range of exponents.
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
            let high = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias));
            _mm256_mul_ps(_mm256_mul_ps(v, _mm256_castsi256_ps(low)), _mm256_castsi256_ps(high))
        }
    }

    #[inline(always)]
    fn chunks(x: &[f32]) -> (&[[f32; 8]], &[f32]) {
        x.as_chunks()
    }

    #[inline(always)]
    fn chunks_mut(x: &mut [f32]) -> (&mut [[f32; 8]], &mut [f32]) {
        x.as_chunks_mut()
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; 8]) -> __m256 {
        // SAFETY: `self` proves AVX, and eight f32 are readable at `x`.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m256, out: &mut [f32; 8]) {
        // SAFETY: `self` proves AVX, and eight f32 are writable at `out`.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_part(self, x: &[f32], fill: f32) -> __m256 {
        let mut chunk = [fill; 8];
        chunk[..x.len()].copy_from_slice(x);
        self.load(&chunk)
    }

    #[inline(always)]
    fn store_part(self, v: __m256, out: &mut [f32]) {
        let mut chunk = [0.0; 8];
        self.store(v, &mut chunk);
        out.copy_from_slice(&chunk[..out.len()]);
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16]) -> __m256 {
        let x = &x[..8];
        // SAFETY: `self` proves F16C, and eight u16 are readable at `x`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m256, out: &mut [u16]) {
        let out = &mut out[..8];
        // SAFETY: `self` proves F16C, and eight u16 are writable at `out`.
        unsafe {
            let bits = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(out.as_mut_ptr().cast(), bits);
        }
    }

    #[inline(always)]
    fn prefetch<T>(self, x: &[T], i: usize) {
        if let Some(x) = x.get(i) {
            // SAFETY: every x86-64 CPU has SSE; a prefetch has no architectural effect.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(x).cast()) }
        }
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        // SAFETY: `self` proves AVX; register-to-register.
        unsafe {
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn max_lane(self, v: __m256) -> f32 {
        // SAFETY: `self` proves AVX; register-to-register.
        unsafe {
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn sums_of_8(self, v: [__m256; 8], out: &mut [f32; 8]) {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = v;
        // Three levels of halves, the two inputs of a level side by side in one vector. A blend
        // runs on more ports than a shuffle, so each level uses one of each where it can.
        // SAFETY: `self` proves AVX; register-to-register.
        let sums = unsafe {
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
        };
        self.store(sums, out);
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
    _mm256_add_ps(_mm256_blend_ps::<0xf0>(a, b), _mm256_permute2f128_ps::<0x21>(a, b))
}

/// In each 128-bit half: `[a0 + a2, a1 + a3, b2 + b0, b3 + b1]`.
#[inline]
#[target_feature(enable = "avx")]
fn halves_of_128(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(_mm256_blend_ps::<0b1100_1100>(a, b), _mm256_shuffle_ps::<0b01_00_11_10>(a, b))
}
