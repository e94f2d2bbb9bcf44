//! Vector operations beyond arithmetic: whole and partial loads, pairs, sums of many vectors; and
//! the exponential that softmax and SiLU share.

use super::simd::SimdF32;

/// What ops and attention need of vectors beside [`SimdF32`].
pub(crate) trait Lanes: SimdF32 {
    /// `[f32; LANES]`: indexing a slice of chunks costs one check for a whole vector.
    type Chunk: Copy;

    /// `x` as whole vectors and what is left over.
    fn chunks(x: &[f32]) -> (&[Self::Chunk], &[f32]);
    fn chunks_mut(x: &mut [f32]) -> (&mut [Self::Chunk], &mut [f32]);
    fn load_chunk(self, x: &Self::Chunk) -> Self::F32;
    fn store_chunk(self, v: Self::F32, x: &mut Self::Chunk);
    /// At most `LANES` values; the other lanes are `fill`.
    fn load_part(self, x: &[f32], fill: f32) -> Self::F32;
    /// The first `x.len()` lanes, at most `LANES`.
    fn store_part(self, v: Self::F32, x: &mut [f32]);
    /// Asks for the cache line of `x[i]`; nothing if there is no such element.
    fn prefetch<T>(self, x: &[T], i: usize);

    /// The sums of the lanes of each vector, all added in the same order.
    fn sums_of_8(self, v: [Self::F32; 8]) -> [f32; 8];
    /// `a * b - c` in even lanes and `a * b + c` in odd ones, rounded once.
    fn mul_sub_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// Exchanges lanes 2i and 2i + 1.
    fn swap_pairs(self, v: Self::F32) -> Self::F32;
    /// Copies lane 2i to lane 2i + 1.
    fn dup_even(self, v: Self::F32) -> Self::F32;
    /// Copies lane 2i + 1 to lane 2i.
    fn dup_odd(self, v: Self::F32) -> Self::F32;
    /// The even and the odd elements of `a` followed by `b`.
    fn unzip(self, a: Self::F32, b: Self::F32) -> (Self::F32, Self::F32);
}

/// e^v within 1 ulp: 0 below -104, infinity above 89, NaN for NaN.
///
/// Cody-Waite reduction by ln 2 in two parts, then a polynomial of degree 6 that is minimax in
/// relative error (3.1e-9) on |r| <= ln 2 / 2.
#[inline(always)]
pub(crate) fn exp<S: SimdF32>(s: S, v: S::F32) -> S::F32 {
    // `v` stands second because a comparison with NaN yields the second operand.
    let v = s.min(s.splat(89.0), s.max(s.splat(-104.0), v));
    let n = s.round(s.mul(v, s.splat(std::f32::consts::LOG2_E)));
    let r = s.mul_add(n, s.splat(-0.693_359_4), v);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.381_454e-3);
    for c in [8.368_745e-3, 4.166_839e-2, 0.166_665_21, 0.499_999_94] {
        p = s.mul_add(p, r, s.splat(c));
    }
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    // 2^n in two factors, so that neither leaves the range of exponents.
    let half = s.round(s.mul(n, s.splat(0.5)));
    s.mul(
        s.mul(p, s.exp2_integral(half)),
        s.exp2_integral(s.sub(n, half)),
    )
}
