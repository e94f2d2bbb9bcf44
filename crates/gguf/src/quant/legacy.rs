//! The formats of 32 values with f16 scales: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. The low nibble of byte j belongs to value j,
//! the high nibble to value j + 16; bit j of `qh` is the fifth bit of value j. After ggml `ggml-quants.c`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::plain::F16;
use super::{Block, GgmlType, QuantizeBlock, nibbles};

/// Values per block.
pub const QK: usize = 32;

/// x = d * (q - 8)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q4_0 {
    /// scale
    pub d: F16,
    /// 4-bit values
    pub qs: [u8; QK / 2],
}

/// x = d * q + m
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q4_1 {
    /// scale
    pub d: F16,
    /// minimum
    pub m: F16,
    /// 4-bit values
    pub qs: [u8; QK / 2],
}

/// x = d * (q - 16)
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q5_0 {
    /// scale
    pub d: F16,
    /// fifth bits
    pub qh: [u8; QK / 8],
    /// lower four bits
    pub qs: [u8; QK / 2],
}

/// x = d * q + m
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q5_1 {
    /// scale
    pub d: F16,
    /// minimum
    pub m: F16,
    /// fifth bits
    pub qh: [u8; QK / 8],
    /// lower four bits
    pub qs: [u8; QK / 2],
}

/// x = d * q
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q8_0 {
    /// scale
    pub d: F16,
    /// values
    pub qs: [i8; QK],
}

/// Unpacks the 5-bit values of a block.
fn five_bits(qs: &[u8; QK / 2], qh: [u8; QK / 8]) -> [u8; QK] {
    let high = u32::from_le_bytes(qh);
    let mut q = nibbles(qs);
    for (j, q) in q.iter_mut().enumerate() {
        *q |= ((high >> j & 1) as u8) << 4;
    }
    q
}

impl Block for Q4_0 {
    const TYPE: GgmlType = GgmlType::Q4_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (x, q) in out.iter_mut().zip(nibbles::<_, QK>(&self.qs)) {
            *x = d * (f32::from(q) - 8.0);
        }
    }
}

impl Block for Q4_1 {
    const TYPE: GgmlType = GgmlType::Q4_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (x, q) in out.iter_mut().zip(nibbles::<_, QK>(&self.qs)) {
            *x = d * f32::from(q) + m;
        }
    }
}

impl Block for Q5_0 {
    const TYPE: GgmlType = GgmlType::Q5_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (x, q) in out.iter_mut().zip(five_bits(&self.qs, self.qh)) {
            *x = d * (f32::from(q) - 16.0);
        }
    }
}

impl Block for Q5_1 {
    const TYPE: GgmlType = GgmlType::Q5_1;

    fn dequantize(&self, out: &mut [f32]) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (x, q) in out.iter_mut().zip(five_bits(&self.qs, self.qh)) {
            *x = d * f32::from(q) + m;
        }
    }
}

impl Block for Q8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (x, q) in out.iter_mut().zip(self.qs) {
            *x = d * f32::from(q);
        }
    }
}

impl QuantizeBlock for Q8_0 {
    fn quantize(values: &[f32]) -> Self {
        let amax = values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let d = amax / 127.0;
        // As in ggml, values are divided by the scale before it is rounded to f16.
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut qs = [0; QK];
        for (q, x) in qs.iter_mut().zip(values) {
            *q = (x * id).round() as i8;
        }
        Q8_0 {
            d: F16::from_f32(d),
            qs,
        }
    }
}

impl QuantizeBlock for Q4_0 {
    fn quantize(values: &[f32]) -> Self {
        // The value of largest magnitude, the first of equals, becomes -8, the code without a positive counterpart.
        let mut extreme = 0.0f32;
        for &x in values {
            if x.abs() > extreme.abs() {
                extreme = x;
            }
        }
        let d = extreme / -8.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        let code = |x: f32| ((x * id + 8.5) as u8).min(15);
        let mut qs = [0; QK / 2];
        for (j, q) in qs.iter_mut().enumerate() {
            *q = code(values[j]) | code(values[j + QK / 2]) << 4;
        }
        Q4_0 {
            d: F16::from_f32(d),
            qs,
        }
    }
}

impl QuantizeBlock for Q5_1 {
    fn quantize(values: &[f32]) -> Self {
        // As ggml, of equal zeros the first.
        let lesser = |min, &x| if x < min { x } else { min };
        let greater = |max, &x| if x > max { x } else { max };
        let min = values.iter().fold(f32::INFINITY, lesser);
        let max = values.iter().fold(f32::NEG_INFINITY, greater);
        let d = (max - min) / 31.0;
        let id = if d == 0.0 { 0.0 } else { 1.0 / d };
        let code = |x: f32| (((x - min) * id + 0.5) as u8).min(31);
        let codes: [u8; QK] = std::array::from_fn(|j| code(values[j]));
        let high = (0..QK).fold(0u32, |high, j| high | u32::from(codes[j] >> 4) << j);
        Q5_1 {
            d: F16::from_f32(d),
            m: F16::from_f32(min),
            qh: high.to_le_bytes(),
            qs: std::array::from_fn(|j| codes[j] & 15 | codes[j + QK / 2] << 4),
        }
    }
}
