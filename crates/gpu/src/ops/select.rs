//! Which kernel computes a product, and with which tile: the one place that decides. Dense, grouped and expert products
//! each have GEMV kernels for few rows of activations and GEMM kernels for many.
//!
//! The rules depend on shapes only, so that a product has the same bits on every run. Tuning may replace a choice by one
//! with the same order of additions. Forced variants override both.

mod floats;
mod gemv;

use std::sync::OnceLock;

use rocmforge_gguf::GgmlType;

pub(super) use self::floats::{FewFloatsKernels, ManyFloatsKernels};
pub(crate) use self::gemv::gemv_choices;
pub(super) use self::gemv::{
    GemvKernels, GemvWideKernels, Waves, gemv, listed_gemv, n_blocks, own_gemv, shared_bytes,
    split, summed_gemv, virtual_split,
};
use super::gemv::MAX_ROWS;
use super::half;
use super::half::memory::{HalfMemory, MAX_ROWS_BESIDE_OCTETS, may_have_octets};
use super::jobs::{One, Work};
use super::routing::buffer::{ExpertTile, Routing, TILE_ROWS};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{AnyKernel, Kernel, KernelTable, kernels};
use crate::memory::Slice;
use crate::operands::{Matrix, RowOrder};
use crate::tuning::{BlockOrder, Choice, MatmulTiles, Shape};
use crate::variant::Variant;

/// With fewer blocks than this, large tiles leave most of a device idle.
const FEW_BLOCKS: usize = 128;

/// Up to this many rows, large tiles would mostly compute padding rows.
const FEW_ROWS: usize = 64;

/// Above this many rows per expert, large tiles are mostly full.
const LARGE_TILE_ROWS: usize = 64;

/// With f16 activations, dense products of more rows than this are GEMMs: as fast as a GEMV of 4 rows (H200).
const MAX_ROWS_BESIDE_HALVES: usize = 4;

/// Returns the fastest order of rows of a matrix `[n_out, n_in]` for decode steps of up to `max_rows` rows. Only quantized
/// matrices of whole tiles lie in them, on GPUs with kernels for f16 activations, the only ones on which tiles were measured.
///
/// On an H200, llama-3.1-8b with 4 sequences is 11 % faster with tiles, and with one sequence 2 % slower.
pub fn row_order(gpu: &Gpu, ty: GgmlType, [n_out, n_in]: [usize; 2], max_rows: usize) -> RowOrder {
    let is_quantized = ty.block_len() > 1;
    let is_whole = RowOrder::is_whole(n_out, n_in);
    let most_gemv_rows = match may_have_octets(ty) {
        true => MAX_ROWS_BESIDE_OCTETS,
        false => MAX_ROWS_BESIDE_HALVES,
    };
    let has_gemms = max_rows > most_gemv_rows && half::has_kernels(gpu, ty);
    match is_quantized && is_whole && has_gemms {
        true => RowOrder::Tiles,
        false => RowOrder::Apart,
    }
}

/// Whether a dense product of this many rows is a GEMV. `halves`: the memory for the activations as f16, if GEMM takes them so.
pub(super) fn is_gemv(gpu: &Gpu, n_rows: usize, halves: Option<HalfMemory<'_>>) -> bool {
    if let Some(is_gemv) = is_always_gemv(gpu, halves.is_some()) {
        return is_gemv;
    }
    let most = match halves {
        Some(memory) if memory.has_octets => MAX_ROWS_BESIDE_OCTETS,
        Some(_) => MAX_ROWS_BESIDE_HALVES,
        None => MAX_ROWS,
    };
    let few = n_rows <= most && !gpu.takes(Variant::ProductsMatmul);
    few || gpu.takes(Variant::ProductsMatvec)
}

/// Whether products are GEMVs or GEMMs for any number of rows, so that the number does not change the bits of a row. GEMM is
/// faster where it takes the activations as f16 (`halves`).
fn is_always_gemv(gpu: &Gpu, halves: bool) -> Option<bool> {
    if gpu.takes(Variant::RowsAnswer) {
        Some(!halves)
    } else {
        gpu.takes(Variant::RowsPrompt).then_some(false)
    }
}

/// With f16 activations, products of the experts of more tokens than this are GEMMs (H200).
const MAX_TOKENS_BESIDE_HALVES: usize = 2;

/// Whether expert products are GEMVs: experts have so few rows that reading the weights dominates. `halves`: whether GEMM
/// takes the activations as f16.
pub(super) fn is_gemv_of_experts(gpu: &Gpu, routing: &Routing<'_>, halves: bool) -> bool {
    if let Some(is_gemv) = is_always_gemv(gpu, halves) {
        return is_gemv;
    }
    let few = match halves {
        true => routing.n_tokens <= MAX_TOKENS_BESIDE_HALVES,
        false => routing.n_tokens <= MAX_ROWS || routing.has_up_to(1),
    };
    few && !gpu.takes(Variant::ProductsMatmul) || gpu.takes(Variant::ProductsMatvec)
}

