//! Activations in the formats that matrix products take: f32, or int8 with a scale per 32 or per 256 values.
//!
//! Each weight format determines the format of its activations ([`rocmforge_plan::act_format`]), so the result of a product does not
//! depend on which kernel computes it. The int8 formats are numerically those of llama.cpp (`quantize_row_q8_0`,
//! `quantize_row_q8_K`).

mod quantize;

use rocmforge_plan::ActFormat;

use crate::aligned::Floats;
use crate::{Isa, Pool};
use quantize::OutRow;

pub(crate) use quantize::{Scalar, quantize_q8_0};

/// Activations [n_tokens, n_in] in one of the formats. A reusable buffer: it keeps its memory.
#[derive(Clone, Debug)]
pub struct Acts {
    format: ActFormat,
    n_tokens: usize,
    n_in: usize,
    /// F32: [n_tokens, stride], padded with zeros.
    values: Floats,
    /// int8: [n_tokens, n_in / 16].
    codes: Vec<[i8; 16]>,
    /// int8: [n_tokens, blocks].
    scales: Vec<f32>,
    /// int8: sums of codes, [n_tokens, n_in / 16].
    sums16: Vec<i16>,
    /// int8: sums of codes, [n_tokens, n_in / 32].
    sums32: Vec<i16>,
    /// int8, with two or more tokens: the same by groups of [`PACK`] tokens.
    packed: Packed,
}

/// Tokens per group of [`Packed`].
pub(crate) const PACK: usize = 4;

/// Activations of groups of [`PACK`] tokens in the order in which GEMM kernels read them: the values of all tokens of a
/// group at one place are adjacent. Places past the last token hold arbitrary values.
#[derive(Clone, Debug, Default)]
struct Packed {
    /// [groups, n_in / 4]: four codes per token.
    codes: Vec<[i8; 16]>,
    /// [groups, blocks].
    scales: Vec<[f32; PACK]>,
    /// [groups, n_in / 32]: two neighbouring sums of 16 per token.
    sums16: Vec<[i16; 2 * PACK]>,
    /// [groups, n_in / 64]: two neighbouring sums of 32 per token.
    sums32: Vec<[i16; 2 * PACK]>,
}

/// f32 rows are padded to a multiple of this, the longest vector of any instruction set.
const PAD: usize = 16;

/// Approximate number of values per task when rows are quantized on several threads.
const VALUES_PER_TASK: usize = 32 * 1024;

/// Source of the rows to convert.
#[derive(Clone, Copy)]
pub(crate) enum RowsFrom<'a> {
    /// [n_tokens, n_in].
    Memory(&'a [f32]),
    /// A function that writes the row of a token, `[n_in]`.
    Computed(&'a (dyn Fn(usize, &mut [f32]) + Sync)),
}

impl RowsFrom<'_> {
    fn write(self, token: usize, out: &mut [f32]) {
        match self {
            RowsFrom::Memory(x) => out.copy_from_slice(row(x, out.len(), token)),
            RowsFrom::Computed(compute) => compute(token, out),
        }
    }

    /// Returns the row of `token`, computed into `scratch` if necessary.
    fn row<'s>(&'s self, token: usize, n_in: usize, scratch: &'s mut [f32]) -> &'s [f32] {
        match self {
            RowsFrom::Memory(x) => row(x, n_in, token),
            RowsFrom::Computed(compute) => {
                compute(token, scratch);
                scratch
            }
        }
    }
}

/// The int8 activations of a group of tokens; see [`Packed`].
#[derive(Clone, Copy)]
pub(crate) struct PackedRow<'a> {
    pub codes: &'a [[i8; 16]],
    pub scales: &'a [[f32; PACK]],
    pub sums16: &'a [[i16; 2 * PACK]],
    pub sums32: &'a [[i16; 2 * PACK]],
}

