//! Operations on one value at a time (`kernels/elementwise.hip`).

use crate::error::GpuError;
use crate::gpu::{Gpu, Params};
use crate::memory::Slice;

/// Threads of a block of every kernel here.
const THREADS: u32 = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct AddParams {
    x: u64,
    out: u64,
    n: u32,
    _pad: u32,
}

const _: () = assert!(size_of::<AddParams>() == 24);

// SAFETY: as `AddParams` in elementwise.hip.
unsafe impl Params for AddParams {}

/// `out += x`, both `[n]`.
///
/// # Panics
/// If the lengths differ.
pub fn add(gpu: &Gpu, x: Slice<'_, f32>, out: Slice<'_, f32>) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.len(), "as many values");
    let params = AddParams {
        x: x.ptr(),
        out: out.ptr(),
        n: x.len() as u32,
        _pad: 0,
    };
    let grid = [params.n.div_ceil(THREADS), 1, 1];
    gpu.launch(("elementwise", "add"), grid, THREADS, 0, &params)
}
