//! Importance matrices: for every weight matrix, how strongly each of its input columns is used on some
//! text. The quantizer rounds the columns that matter with more care. The form is llama.cpp's.

mod error;
mod file;

use std::collections::BTreeMap;

pub use error::ImatrixError;

/// Squares of the activations that each weight matrix meets, summed over tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imatrix {
    /// Names of the texts it was made from.
    pub datasets: Vec<String>,
    /// Windows of text.
    pub n_chunks: u32,
    /// Tokens of a window.
    pub chunk_size: u32,
    /// By the name of the weight tensor.
    pub entries: BTreeMap<String, Entry>,
}

/// What one tensor has met.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Sums of squares, `[n_matrices, n_columns]`; several matrices are the experts of a layer.
    pub sums: Vec<f32>,
    /// Tokens that each matrix has met, `[n_matrices]`.
    pub counts: Vec<u64>,
}

impl Imatrix {
    /// Values of the entry for the tensor `name`: its columns times its matrices.
    pub fn n_values(&self, name: &str) -> Option<usize> {
        self.entries.get(name).map(|entry| entry.sums.len())
    }

    /// Mean squares for the tensor `name`, `[n_matrices, n_columns]`. A matrix that has met no token, or
    /// nothing but zeros, has ones: every column counts the same.
    pub fn mean_squares(&self, name: &str) -> Option<Vec<f32>> {
        let entry = self.entries.get(name)?;
        let n_columns = entry.sums.len() / entry.counts.len();
        let matrices = entry.sums.chunks_exact(n_columns).zip(&entry.counts);
        let means = matrices.flat_map(|(sums, &count)| {
            let is_used = count > 0 && sums.iter().any(|&sum| sum > 0.0);
            sums.iter().map(move |&sum| match is_used {
                true => sum / count as f32,
                false => 1.0,
            })
        });
        Some(means.collect())
    }
}
