//! Dequantizes MXFP6 blocks (`kernels/mxfp6.hip`), a format of this library that no GGUF file uses.

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels, layout};
use crate::memory::{Address, Slice};

/// Threads per block of every kernel here.
const THREADS: u32 = 256;

/// Values and bytes of a block.
const BLOCK: [usize; 2] = [32, 25];

/// The layout of the six bits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mxfp6 {
    /// Two exponent bits, three mantissa bits.
    E2M3,
    /// Three exponent bits, two mantissa bits.
    E3M2,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Mxfp6Params {
    blocks: Address,
    out: Address,
    n_blocks: u32,
    pad: u32,
}

layout!(Mxfp6Params {
    blocks,
    out,
    n_blocks,
    pad
});

const _: () = assert!(size_of::<Mxfp6Params>() == 24);

kernels! {
    struct Mxfp6Kernels {
        e2m3: Mxfp6Params,
        e3m2: Mxfp6Params,
        e2m3_f16: Mxfp6Params,
        e3m2_f16: Mxfp6Params,
    }
}

/// Dequantizes blocks as written by `gguf::quant::mxfp6`, out `[32 * blocks]`.
///
/// # Errors
/// If the launch fails.
///
/// # Panics
/// If `blocks` is not whole blocks, or `out` has another length.
pub fn dequantize_mxfp6(
    gpu: &Gpu,
    format: Mxfp6,
    blocks: Slice<'_, u8>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let kernel = match format {
        Mxfp6::E2M3 => &gpu.kernels().mxfp6.e2m3,
        Mxfp6::E3M2 => &gpu.kernels().mxfp6.e3m2,
    };
    launch(gpu, kernel, blocks, out)
}

/// As [`dequantize_mxfp6`], rounded to f16 (bits).
///
/// # Errors
/// As [`dequantize_mxfp6`].
///
/// # Panics
/// As [`dequantize_mxfp6`].
pub fn dequantize_mxfp6_f16(
    gpu: &Gpu,
    format: Mxfp6,
    blocks: Slice<'_, u8>,
    out: Slice<'_, u16>,
) -> Result<(), GpuError> {
    let kernel = match format {
        Mxfp6::E2M3 => &gpu.kernels().mxfp6.e2m3_f16,
        Mxfp6::E3M2 => &gpu.kernels().mxfp6.e3m2_f16,
    };
    launch(gpu, kernel, blocks, out)
}

fn launch<T>(
    gpu: &Gpu,
    kernel: &Kernel<Mxfp6Params>,
    blocks: Slice<'_, u8>,
    out: Slice<'_, T>,
) -> Result<(), GpuError> {
    let [values, bytes] = BLOCK;
    assert!(blocks.len().is_multiple_of(bytes), "whole blocks");
    let n_blocks = blocks.len() / bytes;
    assert_eq!(out.len(), n_blocks * values, "one value per code");
    let params = Mxfp6Params {
        blocks: blocks.address(),
        out: out.address(),
        n_blocks: u32::try_from(n_blocks).expect("the number of blocks fits 32 bits"),
        pad: 0,
    };
    let n_threads = n_blocks * (values / 4);
    let grid = u32::try_from(n_threads.div_ceil(THREADS as usize)).expect("the grid fits 32 bits");
    gpu.launch(kernel, [grid, 1, 1], THREADS, 0, &params)
}
