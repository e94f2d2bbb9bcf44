//! CPU kernels on slices.

#![deny(unsafe_code)]

mod arch;
mod attention;
mod generic;
mod isa;
mod ops;
pub mod pool;

pub use arch::Avx2;
pub use attention::{AttnSeq, AttnShape, KvSlice, KvSliceMut, attention};
pub use isa::Isa;
pub use ops::{RopeStyle, add, argmax, kv_append, log_sum_exp, rms_norm, rope, silu_mul};
pub use pool::{MAX_THREADS, Pool, Tile};
