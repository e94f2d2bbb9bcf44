//! The routing of a step's tokens in device memory.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Table, layout};
use crate::limit::Limit;
use crate::memory::{Buffer, Slice};

/// Maximum number of experts: one thread of `route_sort` each.
pub const MAX_EXPERTS: usize = 1024;

/// Rows of a tile: for GEMV, and for GEMM with small and with large tiles.
pub(in crate::ops) const TILE_ROWS: [usize; 3] = [4, 32, 128];

/// The tiles of [`TILE_ROWS`] that GEMMs take.
pub(in crate::ops) const SMALL: usize = 1;
pub(in crate::ops) const LARGE: usize = 2;

/// Consecutive rows of one expert, as kernels read them (`kernels/experts.h`). The first `n_tiles` of a list have an
/// expert, the others `u32::MAX`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct ExpertTile {
    pub expert: u32,
    pub first_row: u32,
    pub n_rows: u32,
    pub n_tiles: u32,
}

layout!(ExpertTile {
    expert,
    first_row,
    n_rows,
    n_tiles
});

/// Memory for the routing of steps of up to `max_tokens` tokens.
pub struct RoutingBuffer {
    n_experts: usize,
    n_used: usize,
    n_shared: usize,
    experts: Buffer,
    weights: Buffer,
    rows: Buffer,
    tokens: Buffer,
    n_rows: Buffer,
    n_arrived: Buffer,
    tiles: [Buffer; TILE_ROWS.len()],
}

/// The routing of the tokens of a step. Arrays are `[n_tokens, n_used]`, best expert first and a shared one last, unless
/// stated otherwise.
#[derive(Clone, Copy)]
pub struct Routing<'a> {
    pub n_tokens: usize,
    /// A shared one is among them, the last one.
    pub n_experts: usize,
    /// Experts per token.
    pub n_used: usize,
    /// How many of both are shared: 0 or 1.
    pub n_shared: usize,
    /// `u32::MAX` for padding rows.
    pub experts: Slice<'a, u32>,
    pub weights: Slice<'a, f32>,
    /// The row of each choice. Rows are sorted by expert, then by token. `u32::MAX` for padding rows.
    pub rows: Slice<'a, u32>,
    /// The token of each row, `[n_rows]`.
    pub tokens: Slice<'a, u32>,
    /// Number of rows, `[1]`.
    pub n_rows: Slice<'a, u32>,
    /// Blocks of a launch that have arrived, `[1]`; 0 between launches.
    pub(in crate::ops) n_arrived: Slice<'a, u64>,
    /// Tiles of up to 4, 32 and 128 rows of one expert. The lists have the maximum length.
    pub tiles: [Slice<'a, ExpertTile>; TILE_ROWS.len()],
}

/// Checks that tokens can be routed to `n_used` of `n_experts` experts.
pub fn check_experts([n_experts, n_used]: [usize; 2]) -> Result<(), Limit> {
    Limit::check(n_experts <= MAX_EXPERTS, n_experts, || {
        format!("at most {MAX_EXPERTS} experts")
    })?;
    Limit::check((1..=n_experts).contains(&n_used), n_used, || {
        format!("tokens with 1 to {n_experts} experts")
    })
}

impl Routing<'_> {
    /// Whether the experts that the router chooses have up to `n` rows on average.
    pub(in crate::ops) fn has_up_to(&self, n: usize) -> bool {
        self.has_up_to_with(self.n_tokens, n)
    }

    /// The same with another number of tokens.
    pub(in crate::ops) fn has_up_to_with(&self, n_tokens: usize, n: usize) -> bool {
        let [n_experts, n_used] = [self.n_experts, self.n_used].map(|all| all - self.n_shared);
        n_tokens * n_used <= n * n_experts
    }

    /// Whether a router chose some of the experts. Then rows are converted by a launch after that which wrote the routing. Tokens
    /// go to all heads, and one launch writes both.
    pub(in crate::ops) fn is_chosen(&self) -> bool {
        self.n_used < self.n_experts
    }

    /// Number of rows if the step has no padding rows.
    pub fn max_rows(&self) -> usize {
        self.n_tokens * self.n_used
    }

    pub(in crate::ops) fn lists(&self) -> [TileList; TILE_ROWS.len()] {
        [0, 1, 2].map(|kind| TileList {
            tiles: self.tiles[kind].table(),
            n_rows: TILE_ROWS[kind] as u32,
            len: self.tiles[kind].len() as u32,
        })
    }
}

impl RoutingBuffer {
    /// # Panics
    /// If `n_used` is 0 or more than `n_experts`, or `n_experts` is more than 1024.
    pub fn new(
        gpu: &Gpu,
        [n_experts, n_used]: [usize; 2],
        max_tokens: usize,
    ) -> Result<RoutingBuffer, GpuError> {
        assert_eq!(check_experts([n_experts, n_used]), Ok(()));
        let n = max_tokens * n_used;
        let tiles = |rows| gpu.alloc::<ExpertTile>(max_tiles(n, n_experts, rows));
        let n_arrived = gpu.upload(&[0u64])?;
        let [few, small, large] = TILE_ROWS;
        Ok(RoutingBuffer {
            n_experts,
            n_used,
            n_shared: 0,
            experts: gpu.alloc::<u32>(n)?,
            weights: gpu.alloc::<f32>(n)?,
            rows: gpu.alloc::<u32>(n)?,
            tokens: gpu.alloc::<u32>(n)?,
            n_rows: gpu.alloc::<u32>(1)?,
            n_arrived,
            tiles: [tiles(few)?, tiles(small)?, tiles(large)?],
        })
    }

    /// Says that `n_shared` of the experts, 0 or 1, are chosen by all tokens.
    pub fn with_shared(self, n_shared: usize) -> RoutingBuffer {
        RoutingBuffer { n_shared, ..self }
    }

    /// Returns the part for a step of `n_tokens` tokens.
    ///
    /// # Panics
    /// If the buffer is for fewer tokens.
    pub fn of(&self, n_tokens: usize) -> Routing<'_> {
        let n = n_tokens * self.n_used;
        let tiles = |kind: usize| {
            let n_tiles = max_tiles(n, self.n_experts, TILE_ROWS[kind]);
            self.tiles[kind].as_slice().part(0..n_tiles)
        };
        Routing {
            n_tokens,
            n_experts: self.n_experts,
            n_used: self.n_used,
            n_shared: self.n_shared,
            experts: self.experts.as_slice().part(0..n),
            weights: self.weights.as_slice().part(0..n),
            rows: self.rows.as_slice().part(0..n),
            tokens: self.tokens.as_slice().part(0..n),
            n_rows: self.n_rows.as_slice(),
            n_arrived: self.n_arrived.as_slice(),
            tiles: [tiles(0), tiles(1), tiles(2)],
        }
    }
}

/// Returns the maximum number of tiles of `n` rows: each expert with rows has at most one partial tile.
pub(in crate::ops) fn max_tiles(n: usize, n_experts: usize, tile_rows: usize) -> usize {
    n.min(n_experts) + n / tile_rows
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::ops) struct TileList {
    tiles: Table<ExpertTile>,
    n_rows: u32,
    len: u32,
}

layout!(TileList { tiles, n_rows, len });
