//! The instruction set that kernels use: detected once, then passed to every operation.
//!
//! A vector variant carries a witness, a zero-size value that only detection creates. Holding an [`Isa`] therefore
//! proves that its kernels can run, and no operation checks the processor again.

use std::fmt;

use crate::arch::{Avx2, Avx512, Vector};

/// An instruction set of this processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain loops over dequantized values: the reference for the vector kernels, and the fallback for other
    /// processors.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2(Avx2),
    /// x86-64 with AVX-512 (F, BW, DQ, VL) and its byte products (VNNI).
    Avx512(Avx512),
}

impl Isa {
    /// Returns the fastest instruction set of this processor.
    pub fn detect() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Scalar)
    }

    /// Returns all instruction sets of this processor, slowest first.
    pub fn available() -> Vec<Isa> {
        [
            Some(Isa::Scalar),
            Avx2::detect().map(Isa::Avx2),
            Avx512::detect().map(Isa::Avx512),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The vector instruction set; `None` for the scalar loops.
    #[inline]
    pub(crate) fn vector(self) -> Option<Vector> {
        match self {
            Isa::Scalar => None,
            Isa::Avx2(isa) => Some(Vector::Avx2(isa)),
            Isa::Avx512(isa) => Some(Vector::Avx512(isa)),
        }
    }

    /// The name in settings and output.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2(_) => "avx2",
            Isa::Avx512(_) => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_the_last_available_instruction_set() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::Scalar));
        assert_eq!(available.last(), Some(&Isa::detect()));
    }
}
