//! GEMM: products with many rows of activations (`kernels/format/gemm.hip`), dense or of the experts of an MoE layer.

use super::gemv::Product;
use super::routing::{ExpertTile, Routing};
use super::rows::Weights;
use super::select;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Count, Table, layout};
use crate::limit::MAX_GRID;
use crate::memory::{Address, Slice};
use crate::operands::{Acts, ExpertMatrices, OutMode};
use crate::tuning::{BlockOrder, MatmulTiles};
use rocmforge_plan::act_format;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GemmParams {
    weights: Weights,
    codes: Address,
    scales: Address,
    sums: Address,
    x: Address,
    bias: Address,
    out: Address,
    n_rows: u32,
    flags: u32,
    tiles: Table<ExpertTile>,
    expert_bytes: Count,
}

layout!(GemmParams {
    weights,
    codes,
    scales,
    sums,
    x,
    bias,
    out,
    n_rows,
    flags,
    tiles,
    expert_bytes
});

/// Flags `ADD` and `ROWS_FIRST` in gemm.h.
const ADD: u32 = 1;
const ROWS_FIRST: u32 = 2;

const _: () = assert!(size_of::<GemmParams>() == 88);

impl GemmParams {
    /// `out = x * matrix + bias`, stored or added.
    pub(super) fn new(x: &Acts<'_>, product: &Product<'_>) -> GemmParams {
        GemmParams {
            weights: (&product.matrix).into(),
            codes: x.codes.address(),
            scales: x.scales.address(),
            sums: x.sums.address(),
            x: x.values.address(),
            bias: product.bias.map_or(Address::NULL, |bias| bias.address()),
            out: product.out.address(),
            n_rows: u32::try_from(x.n_rows).expect("the number of rows fits 32 bits"),
            flags: match product.mode {
                OutMode::Store => 0,
                OutMode::Add => ADD,
            },
            tiles: Table::NULL,
            expert_bytes: Count(0),
        }
    }
}

/// `out[row, o] (+)= sum_i x[row, i] w[o, i] + bias[o]`, out `[n_rows, n_out]`, for any number of rows. The result's
/// bits depend only on the shapes and the values.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; errors of the launch.
///
/// # Panics
/// If a shape does not match, or `x` does not have the form that the weights take.
pub fn matmul(gpu: &Gpu, x: &Acts<'_>, product: &Product<'_>) -> Result<(), GpuError> {
    launch(gpu, None, x, product)
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
    launch(gpu, Some(tiles), x, product)
}

fn launch(
    gpu: &Gpu,
    tiles: Option<MatmulTiles>,
    x: &Acts<'_>,
    product: &Product<'_>,
) -> Result<(), GpuError> {
    let Product {
        matrix, bias, out, ..
    } = product;
    assert_eq!(
        x.form,
        act_format(matrix.ty),
        "form of activations for these weights"
    );
    assert_eq!(x.width, matrix.n_in, "width of activations");
    assert_eq!(out.len(), x.n_rows * matrix.n_out, "[n_rows, n_out]");
    assert!(
        bias.is_none_or(|bias| bias.len() == matrix.n_out),
        "one bias per output"
    );
    if out.is_empty() {
        return Ok(());
    }
    let chosen = select::gemm(gpu, matrix, x.n_rows, tiles)?;
    let mut params = GemmParams::new(x, product);
    let mut across = matrix.n_out.div_ceil(chosen.tile.outs) as u32;
    let mut down = x.n_rows.div_ceil(chosen.tile.rows) as u32;
    if chosen.order == BlockOrder::RowsFirst && across as usize <= MAX_GRID {
        params.flags |= ROWS_FIRST;
        (across, down) = (down, across);
    }
    let grid = [across, down, 1];
    gpu.launch_alone(chosen.kernel, grid, chosen.tile.threads, &params)
}

/// Multiplies the rows of each expert with that expert's matrix.
pub(super) fn expert_matmul(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    matrices: &ExpertMatrices<'_>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let chosen = select::expert_gemm(gpu, matrices.ty, routing)?;
    let product = Product {
        matrix: matrices.matrix(0),
        bias: None,
        mode: OutMode::Store,
        out,
    };
    let params = GemmParams {
        tiles: chosen.tiles,
        expert_bytes: Count(matrices.expert_bytes() as u64),
        ..GemmParams::new(x, &product)
    };
    let n_blocks = matrices.n_out.div_ceil(chosen.tile.outs);
    let grid = [chosen.n_tiles as u32, n_blocks as u32, 1];
    gpu.launch(chosen.kernel, grid, chosen.tile.threads, 0, &params)
}
