//! Algorithms over any vector instruction set, in safe code: intrinsics are behind [`simd::Simd`].

pub(crate) mod attention;
pub(crate) mod bytes;
pub(crate) mod float_dot;
pub(crate) mod floats;
pub(crate) mod format;
mod formats;
pub(crate) mod int_dot;
pub(crate) mod lanes;
pub(crate) mod sign_dot;
pub(crate) mod simd;
pub(crate) mod tile;
