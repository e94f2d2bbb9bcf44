//! GEMV and GEMM of MoE layers: multiplies the rows of each expert with that expert's matrix
//! (`kernels/format/expert_matvec.hip`, `kernels/format/expert_matmul.hip`).

use super::elementwise::gated_activation;
use super::formats::warp_size;
use super::matmul::MatmulParams;
use super::matvec::{Job, MAX_ROWS, MatvecParams, Mode, Product, THREADS, split};
use super::routing::{ExpertTile, Routing, TILE_ROWS};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Count, Table, kernels, layout};
use crate::memory::{Address, Slice};
use crate::operands::{Activation, Acts, ExpertMatrices, OutMode};
use crate::variant::Variant;
use rocmforge_plan::act_format;

/// Above this many rows per expert, large tiles are mostly full.
const LARGE_TILE_ROWS: usize = 64;

/// Two products combined by a gate, `out[row] = activation(x[row] * gate) * (x[row] * up)`.
#[derive(Clone, Copy)]
pub struct ExpertGated<'a> {
    /// Gate and up, of the same shape and of any formats.
    pub matrices: [ExpertMatrices<'a>; 2],
    pub activation: Activation,
    /// `[n_tokens * n_used, n_out]`.
    pub out: Slice<'a, f32>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ExpertMatvecParams {
    product: MatvecParams,
    tiles: Table<ExpertTile>,
    expert_bytes: Count,
}

layout!(ExpertMatvecParams {
    product,
    tiles,
    expert_bytes
});

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ExpertMatmulParams {
    product: MatmulParams,
    tiles: Table<ExpertTile>,
    expert_bytes: Count,
}

layout!(ExpertMatmulParams {
    product,
    tiles,
    expert_bytes
});

kernels! {
    struct ExpertMatvecKernels {
        expert_matvec_1: ExpertMatvecParams,
        expert_matvec_4: ExpertMatvecParams,
    }
}

kernels! {
    struct ExpertMatmulKernels {
        expert_matmul_large: ExpertMatmulParams,
        expert_matmul_small: ExpertMatmulParams,
    }
}

/// `out[row] = x[row] * matrix of the row's expert`, `out` [n_tokens * n_used, n_out]. Unused rows keep their old
/// values.
///
/// # Errors
/// [`GpuError::Format`] for formats without kernels; errors of the launch.
///
/// # Panics
/// If the shapes do not match, or `x` does not have the form that the weights take.
pub fn expert_products(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    matrices: &ExpertMatrices<'_>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    check(x, routing, matrices, out);
    match uses_gemv(gpu, routing) {
        true => matvec(gpu, x, routing, &[(matrices, Mode::Store)], out),
        false => matmul(gpu, x, routing, matrices, out),
    }
}

/// Computes both products and the gate: by GEMV in one launch if both matrices have the same format, else in two
/// launches. `scratch` has room for a second output.
///
/// # Errors
/// As [`expert_products`].
///
/// # Panics
/// As [`expert_products`]; also if the matrices have different shapes, or `scratch` is shorter than the output.
pub fn expert_gated_products(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    gated: &ExpertGated<'_>,
    scratch: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let ExpertGated {
        matrices: [gate, up],
        activation,
        out,
    } = *gated;
    check(x, routing, &gate, out);
    check(x, routing, &up, out);
    if !uses_gemv(gpu, routing) {
        let scratch = scratch.part(0..out.len());
        matmul(gpu, x, routing, &gate, out)?;
        matmul(gpu, x, routing, &up, scratch)?;
        return gated_activation(gpu, activation, out, scratch, out);
    }
    let jobs = [(&gate, activation.into()), (&up, Mode::Store)];
    if gate.ty == up.ty {
        return matvec(gpu, x, routing, &jobs, out);
    }
    matvec(gpu, x, routing, &[(&gate, Mode::Store)], out)?;
    matvec(gpu, x, routing, &[(&up, activation.into())], out)
}

