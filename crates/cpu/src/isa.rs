//! Which instruction set the kernels use: detected once, then passed to every operation.
//!
//! A vector variant carries its witness, a zero-size value that only detection makes. Whoever
//! holds an [`Isa`] may therefore run its kernels: no operation checks the processor again.

use std::fmt;

use crate::arch::{Avx2, Avx512, Vector};

/// An instruction set this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain loops over dequantized values: the oracle of the others, and the way to run on a
    /// processor that none of them fits.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2(Avx2),
    /// x86-64 with AVX-512 (F, BW, DQ, VL) and its byte products (VNNI).
    Avx512(Avx512),
}

impl Isa {
    /// The fastest instruction set of this processor.
    pub fn detect() -> Isa {
        Isa::available().pop().unwrap_or(Isa::Scalar)
    }

    /// Every instruction set of this processor, slowest first.
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

    /// What runs vector kernels; `None` for the scalar loops.
    #[inline]
    pub(crate) fn vector(self) -> Option<Vector> {
        match self {
            Isa::Scalar => None,
            Isa::Avx2(isa) => Some(Vector::Avx2(isa)),
            Isa::Avx512(isa) => Some(Vector::Avx512(isa)),
        }
    }

    /// The name users type and read.
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
    fn the_best_is_the_last_available() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::Scalar));
        assert_eq!(available.last(), Some(&Isa::detect()));
    }
}
