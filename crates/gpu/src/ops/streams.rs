//! Residual streams side by side in a row, and sparse activations (`kernels/streams.hip`).

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::OutMode;
use crate::variant::Variant;

const THREADS: usize = 256;
/// Values that a thread of `mix` handles.
const QUAD: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct StreamsParams {
    x: Address,
    weights: Address,
    out: Address,
    width: u32,
    n_in: u32,
    n_out: u32,
    stride: u32,
    add: u32,
    aligned: u32,
    factor: f32,
    pad: u32,
}

layout!(StreamsParams {
    x,
    weights,
    out,
    width,
    n_in,
    n_out,
    stride,
    add,
    aligned,
    factor,
    pad
});

const _: () = assert!(size_of::<StreamsParams>() == 56);

kernels! {
    struct StreamsKernels {
        mix: StreamsParams,
        match_length: StreamsParams,
        sparsify: StreamsParams,
    }
}

/// `out[row, i] (+)= sum(weights[row, i, j] * x[row, j])` over the parts `j` of a row: `x` [n_rows, n_in, width], `weights`
/// [n_rows, n_out, n_in], or [n_out, n_in] for all rows, `out` [n_rows, n_out, width].
///
/// # Panics
/// If the shapes do not match.
pub fn mix(
    gpu: &Gpu,
    [n_rows, n_in, n_out]: [usize; 3],
    weights: Slice<'_, f32>,
    x: Slice<'_, f32>,
    (mode, out): (OutMode, Slice<'_, f32>),
) -> Result<(), GpuError> {
    if n_rows == 0 {
        return Ok(());
    }
    assert!(
        n_in > 0 && x.len().is_multiple_of(n_rows * n_in),
        "x is [n_rows, n_in, width]"
    );
    let width = x.len() / (n_rows * n_in);
    assert_eq!(
        out.len(),
        n_rows * n_out * width,
        "out is [n_rows, n_out, width]"
    );
    let n_weights = n_in * n_out;
    let is_same = weights.len() == n_weights;
    assert!(
        is_same || weights.len() == n_rows * n_weights,
        "weights are [n_out, n_in], for each row or for all"
    );
    let pointers = [x.address(), out.address()];
    let can_quads = width.is_multiple_of(QUAD) && pointers.iter().all(|it| it.is_aligned_to(16));
    let params = StreamsParams {
        x: x.address(),
        weights: weights.address(),
        out: out.address(),
        width: width as u32,
        n_in: n_in as u32,
        n_out: n_out as u32,
        stride: if is_same { 0 } else { n_weights as u32 },
        add: u32::from(mode == OutMode::Add),
        aligned: u32::from(can_quads && !gpu.takes(Variant::LoadsNarrow)),
        factor: 0.0,
        pad: 0,
    };
    let grid = [n_rows as u32, width.div_ceil(THREADS * QUAD) as u32, 1];
    let kernel = &gpu.kernels().streams.mix;
    gpu.launch(kernel, grid, THREADS as u32, 0, &params)
}

/// `x[row, i] *= |like[row]| / |x[row, i]|`, where `|x|` is the root of the sum of squares: `like` [n_rows, width], `x`
/// [n_rows, n, width]. Parts of zeros stay zeros.
///
/// # Panics
/// If the shapes do not match.
pub fn match_length(
    gpu: &Gpu,
    (like, width): (Slice<'_, f32>, usize),
    x: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert!(
        width > 0 && like.len().is_multiple_of(width),
        "like is [n_rows, width]"
    );
    if like.is_empty() {
        return Ok(());
    }
    assert!(
        x.len().is_multiple_of(like.len()),
        "x is [n_rows, n, width]"
    );
    let params = StreamsParams {
        x: like.address(),
        n_out: (x.len() / like.len()) as u32,
        ..of_rows(x, width)
    };
    let kernel = &gpu.kernels().streams.match_length;
    gpu.launch(kernel, grid(x, width), THREADS as u32, 0, &params)
}

/// `x = max(x - mean(x) - factor * deviation(x), 0)` on rows of `width` values; the deviation is that of a sample.
///
/// # Panics
/// If `x` is not whole rows.
pub fn sparsify(
    gpu: &Gpu,
    factor: f32,
    (x, width): (Slice<'_, f32>, usize),
) -> Result<(), GpuError> {
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "x is not whole rows"
    );
    if x.is_empty() {
        return Ok(());
    }
    let params = StreamsParams {
        factor,
        ..of_rows(x, width)
    };
    let kernel = &gpu.kernels().streams.sparsify;
    gpu.launch(kernel, grid(x, width), THREADS as u32, 0, &params)
}

/// Parameters for rows of `width` values that are changed in place.
fn of_rows(x: Slice<'_, f32>, width: usize) -> StreamsParams {
    StreamsParams {
        x: Address::NULL,
        weights: Address::NULL,
        out: x.address(),
        width: width as u32,
        n_in: 1,
        n_out: 1,
        stride: 0,
        add: 0,
        aligned: 0,
        factor: 0.0,
        pad: 0,
    }
}

/// A block for each row.
fn grid(x: Slice<'_, f32>, width: usize) -> [u32; 3] {
    [(x.len() / width) as u32, 1, 1]
}
