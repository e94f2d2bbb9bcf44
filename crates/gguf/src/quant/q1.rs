//! Q1_0: signs, and a scale for 128 values. After ggml `ggml-quants.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::plain::F16;
use super::{Block, GgmlType, QuantizeBlock, quantize_blocks};

/// Values of a block.
const LEN: usize = GgmlType::Q1_0.block_len();

/// x = d where the bit is set, else -d
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q1_0 {
    /// scale
    pub d: F16,
    /// signs; that of value j is bit j % 8 of byte j / 8
    pub qs: [u8; LEN / 8],
}

impl Block for Q1_0 {
    const TYPE: GgmlType = GgmlType::Q1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (j, x) in out.iter_mut().enumerate() {
            *x = if self.qs[j / 8] >> (j % 8) & 1 == 1 {
                d
            } else {
                -d
            };
        }
    }
}

impl QuantizeBlock for Q1_0 {
    /// The scale is the mean magnitude, which has the least squared error.
    fn quantize(values: &[f32]) -> Self {
        let sum = values.iter().fold(0.0, |sum, x| sum + x.abs());
        Q1_0::of(values, sum / LEN as f32)
    }
}

impl Q1_0 {
    /// The block with the signs of `values` and scale `d`.
    fn of(values: &[f32], d: f32) -> Q1_0 {
        let bit = |j: usize| u8::from(values[j] >= 0.0) << (j % 8);
        Q1_0 {
            d: F16::from_f32(d),
            qs: std::array::from_fn(|i| (8 * i..8 * i + 8).fold(0, |byte, j| byte | bit(j))),
        }
    }
}

/// Quantizes rows with the least squared error, weighted by importance. The other formats also give more weight to
/// large values; with two numbers to choose from, that only makes all errors larger.
pub(super) fn fit_rows(src: &[f32], row_len: usize, importance: Option<&[f32]>, dst: &mut [u8]) {
    let Some(importance) = importance else {
        return quantize_blocks::<Q1_0>(src, dst);
    };
    let weights = importance.chunks_exact(LEN).cycle();
    let blocks = src.chunks_exact(LEN).zip(weights);
    assert_eq!(importance.len(), row_len, "a weight for each column");
    for ((values, weights), out) in blocks.zip(dst.chunks_exact_mut(size_of::<Q1_0>())) {
        let block = match weighted_mean(values, weights) {
            Some(d) => Q1_0::of(values, d),
            None => Q1_0::quantize(values),
        };
        out.copy_from_slice(block.as_bytes());
    }
}

/// The weighted mean of the magnitudes; `None` if all weights are zero. The sums are f64, in which no weight overflows
/// or vanishes.
fn weighted_mean(values: &[f32], weights: &[f32]) -> Option<f32> {
    let (mut sum, mut total) = (0.0, 0.0);
    for (x, w) in values.iter().zip(weights) {
        sum += f64::from(*w) * f64::from(x.abs());
        total += f64::from(*w);
    }
    (total > 0.0).then(|| (sum / total) as f32)
}
