//! GPU kernels and the drivers that run them.
//!
//! One set of kernel sources (`kernels/`) is compiled ahead of time for each target and embedded. A [`Gpu`] is one
//! device opened through one of three drivers behind the same function table: HIP, CUDA, or `host`, where the CPU plays
//! a GPU so that everything but speed is tested without one. `ops` has one safe function for each kernel.

mod driver;
mod error;
mod gpu;
mod image;
mod memory;
mod operands;
pub mod ops;
mod step;

pub use driver::host::set_host_seed;
pub use error::GpuError;
pub use gpu::{Gpu, Params};
pub use image::{Image, images};
pub use memory::{Buffer, Slice};
pub use operands::{ActForm, Activation, Acts, ActsBuffer, KvLayer, Matrix, OutMode};
pub use step::{SeqRows, Step};
