//! CPU kernels on slices.

#![deny(unsafe_code)]

mod arch;
mod generic;
mod isa;
pub mod pool;

pub use arch::Avx2;
pub use isa::Isa;
pub use pool::Pool;
