//! GEMV: products with few rows of activations (`kernels/format/gemv.hip`).

use super::jobs::{FEW, Few, Gated, Mode, Product, RawProduct, Work};
use super::own;
use super::select::{self, Waves};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::operands::{Activation, Acts};

/// Maximum number of rows of activations for [`matvec`].
pub const MAX_ROWS: usize = 8;

/// Threads per block.
pub(super) const THREADS: u32 = 256;

/// Multiplies the rows of `x` with each matrix, in one launch for up to three matrices of a format and order of rows. The bits of
/// an output row do not depend on the number of rows or on the other products.
///
/// # Errors
/// [`GpuError::Format`] for formats without kernels; errors of a launch.
///
/// # Panics
/// If `x` has more than [`MAX_ROWS`] rows, or not the form or width that a matrix takes; or if a bias or output has
/// another shape.
pub fn matvec(gpu: &Gpu, x: &Acts<'_>, products: &[Product<'_>]) -> Result<(), GpuError> {
    let works: Vec<Work<'_>> = products.iter().map(|p| Work::new(x, p)).collect();
    launch_each(gpu, &works)
}

/// Computes both products and the gate, in one launch if both matrices have the same format and order of rows, else in
/// two.
///
/// # Errors
/// As [`matvec`].
///
/// # Panics
/// As [`matvec`]; also if the matrices have different shapes, or the activation does not join products.
pub fn matvec_gated(gpu: &Gpu, x: &Acts<'_>, gated: &Gated<'_>) -> Result<(), GpuError> {
    launch_gated(gpu, &Work::gate_and_up(x, gated), gated.activation)
}

/// [`matvec_gated`] of a gate and its up.
pub(super) fn launch_gated(
    gpu: &Gpu,
    [gate, up]: &[Work<'_>; 2],
    activation: Activation,
) -> Result<(), GpuError> {
    let mode = Mode::of_gate(activation);
    if gate.is_like(up) {
        return launch(gpu, &[gate.with_up(up, mode)]);
    }
    launch(gpu, &[*gate])?;
    launch(gpu, &[Work { mode, ..*up }])
}

/// Launches jobs with the same activations and matrices of any formats.
pub(super) fn launch_each(gpu: &Gpu, works: &[Work<'_>]) -> Result<(), GpuError> {
    for (i, work) in works.iter().enumerate() {
        let kind = |work: &Work<'_>| (work.matrix.ty, work.matrix.order);
        let is_same = |other: &&Work<'_>| kind(other) == kind(work);
        if works[..i].iter().any(|other| is_same(&other)) {
            continue;
        }
        let same: Vec<Work<'_>> = works[i..].iter().filter(is_same).copied().collect();
        same.chunks(FEW).try_for_each(|few| launch(gpu, few))?;
    }
    Ok(())
}

/// Launches up to [`FEW`] jobs with the same activations and matrices of one format and order of rows; a gated product and
/// one of an MoE layer are alone.
pub(super) fn launch(gpu: &Gpu, works: &[Work<'_>]) -> Result<(), GpuError> {
    let first = works[0];
    assert!(
        first.x.n_rows <= MAX_ROWS || first.experts.is_some(),
        "too many rows of activations"
    );
    if first.x.n_rows == 0 {
        return Ok(());
    }
    if let Some(source) = &first.x.source {
        return own::launch(gpu, works, source);
    }
    let (kernel, waves) = select::gemv(gpu, works)?;
    let (raw, n_blocks) = products(gpu, works, waves);
    let tiles = first.experts.map(|experts| experts.routing.tiles[0]);
    let grid = match tiles {
        Some(tiles) => [tiles.len() as u32, n_blocks, 1],
        None => [n_blocks, 1, 1],
    };
    let shared_bytes = match tiles {
        Some(_) => 0,
        None => select::shared_bytes(gpu, works, kernel, n_blocks)?,
    };
    let params = Few::new(works, &raw, tiles);
    gpu.launch(kernel, grid, THREADS, shared_bytes, &params)
}

/// Returns the products of a launch, and its number of blocks, of an MoE layer per tile.
pub(super) fn products(gpu: &Gpu, works: &[Work<'_>], waves: Waves) -> (Vec<RawProduct>, u32) {
    let (mut raw, mut n_blocks) = (Vec::with_capacity(FEW), 0);
    for work in works {
        let (product, n) = product(gpu, work, waves, n_blocks);
        raw.push(product);
        n_blocks += n;
    }
    (raw, n_blocks)
}

/// Returns the product whose blocks begin at `first_block`, and its number of blocks, of an MoE layer per tile.
pub(super) fn product(
    gpu: &Gpu,
    work: &Work<'_>,
    waves: Waves,
    first_block: u32,
) -> (RawProduct, u32) {
    let split = select::virtual_split(gpu, work);
    let n_blocks = select::n_blocks(gpu, &work.matrix, split, waves);
    let mut raw = RawProduct::new(work, first_block);
    raw.split_log = split.ilog2();
    raw.turns_log = (split / split.min(waves.max_split)).ilog2();
    let n_blocks = u32::try_from(n_blocks).expect("the number of blocks fits 32 bits");
    (raw, n_blocks)
}
