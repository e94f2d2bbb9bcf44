//! Elementwise operations, and copies of rows (`kernels/elementwise.hip`).

use rocmforge_plan::Activation;

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels, layout};
use crate::limit::n_values;
use crate::memory::{Address, Slice};
use crate::variant::Variant;

/// Threads per block of every kernel here.
const THREADS: u32 = 256;

/// Values per thread.
const QUAD: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementwiseParams {
    x: Address,
    /// The other operand: gate, up or row indices.
    other: Address,
    out: Address,
    n: u32,
    width: u32,
    n_x_rows: u32,
    aligned: u32,
    /// The cap, the factor, or the numbers of the activation.
    numbers: [f32; 4],
    kind: u32,
    first: u32,
    x_width: u32,
    pad: u32,
}

layout!(ElementwiseParams {
    x,
    other,
    out,
    n,
    width,
    n_x_rows,
    aligned,
    numbers,
    kind,
    first,
    x_width,
    pad
});

const _: () = assert!(size_of::<ElementwiseParams>() == 72);

kernels! {
    struct ElementwiseKernels {
        add: ElementwiseParams,
        add_gated: ElementwiseParams,
        activate: ElementwiseParams,
        gated: ElementwiseParams,
        gated_rows: ElementwiseParams,
        scale: ElementwiseParams,
        scale_rows: ElementwiseParams,
        soft_cap: ElementwiseParams,
        select_rows: ElementwiseParams,
        copy_part: ElementwiseParams,
    }
}

/// `out += x`, both `[n]`.
///
/// # Panics
/// If the lengths differ.
pub fn add(gpu: &Gpu, x: Slice<'_, f32>, out: Slice<'_, f32>) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.len(), "lengths differ");
    flat(
        gpu,
        &gpu.kernels().elementwise.add,
        [x.address(), Address::NULL],
        out,
    )
}

/// `out[row] += x[row] / (1 + e^-gate[row])`: `x` and `out` [n_rows, width], `gate` `[n_rows]`.
///
/// # Panics
/// If the shapes do not match.
pub fn add_gated(
    gpu: &Gpu,
    gate: Slice<'_, f32>,
    x: Slice<'_, f32>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.len(), "out has the shape of x");
    let n_rows = gate.len();
    assert!(
        out.is_empty() || n_rows > 0 && out.len().is_multiple_of(n_rows),
        "one gate per row"
    );
    let width = out.len() / n_rows.max(1);
    let mut params = params([x.address(), gate.address()], out);
    params.aligned = aligned(width, &[x.address(), out.address()]);
    by_rows(
        gpu,
        &gpu.kernels().elementwise.add_gated,
        params,
        [n_rows, width],
    )
}

/// `out = activation(x)`, both `[n]`. They may be the same memory.
///
/// # Panics
/// If the lengths differ.
pub fn activate(
    gpu: &Gpu,
    activation: Activation,
    x: Slice<'_, f32>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(x.len(), out.len(), "lengths differ");
    let params = params([x.address(), Address::NULL], out).of(activation);
    launch_flat(gpu, &gpu.kernels().elementwise.activate, params)
}

/// `out = activation(gate) * up`: `up` and `out` `[n]`. `out` may be the same memory as another operand of `n` values. A
/// shorter `gate` has a value for each group of consecutive values of `up`.
///
/// # Panics
/// If the lengths do not match.
pub fn gated_activation(
    gpu: &Gpu,
    activation: Activation,
    gate: Slice<'_, f32>,
    up: Slice<'_, f32>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(up.len(), out.len(), "lengths of up and out differ");
    let n_gates = gate.len();
    let mut params = params([gate.address(), up.address()], out).of(activation);
    if n_gates == out.len() {
        return launch_flat(gpu, &gpu.kernels().elementwise.gated, params);
    }
    assert!(
        n_gates > 0 && out.len().is_multiple_of(n_gates),
        "a gate for each group"
    );
    let width = out.len() / n_gates;
    params.aligned = aligned(width, &[up.address(), out.address()]);
    let kernel = &gpu.kernels().elementwise.gated_rows;
    by_rows(gpu, kernel, params, [n_gates, width])
}

/// `x *= by` in place.
pub fn scale(gpu: &Gpu, by: f32, x: Slice<'_, f32>) -> Result<(), GpuError> {
    let mut params = params([Address::NULL; 2], x);
    params.numbers[0] = by;
    launch_flat(gpu, &gpu.kernels().elementwise.scale, params)
}

/// `x[row] *= by` in place: `x` [n_rows, by.len()].
///
/// # Panics
/// If `x` is not whole rows.
pub fn scale_rows(gpu: &Gpu, by: Slice<'_, f32>, x: Slice<'_, f32>) -> Result<(), GpuError> {
    let width = by.len();
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "x is not whole rows"
    );
    let mut params = params([by.address(), Address::NULL], x);
    params.aligned = aligned(width, &[by.address(), x.address()]);
    let kernel = &gpu.kernels().elementwise.scale_rows;
    by_rows(gpu, kernel, params, [x.len() / width, width])
}

/// `x = cap * tanh(x / cap)` in place. `cap` must be positive.
pub fn soft_cap(gpu: &Gpu, cap: f32, x: Slice<'_, f32>) -> Result<(), GpuError> {
    let mut params = params([Address::NULL; 2], x);
    params.numbers[0] = cap;
    launch_flat(gpu, &gpu.kernels().elementwise.soft_cap, params)
}

