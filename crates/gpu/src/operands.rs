//! Operands: weights in device layout and activations in the form GEMV and GEMM take. The KV cache is in `kv.rs`.

use std::ops::Range;

use rocmforge_gguf::GgmlType;
use rocmforge_plan::ExpertStack;
pub use rocmforge_plan::{ActFormat, Activation, OutMode};

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::{Buffer, Slice};
use crate::ops::{HalfBuffer, HalfMemory};

/// Activations `[n_rows, width]` in one of the forms.
#[derive(Clone, Copy)]
pub struct Acts<'a> {
    pub form: ActFormat,
    pub n_rows: usize,
    pub width: usize,
    /// F32: `[n_rows, width]`; else empty.
    pub values: Slice<'a, f32>,
    /// int8: `[n_rows, width]`.
    pub codes: Slice<'a, i8>,
    /// int8: `[n_rows, width / block_len]`.
    pub scales: Slice<'a, f32>,
    /// int8: sums of 16 codes, `[n_rows, width / 16]`.
    pub sums: Slice<'a, i16>,
    /// Memory for the same as f16, where GEMM may take it so.
    pub half: Option<HalfMemory<'a>>,
    /// If set, products of one token with the matrices of experts or heads convert these values instead of reading the
    /// codes: see [`crate::ops::converts`].
    pub source: Option<Source<'a>>,
}

/// Values that products convert into activations.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub x: Slice<'a, f32>,
    pub rows: SourceRows,
}

/// Which values of a [`Source`] are a row of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRows {
    /// Every row is the whole source.
    One,
    /// Row `i` is row `i` of the source.
    Each,
    /// Row `i` is in head `i` of the source, from this value on.
    Heads { start: usize },
}

impl<'a> Acts<'a> {
    /// Returns a range of the rows.
    ///
    /// # Panics
    /// If the range goes past the end.
    pub fn part(&self, rows: Range<usize>) -> Acts<'a> {
        assert!(rows.end <= self.n_rows, "{rows:?} of {}", self.n_rows);
        let values = rows.start * self.width..rows.end * self.width;
        let [floats, codes] = match self.form {
            ActFormat::F32 => [values, 0..0],
            ActFormat::Q8x32 | ActFormat::Q8x256 => [0..0, values],
        };
        let of_codes = |len: usize| codes.start / len..codes.end / len;
        Acts {
            form: self.form,
            n_rows: rows.len(),
            width: self.width,
            values: self.values.part(floats),
            scales: self.scales.part(of_codes(self.form.block_len())),
            sums: self.sums.part(of_codes(16)),
            half: self.half,
            source: self.source,
            codes: self.codes.part(codes),
        }
    }
}

/// Memory for activations of up to `max_rows` rows.
pub struct ActsBuffer {
    form: ActFormat,
    max_rows: usize,
    width: usize,
    values: Buffer,
    codes: Buffer,
    scales: Buffer,
    sums: Buffer,
    half: Option<HalfBuffer>,
}

impl ActsBuffer {
    /// # Panics
    /// If `width` is not a multiple of the block length of `form`.
    pub fn new(
        gpu: &Gpu,
        form: ActFormat,
        max_rows: usize,
        width: usize,
    ) -> Result<ActsBuffer, GpuError> {
        ActsBuffer::of_experts(gpu, form, [max_rows, width], None)
    }

    /// As [`ActsBuffer::new`]; with a number of experts, rows may be sorted by expert.
    ///
    /// # Panics
    /// As [`ActsBuffer::new`].
    pub fn of_experts(
        gpu: &Gpu,
        form: ActFormat,
        [max_rows, width]: [usize; 2],
        n_experts: Option<usize>,
    ) -> Result<ActsBuffer, GpuError> {
        let half = HalfBuffer::new(gpu, form, [max_rows, width], n_experts)?;
        ActsBuffer::with(gpu, form, [max_rows, width], half)
    }

    /// f32 numbers `[max_rows, width]` that only products with F32 weights read.
    ///
    /// # Errors
    /// Those of allocating memory.
    pub fn for_f32(gpu: &Gpu, shape: [usize; 2]) -> Result<ActsBuffer, GpuError> {
        ActsBuffer::with(gpu, ActFormat::F32, shape, None)
    }