/// Whether experts have so few rows that GEMV is faster: reading the weights dominates.
fn uses_gemv(gpu: &Gpu, routing: &Routing<'_>) -> bool {
    let few = routing.n_tokens <= MAX_ROWS || routing.max_rows() <= routing.n_experts;
    few && !gpu.takes(Variant::ProductsMatmul) || gpu.takes(Variant::ProductsMatvec)
}

fn check(x: &Acts<'_>, routing: &Routing<'_>, matrices: &ExpertMatrices<'_>, out: Slice<'_, f32>) {
    let ExpertMatrices {
        ty,
        n_experts,
        n_out,
        n_in,
        ..
    } = *matrices;
    assert!(n_out > 0 && n_in > 0, "the matrix is empty");
    assert_eq!(n_experts, routing.n_experts, "one matrix per expert");
    assert_eq!(
        (x.form, x.width),
        (act_format(ty), n_in),
        "form and width of activations for {} weights",
        ty.name()
    );
    assert_eq!(x.n_rows, routing.max_rows(), "one row per choice");
    assert_eq!(out.len(), x.n_rows * n_out, "[n_rows, n_out]");
}

/// GEMV with one matrix, or with gate and up.
fn matvec(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    matrices: &[(&ExpertMatrices<'_>, Mode)],
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let (first, warp_size) = (matrices[0].0.matrix(0), warp_size(gpu));
    let n_waves = THREADS as usize / warp_size;
    let split = match gpu.takes(Variant::SplitsOff) {
        true => 1,
        // The experts of one token run together.
        false => split(warp_size, n_waves, &first, first.n_out * routing.n_used),
    };
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
        [gate, up] => (MatvecParams::gated(x, &[gate, up]), 1),
        _ => (MatvecParams::independent(x, &jobs), 2),
    };
    // The experts of a token are distinct, so each has one row.
    let kernels = gpu.kernels().expert_matvec.of(first.ty)?;
    let kernel = match routing.n_tokens {
        1 => &kernels.expert_matvec_1,
        _ => &kernels.expert_matvec_4,
    };
    let params = ExpertMatvecParams {
        product,
        tiles: routing.tiles[0].table(),
        expert_bytes: Count(matrices[0].0.expert_bytes() as u64),
    };
    let rows_of_block = n_waves / split * rows_of_wave;
    let n_blocks = first.n_out.div_ceil(rows_of_block);
    let grid = [routing.tiles[0].len() as u32, n_blocks as u32, 1];
    gpu.launch(kernel, grid, THREADS, 0, &params)
}

fn matmul(
    gpu: &Gpu,
    x: &Acts<'_>,
    routing: &Routing<'_>,
    matrices: &ExpertMatrices<'_>,
    out: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let kernels = gpu.kernels().expert_matmul.of(matrices.ty)?;
    let is_large = routing.max_rows() > LARGE_TILE_ROWS * routing.n_experts;
    let is_large = is_large && !gpu.takes(Variant::TilesSmall) || gpu.takes(Variant::TilesLarge);
    let (kernel, rows) = match is_large {
        true => (&kernels.expert_matmul_large, "large_rows"),
        false => (&kernels.expert_matmul_small, "small_rows"),
    };
    let module = kernel.module;
    let rows = gpu.constant(module, rows)? as usize;
    let kind = TILE_ROWS.iter().position(|&of_kind| of_kind == rows);
    let tiles = routing.tiles[kind.expect("the kernel's tile size is in TILE_ROWS")];
    let product = Product {
        matrix: matrices.matrix(0),
        bias: None,
        mode: OutMode::Store,
        out,
    };
    let params = ExpertMatmulParams {
        product: MatmulParams::new(x, &product),
        tiles: tiles.table(),
        expert_bytes: Count(matrices.expert_bytes() as u64),
    };
    let n_blocks = matrices
        .n_out
        .div_ceil(gpu.constant(module, "outs")? as usize);
    let grid = [tiles.len() as u32, n_blocks as u32, 1];
    let n_threads = gpu.constant(module, "n_threads")?;
    gpu.launch(kernel, grid, n_threads, 0, &params)
}
