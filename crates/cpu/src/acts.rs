//! Activations as the matrix products want them: f32, or int8 with a scale per 32 or per 256.
//!
//! Each weight format fixes the form of its activations ([`act_format`]), so the result of a
//! product does not depend on which kernel computes it. The two int8 forms are numerically those
//! of llama.cpp (`quantize_row_q8_0`, `quantize_row_q8_K`).

use rocmforge_gguf::quant::GgmlType;
use rocmforge_gguf::quant::legacy::Q8_0;
use rocmforge_gguf::quant::plain::F16;

use crate::aligned::Floats;
use crate::arch::Kernel;
use crate::generic::bytes::Quantize;
use crate::generic::simd::Simd;
use crate::{Isa, Pool};

/// The form of activations in a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActFormat {
    /// f32 as they are.
    F32,
    /// int8 with a scale per 32 values: max|x| / 127, rounded to f16.
    Q8x32,
    /// int8 with a scale per 256 values: max|x| / 127 in f32.
    Q8x256,
}

impl ActFormat {
    /// Values that share a scale; a row is whole blocks of this many.
    pub const fn block_len(self) -> usize {
        match self {
            ActFormat::F32 => 1,
            ActFormat::Q8x32 => 32,
            ActFormat::Q8x256 => 256,
        }
    }
}

/// The form of activations that a weight format is multiplied with.
pub fn act_format(ty: GgmlType) -> ActFormat {
    use GgmlType::*;
    match ty {
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL | MXFP4 => ActFormat::Q8x32,
        Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | IQ4_XS => ActFormat::Q8x256,
        _ => ActFormat::F32,
    }
}

/// Activations [n_tokens, n_in] in one of the forms. A buffer to be reused: it keeps its memory.
#[derive(Clone, Debug)]
pub struct Acts {
    format: ActFormat,
    n_tokens: usize,
    n_in: usize,
    /// F32: [n_tokens, stride], filled up with zeros.
    values: Floats,
    /// int8: [n_tokens, n_in / 16].
    codes: Vec<[i8; 16]>,
    /// int8: [n_tokens, blocks].
    scales: Vec<f32>,
    /// int8: sums of codes, [n_tokens, n_in / 16].
    sums16: Vec<i16>,
    /// int8: sums of codes, [n_tokens, n_in / 32].
    sums32: Vec<i16>,
    /// int8, of two tokens and more: the same by groups of [`PACK`] tokens.
    packed: Packed,
}

/// Tokens that lie together in [`Packed`].
pub(crate) const PACK: usize = 4;

/// Activations of groups of tokens in the order in which products of many tokens read them: what
/// [`PACK`] tokens have at one place stands side by side. In the last group places beyond the last token hold anything.
#[derive(Clone, Debug, Default)]
struct Packed {
    /// [groups, n_in / 4]: four codes of each token.
    codes: Vec<[i8; 16]>,
    /// [groups, blocks].
    scales: Vec<[f32; PACK]>,
    /// [groups, n_in / 32]: two neighbouring sums of 16 of each token.
    sums16: Vec<[i16; 2 * PACK]>,
    /// [groups, n_in / 64]: two neighbouring sums of 32 of each token.
    sums32: Vec<[i16; 2 * PACK]>,
}

/// f32 rows are filled up to a multiple of this, the longest vector of any instruction set.
const PAD: usize = 16;

/// Rows are quantized on several threads in tasks of about this many values.
const VALUES_PER_TASK: usize = 32 * 1024;

/// A group of tokens in an int8 form; see [`Packed`].
#[derive(Clone, Copy)]
pub(crate) struct PackedRow<'a> {
    pub codes: &'a [[i8; 16]],
    pub scales: &'a [[f32; PACK]],
    pub sums16: &'a [[i16; 2 * PACK]],
    pub sums32: &'a [[i16; 2 * PACK]],
}

/// One token's activations in an int8 form.
#[derive(Clone, Copy)]
pub(crate) struct CodeRow<'a> {
    /// Groups of 16.
    pub codes: &'a [[i8; 16]],
    /// Per block.
    pub scales: &'a [f32],
    /// Per 16.
    pub sums16: &'a [i16],
    /// Per 32.
    pub sums32: &'a [i16],
}

impl Default for Acts {
    fn default() -> Acts {
        Acts::new()
    }
}

impl Acts {
    /// An empty buffer.
    pub fn new() -> Acts {
        Acts {
            format: ActFormat::F32,
            n_tokens: 0,
            n_in: 0,
            values: Floats::new(),
            codes: Vec::new(),
            scales: Vec::new(),
            sums16: Vec::new(),
            sums32: Vec::new(),
            packed: Packed::default(),
        }
    }

