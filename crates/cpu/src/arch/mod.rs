//! Instruction sets: a witness type for each, the intrinsics behind its [`Simd`] methods, and the
//! one entry through which every vector kernel is called.
//!
//! A [`Kernel`] is written once over [`Simd`], with `#[inline(always)]` on everything in its
//! loops. The witness's `run` is compiled once per kernel with the instruction set enabled, and
//! what is inlined into it is compiled with it. (The pattern of the crates memchr and pulp.)

#![allow(unsafe_code, reason = "intrinsics")]

use crate::generic::simd::Simd;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod bytes_avx2;
#[cfg(target_arch = "x86_64")]
mod lanes_avx2;
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;

/// An algorithm over any vector instruction set.
pub(crate) trait Kernel {
    type Output;

    /// The algorithm. To be marked `#[inline(always)]`, like all that its loops call; closures
    /// are not inlined by force, so keep vector code out of them.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// The witness of an instruction set that this architecture does not have.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Avx2 {}

#[cfg(not(target_arch = "x86_64"))]
impl Avx2 {
    pub(crate) fn detect() -> Option<Avx2> {
        None
    }

    pub(crate) fn run<K: Kernel>(self, _: K) -> K::Output {
        match self {}
    }
}
