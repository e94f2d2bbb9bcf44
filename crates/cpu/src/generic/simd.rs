//! The operations available to vector algorithms, safe to call on a witness.
//!
//! [`SimdF32`] is arithmetic on vectors of f32, [`Lanes`] moves and reduces lanes, [`SimdBytes`] is the integer side.

use super::bytes::{Quantize, SimdBytes};
use super::floats::SimdF32;
use super::lanes::Lanes;

/// All operations an algorithm may use, and the sizes of register tiles.
pub(crate) trait Simd: SimdF32 + Lanes + SimdBytes + Quantize {
    /// Vectors for streaming rows with few tokens: no longer than what a row's block fills.
    type Stream: Simd;

    /// Up to this many tokens, quantized weights are streamed; with more, unpacking them first pays.
    const STREAM_TOKENS: usize;
    /// Groups of rows whose unpacked codes are multiplied with a group of tokens at a time: 1 or 2.
    const PANELS: usize;
    /// Whether one token is multiplied with one row in a float format at a time, because the additions of one row keep up
    /// with memory.
    const ROW_BY_ROW: bool;
    /// Tokens per f32 register tile, at most 6.
    const FLOAT_TOKENS: usize;

    fn stream(self) -> Self::Stream;
}
