//! Arithmetic on vectors of f32.

/// Arithmetic on vectors of [`SimdF32::LANES`] f32 values. Implemented by witnesses only.
pub(crate) trait SimdF32: Copy + Send + Sync + 'static {
    /// Values per vector.
    const LANES: usize;

    /// A vector of f32.
    type F32: Copy;

    fn splat(self, x: f32) -> Self::F32;
    /// Loads the first `LANES` values of `x`; panics if there are fewer.
    fn load(self, x: &[f32]) -> Self::F32;
    /// Writes the first `LANES` values of `x`; panics if there are fewer.
    fn store(self, v: Self::F32, x: &mut [f32]);
    /// Loads the first `LANES` IEEE halves of `x`, widened; panics if there are fewer.
    fn load_f16(self, x: &[u16]) -> Self::F32;
    /// Widens the IEEE half with these bits into every lane.
    fn splat_f16(self, bits: u16) -> Self::F32;
    /// Loads the first `LANES` values of `x`, converted to f32; panics if there are fewer.
    fn load_i8(self, x: &[i8]) -> Self::F32;
    /// Writes `LANES` values rounded to the nearest IEEE half, ties to even; panics if `x` is shorter.
    fn store_f16(self, v: Self::F32, x: &mut [u16]);

    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger value; `b` if either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The smaller value; `b` if either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a * b + c, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, v: Self::F32) -> Self::F32;
    /// 2^v for integral v in -126..=127; 0 for v = -127.
    fn exp2_integral(self, v: Self::F32) -> Self::F32;
    /// Sums all lanes, always in the same order.
    fn sum(self, v: Self::F32) -> f32;
    /// The largest lane.
    fn max_lane(self, v: Self::F32) -> f32;
}