kernels! {
    /// Their tiles are rows of `kernels/gemm/tiles.h`.
    struct GemmKernels {
        gemm_large: One,
        gemm_small: One,
        gemm_tiled_large: One,
        gemm_tiled_flat: One,
    }
}

/// The output tile of a block of a GEMM kernel, as the image says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmTile {
    /// Rows of activations and outputs of the tile.
    pub rows: usize,
    pub outs: usize,
    /// Threads per block.
    pub threads: u32,
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
    /// Kernels of a format with equal numbers add in the same order: their results have the same bits.
    pub order: u32,
}

/// The names of the constants of a kernel's tile.
macro_rules! tile_names {
    ($($kernel:ident),*) => {
        [$([
            concat!(stringify!($kernel), "_tile_rows"),
            concat!(stringify!($kernel), "_tile_outs"),
            concat!(stringify!($kernel), "_tile_threads"),
            concat!(stringify!($kernel), "_tile_shared"),
            concat!(stringify!($kernel), "_tile_order"),
        ]),*]
    };
}

impl GemmTile {
    /// Reads the constants with these names.
    pub(super) fn read(
        gpu: &Gpu,
        module: &'static str,
        names: [&'static str; 5],
    ) -> Result<GemmTile, GpuError> {
        let [rows, outs, threads, shared, order] = names;
        Ok(GemmTile {
            rows: gpu.constant(module, rows)? as usize,
            outs: gpu.constant(module, outs)? as usize,
            threads: gpu.constant(module, threads)?,
            shared_bytes: gpu.constant(module, shared)?,
            order: gpu.constant(module, order)?,
        })
    }
}

/// The GEMM kernels of a format, and their tiles.
pub(crate) struct Gemms {
    kernels: GemmKernels,
    /// In the order of the kernels.
    tiles: OnceLock<[GemmTile; 4]>,
}

impl KernelTable for Gemms {
    fn of_module(module: &'static str) -> Gemms {
        Gemms {
            kernels: GemmKernels::of_module(module),
            tiles: OnceLock::new(),
        }
    }

    fn each(&self, visit: &mut dyn FnMut(&dyn AnyKernel)) {
        self.kernels.each(visit);
    }
}

impl Gemms {
    fn tiles(&self, gpu: &Gpu) -> Result<&[GemmTile; 4], GpuError> {
        if let Some(tiles) = self.tiles.get() {
            return Ok(tiles);
        }
        let names = tile_names!(gemm_large, gemm_small, gemm_tiled_large, gemm_tiled_flat);
        let mut tiles = Vec::with_capacity(names.len());
        for names in names {
            tiles.push(GemmTile::read(gpu, self.kernels.gemm_large.module, names)?);
        }
        let tiles = <[GemmTile; 4]>::try_from(tiles).expect("one for each kernel");
        Ok(self.tiles.get_or_init(|| tiles))
    }

    fn dense(&self, gpu: &Gpu, tiles: MatmulTiles) -> Result<(&Kernel<One>, GemmTile), GpuError> {
        let [large, small, ..] = *self.tiles(gpu)?;
        Ok(match tiles {
            MatmulTiles::Large => (&self.kernels.gemm_large, large),
            MatmulTiles::Small => (&self.kernels.gemm_small, small),
        })
    }

    /// Returns the tiles for a dense product by the rules.
    fn rule(&self, gpu: &Gpu, [n_out, n_rows]: [usize; 2]) -> Result<MatmulTiles, GpuError> {
        let (_, large) = self.dense(gpu, MatmulTiles::Large)?;
        if gpu.takes(Variant::RowsPrompt)
            && !self.are_equal(gpu, MatmulTiles::Large, MatmulTiles::Small)?
        {
            return Ok(MatmulTiles::Large);
        }
        let n_blocks = n_out.div_ceil(large.outs) * n_rows.div_ceil(large.rows);
        let is_small = n_rows <= FEW_ROWS || n_blocks < FEW_BLOCKS;
        let is_small = is_small && !gpu.takes(Variant::TilesLarge);
        Ok(match is_small || gpu.takes(Variant::TilesSmall) {
            true => MatmulTiles::Small,
            false => MatmulTiles::Large,
        })
    }

    /// Returns the kernel for the experts of a step.
    fn of_experts<'k>(&'k self, gpu: &Gpu, routing: &Routing<'k>) -> Result<Gemm<'k>, GpuError> {
        let [.., large, flat] = *self.tiles(gpu)?;
        let is_large = !routing.has_up_to(LARGE_TILE_ROWS) && !gpu.takes(Variant::TilesSmall)
            || gpu.takes(Variant::TilesLarge)
            || gpu.takes(Variant::RowsPrompt) && large.order != flat.order;
        let rows_of = |tile: GemmTile| TILE_ROWS.iter().position(|&rows| rows == tile.rows);
        let (kernel, tile, kind) = match rows_of(large) {
            Some(kind) if is_large => (&self.kernels.gemm_tiled_large, large, kind),
            // Also if routing makes no tiles of the large size.
            _ => {
                let kind = rows_of(flat).expect("routing makes tiles for flat ones");
                (&self.kernels.gemm_tiled_flat, flat, kind)
            }
        };
        Ok(Gemm {
            kernel,
            tile,
            order: BlockOrder::OutputsFirst,
            tiles: Some(routing.tiles[kind]),
            overlaps: false,
        })
    }

