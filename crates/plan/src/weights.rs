//! The tensors a plan refers to. Matrices stay in the mapped file; vectors (norms, biases) are small and are
//! converted to f32 when the model is loaded.

use std::sync::Arc;

use rocmforge_gguf::{GgmlType, Gguf, quant};

use crate::op::WeightId;

/// A weight matrix `[n_out, n_in]`, row-major, in the file's block format.
#[derive(Clone, Copy)]
pub struct Weight<'a> {
    /// Block format.
    pub ty: GgmlType,
    /// Rows.
    pub n_out: usize,
    /// Values per row; a whole number of blocks.
    pub n_in: usize,
    /// All rows, without padding.
    pub data: &'a [u8],
}

impl Weight<'_> {
    /// Checks the shape and returns the bytes per row.
    ///
    /// # Panics
    /// If `data` is not `[n_out, n_in]` in this format, or rows are empty.
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

    /// Dequantizes values of row `i`, starting at column `from`; both ends at block boundaries.
    pub fn dequantize(&self, i: usize, from: usize, out: &mut [f32]) {
        let bytes = |n: usize| self.ty.row_bytes(n).expect("whole blocks");
        let start = i * bytes(self.n_in) + bytes(from);
        let src = &self.data[start..start + bytes(out.len())];
        quant::dequantize(self.ty, src, out).expect("type and lengths were checked");
    }
}

/// The tensors of a model, by [`WeightId`].
#[derive(Debug)]
pub struct Weights {
    gguf: Arc<Gguf>,
    entries: Vec<WeightEntry>,
}

/// Where the values of a weight are stored.
#[derive(Debug)]
pub enum WeightEntry {
    /// Rows of a tensor of the file, by tensor index; a part of them if the tensor holds several projections.
    Matrix {
        tensor: usize,
        first_row: usize,
        n_rows: usize,
    },
    Vector {
        values: Vec<f32>,
    },
    /// A matrix that is not in the model's file.
    Owned {
        ty: GgmlType,
        n_in: usize,
        data: Vec<u8>,
    },
    /// A matrix of another model.
    Shared {
        weights: Arc<Weights>,
        id: WeightId,
    },
}

impl Weights {
    /// Creates weights from tensors of `gguf` and others. Rows of [`WeightEntry::Matrix`] must be in the file.
    pub fn new(gguf: Arc<Gguf>, entries: Vec<WeightEntry>) -> Weights {
        Weights { gguf, entries }
    }

    /// Returns the file.
    pub fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    /// Returns the matrix `[n_out, n_in]`.
    pub fn matrix(&self, id: WeightId) -> Weight<'_> {
        let (tensor, first_row, n_rows) = match &self.entries[id.0 as usize] {
            WeightEntry::Matrix {
                tensor,
                first_row,
                n_rows,
            } => (*tensor, *first_row, *n_rows),
            WeightEntry::Owned { ty, n_in, data } => {
                let row_bytes = ty.row_bytes(*n_in).expect("rows are whole blocks");
                return Weight {
                    ty: *ty,
                    n_out: data.len() / row_bytes,
                    n_in: *n_in,
                    data,
                };
            }
            WeightEntry::Shared { weights, id } => return weights.matrix(*id),
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

    /// Returns the tensor that contains a matrix; `None` for a vector and for a matrix that is not in the file.
    pub fn tensor_name(&self, id: WeightId) -> Option<&str> {
        match &self.entries[id.0 as usize] {
            WeightEntry::Matrix { tensor, .. } => Some(&self.gguf.tensors()[*tensor].name),
            WeightEntry::Shared { weights, id } => weights.tensor_name(*id),
            WeightEntry::Vector { .. } | WeightEntry::Owned { .. } => None,
        }
    }

    pub fn vector(&self, id: WeightId) -> &[f32] {
        match &self.entries[id.0 as usize] {
            WeightEntry::Vector { values } => values,
            WeightEntry::Matrix { .. } | WeightEntry::Owned { .. } | WeightEntry::Shared { .. } => {
                panic!("weight {} is a matrix", id.0)
            }
        }
    }
}
