//! Q2_0: codes of two bits, and a scale for 64 values. After ggml `ggml-quants.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::plain::F16;
use super::{Block, GgmlType, QuantizeBlock};

/// Values of a block.
const LEN: usize = GgmlType::Q2_0.block_len();

/// x = d * (q - 1)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q2_0 {
    /// scale
    pub d: F16,
    /// codes; that of value j is bits 2 * (j % 4) of byte j / 4
    pub qs: [u8; LEN / 4],
}

impl Block for Q2_0 {
    const TYPE: GgmlType = GgmlType::Q2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (j, x) in out.iter_mut().enumerate() {
            let q = self.qs[j / 4] >> (2 * (j % 4)) & 3;
            *x = d * f32::from(q as i8 - 1);
        }
    }
}

impl QuantizeBlock for Q2_0 {
    /// The scale is the largest magnitude, as in ggml, so that no code is 3.
    fn quantize(values: &[f32]) -> Self {
        let d = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
        Q2_0::of(F16::from_f32(d), |j| {
            ((values[j] * inverse).round().clamp(-1.0, 1.0) as i8 + 1) as u8
        })
    }
}

impl Q2_0 {
    /// The block with codes up to 3.
    pub(super) fn of(d: F16, code: impl Fn(usize) -> u8) -> Self {
        let byte = |i: usize| (0..4).fold(0, |byte, k| byte | code(4 * i + k) << (2 * k));
        Q2_0 {
            d,
            qs: std::array::from_fn(byte),
        }
    }
}
