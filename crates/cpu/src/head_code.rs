//! Heads of a KV cache as bytes, for the types that have scales.

use half::f16;
use rocmforge_gguf::quant::legacy::{Q4_0, Q5_1, QK};
use rocmforge_gguf::quant::plain::F16;
use rocmforge_gguf::quant::{Block, QuantizeBlock, blocks, blocks_mut, f8};

use crate::acts::{Scalar, quantize_q8_0};

/// Encoding of a head as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadCode {
    /// Rows of [`rocmforge_gguf::quant::f8`]: a 2-byte scale and one 8-bit code per value.
    F8E4M3,
    /// A `Q8_0` block with as many values as the head, which has less than 32.
    Q8_0,
    /// `Q5_1` blocks. The last one of a head that is no multiple of 32 has codes of 0 at its end.
    Q5_1,
    /// `Q4_0` blocks, likewise.
    Q4_0,
}

impl HeadCode {
    /// Bytes per head of `dim` values.
    pub const fn head_bytes(self, dim: usize) -> usize {
        match self {
            HeadCode::F8E4M3 | HeadCode::Q8_0 => f8::SCALE_BYTES + dim,
            HeadCode::Q5_1 => dim.div_ceil(QK) * size_of::<Q5_1>(),
            HeadCode::Q4_0 => dim.div_ceil(QK) * size_of::<Q4_0>(),
        }
    }

    /// Writes a head. Where a value is not finite, scales are NaN.
    pub fn store(self, row: &[f32], to: &mut [u8]) {
        match self {
            HeadCode::F8E4M3 => f8::store(row, to),
            HeadCode::Q8_0 => store_short_q8_0(row, to),
            HeadCode::Q5_1 => store_blocks::<Q5_1>(row, to),
            HeadCode::Q4_0 => store_blocks::<Q4_0>(row, to),
        }
    }

    /// Decodes a head to as many values as `out` has.
    pub fn load(self, head: &[u8], out: &mut [f32]) {
        match self {
            HeadCode::F8E4M3 => {
                let (scale, codes) = f8::load(head);
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = f8::number(code) * scale;
                }
            }
            HeadCode::Q8_0 => {
                let (scale, codes) = head
                    .split_first_chunk()
                    .expect("a head starts with its scale");
                let scale = F16(*scale).to_f32();
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = f32::from(code as i8) * scale;
                }
            }
            HeadCode::Q5_1 => load_blocks::<Q5_1>(head, out),
            HeadCode::Q4_0 => load_blocks::<Q4_0>(head, out),
        }
    }
}

/// Writes a head of less than 32 values as a shortened Q8_0 block.
fn store_short_q8_0(row: &[f32], to: &mut [u8]) {
    let mut x = [0.0; QK];
    x[..row.len()].copy_from_slice(row);
    let block = quantize_q8_0(Scalar, &x);
    let (scale, codes) = to
        .split_first_chunk_mut()
        .expect("a head starts with its scale");
    *scale = block.d.0;
    for (to, code) in codes.iter_mut().zip(block.qs) {
        *to = code as u8;
    }
}

/// Writes a head as blocks that begin with their scale. Magnitudes whose difference may overflow count as infinite.
fn store_blocks<B: SmallCodes>(row: &[f32], to: &mut [u8]) {
    for (x, block) in row.chunks(QK).zip(blocks_mut::<B>(to)) {
        if !x.iter().all(|x| x.abs() <= f32::MAX / 2.0) {
            *block = B::not_a_number();
            continue;
        }
        // A repeated value changes neither the scale nor the minimum. No value is -0, which may be the minimum.
        let mut padded = [x[0] + 0.0; QK];
        for (padded, x) in padded.iter_mut().zip(x) {
            *padded = x + 0.0;
        }
        *block = B::quantize(&padded);
        if x.len() < QK {
            block.clear_from(x.len());
        }
    }
}

fn load_blocks<B: Block>(head: &[u8], out: &mut [f32]) {
    for (block, out) in blocks::<B>(head).iter().zip(out.chunks_mut(QK)) {
        let mut x = [0.0; QK];
        block.dequantize(&mut x);
        out.copy_from_slice(&x[..out.len()]);
    }
}

/// Blocks of codes of at most five bits: a value is `scale * code + min`.
pub(crate) trait SmallCodes: QuantizeBlock {
    fn codes(&self) -> [i8; QK];
    /// Bits of the f16 scale.
    fn scale(&self) -> u16;
    /// Bits of the f16 minimum.
    fn min(&self) -> u16;
    /// Sets the codes from value `n` on to 0.
    fn clear_from(&mut self, n: usize);
    /// Codes of 0 whose scale is NaN.
    fn not_a_number() -> Self;
}

const NAN: F16 = F16(f16::NAN.to_le_bytes());

/// The low nibbles, then the high ones.
#[inline(always)]
fn nibbles(qs: &[u8; QK / 2]) -> [i8; QK] {
    let mut codes = [0; QK];
    let (low, high) = codes.split_at_mut(QK / 2);
    for ((low, high), &q) in low.iter_mut().zip(high).zip(qs) {
        (*low, *high) = ((q & 15) as i8, (q >> 4) as i8);
    }
    codes
}

fn clear_nibbles(qs: &mut [u8; QK / 2], n: usize) {
    for (j, q) in qs.iter_mut().enumerate() {
        let low = if j < n { 0x0f } else { 0 };
        let high = if j + QK / 2 < n { 0xf0 } else { 0 };
        *q &= low | high;
    }
}

impl SmallCodes for Q4_0 {
    #[inline(always)]
    fn codes(&self) -> [i8; QK] {
        nibbles(&self.qs).map(|code| code - 8)
    }

    #[inline(always)]
    fn scale(&self) -> u16 {
        self.d.bits()
    }

    #[inline(always)]
    fn min(&self) -> u16 {
        0
    }

    fn clear_from(&mut self, n: usize) {
        clear_nibbles(&mut self.qs, n);
    }

    fn not_a_number() -> Q4_0 {
        Q4_0 {
            d: NAN,
            qs: [0; QK / 2],
        }
    }
}

impl SmallCodes for Q5_1 {
    #[inline(always)]
    fn codes(&self) -> [i8; QK] {
        let high = u32::from_le_bytes(self.qh);
        let mut codes = nibbles(&self.qs);
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= ((high >> j & 1) << 4) as i8;
        }
        codes
    }

    #[inline(always)]
    fn scale(&self) -> u16 {
        self.d.bits()
    }

    #[inline(always)]
    fn min(&self) -> u16 {
        self.m.bits()
    }

    fn clear_from(&mut self, n: usize) {
        clear_nibbles(&mut self.qs, n);
        self.qh = (u32::from_le_bytes(self.qh) & !(u32::MAX << n)).to_le_bytes();
    }

    fn not_a_number() -> Q5_1 {
        Q5_1 {
            d: NAN,
            m: F16([0; 2]),
            qh: [0; QK / 8],
            qs: [0; QK / 2],
        }
    }
}
