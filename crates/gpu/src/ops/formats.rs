//! The weight formats that kernels are compiled for, one module per format (`kernels/format`).

use rocmforge_gguf::GgmlType;

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{AnyKernel, KernelTable};

/// The kernels of a file in `kernels/format`, for each of [`GgmlType::COMPUTED`].
pub(crate) struct PerFormat<T>([T; GgmlType::COMPUTED.len()]);

impl<T: KernelTable> PerFormat<T> {
    /// `modules` has one name for each format.
    pub(super) fn of_modules(modules: [&'static str; GgmlType::COMPUTED.len()]) -> PerFormat<T> {
        PerFormat(modules.map(T::of_module))
    }

    /// Returns the kernels for a format, or [`GpuError::Format`].
    pub(crate) fn of(&self, ty: GgmlType) -> Result<&T, GpuError> {
        Ok(&self.0[index(ty)?])
    }

    pub(super) fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
        self.0.iter().for_each(|table| table.each(visit));
    }
}

/// The names of the modules of a file in `kernels/format`, in the order of [`GgmlType::COMPUTED`].
macro_rules! format_modules {
    ($file:ident) => {
        rocmforge_gguf::computed_formats!(format_modules @of $file)
    };
    (@of $file:ident $($name:ident $lower:ident),*) => {
        [$(concat!(stringify!($file), ".", stringify!($name))),*]
    };
}
pub(super) use format_modules;

/// Returns the place of a format in [`GgmlType::COMPUTED`].
fn index(ty: GgmlType) -> Result<usize, GpuError> {
    let mut formats = GgmlType::COMPUTED.iter();
    let index = formats.position(|&computed| computed == ty);
    index.ok_or(GpuError::Format { ty: ty.name() })
}

/// Fails with [`GpuError::Format`] if weights of this type have no kernels.
pub(crate) fn check_format(ty: GgmlType) -> Result<(), GpuError> {
    index(ty).map(|_| ())
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
