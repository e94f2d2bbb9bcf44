//! Which kernel computes a GEMV, and how rows of weights are distributed to its waves.

use rocmforge_gguf::GgmlType;

use super::super::formats::{n_chunks, warp_size};
use super::super::gemv::THREADS;
use super::super::half;
use super::super::jobs::{FEW, Few, Listed, Work};
use super::super::own::{OwnFew, SummedFew};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Kernel, kernels};
use crate::operands::{Matrix, RowOrder};
use crate::tuning::{Choice, Shape};
use crate::variant::Variant;

/// Enough waves to keep the memory of any GPU busy. Rows of matrices with fewer rows are shared by several waves.
const ENOUGH_WAVES: usize = 4096;

kernels! {
    /// The numbers are the rows of weights per wave and the maximum number of rows of activations, of a job or a tile.
    struct GemvKernels {
        gemv_1_1: Few,
        gemv_1_1_turns: Few,
        gemv_2_1: Few,
        gemv_2_2: Few,
        gemv_2_4: Few,
        gemv_2_8: Few,
        gemv_listed_1_1: Listed,
        gemv_listed_2_8: Listed,
        gemv_tiled_2_1: Few,
        gemv_tiled_2_4: Few,
        gemv_own_tiled_2: OwnFew,
        gemv_own_tiled_4: OwnFew,
        gemv_summed_8: SummedFew,
    }
}

kernels! {
    /// Of Hopper (`kernels/hopper/format/gemv_wide.hip`).
    struct GemvWideKernels {
        gemv_wide_2_1: Few,
        gemv_wide_2_2: Few,
        gemv_wide_2_4: Few,
        gemv_wide_4_4: Few,
    }
}

/// How rows of weights are distributed to waves.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Waves {
    /// Weight rows per wave at a time.
    pub(in crate::ops) rows: usize,
    /// Maximum number of waves that share a row, a power of two. Only kernels with turns may have fewer than the
    /// virtual waves.
    pub(in crate::ops) max_split: usize,
}

impl Waves {
    /// Waves with `rows` weight rows each; all virtual waves of a row are waves of the device.
    pub(in crate::ops) const fn of_rows(rows: usize) -> Waves {
        Waves {
            rows,
            max_split: usize::MAX,
        }
    }
}

/// A GEMV kernel, and how rows of weights are distributed to its waves.
pub(in crate::ops) type Gemv<'k, P = Few> = (&'k Kernel<P>, Waves);

/// Returns the kernel for jobs with the same activations and matrices of one format and order of rows.
pub(in crate::ops) fn gemv<'k>(gpu: &'k Gpu, works: &[Work<'_>]) -> Result<Gemv<'k>, GpuError> {
    let first = &works[0];
    let kernels = kernels_of(gpu, &first.matrix)?;
    let paired = of_pairs(first);
    if let Some(experts) = &first.experts {
        // The experts of a token are distinct, so each has one row.
        return Ok(match experts.routing.n_tokens {
            1 => (&kernels.gemv_tiled_2_1, paired),
            _ => (&kernels.gemv_tiled_2_4, paired),
        });
    }
    Ok(match (first.x.n_rows, first.up) {
        (1, None) => kernels.of_one_row(gpu, works)?,
        (1, Some(_)) => kernels.of_two(gpu, works, paired)?,
        _ => kernels.of_rows(gpu, works)?,
    })
}

/// Returns the kernel for products of a single token with the matrices of experts that convert its activations themselves.
pub(in crate::ops) fn own_gemv<'k>(
    gpu: &'k Gpu,
    work: &Work<'_>,
) -> Result<Gemv<'k, OwnFew>, GpuError> {
    let kernels = kernels_of(gpu, &work.matrix)?;
    let (pairs, four) = (of_pairs(work), waves_of(work, 4));
    let split = virtual_split(gpu, work);
    // Waves with twice as many rows are faster where the blocks take fewer turns, and a lane has several chunks of a row: then
    // twice as many loads are under way (H200).
    let n_turns = |kernel, waves| {
        let n_blocks = work.n_matrices() * n_blocks(gpu, &work.matrix, split, waves);
        let at_once = gpu.n_concurrent_blocks(kernel, (THREADS, 0))?;
        Ok::<usize, GpuError>(n_blocks.div_ceil(at_once))
    };
    let takes_four = if gpu.takes(Variant::TilesLarge) {
        true
    } else {
        half::has_kernels(gpu, work.matrix.ty)
            && !gpu.takes(Variant::TilesSmall)
            && n_chunks_of_lane(gpu, &work.matrix, split) > 1
            && n_turns(&kernels.gemv_own_tiled_4, four)?
                < n_turns(&kernels.gemv_own_tiled_2, pairs)?
    };
    Ok(match takes_four {
        true => (&kernels.gemv_own_tiled_4, four),
        false => (&kernels.gemv_own_tiled_2, pairs),
    })
}

