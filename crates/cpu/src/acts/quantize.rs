//! Quantizes f32 values to int8 codes with a scale: rows of activations and blocks of the KV cache.

use rocmforge_gguf::quant::legacy::Q8_0;
use rocmforge_gguf::quant::plain::F16;
use rocmforge_plan::ActFormat;

use crate::Isa;
use crate::arch::Kernel;
use crate::generic::bytes::Quantize;
use crate::generic::simd::Simd;

/// The row of one token to write; see [`super::Acts`].
pub(super) struct OutRow<'a> {
    pub(super) codes: &'a mut [[i8; 16]],
    pub(super) scales: &'a mut [f32],
    pub(super) sums16: &'a mut [i16],
    pub(super) sums32: &'a mut [i16],
}

/// Quantizes `x` to one of the int8 formats.
pub(super) fn row(isa: Isa, format: ActFormat, x: &[f32], out: &mut OutRow<'_>) {
    let kernel = QuantizeRow { x, out, format };
    match isa.vector() {
        None => kernel.run_with(Scalar),
        Some(isa) => isa.run(kernel),
    }
}

struct QuantizeRow<'a, 'b> {
    x: &'a [f32],
    out: &'a mut OutRow<'b>,
    format: ActFormat,
}

impl Kernel for QuantizeRow<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.run_with(simd);
    }
}

impl QuantizeRow<'_, '_> {
    #[inline(always)]
    fn run_with<Q: Quantize>(self, q: Q) {
        match self.format {
            ActFormat::Q8x256 => quantize_row::<Q, 8>(q, self.x, self.out),
            ActFormat::Q8x32 | ActFormat::F32 => quantize_row::<Q, 1>(q, self.x, self.out),
        }
    }
}

/// Quantizes blocks of `N` times 32 values.
#[inline(always)]
fn quantize_row<Q: Quantize, const N: usize>(q: Q, x: &[f32], row: &mut OutRow<'_>) {
    let (x, _) = x.as_chunks::<32>();
    let (x, _) = x.as_chunks::<N>();
    let (codes, _) = row.codes.as_chunks_mut::<2>();
    let (codes, _) = codes.as_chunks_mut::<N>();
    let (sums16, _) = row.sums16.as_chunks_mut::<2>();
    let (sums16, _) = sums16.as_chunks_mut::<N>();
    let (sums32, _) = row.sums32.as_chunks_mut::<N>();
    let blocks = x.iter().zip(codes).zip(sums16).zip(sums32);
    for ((((x, codes), sums16), sums32), scale) in blocks.zip(row.scales.iter_mut()) {
        let mut max_bits = 0;
        for x in x {
            max_bits = max_bits.max(q.max_abs_bits(x));
        }
        let max = f32::from_bits(max_bits);
        let (factor, d) = match N {
            1 => q8x32_scale(q, max),
            _ => q8x256_scale(max),
        };
        *scale = if max.is_finite() { d } else { f32::NAN };
        if !(max.is_finite() && factor.is_finite()) {
            // Values that cannot be divided by the scale.
            *codes = [[[0; 16]; 2]; N];
            *sums16 = [[0; 2]; N];
            *sums32 = [0; N];
            continue;
        }
        for i in 0..N {
            let sums = q.quantize(&x[i], factor, &mut codes[i]);
            sums16[i] = sums;
            sums32[i] = sums[0] + sums[1];
        }
    }
}

/// Quantizes a block of the KV cache, with the same result as [`ActFormat::Q8x32`].
#[inline(always)]
pub(crate) fn quantize_q8_0<Q: Quantize>(q: Q, x: &[f32; 32]) -> Q8_0 {
    let max = f32::from_bits(q.max_abs_bits(x));
    let (factor, d) = q8x32_scale(q, max);
    let mut codes = [[0; 16]; 2];
    if max.is_finite() && factor.is_finite() {
        q.quantize(x, factor, &mut codes);
    }
    let mut block = Q8_0 {
        d: F16::from_f32(if max.is_finite() { d } else { f32::NAN }),
        qs: [0; 32],
    };
    block.qs.copy_from_slice(codes.as_flattened());
    block
}

/// Returns the factor for values and the scale of codes. The factor is infinite if the block is zero or too small to
/// divide by.
#[inline(always)]
fn q8x32_scale<Q: Quantize>(q: Q, max: f32) -> (f32, f32) {
    let d = max / 127.0;
    (1.0 / d, q.round_to_f16(d))
}

/// Like [`q8x32_scale`]; in that case the scale is zero.
#[inline(always)]
fn q8x256_scale(max: f32) -> (f32, f32) {
    let factor = 127.0 / max;
    (factor, 1.0 / factor)
}

/// Quantization without vectors.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Quantize for Scalar {
    fn max_abs_bits(self, x: &[f32; 32]) -> u32 {
        x.iter().fold(0, |max, x| max.max(x.abs().to_bits()))
    }

    fn quantize(self, x: &[f32; 32], factor: f32, q: &mut [[i8; 16]; 2]) -> [i16; 2] {
        for (q, x) in q.as_flattened_mut().iter_mut().zip(x) {
            *q = (x * factor).round_ties_even() as i8;
        }
        q.map(|half| half.iter().map(|&q| i16::from(q)).sum())
    }

    fn round_to_f16(self, x: f32) -> f32 {
        F16::from_f32(x).to_f32()
    }
}