    /// Whether both tiles give the same bits.
    fn are_equal(&self, gpu: &Gpu, a: MatmulTiles, b: MatmulTiles) -> Result<bool, GpuError> {
        Ok(self.dense(gpu, a)?.1.order == self.dense(gpu, b)?.1.order)
    }
}

/// A GEMM kernel, its tile, and which blocks start first.
pub(super) struct Gemm<'k> {
    pub(super) kernel: &'k Kernel<One>,
    pub(super) tile: GemmTile,
    pub(super) order: BlockOrder,
    /// For experts: the tiles of rows that the kernel takes.
    pub(super) tiles: Option<Slice<'k, ExpertTile>>,
    /// Whether it may start while the launch before runs.
    pub(super) overlaps: bool,
}

/// Returns the kernel for a job. `forced` tiles override the rules and tuned tiles of dense products.
pub(super) fn gemm<'k>(
    gpu: &'k Gpu,
    work: &Work<'k>,
    forced: Option<MatmulTiles>,
) -> Result<Gemm<'k>, GpuError> {
    let matrix = &work.matrix;
    let gemms = gpu.kernels().gemm.of(matrix.ty)?;
    if let Some(experts) = &work.experts {
        return gemms.of_experts(gpu, &experts.routing);
    }
    let n_rows = work.x.n_rows;
    if let (None, Some((kernel, tile))) = (forced, floats::of_small_matrix(gpu, matrix, n_rows)) {
        return Ok(Gemm {
            kernel,
            tile,
            order: BlockOrder::OutputsFirst,
            tiles: None,
            overlaps: true,
        });
    }
    let (mut tiles, mut order) = (forced, BlockOrder::OutputsFirst);
    if let Some(Choice::Matmul {
        tiles: tuned_tiles,
        order: tuned_order,
    }) = gpu.tuned(|| gemm_shape(matrix, n_rows))
    {
        order = tuned_order;
        let usual = gemms.rule(gpu, [matrix.n_out, n_rows])?;
        if forced.is_none() && gemms.are_equal(gpu, tuned_tiles, usual)? {
            tiles = Some(tuned_tiles);
        }
    }
    let tiles = match tiles {
        Some(tiles) => tiles,
        None => gemms.rule(gpu, [matrix.n_out, n_rows])?,
    };
    let (kernel, tile) = gemms.dense(gpu, tiles)?;
    Ok(Gemm {
        kernel,
        tile,
        order,
        tiles: None,
        overlaps: false,
    })
}

fn gemm_shape(matrix: &Matrix<'_>, n_rows: usize) -> Shape {
    Shape::Matmul {
        ty: matrix.ty,
        n_out: matrix.n_out,
        n_in: matrix.n_in,
        n_rows: n_rows.next_power_of_two(),
    }
}

/// Returns the shape of a GEMM and its candidate choices, the default first: every tile that gives the same bits, with
/// both orders of blocks.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; those of loading a module.
pub(crate) fn gemm_choices(
    gpu: &Gpu,
    matrix: &Matrix<'_>,
    n_rows: usize,
) -> Result<(Shape, Vec<Choice>), GpuError> {
    let gemms = gpu.kernels().gemm.of(matrix.ty)?;
    let usual = gemms.rule(gpu, [matrix.n_out, n_rows])?;
    let other = match usual {
        MatmulTiles::Large => MatmulTiles::Small,
        MatmulTiles::Small => MatmulTiles::Large,
    };
    let mut all = vec![usual];
    if half::has_kernels(gpu, matrix.ty) || floats::of_small_matrix(gpu, matrix, n_rows).is_some() {
        let choice = Choice::Matmul {
            tiles: usual,
            order: BlockOrder::OutputsFirst,
        };
        return Ok((gemm_shape(matrix, n_rows), vec![choice]));
    }
    if gemms.are_equal(gpu, usual, other)? {
        all.push(other);
    }
    let orders = [BlockOrder::OutputsFirst, BlockOrder::RowsFirst];
    let ways = all
        .iter()
        .flat_map(|&tiles| orders.map(|order| Choice::Matmul { tiles, order }));
    Ok((gemm_shape(matrix, n_rows), ways.collect()))
}

/// Returns the tiles of a format's GEMM kernels: large and small ones of dense products, then large and flat ones of experts.
///
/// # Errors
/// [`GpuError::Format`] for types without kernels; those of loading a module.
pub fn gemm_tiles(gpu: &Gpu, ty: GgmlType) -> Result<[GemmTile; 4], GpuError> {
    gpu.kernels().gemm.of(ty)?.tiles(gpu).copied()
}
