//! The tensors a plan refers to. Matrices stay in the mapped file; vectors (norms, biases) are small and are
//! converted to f32 when the model is loaded.

use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, quant};

use crate::op::WeightId;

/// A weight matrix [n_out, n_in], row-major, in blocks as in a file.
#[derive(Clone, Copy)]
pub struct Weight<'a> {
    /// Format of the blocks.
    pub ty: GgmlType,
    /// Rows.
    pub n_out: usize,
    /// Values of a row: whole blocks.
    pub n_in: usize,
    /// All rows, without padding.
    pub data: &'a [u8],
}

impl Weight<'_> {
    /// Checks the shape and returns the bytes of a row.
    ///
    /// # Panics
    /// If `data` is not [n_out, n_in] in this format, or rows are empty.
    pub fn check(&self) -> usize {
        assert!(self.n_in > 0, "rows of weights have values");
        let row_bytes = self.ty.row_bytes(self.n_in);
        let row_bytes = row_bytes.expect("a row of weights is whole blocks");
        assert_eq!(
            Some(self.data.len()),
            row_bytes.checked_mul(self.n_out),
            "weights are [n_out, n_in]"
        );
        assert!(self.ty.can_dequantize(), "{} weights", self.ty.name());
        row_bytes
    }

    /// Dequantizes values of row `i`, from column `from` on; whole blocks.
    pub fn dequantize(&self, i: usize, from: usize, out: &mut [f32]) {
        let bytes = |n: usize| self.ty.row_bytes(n).expect("whole blocks");
        let start = i * bytes(self.n_in) + bytes(from);
        let src = &self.data[start..start + bytes(out.len())];
        quant::dequantize(self.ty, src, out).expect("type and lengths were checked");
    }
}

/// Tensors by [`WeightId`].
#[derive(Debug)]
pub struct Weights {
    gguf: Arc<Gguf>,
    entries: Vec<WeightEntry>,
}

/// Where the values of a weight come from.
#[derive(Debug)]
pub enum WeightEntry {
    /// Rows of one of the file's tensors, by its index; not all of them where a projection is fused.
    Matrix {
        tensor: usize,
        first_row: usize,
        n_rows: usize,
    },
    Vector {
        values: Vec<f32>,
    },
    /// A matrix of F32 that is not in the model's file.
    Owned {
        n_in: usize,
        data: Vec<u8>,
    },
}

impl Weights {
    /// Tensors of `gguf` and others, by [`WeightId`]. Rows of [`WeightEntry::Matrix`] must be in the file.
    pub fn new(gguf: Arc<Gguf>, entries: Vec<WeightEntry>) -> Weights {
        Weights { gguf, entries }
    }

    /// The matrix `[n_out, n_in]`.
    pub fn matrix(&self, id: WeightId) -> Weight<'_> {
        let (tensor, first_row, n_rows) = match &self.entries[id.0 as usize] {
            WeightEntry::Matrix {
                tensor,
                first_row,
                n_rows,
            } => (*tensor, *first_row, *n_rows),
            WeightEntry::Owned { n_in, data } => {
                return Weight {
                    ty: GgmlType::F32,
                    n_out: data.len() / size_of::<f32>() / n_in,
                    n_in: *n_in,
                    data,
                };
            }
            WeightEntry::Vector { .. } => panic!("weight {} is a vector", id.0),
        };
        let info = &self.gguf.tensors()[tensor];
        let row_bytes = (info.n_bytes / info.n_rows()) as usize;
        Weight {
            ty: info.ty,
            n_out: n_rows,
            n_in: info.row_len() as usize,
            data: &self.gguf.tensor_data(info)[first_row * row_bytes..][..n_rows * row_bytes],
        }
    }

    /// The tensor that a matrix is, or has rows of; `None` for a vector, and a matrix of an adapter.
    pub fn tensor_name(&self, id: WeightId) -> Option<&str> {
        match &self.entries[id.0 as usize] {
            WeightEntry::Matrix { tensor, .. } => Some(&self.gguf.tensors()[*tensor].name),
            WeightEntry::Vector { .. } | WeightEntry::Owned { .. } => None,
        }
    }

    pub fn vector(&self, id: WeightId) -> &[f32] {
        match &self.entries[id.0 as usize] {
            WeightEntry::Vector { values } => values,
            WeightEntry::Matrix { .. } | WeightEntry::Owned { .. } => {
                panic!("weight {} is a matrix", id.0)
            }
        }
    }
}