/// Returns the kernel for the products of a single token with the matrices of its experts, and their sum.
pub(in crate::ops) fn summed_gemv<'k>(
    gpu: &'k Gpu,
    matrix: &Matrix<'_>,
) -> Result<&'k Kernel<SummedFew>, GpuError> {
    Ok(&kernels_of(gpu, matrix)?.gemv_summed_8)
}

fn kernels_of<'k>(gpu: &'k Gpu, matrix: &Matrix<'_>) -> Result<&'k GemvKernels, GpuError> {
    let all = gpu.kernels();
    match matrix.order {
        RowOrder::Apart => all.gemv.of(matrix.ty),
        RowOrder::Tiles => all.gemv_of_tiles.of(matrix.ty),
    }
}

fn wide_kernels_of<'k>(gpu: &'k Gpu, matrix: &Matrix<'_>) -> Result<&'k GemvWideKernels, GpuError> {
    let all = gpu.kernels();
    match matrix.order {
        RowOrder::Apart => all.gemv_wide.of(matrix.ty),
        RowOrder::Tiles => all.gemv_wide_of_tiles.of(matrix.ty),
    }
}

/// Waves that take a row of both gate and up, or two rows.
fn of_pairs(work: &Work<'_>) -> Waves {
    waves_of(work, 2)
}

/// Waves that take `rows` rows, half of them of gate and half of up if there are both.
fn waves_of(work: &Work<'_>, rows: usize) -> Waves {
    Waves::of_rows(if work.up.is_some() { rows / 2 } else { rows })
}

/// Whether codes are cheap to read.
fn is_cheap(ty: GgmlType) -> bool {
    use GgmlType::{BF16, F16, Q4_0, Q4_1, Q4_K};
    matches!(ty, Q4_0 | Q4_1 | Q4_K | F16 | BF16)
}

/// Returns how many chunks a lane has at most of a row that `split` virtual waves share.
fn n_chunks_of_lane(gpu: &Gpu, matrix: &Matrix<'_>, split: usize) -> usize {
    n_chunks(matrix.ty, matrix.n_in).div_ceil(warp_size(gpu) * split)
}

