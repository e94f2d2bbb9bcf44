//! TQ1_0 and TQ2_0: values -1, 0 and 1, and a scale for 256. After ggml `ggml-quants.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::k::QK_K;
use super::plain::F16;
use super::{Block, GgmlType, QuantizeBlock};

/// x = d * (digit - 1); a byte has five digits in base 3 (in `qh` four), as a fraction of 256: the first digit is the
/// integer part of three times the fraction.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Tq1_0 {
    /// 160 values: digit n of byte m is value 32 * n + m; then 80 values, of which digit n of byte m is 16 * n + m
    pub qs: [u8; 48],
    /// 16 values: digit n of byte m is value 4 * n + m
    pub qh: [u8; 4],
    /// scale
    pub d: F16,
}

/// x = d * (q - 1)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Tq2_0 {
    /// 2-bit codes; bits 2 * n of byte 32 * h + m are value 128 * h + 32 * n + m
    pub qs: [u8; QK_K / 4],
    /// scale
    pub d: F16,
}

/// The part of a [`Tq1_0`] that holds value `i`: the index of its byte among `qs` and `qh`, and its digit.
fn place(i: usize) -> (usize, u32) {
    let (byte, digit) = match i {
        0..160 => (i % 32, i / 32),
        160..240 => (32 + i % 16, (i - 160) / 16),
        _ => (48 + i % 4, (i - 240) / 4),
    };
    (byte, digit as u32)
}

impl Block for Tq1_0 {
    const TYPE: GgmlType = GgmlType::TQ1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (i, x) in out.iter_mut().enumerate() {
            let (byte, digit) = place(i);
            let fraction = self.as_bytes()[byte].wrapping_mul(3u8.pow(digit));
            let digit = ((u16::from(fraction) * 3) >> 8) as i8;
            *x = d * f32::from(digit - 1);
        }
    }
}

impl Block for Tq2_0 {
    const TYPE: GgmlType = GgmlType::TQ2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (i, x) in out.iter_mut().enumerate() {
            let q = self.qs[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
            *x = d * f32::from(q as i8 - 1);
        }
    }
}

/// The scale that ggml's reference quantizers choose, and the codes 0, 1 and 2: exact for values that have one
/// magnitude.
fn rounded(values: &[f32]) -> (F16, impl Fn(usize) -> u8) {
    let d = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    let code = move |i: usize| ((values[i] * inverse).round().clamp(-1.0, 1.0) as i8 + 1) as u8;
    (F16::from_f32(d), code)
}

impl Tq1_0 {
    /// The block with codes 0, 1 and 2.
    pub(super) fn of(d: F16, code: impl Fn(usize) -> u8) -> Self {
        // Four digits of a byte are the first ones, so that the fifth is zero.
        let mut digits = [0u16; 52];
        for i in 0..QK_K {
            let (byte, digit) = place(i);
            digits[byte] += u16::from(code(i)) * 3u16.pow(4 - digit);
        }
        // Rounded up, so that no digit is lost.
        let fraction = |byte: usize| (digits[byte] * 256).div_ceil(243) as u8;
        Tq1_0 {
            qs: std::array::from_fn(fraction),
            qh: std::array::from_fn(|i| fraction(48 + i)),
            d,
        }
    }
}

impl QuantizeBlock for Tq1_0 {
    fn quantize(values: &[f32]) -> Self {
        let (d, code) = rounded(values);
        Tq1_0::of(d, code)
    }
}

impl Tq2_0 {
    /// The block with codes 0, 1 and 2.
    pub(super) fn of(d: F16, code: impl Fn(usize) -> u8) -> Self {
        let mut qs = [0; QK_K / 4];
        for i in 0..QK_K {
            qs[i / 128 * 32 + i % 32] |= code(i) << (2 * (i / 32 % 4));
        }
        Tq2_0 { qs, d }
    }
}

impl QuantizeBlock for Tq2_0 {
    fn quantize(values: &[f32]) -> Self {
        let (d, code) = rounded(values);
        Tq2_0::of(d, code)
    }
}
