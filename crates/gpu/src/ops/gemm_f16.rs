//! GEMM with F16 weights and f16 activations on Hopper's asynchronous matrix units (`kernels/hopper/gemm_f16.hip`).

use rocmforge_gguf::GgmlType;

use super::jobs::{One, Product, RawProduct, Work};
use super::select::{GemmTile, tile_names};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::kernels;
use crate::memory::Slice;
use crate::operands::{ActFormat, Acts};

kernels! {
    struct GemmF16Kernels {
        gemm_f16: One,
    }
}

/// `out[row, o] (+)= sum_i x[row, i] w[o, i] + bias[o]` for F16 weights: `x` `[n_rows, n_in]` as f16 bits, out
/// `[n_rows, n_out]`. Products are exact, and sums have f32.
///
/// # Errors
/// [`GpuError::Format`] for other weights; [`GpuError::NoSymbol`] on devices other than Hopper and its emulator; errors
/// of the launch.
///
/// # Panics
/// If a shape does not match, `n_in` is not a multiple of 8, or `x` is not aligned to 16 bytes.
pub fn matmul_f16(gpu: &Gpu, x: Slice<'_, u16>, product: &Product<'_>) -> Result<(), GpuError> {
    let Product {
        matrix,
        bias,
        mode,
        out,
    } = product;
    if matrix.ty != GgmlType::F16 {
        return Err(GpuError::Format {
            ty: matrix.ty.name(),
        });
    }
    assert!(
        matrix.n_in > 0 && matrix.n_in.is_multiple_of(8) && x.address().is_aligned_to(16),
        "rows are whole pieces of 16 bytes"
    );
    assert!(x.len().is_multiple_of(matrix.n_in), "whole rows");
    let n_rows = x.len() / matrix.n_in;
    assert_eq!(out.len(), n_rows * matrix.n_out, "[n_rows, n_out]");
    assert!(
        bias.is_none_or(|bias| bias.len() == matrix.n_out),
        "one bias per output"
    );
    if out.is_empty() {
        return Ok(());
    }
    let kernel = &gpu.kernels().gemm_f16.gemm_f16;
    let [names] = tile_names!(gemm_f16);
    let tile = GemmTile::read(gpu, kernel.module, names)?;
    let none = x.part(0..0);
    let work = Work {
        x: Acts {
            form: ActFormat::F32,
            n_rows,
            width: matrix.n_in,
            // The kernel reads them as halves.
            values: x.cast(),
            codes: none.cast(),
            scales: none.cast(),
            sums: none.cast(),
        },
        matrix: *matrix,
        bias: *bias,
        up: None,
        mode: (*mode).into(),
        out: *out,
        experts: None,
    };
    let blocks = |n: usize, tile: usize| n.div_ceil(tile) as u32;
    let grid = [
        blocks(matrix.n_out, tile.outs),
        blocks(n_rows, tile.rows),
        1,
    ];
    let params = One::new(&work, RawProduct::new(&work, 0), None);
    gpu.launch(kernel, grid, tile.threads, 0, &params)
}
