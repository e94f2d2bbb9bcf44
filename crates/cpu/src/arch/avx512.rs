//! AVX-512 with VNNI: 16 lanes of f32.

use std::arch::x86_64::*;

use super::{Avx2, Kernel};
use crate::generic::floats::SimdF32;
use crate::generic::simd::Simd;

/// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI, and everything that [`super::Avx2`] proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Avx512(());

impl Avx512 {
    /// `None` also where `.ci/run` leaves the kernels out, since no test could run them.
    pub(crate) fn detect() -> Option<Avx512> {
        (!cfg!(rocmforge_without_avx512)
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx512(()))
    }

    /// Runs `kernel` compiled for AVX-512.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        fn entry<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        if cfg!(rocmforge_without_avx512) {
            unreachable!("`detect` finds no processor that has it");
        }
        // SAFETY: `self` was made by `detect`, which found these features.
        unsafe { entry(self, kernel) }
    }
}

impl SimdF32 for Avx512 {
    const LANES: usize = 16;

    type F32 = __m512;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        values!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32]) -> __m512 {
        let x = &x[..16];
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m512, x: &mut [f32]) {
        let x = &mut x[..16];
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values.
        unsafe { _mm512_storeu_ps(x.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16]) -> __m512 {
        let x = &x[..16];
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values, 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn splat_f16(self, bits: u16) -> __m512 {
        values!(_mm512_cvtph_ps(_mm256_set1_epi16(bits.cast_signed())))
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8]) -> __m512 {
        let x = &x[..16];
        // SAFETY: AVX-512 is witnessed, and `x` has 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m512, x: &mut [u16]) {
        let x = &mut x[..16];
        // SAFETY: AVX-512 is witnessed, and `x` has 16 values, 32 bytes.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm256_storeu_si256(x.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        values!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        values!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        values!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        values!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        values!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        values!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        values!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn round(self, v: __m512) -> __m512 {
        values!({
            // 8 is _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC.
            _mm512_roundscale_ps::<8>(v)
        })
    }

    #[inline(always)]
    fn exp2_integral(self, v: __m512) -> __m512 {
        values!({
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        })
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        values!({
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            let v = _mm_add_ss(v, _mm_movehdup_ps(v));
            _mm_cvtss_f32(v)
        })
    }

    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        values!({
            let v = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            let v = _mm_max_ss(v, _mm_movehdup_ps(v));
            _mm_cvtss_f32(v)
        })
    }
}

/// Register tiles for 32 registers.
impl Simd for Avx512 {
    type Stream = Avx2;

    const STREAM_TOKENS: usize = 4;
    const PANELS: usize = 2;
    const ROW_BY_ROW: bool = true;
    const FLOAT_TOKENS: usize = 6;

    #[inline(always)]
    fn stream(self) -> Avx2 {
        self.into()
    }
}
