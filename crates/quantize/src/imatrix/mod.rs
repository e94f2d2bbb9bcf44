//! Importance matrices: how strongly a text uses each input column of every weight matrix. The quantizer rounds
//! important columns more carefully. The format is llama.cpp's.

mod error;
mod file;

use std::collections::BTreeMap;

pub use error::ImatrixError;

/// Squares of the input activations of each weight matrix, summed over tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imatrix {
    /// Names of the texts the matrix was made from.
    pub datasets: Vec<String>,
    /// Number of text windows.
    pub n_chunks: u32,
    /// Tokens per window.
    pub chunk_size: u32,
    /// Entries by weight tensor name.
    pub entries: BTreeMap<String, Entry>,
}

/// The sums of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Sums of squares, `[n_matrices, n_columns]`; the experts of a layer are several matrices.
    pub sums: Vec<f32>,
    /// Number of tokens each matrix was applied to, `[n_matrices]`.
    pub counts: Vec<u64>,
}

impl Imatrix {
    /// Returns the number of values in the entry for the tensor `name`: columns times matrices.
    pub fn n_values(&self, name: &str) -> Option<usize> {
        self.entries.get(name).map(|entry| entry.sums.len())
    }

    /// Returns the mean squares for the tensor `name`, `[n_matrices, n_columns]`. A matrix without tokens, or with
    /// only zeros, has ones, so that all columns count the same.
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
