//! GEMV: products with few rows of activations (`kernels/format/matvec.hip`).

use rocmforge_gguf::GgmlType;
use rocmforge_plan::act_format;
use zerocopy::{Immutable, IntoBytes};

use super::formats::{n_chunks, warp_size};
use super::rows::Weights;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::{ActFormat, Activation, Acts, Matrix, OutMode};
use crate::tuning::{Choice, Shape};
use crate::variant::Variant;

/// Maximum number of rows of activations for [`matvec`].
pub const MAX_ROWS: usize = 8;

/// Maximum number of matrices in one launch.
pub(super) const MAX_JOBS: usize = 3;

/// Threads per block.
pub(super) const THREADS: u32 = 256;

/// Enough waves to keep the memory of any GPU busy. Rows of matrices with fewer rows are shared by several waves.
const ENOUGH_WAVES: usize = 4096;

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

/// What happens to the result of a product: `Mode` in matvec.h.
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

/// A product as kernels read it (`Job` in matvec.h).
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

/// How rows of weights are distributed to waves.
#[derive(Clone, Copy)]
pub(super) struct Waves {
    /// Weight rows per wave at a time.
    pub(super) rows: usize,
    /// Maximum number of waves that share a row, a power of two. Only kernels with turns may have fewer than the
    /// virtual waves.
    pub(super) max_split: usize,
}

impl Waves {
    /// Waves with `rows` weight rows each; all virtual waves of a row are waves of the device.
    pub(super) const fn of_rows(rows: usize) -> Waves {
        Waves {
            rows,
            max_split: usize::MAX,
        }
    }
}

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
        let split = virtual_split(gpu, matrix);
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
pub(super) struct MatvecParams {
    x: Address,
    scales: Address,
    sums: Address,
    n_rows: u32,
    gated: u32,
    jobs: [Job; MAX_JOBS],
}

layout!(MatvecParams {
    x,
    scales,
    sums,
    n_rows,
    gated,
    jobs
});

impl MatvecParams {
    /// Parameters of up to [`MAX_JOBS`] independent products of the rows of `x`.
    pub(super) fn independent(x: &Acts<'_>, jobs: &[Job]) -> MatvecParams {
        // Unused jobs begin after the last block.
        let after = Job {
            first_block: u32::MAX,
            ..jobs[0]
        };
        let mut all = [after; MAX_JOBS];
        all[..jobs.len()].copy_from_slice(jobs);
        MatvecParams {
            x: operand(x),
            scales: x.scales.address(),
            sums: x.sums.address(),
            n_rows: u32::try_from(x.n_rows).expect("the number of rows fits 32 bits"),
            gated: 0,
            jobs: all,
        }
    }

    /// Parameters of the products gate and up, whose results are combined.
    pub(super) fn gated(x: &Acts<'_>, gate_up: &[Job; 2]) -> MatvecParams {
        MatvecParams {
            gated: 1,
            ..MatvecParams::independent(x, gate_up)
        }
    }
}

const _: () = assert!(size_of::<Job>() == 48 && size_of::<MatvecParams>() == 176);

kernels! {
    struct MatvecKernels {
        matvec_1_1: MatvecParams,
        matvec_1_1_turns: MatvecParams,
        matvec_2_1: MatvecParams,
        matvec_2_2: MatvecParams,
        matvec_2_4: MatvecParams,
        matvec_2_8: MatvecParams,
    }
}

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
    let kernels = gpu.kernels().matvec.of(products[0].0.matrix.ty)?;
    let (kernel, waves) = match x.n_rows {
        1 => single_row_kernel(gpu, kernels, products),
        n_rows => (kernels.of_rows(n_rows), Waves::of_rows(2)),
    };
    let (mut jobs, mut n_blocks) = (Vec::with_capacity(MAX_JOBS), 0);
    for (product, mode) in products {
        let (job, n) = Job::new(gpu, x, product, waves, n_blocks);
        let mode = *mode as u32;
        jobs.push(Job { mode, ..job });
        n_blocks += n;
    }
    let params = MatvecParams::independent(x, &jobs);
    run(gpu, kernel, n_blocks, &params)
}