    fn with(
        gpu: &Gpu,
        form: ActFormat,
        [max_rows, width]: [usize; 2],
        half: Option<HalfBuffer>,
    ) -> Result<ActsBuffer, GpuError> {
        assert!(
            width.is_multiple_of(form.block_len()),
            "a row is not a whole number of blocks"
        );
        let n = max_rows * width;
        let [n_values, n_codes] = match form {
            ActFormat::F32 => [n, 0],
            ActFormat::Q8x32 | ActFormat::Q8x256 => [0, n],
        };
        Ok(ActsBuffer {
            form,
            max_rows,
            width,
            values: gpu.alloc::<f32>(n_values)?,
            codes: gpu.alloc::<i8>(n_codes)?,
            scales: gpu.alloc::<f32>(n_codes / form.block_len())?,
            sums: gpu.alloc::<i16>(n_codes / 16)?,
            half,
        })
    }

    /// The same for products with weights of these types and orders of rows. Without it, all products are possible, too, but some
    /// take longer.
    pub fn beside(self, weights: &[(GgmlType, RowOrder)]) -> ActsBuffer {
        let half = self.half.map(|half| half.beside(weights));
        ActsBuffer { half, ..self }
    }

    /// Returns the first `n_rows` rows.
    ///
    /// # Panics
    /// If the buffer has fewer.
    pub fn rows(&self, n_rows: usize) -> Acts<'_> {
        let all = Acts {
            form: self.form,
            n_rows: self.max_rows,
            width: self.width,
            values: self.values.as_slice(),
            codes: self.codes.as_slice(),
            scales: self.scales.as_slice(),
            sums: self.sums.as_slice(),
            half: self.half.as_ref().map(HalfBuffer::memory),
            source: None,
        };
        all.part(0..n_rows)
    }
}

/// How the rows of a matrix lie in its planes. Results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowOrder {
    /// One after the other.
    Apart,
    /// 256 values of each of 16 rows, then the next 256 of each: faster for GEMMs of few rows, slower for GEMVs.
    Tiles,
}

impl RowOrder {
    /// Rows of a tile.
    pub(crate) const TILE_ROWS: usize = 16;
    /// Values of a row that follow one another in a tile (`RUN` in `kernels/quant.h`).
    const RUN: usize = 256;

    /// Whether a matrix of this shape consists of whole tiles.
    pub(crate) fn is_whole(n_out: usize, n_in: usize) -> bool {
        n_out.is_multiple_of(RowOrder::TILE_ROWS) && n_in.is_multiple_of(RowOrder::RUN)
    }
}

/// A weight matrix `[n_out, n_in]` in device layout: each field of the blocks has its own plane, so that all loads are
/// aligned (`kernels/quant.h`).
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub ty: GgmlType,
    pub n_out: usize,
    pub n_in: usize,
    pub order: RowOrder,
    pub data: Slice<'a, u8>,
}

/// The matrices `[n_out, n_in]` of all experts of an MoE layer, each in the layout of [`Matrix`], one after the other,
/// maybe with others between them.
#[derive(Clone, Copy)]
pub struct ExpertMatrices<'a> {
    pub ty: GgmlType,
    /// Which matrices of `data` they are.
    pub stack: ExpertStack,
    pub n_out: usize,
    pub n_in: usize,
    pub order: RowOrder,
    pub data: Slice<'a, u8>,
}

impl<'a> ExpertMatrices<'a> {
    /// Returns the matrix of one expert.
    ///
    /// # Panics
    /// If `expert` is out of range.
    pub fn matrix(&self, expert: usize) -> Matrix<'a> {
        let ExpertStack { n_experts, .. } = self.stack;
        assert!(expert < n_experts, "{expert} of {n_experts}");
        let (n_bytes, index) = (self.matrix_bytes(), self.stack.matrix_of(expert));
        Matrix {
            ty: self.ty,
            n_out: self.n_out,
            n_in: self.n_in,
            order: self.order,
            data: self.data.part(index * n_bytes..(index + 1) * n_bytes),
        }
    }

    fn matrix_bytes(&self) -> usize {
        self.data.len() / self.stack.n_matrices()
    }

    /// Bytes from one expert's matrix to the next one's.
    pub(crate) fn expert_bytes(&self) -> usize {
        self.stack.n_parts * self.matrix_bytes()
    }
}
