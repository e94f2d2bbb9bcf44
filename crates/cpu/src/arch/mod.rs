//! Instruction sets: a witness type for each, the intrinsics behind its [`Simd`] methods, and the single entry through
//! which vector kernels are called.
//!
//! A [`Kernel`] is written once over [`Simd`], with `#[inline(always)]` on everything in its loops. The witness's `run`
//! is compiled once per kernel with the instruction set enabled, which applies to everything inlined into it. (The
//! pattern of the crates memchr and pulp.)

#![allow(unsafe_code, reason = "intrinsics")]

use crate::generic::simd::Simd;

/// Evaluates intrinsics that do not access memory.
#[cfg(target_arch = "x86_64")]
macro_rules! values {
    ($values:expr) => {
        // SAFETY: methods of a witness run only on a processor that has its instruction set;
        // intrinsics on values have no other precondition.
        unsafe { $values }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod bytes_avx2;
#[cfg(target_arch = "x86_64")]
mod bytes_avx512;
#[cfg(target_arch = "x86_64")]
mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
mod lanes_avx512;
#[cfg(target_arch = "x86_64")]
pub use {avx2::Avx2, avx512::Avx512};

/// A vector instruction set of this processor.
#[derive(Clone, Copy)]
pub(crate) enum Vector {
    Avx2(Avx2),
    Avx512(Avx512),
}

impl Vector {
    /// Runs `kernel` compiled for this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Vector::Avx2(isa) => isa.run(kernel),
            Vector::Avx512(isa) => isa.run(kernel),
        }
    }
}

/// An algorithm over any vector instruction set.
pub(crate) trait Kernel {
    type Output;

    /// Runs the algorithm. Must be `#[inline(always)]`, like everything its loops call. Closures are not always
    /// inlined, so keep vector code out of them.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Witnesses for architectures without these instruction sets.
#[cfg(not(target_arch = "x86_64"))]
mod none {
    macro_rules! absent {
        ($name:ident) => {
            /// Cannot be created on this architecture.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub enum $name {}

            impl $name {
                pub(crate) fn detect() -> Option<$name> {
                    None
                }

                pub(crate) fn run<K: super::Kernel>(self, _: K) -> K::Output {
                    match self {}
                }
            }
        };
    }
    absent!(Avx2);
    absent!(Avx512);
}
#[cfg(not(target_arch = "x86_64"))]
pub use none::{Avx2, Avx512};
