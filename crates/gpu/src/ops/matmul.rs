//! GEMM: products with many rows of activations (`kernels/format/matmul.hip`).

use super::matvec::Product;
use super::rows::Weights;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels, layout};
use crate::limit::MAX_GRID;
use crate::memory::Address;
use crate::operands::{Acts, Matrix, OutMode};
use crate::tuning::{BlockOrder, Choice, Shape};
use crate::variant::Variant;
use rocmforge_plan::act_format;

/// With fewer blocks than this, large tiles leave most of a device idle.
const FEW_BLOCKS: usize = 128;

/// Up to this many rows, large tiles would mostly compute padding rows.
const FEW_ROWS: usize = 64;

/// The output tile of a block of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulTiles {
    /// The fewest loads per product.
    Large,
    /// More blocks, whose waves also split the columns of the weights.
    Small,
}

impl MatmulTiles {
    const fn names(self) -> [&'static str; 2] {
        match self {
            MatmulTiles::Large => ["large_outs", "large_rows"],
            MatmulTiles::Small => ["small_outs", "small_rows"],
        }
    }

    fn kernel(self, kernels: &MatmulKernels) -> &Kernel<MatmulParams> {
        match self {
            MatmulTiles::Large => &kernels.matmul_large,
            MatmulTiles::Small => &kernels.matmul_small,
        }
    }

    /// Returns the number of blocks across outputs and across rows.
    fn grid(
        self,
        gpu: &Gpu,
        module: &'static str,
        [n_out, n_rows]: [usize; 2],
    ) -> Result<[usize; 2], GpuError> {
        let [outs, rows] = self.names();
        let blocks = |n: usize, tile| Ok(n.div_ceil(gpu.constant(module, tile)? as usize));
        Ok([blocks(n_out, outs)?, blocks(n_rows, rows)?])
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MatmulParams {
    weights: Weights,
    codes: Address,
    scales: Address,
    sums: Address,
    x: Address,
    bias: Address,
    out: Address,
    n_rows: u32,
    flags: u32,
}

layout!(MatmulParams {
    weights,
    codes,
    scales,
    sums,
    x,
    bias,
    out,
    n_rows,
    flags
});

/// Flags `ADD` and `ROWS_FIRST` in matmul.h.
const ADD: u32 = 1;
const ROWS_FIRST: u32 = 2;

const _: () = assert!(size_of::<MatmulParams>() == 72);

impl MatmulParams {
    /// `out = x * matrix + bias`, stored or added.
    pub(super) fn new(x: &Acts<'_>, product: &Product<'_>) -> MatmulParams {
        MatmulParams {
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
        }
    }
}

kernels! {
    struct MatmulKernels {
        matmul_large: MatmulParams,
        matmul_small: MatmulParams,
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
    let module = gpu
        .kernels()
        .matmul
        .of(product.matrix.ty)?
        .matmul_large
        .module;
    let [across, down] = MatmulTiles::Large.grid(gpu, module, [product.matrix.n_out, x.n_rows])?;
    let is_small = x.n_rows <= FEW_ROWS || across * down < FEW_BLOCKS;
    let tiles = match is_small && !gpu.takes(Variant::TilesLarge) || gpu.takes(Variant::TilesSmall)
    {
        true => MatmulTiles::Small,
        false => MatmulTiles::Large,
    };
    matmul_tiled(gpu, tiles, x, product)
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
    let kernel = tiles.kernel(gpu.kernels().matmul.of(matrix.ty)?);
    let grid = tiles.grid(gpu, kernel.module, [matrix.n_out, x.n_rows])?;
    let mut params = MatmulParams::new(x, product);
    let n_threads = gpu.constant(kernel.module, "n_threads")?;
    let [mut across, mut down] = grid.map(|n| n as u32);
    if is_rows_first(gpu, matrix, x.n_rows) && across as usize <= MAX_GRID {
        params.flags |= ROWS_FIRST;
        (across, down) = (down, across);
    }
    gpu.launch_alone(kernel, [across, down, 1], n_threads, &params)
}

/// Whether this order was measured to be faster.
fn is_rows_first(gpu: &Gpu, matrix: &Matrix<'_>, n_rows: usize) -> bool {
    let order = BlockOrder::RowsFirst;
    gpu.tuned(|| shape(matrix, n_rows)) == Some(Choice::Matmul { order })
}

fn shape(matrix: &Matrix<'_>, n_rows: usize) -> Shape {
    Shape::Matmul {
        ty: matrix.ty,
        n_out: matrix.n_out,
        n_in: matrix.n_in,
        n_rows: n_rows.next_power_of_two(),
    }
}

/// Returns the shape of [`matmul`]'s launch and its candidate choices, the default first.
pub(crate) fn matmul_choices(matrix: &Matrix<'_>, n_rows: usize) -> (Shape, Vec<Choice>) {
    let orders = [BlockOrder::OutputsFirst, BlockOrder::RowsFirst];
    let ways = orders.map(|order| Choice::Matmul { order });
    (shape(matrix, n_rows), ways.to_vec())
}
