//! GEMV: products with few rows of activations (`kernels/format/gemv.hip`).

use rocmforge_plan::act_format;
use zerocopy::{Immutable, IntoBytes};

use super::formats::warp_size;
use super::routing::{ExpertTile, Routing};
use super::rows::Weights;
use super::select::{self, Waves};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Count, Kernel, Table, layout};
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Activation, Acts, ExpertMatrices, Matrix, OutMode};

/// Maximum number of rows of activations for [`matvec`].
pub const MAX_ROWS: usize = 8;

/// Maximum number of matrices in one launch.
pub(super) const MAX_JOBS: usize = 3;

/// Threads per block.
pub(super) const THREADS: u32 = 256;

/// A product `out = x * matrix + bias`, stored or added.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub matrix: Matrix<'a>,
    /// `[n_out]`.
    pub bias: Option<Slice<'a, f32>>,
    pub mode: OutMode,
    /// `[n_rows, n_out]`.
    pub out: Slice<'a, f32>,
}

/// Two products combined by a gate, `out = activation(x * gate + biases[0]) * (x * up + biases[1])`.
#[derive(Clone, Copy)]
pub struct Gated<'a> {
    /// Gate and up, of the same shape and of any formats.
    pub matrices: [Matrix<'a>; 2],
    /// `[n_out]` each.
    pub biases: [Option<Slice<'a, f32>>; 2],
    pub activation: Activation,
    /// `[n_rows, n_out]`.
    pub out: Slice<'a, f32>,
}

/// What happens to the result of a product: `Mode` in gemv.h.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum Mode {
    Store = 0,
    Add = 1,
    GateSilu = 2,
    GateGeluTanh = 3,
}

impl From<OutMode> for Mode {
    fn from(mode: OutMode) -> Mode {
        match mode {
            OutMode::Store => Mode::Store,
            OutMode::Add => Mode::Add,
        }
    }
}

impl From<Activation> for Mode {
    fn from(activation: Activation) -> Mode {
        match activation {
            Activation::Silu => Mode::GateSilu,
            Activation::GeluTanh => Mode::GateGeluTanh,
        }
    }
}

/// A product as kernels read it (`Job` in gemv.h).
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(super) struct Job {
    pub(super) weights: Weights,
    pub(super) bias: Address,
    pub(super) out: Address,
    pub(super) first_block: u32,
    pub(super) split_log: u32,
    pub(super) mode: u32,
    pub(super) turns_log: u32,
}

layout!(Job {
    weights,
    bias,
    out,
    first_block,
    split_log,
    mode,
    turns_log
});

