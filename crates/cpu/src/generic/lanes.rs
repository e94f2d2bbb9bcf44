//! Vector operations beyond arithmetic (whole and partial loads, pairs, sums of many vectors), and the exponential and
//! tanh built on them.

use super::floats::SimdF32;

/// The vector operations that ops and attention need beyond [`SimdF32`].
pub(crate) trait Lanes: SimdF32 {
    /// `[f32; LANES]`. Indexing a slice of chunks costs one bounds check per vector.
    type Chunk: Copy;
    /// `[u16; LANES]`.
    type HalfChunk: Copy;
    /// Eight f32 values.
    type Sums: Copy;

    /// Splits `x` into whole vectors and the rest.
    fn chunks(x: &[f32]) -> (&[Self::Chunk], &[f32]);
    fn chunks_mut(x: &mut [f32]) -> (&mut [Self::Chunk], &mut [f32]);
    /// Splits f16 bits into whole vectors and drops the rest.
    fn half_chunks(x: &[u16]) -> &[Self::HalfChunk];
    fn load_half_chunk(self, x: &Self::HalfChunk) -> Self::F32;
    fn load_chunk(self, x: &Self::Chunk) -> Self::F32;
    fn store_chunk(self, v: Self::F32, x: &mut Self::Chunk);
    /// Loads at most `LANES` values; the other lanes are `fill`.
    fn load_part(self, x: &[f32], fill: f32) -> Self::F32;
    /// Stores the first `x.len()` lanes, at most `LANES`.
    fn store_part(self, v: Self::F32, x: &mut [f32]);
    /// Prefetches the cache line at `address`, which may be any address.
    fn prefetch(self, address: *const u8);
    /// [`Lanes::prefetch`] for a line that is read once, and is kept out of the larger caches.
    fn prefetch_once(self, address: *const u8);

    /// Sums the lanes of each vector, all in the same order.
    fn sum_8(self, v: [Self::F32; 8]) -> Self::Sums;
    /// [`Lanes::sum_8`] as an array.
    #[inline(always)]
    fn sums_of_8(self, v: [Self::F32; 8]) -> [f32; 8] {
        let mut sums = [0.0; 8];
        self.store_sums(self.sum_8(v), &mut sums);
        sums
    }
    /// Returns the first halves of `a` and `b`, and the second halves.
    fn zip_halves(self, a: Self::Sums, b: Self::Sums) -> (Self::Sums, Self::Sums);
    fn store_sums(self, sums: Self::Sums, x: &mut [f32; 8]);
    /// `a * b - c` in even lanes and `a * b + c` in odd ones, rounded once.
    fn mul_sub_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// Exchanges lanes 2i and 2i + 1.
    fn swap_pairs(self, v: Self::F32) -> Self::F32;
    /// Copies lane 2i to lane 2i + 1.
    fn dup_even(self, v: Self::F32) -> Self::F32;
    /// Copies lane 2i + 1 to lane 2i.
    fn dup_odd(self, v: Self::F32) -> Self::F32;
    /// Returns the even and the odd elements of `a` followed by `b`.
    fn unzip(self, a: Self::F32, b: Self::F32) -> (Self::F32, Self::F32);
}

/// e^v within 1 ulp: 0 below -104, infinity above 89, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: SimdF32>(s: S, v: S::F32) -> S::F32 {
    // `v` is second because a comparison with NaN yields the second operand.
    let v = s.min(s.splat(89.0), s.max(s.splat(-104.0), v));
    let (n, q) = exp_parts(s, v);
    let p = s.add(q, s.splat(1.0));
    // 2^n in two factors, so that neither leaves the range of exponents.
    let half = s.round(s.mul(n, s.splat(0.5)));
    s.mul(
        s.mul(p, s.exp2_integral(half)),
        s.exp2_integral(s.sub(n, half)),
    )
}

/// Like [`exp`] for v <= 0, with results below 2^-126 flushed to 0; about a third cheaper.
#[inline(always)]
pub(crate) fn exp_nonpositive<S: SimdF32>(s: S, v: S::F32) -> S::F32 {
    // At -88, n is -127 and 2^-127 becomes 0.
    let (n, q) = exp_parts(s, s.max(s.splat(-88.0), v));
    s.mul(s.add(q, s.splat(1.0)), s.exp2_integral(n))
}

