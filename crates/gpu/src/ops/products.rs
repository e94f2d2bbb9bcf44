//! Matrix products for any number of rows: chooses between GEMV and GEMM.

use super::elementwise::gated_activation;
use super::gemm::matmul;
use super::gemv::{Gated, MAX_JOBS, MAX_ROWS, Product, matvec, matvec_gated};
use super::select;
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::memory::Slice;
use crate::operands::{Acts, OutMode};

/// Multiplies the rows of `x` with each matrix: up to [`MAX_ROWS`] rows by GEMV, more by GEMM.
///
/// # Errors
/// If a format has no kernels, or a launch fails.
///
/// # Panics
/// If `x` does not have the form or width that a matrix takes, or a bias or output has another shape.
pub fn products(gpu: &Gpu, x: &Acts<'_>, products: &[Product<'_>]) -> Result<(), GpuError> {
    if !select::is_gemv(gpu, x.n_rows) {
        return products
            .iter()
            .try_for_each(|product| matmul(gpu, x, product));
    }
    for first in (0..x.n_rows).step_by(MAX_ROWS) {
        let rows = first..x.n_rows.min(first + MAX_ROWS);
        let x = x.part(rows.clone());
        for products in products.chunks(MAX_JOBS) {
            let products: Vec<Product<'_>> = products
                .iter()
                .map(|product| Product {
                    out: rows_of(product.out, rows.clone(), product.matrix.n_out),
                    ..*product
                })
                .collect();
            matvec(gpu, &x, &products)?;
        }
    }
    Ok(())
}

/// `out = activation(x * gate + biases[0]) * (x * up + biases[1])`, by GEMV or GEMM as [`products`]. `scratch` has
/// room for a second output.
///
/// # Errors
/// As [`products`].
///
/// # Panics
/// As [`products`]; also if the matrices have different shapes, or `scratch` is shorter than the output.
pub fn gated_products(
    gpu: &Gpu,
    x: &Acts<'_>,
    gated: &Gated<'_>,
    scratch: Slice<'_, f32>,
) -> Result<(), GpuError> {
    let Gated {
        matrices: [gate, up],
        biases,
        activation,
        out,
    } = *gated;
    if !select::is_gemv(gpu, x.n_rows) {
        let scratch = scratch.part(0..out.len());
        let product = |matrix, bias, out| Product {
            matrix,
            bias,
            mode: OutMode::Store,
            out,
        };
        matmul(gpu, x, &product(gate, biases[0], out))?;
        matmul(gpu, x, &product(up, biases[1], scratch))?;
        return gated_activation(gpu, activation, out, scratch, out);
    }
    for first in (0..x.n_rows).step_by(MAX_ROWS) {
        let rows = first..x.n_rows.min(first + MAX_ROWS);
        let part = Gated {
            out: rows_of(out, rows.clone(), gate.n_out),
            ..*gated
        };
        matvec_gated(gpu, &x.part(rows), &part)?;
    }
    Ok(())
}

/// Returns a range of rows of `[n_rows, width]`.
fn rows_of(out: Slice<'_, f32>, rows: std::ops::Range<usize>, width: usize) -> Slice<'_, f32> {
    out.part(rows.start * width..rows.end * width)
}