impl Job {
    /// Returns the product of `x` with a matrix, with blocks from `first_block` on, and its number of blocks.
    ///
    /// # Panics
    /// If a shape does not match.
    pub(super) fn new(
        gpu: &Gpu,
        x: &Acts<'_>,
        product: &Product<'_>,
        waves: Waves,
        first_block: u32,
    ) -> (Job, u32) {
        let Product {
            matrix, bias, out, ..
        } = product;
        assert_eq!(
            (x.form, x.width),
            (act_format(matrix.ty), matrix.n_in),
            "form and width of activations for {} weights",
            matrix.ty.name()
        );
        assert!(matrix.n_in > 0 && matrix.n_out > 0, "the matrix is empty");
        assert_eq!(out.len(), x.n_rows * matrix.n_out, "out is [n_rows, n_out]");
        assert!(
            bias.is_none_or(|bias| bias.len() == matrix.n_out),
            "bias is [n_out]"
        );
        let n_waves = THREADS as usize / warp_size(gpu);
        let split = select::virtual_split(gpu, matrix);
        let waves_of_row = split.min(waves.max_split);
        let n_blocks = matrix.n_out.div_ceil(n_waves / waves_of_row * waves.rows);
        let job = Job {
            weights: matrix.into(),
            bias: bias.map_or(Address::NULL, |bias| bias.address()),
            out: out.address(),
            first_block,
            split_log: split.ilog2(),
            mode: Mode::from(product.mode) as u32,
            turns_log: (split / waves_of_row).ilog2(),
        };
        let n_blocks = u32::try_from(n_blocks).expect("the number of blocks fits 32 bits");
        (job, n_blocks)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GemvParams {
    x: Address,
    scales: Address,
    sums: Address,
    n_rows: u32,
    gated: u32,
    jobs: [Job; MAX_JOBS],
    tiles: Table<ExpertTile>,
    expert_bytes: Count,
}

layout!(GemvParams {
    x,
    scales,
    sums,
    n_rows,
    gated,
    jobs,
    tiles,
    expert_bytes
});

impl GemvParams {
    /// Parameters of up to [`MAX_JOBS`] independent products of the rows of `x`.
    pub(super) fn independent(x: &Acts<'_>, jobs: &[Job]) -> GemvParams {
        // Unused jobs begin after the last block.
        let after = Job {
            first_block: u32::MAX,
            ..jobs[0]
        };
        let mut all = [after; MAX_JOBS];
        all[..jobs.len()].copy_from_slice(jobs);
        GemvParams {
            x: operand(x),
            scales: x.scales.address(),
            sums: x.sums.address(),
            n_rows: u32::try_from(x.n_rows).expect("the number of rows fits 32 bits"),
            gated: 0,
            jobs: all,
            tiles: Table::NULL,
            expert_bytes: Count(0),
        }
    }

    /// Parameters of the products gate and up, whose results are combined.
    pub(super) fn gated(x: &Acts<'_>, gate_up: &[Job; 2]) -> GemvParams {
        GemvParams {
            gated: 1,
            ..GemvParams::independent(x, gate_up)
        }
    }
}

const _: () = assert!(size_of::<Job>() == 48 && size_of::<GemvParams>() == 192);

/// Multiplies the rows of `x` with each matrix, in one launch per weight format. The bits of an output row do not
/// depend on the number of rows or on the other products.
///
/// # Errors
/// [`GpuError::Format`] for formats without kernels; errors of a launch.
///
/// # Panics
/// If `x` has more than [`MAX_ROWS`] rows, or not the form or width that a matrix takes; if there are more than three
/// products; or if a bias or output has another shape.
pub fn matvec(gpu: &Gpu, x: &Acts<'_>, products: &[Product<'_>]) -> Result<(), GpuError> {
    assert!(products.len() <= MAX_JOBS, "more than three products");
    for (i, product) in products.iter().enumerate() {
        let ty = product.matrix.ty;
        if products[..i].iter().any(|other| other.matrix.ty == ty) {
            continue;
        }
        let same = products.iter().filter(|other| other.matrix.ty == ty);
        let same: Vec<(Product<'_>, Mode)> = same.map(|p| (*p, p.mode.into())).collect();
        launch(gpu, x, &same)?;
    }
    Ok(())
}

/// Computes both products and the gate, in one launch if both matrices have the same format, else in two.
///
/// # Errors
/// As [`matvec`].
///
/// # Panics
/// As [`matvec`]; also if the matrices have different shapes.
pub fn matvec_gated(gpu: &Gpu, x: &Acts<'_>, gated: &Gated<'_>) -> Result<(), GpuError> {
    let [gate, up] = gated.matrices;
    assert_eq!(
        (gate.n_out, gate.n_in),
        (up.n_out, up.n_in),
        "gate and up differ in shape"
    );
    let [gate, up] =
        [(gate, gated.biases[0]), (up, gated.biases[1])].map(|(matrix, bias)| Product {
            matrix,
            bias,
            mode: OutMode::Store,
            out: gated.out,
        });
    let (up, both) = ((up, Mode::Store), (gate, gated.activation.into()));
    if gate.matrix.ty == up.0.matrix.ty {
        return launch_gated(gpu, x, &[both, up]);
    }
    launch(gpu, x, &[(gate, Mode::Store)])?;
    launch(gpu, x, &[(up.0, gated.activation.into())])
}

/// Launches products with matrices of one format. Their blocks follow one another.
fn launch(gpu: &Gpu, x: &Acts<'_>, products: &[(Product<'_>, Mode)]) -> Result<(), GpuError> {
    let matrices: Vec<Matrix<'_>> = products.iter().map(|(product, _)| product.matrix).collect();
    let (kernel, waves) = select::gemv(gpu, &matrices, x.n_rows)?;
    let (mut jobs, mut n_blocks) = (Vec::with_capacity(MAX_JOBS), 0);
    for (product, mode) in products {
        let (job, n) = Job::new(gpu, x, product, waves, n_blocks);
        let mode = *mode as u32;
        jobs.push(Job { mode, ..job });
        n_blocks += n;
    }
    let params = GemvParams::independent(x, &jobs);
    run(gpu, kernel, n_blocks, &params)
}