/// tanh v within 3 ulp, NaN for NaN.
///
/// `tanh(v) = m / (m + 2)` with `m = e^2v - 1`. Computing `m = (2^n - 1) + 2^n q` keeps the precision of small values.
#[inline(always)]
fn tanh<S: SimdF32>(s: S, v: S::F32) -> S::F32 {
    // Beyond 20 the result is 1. `v` is second as in [`exp`].
    let v = s.min(s.splat(20.0), s.max(s.splat(-20.0), v));
    let (n, q) = exp_parts(s, s.add(v, v));
    let power = s.exp2_integral(n);
    let m = s.mul_add(power, q, s.sub(power, s.splat(1.0)));
    s.div(m, s.add(m, s.splat(2.0)))
}

/// `cap * tanh(x / cap)`.
#[inline(always)]
pub(crate) fn capped<S: SimdF32>(s: S, cap: f32, x: S::F32) -> S::F32 {
    let cap = s.splat(cap);
    s.mul(tanh(s, s.div(x, cap)), cap)
}

/// Integral n and q in -0.3..0.5 with e^v = 2^n (1 + q).
///
/// Cody-Waite reduction by ln 2 in two parts, then a polynomial of degree 6 that is minimax in
/// relative error (3.1e-9) on |r| <= ln 2 / 2.
#[inline(always)]
fn exp_parts<S: SimdF32>(s: S, v: S::F32) -> (S::F32, S::F32) {
    let n = s.round(s.mul(v, s.splat(std::f32::consts::LOG2_E)));
    let r = s.mul_add(n, s.splat(-0.693_359_4), v);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.381_454e-3);
    for c in [8.368_745e-3, 4.166_839e-2, 0.166_665_21, 0.499_999_94] {
        p = s.mul_add(p, r, s.splat(c));
    }
    (n, s.mul_add(p, s.mul(r, r), r))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::arch::Kernel;
    use crate::generic::simd::Simd;

    struct Exps<'a> {
        x: &'a [f32],
        nonpositive: bool,
    }

    impl Kernel for Exps<'_> {
        type Output = Vec<f32>;

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = self.x.to_vec();
            for out in out.chunks_mut(S::LANES) {
                let x = s.load_part(out, 0.0);
                let y = if self.nonpositive {
                    exp_nonpositive(s, x)
                } else {
                    exp(s, x)
                };
                s.store_part(y, out);
            }
            out
        }
    }

    /// Computes the results with every vector instruction set of this processor.
    fn exps(x: &[f32], nonpositive: bool) -> Vec<Vec<f32>> {
        let vectors = Isa::available().into_iter().filter_map(Isa::vector);
        let all: Vec<_> = vectors
            .map(|isa| isa.run(Exps { x, nonpositive }))
            .collect();
        if all.is_empty() {
            println!("skipped: this processor has no supported vector instruction set");
        }
        all
    }

    /// Error in units in the last place of the result as an f32.
    fn ulps(got: f32, x: f32) -> f64 {
        let want = f64::from(x).exp();
        let ulp = (want.log2().floor() - 23.0).max(-149.0).exp2();
        (f64::from(got) - want).abs() / ulp
    }

    #[test]
    fn exp_is_within_one_ulp() {
        let x: Vec<f32> = (0..2_000_000)
            .map(|i| -104.0 + i as f32 * 9.63e-5)
            .collect();
        for y in exps(&x, false) {
            for (&x, got) in x.iter().zip(y) {
                assert!(ulps(got, x) <= 1.0, "e^{x} is {got}");
            }
        }
        let x: Vec<f32> = x
            .into_iter()
            .filter(|x| (-87.0..=0.0).contains(x))
            .collect();
        for y in exps(&x, true) {
            for (&x, got) in x.iter().zip(y) {
                assert!(ulps(got, x) <= 1.0, "e^{x} is {got}");
            }
        }
    }

    #[test]
    fn exp_at_range_limits() {
        let inf = f32::INFINITY;
        let x = [0.0, -0.0, -104.1, -1e30, -inf, 89.0, 1e30, inf, f32::NAN];
        for y in exps(&x, false) {
            assert_eq!(y[..8], [1.0, 1.0, 0.0, 0.0, 0.0, inf, inf, inf]);
            assert!(y[8].is_nan());
        }
        let x = [0.0, -0.0, -88.0, -100.0, -1e30, -inf, f32::NAN];
        for y in exps(&x, true) {
            assert_eq!(y[..6], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
            assert!(y[6].is_nan());
        }
    }
}
