//! GEMM: products with many rows of activations (`kernels/format/gemm.hip`).

use super::jobs::{Mode, One, Product, RawProduct, Work};
use super::{half, select};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::limit::MAX_GRID;
use crate::operands::Acts;
use crate::tuning::{BlockOrder, MatmulTiles};

/// `out[row, o] (+)= sum_i x[row, i] w[o, i] + bias[o]`, out `[n_rows, n_out]`, for any number of rows. The result's
/// bits depend only on the shapes and the values.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; errors of the launch.
///
/// # Panics
/// If a shape does not match, or `x` does not have the form that the weights take.
pub fn matmul(gpu: &Gpu, x: &Acts<'_>, product: &Product<'_>) -> Result<(), GpuError> {
    launch_each(gpu, &[Work::new(x, product)])
}

/// [`matmul`] with tiles chosen by the caller.
///
/// # Errors
/// As [`matmul`].
///
/// # Panics
/// As [`matmul`].
pub fn matmul_tiled(
    gpu: &Gpu,
    tiles: MatmulTiles,
    x: &Acts<'_>,
    product: &Product<'_>,
) -> Result<(), GpuError> {
    launch(gpu, &Work::new(x, product), Some(tiles))
}

/// Launches jobs with the same activations, none of them gated.
pub(super) fn launch_each(gpu: &Gpu, works: &[Work<'_>]) -> Result<(), GpuError> {
    if let Some(memory) = half::memory(gpu, works) {
        return half::launch(gpu, memory, works);
    }
    works.iter().try_for_each(|work| launch(gpu, work, None))
}

/// Launches one job by the kernels of any GPU.
fn launch(gpu: &Gpu, work: &Work<'_>, forced: Option<MatmulTiles>) -> Result<(), GpuError> {
    assert!(
        work.up.is_none() && matches!(work.mode, Mode::Store | Mode::Add),
        "GEMM has no gates"
    );
    if work.out.is_empty() {
        return Ok(());
    }
    let chosen = select::gemm(gpu, work, forced)?;
    let tile = chosen.tile;
    let outs = work.matrix.n_out.div_ceil(tile.outs) as u32;
    let mut params = One::new(work, RawProduct::new(work, 0), chosen.tiles);
    if let Some(tiles) = chosen.tiles {
        let grid = [tiles.len() as u32, outs, 1];
        return gpu.launch(chosen.kernel, grid, tile.threads, 0, &params);
    }
    let mut grid = [outs, work.x.n_rows.div_ceil(tile.rows) as u32, 1];
    if chosen.order == BlockOrder::RowsFirst && outs as usize <= MAX_GRID {
        params = params.rows_first();
        grid.swap(0, 1);
    }
    match chosen.overlaps {
        true => gpu.launch(chosen.kernel, grid, tile.threads, 0, &params),
        false => gpu.launch_alone(chosen.kernel, grid, tile.threads, &params),
    }
}
