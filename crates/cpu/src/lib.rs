//! CPU kernels on slices.

#![deny(unsafe_code)]

mod arch;
mod attention;
mod generic;
mod isa;
pub mod pool;

pub use arch::Avx2;
pub use attention::{AttnSeq, AttnShape, KvSlice, KvSliceMut, attention};
pub use isa::Isa;
pub use pool::Pool;
