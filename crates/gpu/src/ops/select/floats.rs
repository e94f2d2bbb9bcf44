//! Products with small F32 matrices, such as those of routers. A GEMM has few blocks for them, each with a long loop.

use rocmforge_gguf::GgmlType;

use super::super::jobs::One;
use super::GemmTile;
use crate::gpu::Gpu;
use crate::image::Image;
use crate::kernel::{Kernel, kernels};
use crate::operands::Matrix;
use crate::variant::Variant;

kernels! {
    struct FewFloatsKernels {
        few_floats: One,
    }
}

kernels! {
    /// For Hopper only.
    struct ManyFloatsKernels {
        many_floats: One,
    }
}

/// The tile of `few_floats`, and the most rows of its products.
const FEW_TILE: GemmTile = GemmTile {
    rows: 8,
    outs: 8,
    threads: 256,
    shared_bytes: 0,
    order: 0,
};
const MAX_FEW_ROWS: usize = 64;

/// The same of `many_floats`. A GEMM of more has enough blocks.
const MANY_TILE: GemmTile = GemmTile {
    rows: 16,
    outs: 32,
    threads: 512,
    shared_bytes: 0,
    order: 0,
};
const MAX_MANY_ROWS: usize = 1024;

/// The most outputs.
const MAX_OUTS: usize = 1024;

/// Returns the kernel for a product of rows with a small F32 matrix, and its tile.
pub(super) fn of_small_matrix<'g>(
    gpu: &'g Gpu,
    matrix: &Matrix<'_>,
    n_rows: usize,
) -> Option<(&'g Kernel<One>, GemmTile)> {
    let others = [
        Variant::RowsPrompt,
        Variant::TilesLarge,
        Variant::TilesSmall,
    ];
    let is_small = matrix.ty == GgmlType::F32
        && matrix.n_out <= MAX_OUTS
        && !others.iter().any(|&variant| gpu.takes(variant));
    if !is_small || n_rows > MAX_MANY_ROWS {
        return None;
    }
    if n_rows <= MAX_FEW_ROWS {
        return Some((&gpu.kernels().few_floats.few_floats, FEW_TILE));
    }
    let kernel = &gpu.kernels().many_floats.many_floats;
    Image::find(gpu.target(), kernel.module).map(|_| (kernel, MANY_TILE))
}