/// Launches gate and up. Each wave takes a row of both.
fn launch_gated(
    gpu: &Gpu,
    x: &Acts<'_>,
    products: &[(Product<'_>, Mode); 2],
) -> Result<(), GpuError> {
    let mut n_blocks = 0;
    let jobs = products.map(|(product, mode)| {
        let (job, n) = Job::new(gpu, x, &product, Waves::of_rows(1), 0);
        n_blocks = n;
        let mode = mode as u32;
        Job { mode, ..job }
    });
    let kernels = gpu.kernels().matvec.of(products[0].0.matrix.ty)?;
    let kernel = match x.n_rows {
        1 => &kernels.matvec_2_1,
        n_rows => kernels.of_rows(n_rows),
    };
    let params = MatvecParams::gated(x, &jobs);
    run(gpu, kernel, n_blocks, &params)
}

fn run(
    gpu: &Gpu,
    kernel: &Kernel<MatvecParams>,
    n_blocks: u32,
    params: &MatvecParams,
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

impl MatvecKernels {
    /// Returns the kernel for several rows of activations.
    fn of_rows(&self, n_rows: usize) -> &Kernel<MatvecParams> {
        match n_rows {
            0..=2 => &self.matvec_2_2,
            3 | 4 => &self.matvec_2_4,
            _ => &self.matvec_2_8,
        }
    }
}

/// Returns the kernel for one row of activations, and its waves: as tuned, else one row per wave.
fn single_row_kernel<'k>(
    gpu: &Gpu,
    kernels: &'k MatvecKernels,
    products: &[(Product<'_>, Mode)],
) -> (&'k Kernel<MatvecParams>, Waves) {
    let matrices = || products.iter().map(|(product, _)| product.matrix);
    let most = matrices().map(|matrix| virtual_split(gpu, &matrix)).max();
    match gpu.tuned(|| shape(matrices())) {
        Some(Choice::Matvec { rows: 2, .. }) => (&kernels.matvec_2_1, Waves::of_rows(2)),
        // With as many waves as virtual waves, the plain kernel does the same.
        Some(Choice::Matvec { rows: 1, split })
            if split.is_power_of_two() && Some(split) < most =>
        {
            let waves = Waves {
                rows: 1,
                max_split: split,
            };
            (&kernels.matvec_1_1_turns, waves)
        }
        _ => (&kernels.matvec_1_1, Waves::of_rows(1)),
    }
}

/// Returns the tuning shape of a launch of one row with these matrices.
fn shape<'a>(matrices: impl Iterator<Item = Matrix<'a>>) -> Shape {
    let mut n_out = [0; MAX_JOBS];
    let (mut ty, mut n_in) = (GgmlType::F32, 0);
    for (to, matrix) in n_out.iter_mut().zip(matrices) {
        (ty, n_in, *to) = (matrix.ty, matrix.n_in, matrix.n_out);
    }
    Shape::Matvec { ty, n_out, n_in }
}

/// Returns the shape of [`matvec`]'s launch of one row with these matrices of one format, and its candidate choices,
/// the default first.
pub(crate) fn matvec_choices(gpu: &Gpu, matrices: &[Matrix<'_>]) -> (Shape, Vec<Choice>) {
    let most = matrices
        .iter()
        .map(|matrix| virtual_split(gpu, matrix))
        .max();
    let most = most.unwrap_or(1);
    let way = |rows, split| Choice::Matvec { rows, split };
    let mut ways = vec![way(1, most), way(2, most)];
    let fewer = std::iter::successors(Some(most / 2), |split| Some(split / 2));
    ways.extend(
        fewer
            .take_while(|&split| split > 0)
            .map(|split| way(1, split)),
    );
    (shape(matrices.iter().copied()), ways)
}

/// Returns how many virtual waves share a row of a matrix.
fn virtual_split(gpu: &Gpu, matrix: &Matrix<'_>) -> usize {
    let warp_size = warp_size(gpu);
    match gpu.takes(Variant::SplitsOff) {
        true => 1,
        false => split(
            warp_size,
            THREADS as usize / warp_size,
            matrix,
            matrix.n_out,
        ),
    }
}

/// Returns the address of the values or codes.
pub(super) fn operand(x: &Acts<'_>) -> Address {
    match x.form {
        ActFormat::F32 => x.values.address(),
        ActFormat::Q8x32 | ActFormat::Q8x256 => x.codes.address(),
    }
}

/// Returns how many virtual waves share a row, a power of two. `n_rows` counts the weight rows that one row of
/// activations meets in matrices of this shape. Depends only on the shape, so that the order of additions does too.
pub(super) fn split(warp_size: usize, n_waves: usize, matrix: &Matrix<'_>, n_rows: usize) -> usize {
    // Every lane of every wave should have a chunk.
    let most = (n_chunks(matrix.ty, matrix.n_in) / warp_size).clamp(1, n_waves);
    let mut split = 1;
    while split * 2 <= most && n_rows * split < ENOUGH_WAVES {
        split *= 2;
    }
    split
}
