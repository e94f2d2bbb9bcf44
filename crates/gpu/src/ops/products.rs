//! Matrix products for any number of rows, dense or of the experts of an MoE layer: chooses between GEMV and GEMM.

use super::elementwise::gated_activation;
use super::gemv::MAX_ROWS;
use super::half::HalfRows;
use super::jobs::{ExpertProduct, Gated, Product, Work};
use super::norm::{quantize, quantize_gated};
use super::routing::buffer::Routing;
use super::routing::quantize_choices;
use super::{gemm, gemv, half, select};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::Slice;
use crate::operands::{Activation, Acts, ExpertMatrices};

/// Two products of experts combined by a gate, `out[row] = activation(gate) * up`.
#[derive(Clone, Copy)]
pub struct ExpertGated<'a> {
    /// Gate and up, of the same shape and of any formats.
    pub sides: [ExpertProduct<'a>; 2],
    pub activation: Activation,
    /// `[n_tokens * n_used, n_out]`.
    pub out: Slice<'a, f32>,
}

/// Multiplies the rows of `x` with each matrix: few rows by GEMV, more by GEMM.
///
/// # Errors
/// [`GpuError::Format`] for formats without kernels; errors of a launch.
///
/// # Panics
/// If `x` does not have the form or width that a matrix takes, or a bias or output has another shape.
pub fn products(gpu: &Gpu, x: &Acts<'_>, products: &[Product<'_>]) -> Result<(), GpuError> {
    let works: Vec<Work<'_>> = products.iter().map(|p| Work::new(x, p)).collect();
    if !is_gemv(gpu, &works) {
        return gemm::launch_each(gpu, &works);
    }
    for first in (0..x.n_rows).step_by(MAX_ROWS) {
        let rows = first..x.n_rows.min(first + MAX_ROWS);
        let parts: Vec<Work<'_>> = works.iter().map(|work| work.part(rows.clone())).collect();
        gemv::launch_each(gpu, &parts)?;
    }
    Ok(())
}

