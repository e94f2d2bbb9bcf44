//! GEMV and GEMM of MoE layers: multiplies the rows of each expert with that expert's matrix
//! (`kernels/format/gemv.hip`, `kernels/format/gemm.hip`).

use super::elementwise::gated_activation;
use super::gemm::expert_matmul;
use super::gemv::{Mode, expert_matvec};
use super::routing::Routing;
use super::select;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::Slice;
use crate::operands::{Activation, Acts, ExpertMatrices};
use rocmforge_plan::act_format;

/// Two products combined by a gate, `out[row] = activation(x[row] * gate) * (x[row] * up)`.
#[derive(Clone, Copy)]
pub struct ExpertGated<'a> {
    /// Gate and up, of the same shape and of any formats.
    pub matrices: [ExpertMatrices<'a>; 2],
    pub activation: Activation,
    /// `[n_tokens * n_used, n_out]`.
    pub out: Slice<'a, f32>,
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
    match select::is_gemv_of_experts(gpu, routing) {
        true => expert_matvec(gpu, x, routing, &[(matrices, Mode::Store)], out),
        false => expert_matmul(gpu, x, routing, matrices, out),
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
    if !select::is_gemv_of_experts(gpu, routing) {
        let scratch = scratch.part(0..out.len());
        expert_matmul(gpu, x, routing, &gate, out)?;
        expert_matmul(gpu, x, routing, &up, scratch)?;
        return gated_activation(gpu, activation, out, scratch, out);
    }
    let jobs = [(&gate, activation.into()), (&up, Mode::Store)];
    if gate.ty == up.ty {
        return expert_matvec(gpu, x, routing, &jobs, out);
    }
    expert_matvec(gpu, x, routing, &[(&gate, Mode::Store)], out)?;
    expert_matvec(gpu, x, routing, &[(&up, activation.into())], out)
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