/// Returns how many chunks of a row a lane has at most.
fn most_chunks(gpu: &Gpu, works: &[Work<'_>]) -> usize {
    let of = |work: &Work<'_>| n_chunks_of_lane(gpu, &work.matrix, virtual_split(gpu, work));
    works.iter().map(of).max().unwrap_or(0)
}

/// Returns the bytes of dynamic shared memory for a dense launch of `n_blocks` blocks.
pub(in crate::ops) fn shared_bytes(
    gpu: &Gpu,
    works: &[Work<'_>],
    kernel: &Kernel<Few>,
    n_blocks: u32,
) -> Result<u32, GpuError> {
    // Of shorter blocks, waiting until the processors have divided their memory anew takes longer.
    const LEAST_CHUNKS: usize = 4;
    if most_chunks(gpu, works) < LEAST_CHUNKS {
        return Ok(0);
    }
    let at_once = gpu.n_concurrent_blocks(kernel, (THREADS, 0))?;
    Ok(gpu.shared_bytes_for_even_blocks(n_blocks, at_once, 0))
}

/// Returns how many blocks a kernel takes for the products, and how many the device runs at once.
fn turns_of(gpu: &Gpu, works: &[Work<'_>], gemv: Gemv<'_>) -> Result<[usize; 2], GpuError> {
    let (kernel, waves) = gemv;
    let n_blocks = |work: &Work<'_>| n_blocks(gpu, &work.matrix, virtual_split(gpu, work), waves);
    let at_once = gpu.n_concurrent_blocks(kernel, (THREADS, 0))?;
    Ok([works.iter().map(n_blocks).sum(), at_once])
}

/// Returns how many blocks compute a product whose rows are each shared by `split` virtual waves.
pub(in crate::ops) fn n_blocks(
    gpu: &Gpu,
    matrix: &Matrix<'_>,
    split: usize,
    waves: Waves,
) -> usize {
    let n_waves = THREADS as usize / warp_size(gpu);
    matrix
        .n_out
        .div_ceil(n_waves / split.min(waves.max_split) * waves.rows)
}

/// Returns the kernel for a table of jobs with at most `max_rows` rows each, of matrices whose rows lie apart.
pub(in crate::ops) fn listed_gemv(
    gpu: &Gpu,
    ty: GgmlType,
    max_rows: usize,
) -> Result<Gemv<'_, Listed>, GpuError> {
    let kernels = gpu.kernels().gemv.of(ty)?;
    Ok(match max_rows {
        1 => (&kernels.gemv_listed_1_1, Waves::of_rows(1)),
        _ => (&kernels.gemv_listed_2_8, Waves::of_rows(2)),
    })
}

impl GemvKernels {
    /// Returns the kernel for several rows of activations.
    fn of_rows<'k>(&'k self, gpu: &'k Gpu, works: &[Work<'_>]) -> Result<Gemv<'k>, GpuError> {
        let first = &works[0];
        let [two, four] = [2, 4].map(|rows| waves_of(first, rows));
        let is_pair = match first.x.n_rows {
            0..=2 => true,
            3 | 4 => false,
            _ => return Ok((&self.gemv_2_8, two)),
        };
        let usual = match is_pair {
            true => (&self.gemv_2_2, two),
            false => (&self.gemv_2_4, two),
        };
        let [n_blocks, at_once] = turns_of(gpu, works, usual)?;
        if !half::has_kernels(gpu, first.matrix.ty) || n_blocks <= at_once {
            return Ok(usual);
        }
        let wide = wide_kernels_of(gpu, &first.matrix)?;
        // Of gemv_wide_2_4, half as many blocks again run at once.
        Ok(match (is_pair, n_blocks * 2 <= at_once * 3) {
            (true, _) => (&wide.gemv_wide_2_2, two),
            (false, true) => (&wide.gemv_wide_2_4, two),
            (false, false) => (&wide.gemv_wide_4_4, four),
        })
    }

    /// Returns the kernel for one row of activations, and its waves: as tuned, else by the rule.
    fn of_one_row<'k>(&'k self, gpu: &'k Gpu, works: &[Work<'_>]) -> Result<Gemv<'k>, GpuError> {
        let matrices: Vec<Matrix<'_>> = works.iter().map(|work| work.matrix).collect();
        let most = most_split(gpu, &matrices);
        let (rows, split) = match gpu.tuned(|| gemv_shape(&matrices)) {
            Some(Choice::Matvec { rows: 2, .. }) => (2, most),
            Some(Choice::Matvec { rows: 1, split }) if split.is_power_of_two() && split <= most => {
                (1, split)
            }
            _ => (self.rows_per_wave(gpu, &matrices)?, most),
        };
        Ok(match rows {
            2 => self.of_two(gpu, works, Waves::of_rows(2))?,
            // With as many waves as virtual waves, the plain kernel does the same.
            _ if split == most => (&self.gemv_1_1, Waves::of_rows(1)),
            _ => {
                let waves = Waves {
                    rows: 1,
                    max_split: split,
                };
                (&self.gemv_1_1_turns, waves)
            }
        })
    }

    /// Returns the kernel for one row of activations and waves of two rows of weights.
    fn of_two<'k>(
        &'k self,
        gpu: &'k Gpu,
        works: &[Work<'_>],
        waves: Waves,
    ) -> Result<Gemv<'k>, GpuError> {
        let matrix = &works[0].matrix;
        let ty = matrix.ty;
        let usual = (&self.gemv_2_1, waves);
        if !half::has_kernels(gpu, ty) || most_chunks(gpu, works) <= 1 {
            return Ok(usual);
        }
        let wide = (&wide_kernels_of(gpu, matrix)?.gemv_wide_2_1, waves);
        let [n_turns, n_wide] = [usual, wide].map(|gemv| {
            turns_of(gpu, works, gemv).map(|[n_blocks, at_once]| n_blocks.div_ceil(at_once))
        });
        let [n_turns, n_wide] = [n_turns?, n_wide?];
        // A turn of these takes three quarters of the time where codes are cheap to read (H200).
        let is_faster = n_wide == 1 || is_cheap(ty) && n_wide * 3 <= n_turns * 4;
        Ok(if is_faster { wide } else { usual })
    }

    /// Returns how many rows of weights a wave takes by the rule for one row of activations: two if a wave with one has
    /// little to load, or if the device does not run all of those at once (H200).
    fn rows_per_wave(&self, gpu: &Gpu, matrices: &[Matrix<'_>]) -> Result<usize, GpuError> {
        let split_of = |matrix: &Matrix<'_>| split(gpu, matrix, matrix.n_out);
        if { matrices.iter() }.all(|matrix| n_chunks_of_lane(gpu, matrix, split_of(matrix)) <= 1) {
            return Ok(2);
        }
        let one = Waves::of_rows(1);
        let n_blocks = |matrix: &Matrix<'_>| n_blocks(gpu, matrix, split_of(matrix), one);
        let n_blocks: usize = matrices.iter().map(n_blocks).sum();
        let at_once = gpu.n_concurrent_blocks(&self.gemv_1_1, (THREADS, 0))?;
        Ok(if n_blocks > at_once { 2 } else { 1 })
    }
}