    /// Takes over `x` [n_tokens, n_in], row-major. Every instruction set makes the same bits.
    ///
    /// A block with an infinite or NaN value gets a NaN scale, and so does all that is computed
    /// from it.
    ///
    /// # Panics
    /// If `x` is not [n_tokens, n_in], or a row is not whole blocks of `format`.
    pub fn quantize(
        &mut self,
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        n_tokens: usize,
        n_in: usize,
        format: ActFormat,
    ) {
        assert_eq!(x.len(), n_tokens * n_in, "x is [n_tokens, n_in]");
        assert!(
            n_in.is_multiple_of(format.block_len()),
            "a row of {n_in} values is not whole blocks of {format:?}"
        );
        (self.format, self.n_tokens, self.n_in) = (format, n_tokens, n_in);
        if x.is_empty() {
            return;
        }
        let rows_per_task = (VALUES_PER_TASK / n_in).max(1);
        if format == ActFormat::F32 {
            let stride = self.stride();
            self.values.resize(n_tokens * stride);
            pool.for_each_rows(&mut self.values, stride, rows_per_task, &|first, rows| {
                for (row, x) in rows
                    .chunks_exact_mut(stride)
                    .zip(x.chunks_exact(n_in).skip(first))
                {
                    row[..n_in].copy_from_slice(x);
                    row[n_in..].fill(0.0);
                }
            });
            return;
        }
        let n_blocks = n_in / format.block_len();
        self.codes.resize(n_tokens * n_in / 16, [0; 16]);
        self.scales.resize(n_tokens * n_blocks, 0.0);
        self.sums16.resize(n_tokens * n_in / 16, 0);
        self.sums32.resize(n_tokens * n_in / 32, 0);
        let mut rows: Vec<QuantizeRow> = x
            .chunks_exact(n_in)
            .zip(self.codes.chunks_exact_mut(n_in / 16))
            .zip(self.scales.chunks_exact_mut(n_blocks))
            .zip(self.sums16.chunks_exact_mut(n_in / 16))
            .zip(self.sums32.chunks_exact_mut(n_in / 32))
            .map(|((((x, codes), scales), sums16), sums32)| QuantizeRow {
                x,
                codes,
                scales,
                sums16,
                sums32,
            })
            .collect();
        pool.for_each_rows(&mut rows, 1, rows_per_task, &|_, rows| {
            let kernel = QuantizeRows { rows, format };
            match isa.vector() {
                None => kernel.run_with(Scalar),
                Some(isa) => isa.run(kernel),
            }
        });
        if n_tokens > 1 {
            self.pack(pool);
        }
    }

    /// Fills `packed` from the rows.
    fn pack(&mut self, pool: &Pool) {
        let n_groups = self.n_tokens.div_ceil(PACK);
        let (n_in, n_blocks) = (self.n_in, self.n_in / self.format.block_len());
        let mut packed = std::mem::take(&mut self.packed);
        packed.codes.resize(n_groups * n_in / 4, [0; 16]);
        packed.scales.resize(n_groups * n_blocks, [0.0; PACK]);
        packed.sums16.resize(n_groups * n_in / 32, [0; 2 * PACK]);
        packed.sums32.resize(n_groups * (n_in / 64), [0; 2 * PACK]);
        let mut groups: Vec<_> = packed
            .codes
            .chunks_exact_mut(n_in / 4)
            .zip(packed.scales.chunks_exact_mut(n_blocks))
            .zip(packed.sums16.chunks_exact_mut(n_in / 32))
            .zip(chunks_or_empty(&mut packed.sums32, n_in / 64, n_groups))
            .collect();
        let per_task = (VALUES_PER_TASK / (PACK * n_in)).max(1);
        pool.for_each_rows(&mut groups, 1, per_task, &|first, groups| {
            for (i, (((codes, scales), sums16), sums32)) in groups.iter_mut().enumerate() {
                for t in 0..PACK {
                    let token = PACK * (first + i) + t;
                    if token >= self.n_tokens {
                        // What an earlier step left there: nobody reads the products of these places.
                        break;
                    }
                    let row = self.code_row(token);
                    let values = row.codes.as_flattened().as_chunks::<4>().0;
                    for (out, values) in codes.iter_mut().zip(values) {
                        out[4 * t..4 * t + 4].copy_from_slice(values);
                    }
                    for (out, scale) in scales.iter_mut().zip(row.scales) {
                        out[t] = *scale;
                    }
                    for (out, sums) in sums16.iter_mut().zip(row.sums16.as_chunks::<2>().0) {
                        out[2 * t..2 * t + 2].copy_from_slice(sums);
                    }
                    for (out, sums) in sums32.iter_mut().zip(row.sums32.as_chunks::<2>().0) {
                        out[2 * t..2 * t + 2].copy_from_slice(sums);
                    }
                }
            }
        });
        self.packed = packed;
    }