/// `out[i] = x[rows[i]]`: `x` [n, width], `out` [rows.len(), width]. Indices past the end use the last row.
///
/// # Panics
/// If the shapes do not match.
pub fn select_rows(
    gpu: &Gpu,
    x: Slice<'_, f32>,
    rows: Slice<'_, u32>,
    width: usize,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    assert_eq!(out.len(), rows.len() * width, "one row per index");
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "x is not whole rows"
    );
    assert!(rows.is_empty() || !x.is_empty(), "x has no rows");
    let mut params = params([x.address(), rows.address()], out);
    params.n_x_rows = (x.len() / width) as u32;
    params.aligned = aligned(width, &[x.address(), out.address()]);
    by_rows(
        gpu,
        &gpu.kernels().elementwise.select_rows,
        params,
        [rows.len(), width],
    )
}

/// Copies the values `first..first + width` of each row: `x` [n_rows, x_width], `out` [n_rows, width].
///
/// # Panics
/// If the shapes do not match.
pub fn copy_part(
    gpu: &Gpu,
    (x, x_width): (Slice<'_, f32>, usize),
    first: usize,
    (out, width): (Slice<'_, f32>, usize),
) -> Result<(), GpuError> {
    assert!(width > 0 && first + width <= x_width, "a part of a row");
    let n_rows = out.len() / width;
    assert_eq!(out.len(), n_rows * width, "out is whole rows");
    assert_eq!(x.len(), n_rows * x_width, "x has the rows of out");
    let mut params = params([x.address(), Address::NULL], out);
    params.first = first as u32;
    params.x_width = x_width as u32;
    let whole = [first, x_width].iter().all(|n| n.is_multiple_of(QUAD));
    params.aligned = aligned(width, &[x.address(), out.address()]) * u32::from(whole);
    let kernel = &gpu.kernels().elementwise.copy_part;
    by_rows(gpu, kernel, params, [n_rows, width])
}

/// # Panics
/// If there are 2^32 values or more.
fn params([x, other]: [Address; 2], out: Slice<'_, f32>) -> ElementwiseParams {
    ElementwiseParams {
        x,
        other,
        out: out.address(),
        n: n_values(out.len()).expect("fewer than 2^32 values"),
        width: 0,
        n_x_rows: 0,
        aligned: aligned(out.len(), &[x, other, out.address()]),
        numbers: [0.0; 4],
        kind: 0,
        first: 0,
        x_width: 0,
        pad: 0,
    }
}

impl ElementwiseParams {
    /// The same with an activation.
    fn of(self, activation: Activation) -> ElementwiseParams {
        let (numbers, kind) = parameters_of(activation);
        ElementwiseParams {
            numbers,
            kind,
            ..self
        }
    }
}

/// Returns the numbers of an activation and its kind (`ActivationKind` in activation.h).
pub(super) fn parameters_of(activation: Activation) -> ([f32; 4], u32) {
    let without = [0.0; 4];
    match activation {
        Activation::Silu => (without, 0),
        Activation::GeluTanh => (without, 1),
        Activation::GeluErf => (without, 2),
        Activation::ReluSquared => (without, 3),
        Activation::Sigmoid => (without, 4),
        Activation::Softplus => (without, 5),
        Activation::SwigluOai => (without, 6),
        Activation::SiluClamped { limit } => ([limit, 0.0, 0.0, 0.0], 7),
        Activation::Xielu {
            alpha_n,
            alpha_p,
            beta,
            eps,
        } => ([alpha_n, alpha_p, beta, eps], 8),
        Activation::Relu => (without, 9),
    }
}

/// Whether rows of `width` values can be moved in quads of 16 bytes.
fn aligned(width: usize, pointers: &[Address]) -> u32 {
    u32::from(width.is_multiple_of(QUAD) && pointers.iter().all(|ptr| ptr.is_aligned_to(16)))
}

fn flat(
    gpu: &Gpu,
    kernel: &Kernel<ElementwiseParams>,
    inputs: [Address; 2],
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    launch_flat(gpu, kernel, params(inputs, out))
}

fn launch_flat(
    gpu: &Gpu,
    kernel: &Kernel<ElementwiseParams>,
    params: ElementwiseParams,
) -> Result<(), GpuError> {
    let grid = [n_blocks(params.n as usize), 1, 1];
    launch(gpu, kernel, grid, params)
}

/// Launches a kernel with separate blocks for each row.
fn by_rows(
    gpu: &Gpu,
    kernel: &Kernel<ElementwiseParams>,
    mut params: ElementwiseParams,
    [n_rows, width]: [usize; 2],
) -> Result<(), GpuError> {
    params.width = width as u32;
    let grid = [n_rows as u32, n_blocks(width), 1];
    launch(gpu, kernel, grid, params)
}

fn launch(
    gpu: &Gpu,
    kernel: &Kernel<ElementwiseParams>,
    grid: [u32; 3],
    mut params: ElementwiseParams,
) -> Result<(), GpuError> {
    if gpu.takes(Variant::LoadsNarrow) {
        params.aligned = 0;
    }
    gpu.launch(kernel, grid, THREADS, 0, &params)
}

fn n_blocks(n: usize) -> u32 {
    n.div_ceil(THREADS as usize * QUAD) as u32
}
