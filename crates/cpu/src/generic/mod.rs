//! Algorithms over any vector instruction set. Safe code: intrinsics are behind [`simd::Simd`].

pub(crate) mod attention;
pub(crate) mod lanes;
pub(crate) mod simd;