    /// The form of the activations.
    pub fn format(&self) -> ActFormat {
        self.format
    }

    /// Rows.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Values of a row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Values of one token as the products see them, in f32; `out` `[n_in]`.
    ///
    /// # Panics
    /// If there is no such token, or `out` has another length.
    pub fn dequantize_row(&self, token: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.n_in, "out is [n_in]");
        if self.format == ActFormat::F32 {
            out.copy_from_slice(&self.f32_row(token)[..self.n_in]);
            return;
        }
        let row = self.code_row(token);
        let groups_per_scale = self.format.block_len() / 16;
        for (i, (out, codes)) in out.chunks_exact_mut(16).zip(row.codes).enumerate() {
            let scale = row.scales[i / groups_per_scale];
            for (x, q) in out.iter_mut().zip(codes) {
                *x = scale * f32::from(*q);
            }
        }
    }

    /// One token in f32, filled up with zeros to whole vectors.
    pub(crate) fn f32_row(&self, token: usize) -> &[f32] {
        assert_eq!(self.format, ActFormat::F32);
        row(&self.values, self.stride(), token)
    }

    /// One token in int8.
    pub(crate) fn code_row(&self, token: usize) -> CodeRow<'_> {
        assert_ne!(self.format, ActFormat::F32);
        CodeRow {
            codes: row(&self.codes, self.n_in / 16, token),
            scales: row(&self.scales, self.n_in / self.format.block_len(), token),
            sums16: row(&self.sums16, self.n_in / 16, token),
            sums32: row(&self.sums32, self.n_in / 32, token),
        }
    }

    /// Tokens `PACK * group..` in int8, of two tokens or more.
    pub(crate) fn packed_row(&self, group: usize) -> PackedRow<'_> {
        assert!(self.format != ActFormat::F32 && self.n_tokens > 1);
        PackedRow {
            codes: row(&self.packed.codes, self.n_in / 4, group),
            scales: row(
                &self.packed.scales,
                self.n_in / self.format.block_len(),
                group,
            ),
            sums16: row(&self.packed.sums16, self.n_in / 32, group),
            sums32: row(&self.packed.sums32, self.n_in / 64, group),
        }
    }

    /// f32 values from one token to the next: whole vectors, and not whole pages, because what lies
    /// whole pages apart shares a few lines of the L1 cache.
    fn stride(&self) -> usize {
        let stride = self.n_in.next_multiple_of(PAD);
        if stride.is_multiple_of(1024) {
            stride + PAD
        } else {
            stride
        }
    }
}

/// `n` chunks, also where they are empty.
fn chunks_or_empty<T>(x: &mut [T], len: usize, n: usize) -> impl Iterator<Item = &mut [T]> {
    let mut rest = x;
    (0..n).map(move |_| {
        let (chunk, tail) = std::mem::take(&mut rest).split_at_mut(len);
        rest = tail;
        chunk
    })
}

fn row<T>(rows: &[T], row_len: usize, i: usize) -> &[T] {
    &rows[i * row_len..(i + 1) * row_len]
}

struct QuantizeRow<'a> {
    x: &'a [f32],
    codes: &'a mut [[i8; 16]],
    scales: &'a mut [f32],
    sums16: &'a mut [i16],
    sums32: &'a mut [i16],
}

struct QuantizeRows<'a, 'b> {
    rows: &'a mut [QuantizeRow<'b>],
    format: ActFormat,
}

impl Kernel for QuantizeRows<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.run_with(simd);
    }
}

impl QuantizeRows<'_, '_> {
    #[inline(always)]
    fn run_with<Q: Quantize>(self, q: Q) {
        for row in self.rows {
            match self.format {
                ActFormat::Q8x256 => quantize_row::<Q, 8>(q, row),
                ActFormat::Q8x32 | ActFormat::F32 => quantize_row::<Q, 1>(q, row),
            }
        }
    }
}

/// Quantizes blocks of `N` times 32 values.
#[inline(always)]
fn quantize_row<Q: Quantize, const N: usize>(q: Q, row: &mut QuantizeRow<'_>) {
    let (x, _) = row.x.as_chunks::<32>();
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
            // Nothing that could be divided by the scale.
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

/// Quantizes a block of the KV cache, to what [`ActFormat::Q8x32`] makes of the same values.
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

/// What values are multiplied with, and what codes are. The first is infinite for a block that is
/// zero or too small to divide by.
#[inline(always)]
fn q8x32_scale<Q: Quantize>(q: Q, max: f32) -> (f32, f32) {
    let d = max / 127.0;
    (1.0 / d, q.round_to_f16(d))
}

/// As [`q8x32_scale`]; a scale is then zero.
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