/// Whether products of the same activations are GEMVs.
fn is_gemv(gpu: &Gpu, works: &[Work<'_>]) -> bool {
    let halves = half::memory(gpu, works);
    match works.first() {
        Some(Work {
            experts: Some(experts),
            ..
        }) => select::is_gemv_of_experts(gpu, &experts.routing, halves.is_some()),
        Some(work) => select::is_gemv(gpu, work.x.n_rows, halves),
        None => true,
    }
}

/// `out = activation(x * gate + biases[0]) * (x * up + biases[1])`, by GEMV or GEMM as [`products`]. `scratch` has
/// room for a second output.
///
/// # Errors
/// As [`products`].
///
/// # Panics
/// As [`products`]; also if the matrices have different shapes, `scratch` is shorter than the output, or the activation
/// does not join products.
pub fn gated_products(
    gpu: &Gpu,
    x: &Acts<'_>,
    gated: &Gated<'_>,
    scratch: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let pair = Work::gate_and_up(x, gated);
    if !is_gemv(gpu, &pair) {
        return gated_gemm(gpu, &pair, gated.activation, scratch);
    }
    for first in (0..x.n_rows).step_by(MAX_ROWS) {
        let rows = first..x.n_rows.min(first + MAX_ROWS);
        let parts = pair.map(|work| work.part(rows.clone()));
        gemv::launch_gated(gpu, &parts, gated.activation)?;
    }
    Ok(())
}

/// Of up to this many rows, [`gated_products_quantized`] converts in a launch of its own: two launches, of which the second
/// starts early, take less time than a longer one (H100).
const MAX_ROWS_APART: usize = 32;

/// [`gated_products`], converted to the form of `to`. The contents of `gated.out` are undefined afterwards.
///
/// # Errors
/// As [`products`].
///
/// # Panics
/// As [`gated_products`]; also if `to` has another shape than the output.
pub fn gated_products_quantized(
    gpu: &Gpu,
    x: &Acts<'_>,
    gated: &Gated<'_>,
    scratch: Slice<'_, f32>,
    to: &Acts<'_>,
) -> Result<(), GpuError> {
    let pair = Work::gate_and_up(x, gated);
    let is_apart = x.n_rows <= MAX_ROWS_APART && HalfRows::new(gpu, to, None).is_none();
    if is_gemv(gpu, &pair) || is_apart {
        gated_products(gpu, x, gated, scratch)?;
        return quantize(gpu, gated.out, to);
    }
    match gate_and_up_gemm(gpu, &pair, gated.activation, scratch)? {
        Some(sides) => quantize_gated(gpu, gated.activation, sides, to),
        None => quantize(gpu, gated.out, to),
    }
}

/// The products of each row with the matrix of its expert, `out` [n_tokens * n_used, n_out]. Unused rows keep their old
/// values. The rows of `x` were written after `routing` was.
///
/// # Errors
/// As [`products`].
///
/// # Panics
/// If the shapes do not match, or `x` does not have the form that the weights take.
pub fn expert_products(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    product: &ExpertProduct<'_>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    launch_sorted(gpu, Work::of_experts(x, routing, product, out))
}

/// The product of each head of `x` with the head's matrix, into rows of tokens: `out` [n_tokens, n_heads * dim], of whose
/// heads the first values are written, as many as a matrix has outputs. `heads` sorts the rows of `x`.
///
/// # Errors
/// As [`products`].
///
/// # Panics
/// As [`expert_products`].
pub fn head_products(
    gpu: &Gpu,
    x: &Acts<'_>,
    heads: &Routing<'_>,
    matrices: ExpertMatrices<'_>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    launch_sorted(gpu, Work::of_heads(x, heads, matrices, out))
}

/// Launches a product of rows that are sorted by expert.
fn launch_sorted(gpu: &Gpu, work: Work<'_>) -> Result<(), GpuError> {
    match is_gemv(gpu, &[work]) {
        true => gemv::launch(gpu, &[work]),
        false => gemm::launch_each(gpu, &[work]),
    }
}

/// Computes both products and the gate: in one launch by GEMV, or by a GEMM with f16 activations, if both matrices have the same
/// format and order of rows; else in several launches. `scratch` has room for a second output.
///
/// # Errors
/// As [`products`].
///
/// # Panics
/// As [`expert_products`] and [`gated_products`].
pub fn expert_gated_products(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    gated: &ExpertGated<'_>,
    scratch: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let pair = [0, 1].map(|i| Work::of_experts(x, routing, &gated.sides[i], gated.out));
    match is_gemv(gpu, &pair) {
        true => gemv::launch_gated(gpu, &pair, gated.activation),
        false => gated_gemm(gpu, &pair, gated.activation, scratch),
    }
}

/// [`expert_gated_products`], converted to the form of `to`. The contents of `gated.out` are undefined afterwards.
///
/// # Errors
/// As [`products`].
///
/// # Panics
/// As [`expert_gated_products`]; also if `to` has another shape than the output.
pub fn expert_gated_products_quantized(
    gpu: &Gpu,
    (x, routing): (&Acts<'_>, &Routing<'_>),
    gated: &ExpertGated<'_>,
    scratch: Slice<'_, f32>,
    to: &Acts<'_>,
) -> Result<(), GpuError> {
    let pair = [0, 1].map(|i| Work::of_experts(x, routing, &gated.sides[i], gated.out));
    if let Some(rows) = HalfRows::of_experts(gpu, to, routing)
        && !is_gemv(gpu, &pair)
    {
        return match gate_and_up_gemm(gpu, &pair, gated.activation, scratch)? {
            Some(sides) => rows.gated(gpu, gated.activation, sides),
            None => rows.quantize(gpu, gated.out),
        };
    }
    expert_gated_products(gpu, x, routing, gated, scratch)?;
    quantize_choices(gpu, gated.out, routing, to)
}

fn gated_gemm(
    gpu: &Gpu,
    pair: &[Work<'_>; 2],
    activation: Activation,
    scratch: Slice<'_, f32>,
) -> Result<(), GpuError> {
    match gate_and_up_gemm(gpu, pair, activation, scratch)? {
        Some([gate, up]) => gated_activation(gpu, activation, gate, up, pair[0].out),
        None => Ok(()),
    }
}

/// Computes gate and up, and returns them; or `None` if the launch also wrote `activation(gate) * up` to their output.
fn gate_and_up_gemm<'a>(
    gpu: &Gpu,
    pair: &[Work<'a>; 2],
    activation: Activation,
    scratch: Slice<'a, f32>,
) -> Result<Option<[Slice<'a, f32>; 2]>, GpuError> {
    let [gate, up] = pair;
    let scratch = scratch.part(0..up.out.len());
    if half::launch_gated(gpu, pair, activation)? {
        return Ok(None);
    }
    let up = Work {
        out: scratch,
        ..*up
    };
    gemm::launch_each(gpu, &[*gate, up])?;
    Ok(Some([gate.out, scratch]))
}
