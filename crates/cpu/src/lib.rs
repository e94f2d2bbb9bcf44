//! CPU kernels on slices.

pub mod pool;

pub use pool::Pool;
