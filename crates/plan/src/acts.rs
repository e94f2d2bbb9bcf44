//! The formats of activations that GEMM and GEMV kernels read.
//!
//! The weight format determines the activation format ([`act_format`]), so a product does not depend on
//! which kernel computes it.

use rocmforge_gguf::GgmlType;

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
