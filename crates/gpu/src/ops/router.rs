//! The router of a single token in one launch (`kernels/router.hip`).

use rocmforge_gguf::GgmlType;

use super::norm::{BLOCK_THREADS, NormParams, is_of_block, rms_norm_params};
use super::routing::buffer::Routing;
use super::routing::{
    ExpertVectors, MAX_FEW_CHOICES, RouteParams, Router, SharedWeight, is_simple, route_params,
};
use super::rows::Weights;
use super::select;
use super::{formats, jobs};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::{Acts, Matrix};

/// Bytes of shared memory that every GPU has for a block beside the kernel's own.
const MAX_SHARED_BYTES: usize = 32 << 10;

#[repr(C)]
#[derive(Clone, Copy)]
struct RouterParams {
    norm: NormParams,
    w: Weights,
    bias: Address,
    logits: Address,
    route: RouteParams,
    n_arrived: Address,
    n_blocks: u32,
    split_log: u32,
}

layout!(RouterParams {
    norm,
    w,
    bias,
    logits,
    route,
    n_arrived,
    n_blocks,
    split_log
});

kernels! {
    struct RouterKernels {
        router_one: RouterParams,
    }
}

/// The operands of [`route_row`] before the choice.
#[derive(Clone, Copy)]
pub struct RouterRow<'a> {
    /// `[width]`.
    pub x: Slice<'a, f32>,
    /// The weights of the RMS norm, and its epsilon.
    pub norm: (Slice<'a, f32>, f32),
    /// Receives the normalized values.
    pub normed: Slice<'a, f32>,
    /// The form that the products take. It is not written.
    pub acts: Acts<'a>,
    /// `[n_experts, width]`.
    pub matrix: Matrix<'a>,
    /// `[n_experts]`.
    pub bias: Option<Slice<'a, f32>>,
    /// `[n_experts]`.
    pub logits: Slice<'a, f32>,
}

/// Whether [`route_row`] takes a token with this router: that of an F32 matrix, of few experts, and without groups.
pub fn routes_row(
    gpu: &Gpu,
    matrix: &Matrix<'_>,
    (router, has_bias): (&Router, bool),
    routing: &Routing<'_>,
) -> bool {
    let width = matrix.n_in;
    routing.n_tokens == 1
        && matrix.ty == GgmlType::F32
        && matrix.n_out <= BLOCK_THREADS as usize
        && routing.n_used <= MAX_FEW_CHOICES as usize
        && is_simple(router, has_bias)
        && width.is_multiple_of(8)
        && width * size_of::<f32>() <= MAX_SHARED_BYTES
        && is_of_block(gpu, width)
        && select::is_gemv(gpu, 1, None)
}

/// The RMS norm of a row, its products with a matrix, and [`route`](super::route) of these, in one launch with the same bits.
///
/// # Panics
/// If the shapes do not match, or [`routes_row`] is false.
pub fn route_row(
    gpu: &Gpu,
    row: &RouterRow<'_>,
    vectors: ExpertVectors<Slice<'_, f32>>,
    (router, shared): (Router, Option<SharedWeight<Slice<'_, f32>>>),
    seq_of_row: Slice<'_, u32>,
    routing: &Routing<'_>,
) -> Result<(), GpuError> {
    let matrix = &row.matrix;
    let has_bias = vectors.bias.is_some();
    assert!(
        routes_row(gpu, matrix, (&router, has_bias), routing),
        "the kernel takes the router"
    );
    let (weight, eps) = row.norm;
    assert_eq!(
        [row.x.len(), weight.len()],
        [matrix.n_in; 2],
        "a row as wide as the matrix"
    );
    let norm = rms_norm_params(gpu, row.x, (weight, eps), Some(row.normed), &row.acts);
    let logits = row.logits;
    let route = route_params(logits, vectors, (router, shared), seq_of_row, routing);
    let split = select::split(gpu, matrix, matrix.n_out);
    let of_block = BLOCK_THREADS as usize / formats::warp_size(gpu) / split;
    let n_blocks = matrix.n_out.div_ceil(of_block) as u32;
    let params = RouterParams {
        norm,
        w: matrix.into(),
        bias: jobs::address(row.bias),
        logits: logits.address(),
        route,
        n_arrived: routing.n_arrived.address(),
        n_blocks,
        split_log: split.ilog2(),
    };
    let shared = (matrix.n_in * size_of::<f32>()) as u32;
    let kernel = &gpu.kernels().router.router_one;
    gpu.launch(kernel, [n_blocks, 1, 1], BLOCK_THREADS, shared, &params)
}