/// Launches gate and up. Each wave takes a row of both.
fn launch_gated(
    gpu: &Gpu,
    x: &Acts<'_>,
    products: &[(Product<'_>, Mode); 2],
) -> Result<(), GpuError> {
    let (kernel, waves) = select::gated_gemv(gpu, products[0].0.matrix.ty, x.n_rows)?;
    let mut n_blocks = 0;
    let jobs = products.map(|(product, mode)| {
        let (job, n) = Job::new(gpu, x, &product, waves, 0);
        n_blocks = n;
        let mode = mode as u32;
        Job { mode, ..job }
    });
    let params = GemvParams::gated(x, &jobs);
    run(gpu, kernel, n_blocks, &params)
}

fn run(
    gpu: &Gpu,
    kernel: &Kernel<GemvParams>,
    n_blocks: u32,
    params: &GemvParams,
) -> Result<(), GpuError> {
    assert!(
        params.n_rows as usize <= MAX_ROWS,
        "too many rows of activations"
    );
    if params.n_rows == 0 {
        return Ok(());
    }
    gpu.launch(kernel, [n_blocks, 1, 1], THREADS, 0, params)
}

/// Multiplies the rows of each expert with that expert's matrix, or with its gate and up.
pub(super) fn expert_matvec(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    matrices: &[(&ExpertMatrices<'_>, Mode)],
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let first = matrices[0].0.matrix(0);
    let n_waves = THREADS as usize / warp_size(gpu);
    let split = select::expert_split(gpu, &first, routing.n_used);
    let jobs = matrices.iter().map(|(matrices, mode)| Job {
        weights: (&matrices.matrix(0)).into(),
        bias: Address::NULL,
        out: out.address(),
        first_block: 0,
        split_log: split.ilog2(),
        mode: *mode as u32,
        turns_log: 0,
    });
    let jobs: Vec<Job> = jobs.collect();
    let (product, rows_of_wave) = match jobs[..] {
        [gate, up] => (GemvParams::gated(x, &[gate, up]), 1),
        _ => (GemvParams::independent(x, &jobs), 2),
    };
    let kernel = select::expert_gemv(gpu, first.ty, routing)?;
    let params = GemvParams {
        tiles: routing.tiles[0].table(),
        expert_bytes: Count(matrices[0].0.expert_bytes() as u64),
        ..product
    };
    let rows_of_block = n_waves / split * rows_of_wave;
    let n_blocks = first.n_out.div_ceil(rows_of_block);
    let grid = [routing.tiles[0].len() as u32, n_blocks as u32, 1];
    gpu.launch(kernel, grid, THREADS, 0, &params)
}

/// Returns the address of the values or codes.
pub(super) fn operand(x: &Acts<'_>) -> Address {
    match x.form {
        ActFormat::F32 => x.values.address(),
        ActFormat::Q8x32 | ActFormat::Q8x256 => x.codes.address(),
    }
}
