//! Activation formats that GEMM and GEMV kernels read.
//!
//! The weight format determines the activation format ([`act_format`]), so a product does not depend on
//! which kernel computes it.

use rocmforge_gguf::GgmlType;

/// The format of activations in a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActFormat {
    /// f32, unconverted.
    F32,
    /// int8 with a scale per 32 values: max|x| / 127, rounded to f16.
    Q8x32,
    /// int8 with a scale per 256 values: max|x| / 127 in f32.
    Q8x256,
}

impl ActFormat {
    /// Number of values that share a scale; a row is a whole number of blocks of this length.
    pub const fn block_len(self) -> usize {
        match self {
            ActFormat::F32 => 1,
            ActFormat::Q8x32 => 32,
            ActFormat::Q8x256 => 256,
        }
    }
}

/// Returns the activation format that goes with a weight format.
pub fn act_format(ty: GgmlType) -> ActFormat {
    match ty.block_len() {
        // Without kernels, products are computed from dequantized weights.
        _ if !GgmlType::COMPUTED.contains(&ty) => ActFormat::F32,
        32 | 64 | 128 => ActFormat::Q8x32,
        256 => ActFormat::Q8x256,
        _ => ActFormat::F32,
    }
}
