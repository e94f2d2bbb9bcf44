//! Products of weights with a few rows of activations.

use crate::memory::Slice;
use crate::operands::{Matrix, OutMode};

/// A product `out = x * matrix + bias` that is stored or added.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub matrix: Matrix<'a>,
    /// `[n_out]`.
    pub bias: Option<Slice<'a, f32>>,
    pub mode: OutMode,
    /// `[n_rows, n_out]`.
    pub out: Slice<'a, f32>,
}
