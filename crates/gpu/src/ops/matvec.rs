//! Products of weights with a few rows of activations (`kernels/format/matvec.hip`).

use zerocopy::{Immutable, IntoBytes};

use super::formats::{format_module, n_chunks, warp_size};
use super::rows::Weights;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::launch::Params;
use crate::memory::Slice;
use crate::operands::{ActForm, Activation, Acts, Matrix, OutMode};
use crate::variant::Variant;

/// The most rows of activations that [`matvec`] takes.
pub const MAX_ROWS: usize = 8;

/// The most matrices that [`matvec`] takes.
pub(super) const MAX_JOBS: usize = 3;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

/// Waves that are enough to keep the memory of any GPU busy. A matrix with fewer rows has several waves for each.
const ENOUGH_WAVES: usize = 4096;

/// A product `out = x * matrix + bias` that is stored or added.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub matrix: Matrix<'a>,
    /// `[n_out]`.
    pub bias: Option<Slice<'a, f32>>,
    pub mode: OutMode,
    /// `[n_rows, n_out]`.
    pub out: Slice<'a, f32>,
}

/// Two products that meet in a gate, `out = activation(x * gate + biases[0]) * (x * up + biases[1])`.
#[derive(Clone, Copy)]
pub struct Gated<'a> {
    /// Gate and up, of one shape and any formats.
    pub matrices: [Matrix<'a>; 2],
    /// `[n_out]` each.
    pub biases: [Option<Slice<'a, f32>>; 2],
    pub activation: Activation,
    /// `[n_rows, n_out]`.
    pub out: Slice<'a, f32>,
}

/// What becomes of a product: `Mode` in matvec.hip.
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

/// A product as kernels read it (`Job` in matvec.hip).
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(super) struct Job {
    pub(super) weights: Weights,
    pub(super) bias: u64,
    pub(super) out: u64,
    pub(super) first_block: u32,
    pub(super) split_log: u32,
    pub(super) mode: u32,
    pub(super) _pad: u32,
}

impl Job {
    /// The product of `x` with rows of weights, `rows_of_wave` of them for each wave, in blocks from `first_block` on; and
    /// how many blocks it has.
    ///
    /// # Panics
    /// If a shape does not fit.
    pub(super) fn new(
        gpu: &Gpu,
        x: &Acts<'_>,
        product: &Product<'_>,
        rows_of_wave: usize,
        first_block: u32,
    ) -> (Job, u32) {
        let Product {
            matrix, bias, out, ..
        } = product;
        assert_eq!(
            (x.form, x.width),
            (ActForm::of(matrix.ty), matrix.n_in),
            "activations as {} weights take them",
            matrix.ty.name()
        );
        assert!(
            matrix.n_in > 0 && matrix.n_out > 0,
            "a matrix has rows and columns"
        );
        assert_eq!(out.len(), x.n_rows * matrix.n_out, "out [n_rows, n_out]");
        assert!(
            bias.is_none_or(|bias| bias.len() == matrix.n_out),
            "bias [n_out]"
        );
        let warp_size = warp_size(gpu);
        let n_waves = THREADS as usize / warp_size;
        let split = match gpu.takes(Variant::SplitsOff) {
            true => 1,
            false => split(warp_size, n_waves, matrix, matrix.n_out),
        };
        let n_blocks = matrix.n_out.div_ceil(n_waves / split * rows_of_wave);
        let job = Job {
            weights: matrix.into(),
            bias: bias.map_or(0, |bias| bias.ptr()),
            out: out.ptr(),
            first_block,
            split_log: split.ilog2(),
            mode: Mode::from(product.mode) as u32,
            _pad: 0,
        };
        let n_blocks = u32::try_from(n_blocks).expect("blocks are counted in 32 bits");
        (job, n_blocks)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MatvecParams {
    x: u64,
    scales: u64,
    sums: u64,
    n_rows: u32,
    gated: u32,
    jobs: [Job; MAX_JOBS],
}

impl MatvecParams {
    /// At most [`MAX_JOBS`] jobs, or the two of a gate, on the rows of `x`.
    pub(super) fn new(x: &Acts<'_>, jobs: &[Job], gated: bool) -> MatvecParams {
        // What is not there begins after the last block.
        let after = Job {
            first_block: u32::MAX,
            ..jobs[0]
        };
        let mut all = [after; MAX_JOBS];
        all[..jobs.len()].copy_from_slice(jobs);
        MatvecParams {
            x: operand(x),
            scales: x.scales.ptr(),
            sums: x.sums.ptr(),
            n_rows: u32::try_from(x.n_rows).expect("rows are counted in 32 bits"),
            gated: u32::from(gated),
            jobs: all,
        }
    }
}

const _: () = assert!(size_of::<Job>() == 48 && size_of::<MatvecParams>() == 176);

// SAFETY: as `MatvecParams` in matvec.hip.
unsafe impl Params for MatvecParams {}

/// Multiplies the rows of `x` with each matrix, in one launch for each format among them. A row of `out` has the same
/// bits whatever the number of rows and the other products.
///
/// # Errors
/// If a format has no kernels, or a launch fails.
///
/// # Panics
/// If `x` has more than [`MAX_ROWS`] rows or another form or width than a matrix is multiplied with, if there are more
/// than three products, or if a bias or output has another shape.
pub fn matvec(gpu: &Gpu, x: &Acts<'_>, products: &[Product<'_>]) -> Result<(), GpuError> {
    assert!(products.len() <= MAX_JOBS, "at most three products");
    for (i, product) in products.iter().enumerate() {
        let ty = product.matrix.ty;
        if products[..i].iter().any(|other| other.matrix.ty == ty) {
            continue;
        }
        let same = products.iter().filter(|other| other.matrix.ty == ty);
        let mut launch = Launch::new(gpu, x, Rows::Next);
        for product in same {
            launch.push(product, product.mode.into());
        }
        launch.run()?;
    }
    Ok(())
}

/// Both products and the gate, in one launch if both matrices have the same format, else in two.
///
/// # Errors
/// As [`matvec`].
///
/// # Panics
/// As [`matvec`], and if the matrices have different shapes.
pub fn matvec_gated(gpu: &Gpu, x: &Acts<'_>, gated: &Gated<'_>) -> Result<(), GpuError> {
    let [gate, up] = gated.matrices;
    assert_eq!(
        (gate.n_out, gate.n_in),
        (up.n_out, up.n_in),
        "gate and up have one shape"
    );
    let [gate, up] =
        [(gate, gated.biases[0]), (up, gated.biases[1])].map(|(matrix, bias)| Product {
            matrix,
            bias,
            mode: OutMode::Store,
            out: gated.out,
        });
    if gate.matrix.ty == up.matrix.ty {
        let mut launch = Launch::new(gpu, x, Rows::GateAndUp);
        launch.push(&gate, gated.activation.into());
        launch.push(&up, Mode::Store);
        return launch.run();
    }
    for (product, mode) in [(gate, Mode::Store), (up, gated.activation.into())] {
        let mut launch = Launch::new(gpu, x, Rows::Next);
        launch.push(&product, mode);
        launch.run()?;
    }
    Ok(())
}

/// Which rows of weights a wave takes together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// One, or with several rows of activations two that follow each other.
    Next,
    /// One of the gate, one of up.
    GateAndUp,
}

/// Products with matrices of one format, as they are collected.
struct Launch<'a> {
    gpu: &'a Gpu,
    x: &'a Acts<'a>,
    rows: Rows,
    n_blocks: u32,
    jobs: Vec<(Matrix<'a>, Job)>,
}

impl<'a> Launch<'a> {
    fn new(gpu: &'a Gpu, x: &'a Acts<'a>, rows: Rows) -> Launch<'a> {
        assert!(x.n_rows <= MAX_ROWS, "{} rows of activations", x.n_rows);
        Launch {
            gpu,
            x,
            rows,
            n_blocks: 0,
            jobs: Vec::with_capacity(MAX_JOBS),
        }
    }

    /// The kernel, and how many rows of weights its waves take.
    fn kernel(&self) -> (&'static str, usize) {
        match (self.x.n_rows, self.rows) {
            (1, Rows::Next) => ("matvec_1_1", 1),
            (1, Rows::GateAndUp) => ("matvec_2_1", 2),
            (2, _) => ("matvec_2_2", 2),
            (3 | 4, _) => ("matvec_2_4", 2),
            _ => ("matvec_2_8", 2),
        }
    }

    fn push(&mut self, product: &Product<'a>, mode: Mode) {
        let rows_of_wave = match self.rows {
            Rows::Next => self.kernel().1,
            Rows::GateAndUp => 1,
        };
        let (job, n_blocks) = Job::new(self.gpu, self.x, product, rows_of_wave, self.n_blocks);
        if self.jobs.is_empty() || self.rows == Rows::Next {
            self.n_blocks += n_blocks;
        }
        let mode = mode as u32;
        self.jobs.push((product.matrix, Job { mode, ..job }));
    }

    fn run(self) -> Result<(), GpuError> {
        if self.x.n_rows == 0 {
            return Ok(());
        }
        let (matrix, _) = self.jobs[0];
        let jobs: Vec<Job> = self.jobs.iter().map(|(_, job)| *job).collect();
        let params = MatvecParams::new(self.x, &jobs, self.rows == Rows::GateAndUp);
        let function = (format_module!("matvec", matrix.ty)?, self.kernel().0);
        let grid = [self.n_blocks, 1, 1];
        self.gpu.launch(function, grid, THREADS, 0, &params)
    }
}

/// Where the kernels find the values or the codes.
pub(super) fn operand(x: &Acts<'_>) -> u64 {
    match x.form {
        ActForm::F32 => x.values.ptr(),
        ActForm::Q8x32 | ActForm::Q8x256 => x.codes.ptr(),
    }
}

/// How many waves share a row: a power of two that depends on the matrix, and how many rows like its there are for each
/// row of activations, alone, so that the order of additions does too.
pub(super) fn split(warp_size: usize, n_waves: usize, matrix: &Matrix<'_>, n_rows: usize) -> usize {
    // Every wave should have a chunk for each lane.
    let most = (n_chunks(matrix.ty, matrix.n_in) / warp_size).clamp(1, n_waves);
    let mut split = 1;
    while split * 2 <= most && n_rows * split < ENOUGH_WAVES {
        split *= 2;
    }
    split
}