/// The int8 activations of one token.
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
    /// Creates an empty buffer.
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

    /// Converts `x` [n_tokens, n_in], row-major, to `format`. Every instruction set gives the same bits.
    ///
    /// A block with an infinite or NaN value gets a NaN scale, so all results computed from it are NaN.
    ///
    /// # Panics
    /// If `x` is not [n_tokens, n_in], or a row is not whole blocks of `format`.
    pub fn quantize(
        &mut self,
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        [n_tokens, n_in]: [usize; 2],
        format: ActFormat,
    ) {
        assert_eq!(x.len(), n_tokens * n_in, "x is [n_tokens, n_in]");
        self.fill(isa, pool, [n_tokens, n_in], format, RowsFrom::Memory(x));
    }

    /// Like [`Acts::quantize`], for rows from any source.
    pub(crate) fn fill(
        &mut self,
        isa: Isa,
        pool: &Pool,
        [n_tokens, n_in]: [usize; 2],
        format: ActFormat,
        from: RowsFrom<'_>,
    ) {
        assert!(
            n_in.is_multiple_of(format.block_len()),
            "a row of {n_in} values is not whole blocks of {format:?}"
        );
        (self.format, self.n_tokens, self.n_in) = (format, n_tokens, n_in);
        if n_tokens * n_in == 0 {
            return;
        }
        let rows_per_task = (VALUES_PER_TASK / n_in).max(1);
        if format == ActFormat::F32 {
            let stride = self.stride();
            self.values.resize(n_tokens * stride);
            pool.for_each_rows(&mut self.values, stride, rows_per_task, &|first, rows| {
                for (i, row) in rows.chunks_exact_mut(stride).enumerate() {
                    let (row, padding) = row.split_at_mut(n_in);
                    from.write(first + i, row);
                    padding.fill(0.0);
                }
            });
            return;
        }
        let n_blocks = n_in / format.block_len();
        self.codes.resize(n_tokens * n_in / 16, [0; 16]);
        self.scales.resize(n_tokens * n_blocks, 0.0);
        self.sums16.resize(n_tokens * n_in / 16, 0);
        self.sums32.resize(n_tokens * n_in / 32, 0);
        let mut rows: Vec<OutRow<'_>> = self
            .codes
            .chunks_exact_mut(n_in / 16)
            .zip(self.scales.chunks_exact_mut(n_blocks))
            .zip(self.sums16.chunks_exact_mut(n_in / 16))
            .zip(self.sums32.chunks_exact_mut(n_in / 32))
            .map(|(((codes, scales), sums16), sums32)| OutRow {
                codes,
                scales,
                sums16,
                sums32,
            })
            .collect();
        pool.for_each_rows(&mut rows, 1, rows_per_task, &|first, rows| {
            let mut scratch = match from {
                RowsFrom::Memory(_) => Vec::new(),
                RowsFrom::Computed(_) => vec![0.0; n_in],
            };
            for (i, out) in rows.iter_mut().enumerate() {
                let x = from.row(first + i, n_in, &mut scratch);
                quantize::row(isa, format, x, out);
            }
        });
        if n_tokens > 1 {
            self.pack(pool);
        }
    }

    /// Stores rows that were already converted to an int8 format: `codes` `[n_tokens, n_in]`, and `scales`, one per
    /// block.
    ///
    /// # Panics
    /// If the lengths do not match, or `format` is not an int8 format.
    pub fn set_codes(
        &mut self,
        pool: &Pool,
        format: ActFormat,
        [n_tokens, n_in]: [usize; 2],
        codes: &[i8],
        scales: &[f32],
    ) {
        assert_ne!(format, ActFormat::F32, "an int8 format");
        assert!(n_in.is_multiple_of(format.block_len()), "whole blocks");
        let n_blocks = n_tokens * n_in / format.block_len();
        assert_eq!([codes.len(), scales.len()], [n_tokens * n_in, n_blocks]);
        (self.format, self.n_tokens, self.n_in) = (format, n_tokens, n_in);
        let sum = |codes: &[i8]| codes.iter().map(|&code| i16::from(code)).sum::<i16>();
        self.codes = codes.as_chunks::<16>().0.to_vec();
        self.scales = scales.to_vec();
        self.sums16 = codes.chunks_exact(16).map(sum).collect();
        self.sums32 = codes.chunks_exact(32).map(sum).collect();
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
                        // Values of an earlier step remain there; their products are never read.
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

    /// Format of the activations.
    pub fn format(&self) -> ActFormat {
        self.format
    }

    /// Number of rows.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Values per row.
    pub fn n_in(&self) -> usize {
        self.n_in
    }

    /// Converts one token's activations back to f32, as the products see them; `out` is `[n_in]`.
    ///
    /// # Panics
    /// If there is no such token, or `out` has the wrong length.
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

    /// The f32 row of one token, padded with zeros to whole vectors.
    pub(crate) fn f32_row(&self, token: usize) -> &[f32] {
        assert_eq!(self.format, ActFormat::F32);
        row(&self.values, self.stride(), token)
    }

    /// The int8 row of one token.
    pub(crate) fn code_row(&self, token: usize) -> CodeRow<'_> {
        assert_ne!(self.format, ActFormat::F32);
        CodeRow {
            codes: row(&self.codes, self.n_in / 16, token),
            scales: row(&self.scales, self.n_in / self.format.block_len(), token),
            sums16: row(&self.sums16, self.n_in / 16, token),
            sums32: row(&self.sums32, self.n_in / 32, token),
        }
    }

    /// The int8 rows of tokens `PACK * group..`, with two or more tokens.
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

    /// f32 values from one token to the next: whole vectors but not whole pages, because rows that are whole pages
    /// apart compete for a few lines of the L1 cache.
    fn stride(&self) -> usize {
        let stride = self.n_in.next_multiple_of(PAD);
        if stride.is_multiple_of(1024) {
            stride + PAD
        } else {
            stride
        }
    }
}

/// Splits `x` into `n` chunks of `len`, which may be 0.
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
