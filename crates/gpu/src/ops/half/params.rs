//! What the GEMM kernels of this module take (`kernels/gemm/half.h`).

use super::super::jobs::FEW;
use super::super::routing::buffer::ExpertTile;
use super::super::rows::Weights;
use super::division::Division;
use super::tile::Tile;
use crate::kernel::{Count, Kernel, Table, layout};
use crate::memory::Address;

/// A kernel, its tile, and how the tiles of products are distributed.
pub(super) type Chosen<'k> = (&'k Kernel<HalfParams>, Tile, Division);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct HalfProduct {
    pub(super) w: Weights,
    pub(super) bias: Address,
    pub(super) out: Address,
    pub(super) scales: Address,
    pub(super) shared: Address,
    pub(super) first_tile: u32,
    pub(super) mode: u32,
}

layout!(HalfProduct {
    w,
    bias,
    out,
    scales,
    shared,
    first_tile,
    mode
});

/// How a launch overlaps with the one before it (`Start` in `kernels/gemm/half.h`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// It waits for the end of that launch.
    After,
    /// It reads the tiles of experts before.
    Early,
    /// It runs at the same time.
    Beside,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct HalfParams {
    pub(super) x: Address,
    pub(super) factors: Address,
    pub(super) x_sums: Address,
    pub(super) parts: Address,
    pub(super) counters: Address,
    pub(super) tiles: Table<ExpertTile>,
    pub(super) expert_bytes: Count,
    pub(super) out_skip: Count,
    pub(super) out_stride: u32,
    pub(super) n_rows: u32,
    pub(super) n_octets: u32,
    pub(super) n_row_tiles: u32,
    pub(super) n_tiles: u32,
    pub(super) n_whole: u32,
    pub(super) n_blocks: u32,
    pub(super) n_stacked: u32,
    pub(super) start: u32,
    pub(super) out_shift: u32,
    pub(super) products: [HalfProduct; FEW],
}

layout!(HalfParams {
    x,
    factors,
    x_sums,
    parts,
    counters,
    tiles,
    expert_bytes,
    out_skip,
    out_stride,
    n_rows,
    n_octets,
    n_row_tiles,
    n_tiles,
    n_whole,
    n_blocks,
    n_stacked,
    start,
    out_shift,
    products
});

const _: () = assert!(size_of::<HalfParams>() == 272);
