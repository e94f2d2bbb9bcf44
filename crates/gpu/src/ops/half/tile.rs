//! The tiles of GEMM kernels, what they cost, and those of the routing that products of experts take.

use super::super::jobs::Work;
use super::super::routing::buffer::{LARGE, Routing, SMALL};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::variant::Variant;

/// With up to this many rows of experts on average, hardly any has more than eight.
pub(super) const OCTET_ROWS: usize = 4;
/// With up to this many rows of experts on average, reading the weights limits: products take small tiles, so that more blocks
/// load weights at once (`kernels/gemm/half_few.h`).
const FEW_ROWS: usize = 16;
/// Threads of a wave.
pub(super) const WARP: usize = 32;

/// What the tiles of a kernel cost. Those of 64 rows and more are fitted to times of 73 products with Q4_K on an H100, of 96
/// to 2,048 rows.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    /// Of 128 values of k.
    pub(super) round_us: f64,
    /// Of a tile, beside these.
    pub(super) tile_us: f64,
    /// Of writing and reading sums, if tiles are divided.
    pub(super) parts_us: f64,
}

impl Cost {
    /// Microseconds for a tile of rows of `n_in` weights.
    pub(super) fn of_tile(self, n_in: usize) -> f64 {
        n_in.div_ceil(128) as f64 * self.round_us + self.tile_us
    }

    /// The same where activations are sums of this many f16 numbers.
    pub(super) fn of_parts(self, n_parts: u32) -> Cost {
        Cost {
            round_us: self.round_us * f64::from(n_parts),
            ..self
        }
    }
}

/// Tiles of few rows are never compared with others.
pub(super) const OF_FEW: Cost = Cost {
    round_us: 0.0,
    tile_us: 0.0,
    parts_us: 0.0,
};

/// In the order of the kernels.
pub(super) const COSTS: [Cost; 6] = [
    OF_FEW,
    OF_FEW,
    OF_FEW,
    Cost {
        round_us: 0.55,
        tile_us: 6.0,
        parts_us: 10.0,
    },
    Cost {
        round_us: 0.85,
        tile_us: 5.0,
        parts_us: 10.0,
    },
    Cost {
        round_us: 1.2,
        tile_us: 6.0,
        parts_us: 30.0,
    },
];

/// The tile of a kernel, as the image says.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) outs: usize,
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    /// Values of k of a round.
    pub(super) round: usize,
    /// Blocks that a processor runs at once.
    pub(super) blocks: usize,
    /// Blocks that compute a tile together.
    pub(super) cluster: usize,
    pub(super) cost: Cost,
    /// log2 of the tiles of outputs that a block takes one after the other. `outs` is of all of them.
    pub(super) out_shift: u32,
}

impl Tile {
    /// Reads the constants with these names.
    pub(super) fn read(
        gpu: &Gpu,
        module: &'static str,
        names: [&'static str; 7],
        cost: Cost,
    ) -> Result<Tile, GpuError> {
        let [rows, outs, threads, shared, round, blocks, cluster] = names;
        Ok(Tile {
            rows: gpu.constant(module, rows)? as usize,
            outs: gpu.constant(module, outs)? as usize,
            threads: gpu.constant(module, threads)?,
            shared_bytes: gpu.constant(module, shared)?,
            round: gpu.constant(module, round)? as usize,
            blocks: gpu.constant(module, blocks)? as usize,
            cluster: gpu.constant(module, cluster)? as usize,
            cost,
            out_shift: 0,
        })
    }

    /// The same of blocks with several tiles of outputs.
    pub(super) fn of_tiles(self, out_shift: u32) -> Tile {
        Tile {
            outs: self.outs << out_shift,
            out_shift,
            ..self
        }
    }

    /// The same of blocks of fewer waves, of which a processor runs more.
    pub(super) fn of_waves(self, n_waves: usize) -> Tile {
        let threads = (WARP * n_waves) as u32;
        Tile {
            threads,
            shared_bytes: self.shared_bytes / self.threads * threads,
            blocks: self.blocks * (self.threads / threads) as usize,
            ..self
        }
    }

    /// Returns the tiles of a product; of experts, those of one tile of rows.
    pub(super) fn n_tiles(&self, work: &Work<'_>) -> usize {
        let n_row_tiles = match work.experts {
            Some(_) => 1,
            None => work.x.n_rows.div_ceil(self.rows),
        };
        // Half of a gated tile's rows of weights are of gate, half of up.
        let outs = self.outs >> u32::from(work.up.is_some());
        work.matrix.n_out.div_ceil(outs) * n_row_tiles
    }
}

/// The names of the constants of each kernel's tile.
macro_rules! tile_names {
    ($($kernel:ident),*) => {
        [$([
            concat!(stringify!($kernel), "_tile_rows"),
            concat!(stringify!($kernel), "_tile_outs"),
            concat!(stringify!($kernel), "_tile_threads"),
            concat!(stringify!($kernel), "_tile_shared"),
            concat!(stringify!($kernel), "_tile_round"),
            concat!(stringify!($kernel), "_tile_blocks"),
            concat!(stringify!($kernel), "_tile_cluster"),
        ]),*]
    };
}
pub(super) use tile_names;

/// Returns the tiles of `routing::TILE_ROWS` for products of experts.
pub(super) fn kind_of(gpu: &Gpu, routing: &Routing<'_>) -> usize {
    let is_small = match gpu.takes(Variant::RowsPrompt) {
        true => false,
        false => gpu.takes(Variant::RowsAnswer) || routing.has_up_to(FEW_ROWS),
    };
    match is_small {
        true => SMALL,
        false => LARGE,
    }
}