/// Returns how many virtual waves share a row of a job's matrix. The experts of one token run together.
pub(in crate::ops) fn virtual_split(gpu: &Gpu, work: &Work<'_>) -> usize {
    split(gpu, &work.matrix, work.n_outputs())
}

/// Returns how many virtual waves share a row, a power of two. `n_rows` counts the weight rows that one row of
/// activations meets in matrices of this shape. Depends only on the shape, so that the order of additions does too.
pub(in crate::ops) fn split(gpu: &Gpu, matrix: &Matrix<'_>, n_rows: usize) -> usize {
    if gpu.takes(Variant::SplitsOff) {
        return 1;
    }
    let warp_size = warp_size(gpu);
    let n_waves = THREADS as usize / warp_size;
    // Every lane of every wave should have a chunk.
    let most = (n_chunks(matrix.ty, matrix.n_in) / warp_size).clamp(1, n_waves);
    let mut split = 1;
    while split * 2 <= most && n_rows * split < ENOUGH_WAVES {
        split *= 2;
    }
    split
}

/// Returns the most virtual waves that share a row of one of the matrices.
fn most_split(gpu: &Gpu, matrices: &[Matrix<'_>]) -> usize {
    let splits = { matrices.iter() }.map(|matrix| split(gpu, matrix, matrix.n_out));
    splits.max().unwrap_or(1)
}

/// Returns the tuning shape of a GEMV of one row with these matrices of one format.
fn gemv_shape(matrices: &[Matrix<'_>]) -> Shape {
    let mut n_out = [0; FEW];
    let (mut ty, mut n_in) = (GgmlType::F32, 0);
    for (to, matrix) in n_out.iter_mut().zip(matrices) {
        (ty, n_in, *to) = (matrix.ty, matrix.n_in, matrix.n_out);
    }
    Shape::Matvec { ty, n_out, n_in }
}

/// Returns the shape of a GEMV of one row with these matrices of one format, and its candidate choices, the default
/// first.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; those of loading a module.
pub(crate) fn gemv_choices(
    gpu: &Gpu,
    matrices: &[Matrix<'_>],
) -> Result<(Shape, Vec<Choice>), GpuError> {
    let shape = gemv_shape(matrices);
    let most = most_split(gpu, matrices);
    let way = |rows, split| Choice::Matvec { rows, split };
    let mut ways = vec![way(1, most), way(2, most)];
    if kernels_of(gpu, &matrices[0])?.rows_per_wave(gpu, matrices)? == 2 {
        ways.reverse();
    }
    let fewer = std::iter::successors(Some(most / 2), |split| Some(split / 2));
    ways.extend(
        fewer
            .take_while(|&split| split > 0)
            .map(|split| way(1, split)),
    );
    Ok((shape, ways))
}
