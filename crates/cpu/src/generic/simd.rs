//! The vector operations that algorithms are written in, safe to call on a witness.
//!
//! [`SimdF32`] is arithmetic on vectors of f32. [`SimdBytes`] is the integer side.

use super::bytes::{Quantize, SimdBytes};
use super::lanes::Lanes;

/// Vectors of [`SimdF32::LANES`] f32 values. Implemented by witnesses only.
pub(crate) trait SimdF32: Copy + Send + Sync + 'static {
    /// Values of a vector.
    const LANES: usize;

    /// A vector of f32.
    type F32: Copy;

    fn splat(self, x: f32) -> Self::F32;
    /// The first `LANES` values of `x`; panics if there are fewer.
    fn load(self, x: &[f32]) -> Self::F32;
    /// Writes the first `LANES` values of `x`; panics if there are fewer.
    fn store(self, v: Self::F32, x: &mut [f32]);
    /// The first `LANES` IEEE half values of `x`, widened; panics if there are fewer.
    fn load_f16(self, x: &[u16]) -> Self::F32;
    /// The IEEE half of these bits, widened, in every lane.
    fn splat_f16(self, bits: u16) -> Self::F32;
    /// The first `LANES` values of `x`, converted; panics if there are fewer.
    fn load_i8(self, x: &[i8]) -> Self::F32;
    /// Writes `LANES` values rounded to nearest even IEEE half; panics if there is less room.
    fn store_f16(self, v: Self::F32, x: &mut [u16]);

    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The larger; `b` where either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The smaller; `b` where either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a * b + c, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// To the nearest integer, ties to even.
    fn round(self, v: Self::F32) -> Self::F32;
    /// 2^v for integral v in -126..=127; 0 for v = -127.
    fn exp2_integral(self, v: Self::F32) -> Self::F32;
    /// The sum of all lanes, always in the same order.
    fn sum(self, v: Self::F32) -> f32;
    /// The largest lane.
    fn max_lane(self, v: Self::F32) -> f32;
}

/// Everything an algorithm may use, and the sizes of register tiles.
pub(crate) trait Simd: SimdF32 + Lanes + SimdBytes + Quantize {
    /// Vectors that rows of few tokens are streamed with: no longer than what a row's block fills.
    type Stream: Simd;

    /// Tokens up to which quantized weights are streamed: for more, unpacking them first pays.
    const STREAM_TOKENS: usize;
    /// Groups of rows whose unpacked codes are multiplied with a group of tokens at once: 1 or 2.
    const PANELS: usize;
    /// Tokens of a register tile in f32, at most 6.
    const FLOAT_TOKENS: usize;

    fn stream(self) -> Self::Stream;
}
