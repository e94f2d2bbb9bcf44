//! Instruction sets: a witness type for each, the intrinsics behind its [`Simd`] methods, and the
//! one entry through which every vector kernel is called.
//!
//! A [`Kernel`] is written once over [`Simd`], with `#[inline(always)]` on everything in its
//! loops. The witness's `run` is compiled once per kernel with the instruction set enabled, and
//! what is inlined into it is compiled with it. (The pattern of the crates memchr and pulp.)

#![allow(unsafe_code, reason = "intrinsics")]

use crate::generic::simd::Simd;

/// Evaluates intrinsics that touch no memory.
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

/// Some vector instruction set that this processor has.
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

    /// The algorithm. To be marked `#[inline(always)]`, like all that its loops call; closures
    /// are not inlined by force, so keep vector code out of them.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Witnesses of instruction sets that this architecture does not have.
#[cfg(not(target_arch = "x86_64"))]
mod none {
    macro_rules! absent {
        ($name:ident) => {
            /// There is no value of it on this architecture.
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
