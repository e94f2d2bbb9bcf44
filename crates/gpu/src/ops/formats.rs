//! The weight formats that kernels are compiled for, one module per format (`kernels/format`).

use rocmforge_gguf::GgmlType;

use crate::error::GpuError;
use crate::gpu::Gpu;

/// The module name of a kernel file in `kernels/format` for a type, or [`GpuError::Format`].
macro_rules! format_module {
    ($kernel:literal, $ty:expr) => {
        $crate::ops::formats::format_module!(@match $kernel, $ty,
            F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4)
    };
    (@match $kernel:literal, $ty:expr, $($name:ident)*) => {
        match $ty {
            $(rocmforge_gguf::GgmlType::$name => Ok(concat!($kernel, ".", stringify!($name))),)*
            other => Err($crate::GpuError::Format { ty: other.name() }),
        }
    };
}
pub(crate) use format_module;

/// Fails with [`GpuError::Format`] if weights of this type have no kernels.
pub(crate) fn check_format(ty: GgmlType) -> Result<(), GpuError> {
    format_module!("rows", ty).map(|_: &str| ())
}

/// Values of a row that one thread handles at a time: `CHUNK` in `kernels/quant.h`.
pub(crate) fn chunk_len(ty: GgmlType) -> usize {
    match ty.block_len() {
        1 => 16 / ty.block_bytes(),
        _ => 32,
    }
}

/// Chunks of a row of `n_in` values. Rows are padded to a multiple of 32 values.
pub(crate) fn n_chunks(ty: GgmlType, n_in: usize) -> usize {
    n_in.next_multiple_of(32) / chunk_len(ty)
}

/// Threads per wave: `WARP_SIZE` in `kernels/gpu.h`.
pub(crate) fn warp_size(gpu: &Gpu) -> usize {
    match gpu.target() {
        "host-cdna" => 64,
        target if target.starts_with("gfx9") => 64,
        _ => 32,
    }
}
