//! Context shifting: moves cached tokens to other slots and rotates keys to lower positions (`kernels/kv/kv_move.hip`).

use rocmforge_plan::Values;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::rope_kv::{RopeStyle, Rotation};
use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernel::{Table, kernels, layout};
use crate::kv::{KvLayer, KvShape, Planes};
use crate::limit::{Limit, MAX_GRID};
use crate::memory::{Address, Slice};

const THREADS: u32 = 256;

/// Heads per block.
const TEAMS: usize = 8;

/// Consecutive tokens in the cache and the slots they move to. Neither range crosses a cache block.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct SlotRun {
    pub first: u32,
    pub first_to: u32,
    pub n_tokens: u32,
}

layout!(SlotRun {
    first,
    first_to,
    n_tokens
});

/// Runs to move in any order: no run reads a slot that another writes.
#[derive(Clone, Copy)]
pub struct KvMoves<'a> {
    /// Runs whose tokens keep their positions come first.
    pub runs: Slice<'a, SlotRun>,
    pub n_copied: usize,
    /// By how many positions the other runs move back.
    pub back_by: u32,
}

/// The rotation of a layer's cached keys.
#[derive(Clone, Copy)]
pub struct KeyTurn<'a> {
    pub rotation: Rotation<'a>,
    /// Factor on all values of the table.
    pub magnitude: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct KvMoveParams {
    k_cache: Planes,
    v_cache: Planes,
    table: Address,
    runs: Table<SlotRun>,
    n_copied: u32,
    n_kv_heads: u32,
    k_dim: u32,
    v_dim: u32,
    n_rot: u32,
    page: u32,
    n_slots: u32,
    back_by: u32,
    inverse_magnitude: f32,
    first_rot: u32,
    k_hadamard: u32,
    pad: u32,
}

layout!(KvMoveParams {
    k_cache,
    v_cache,
    table,
    runs,
    n_copied,
    n_kv_heads,
    k_dim,
    v_dim,
    n_rot,
    page,
    n_slots,
    back_by,
    inverse_magnitude,
    first_rot,
    k_hadamard,
    pad
});

const _: () = assert!(size_of::<KvMoveParams>() == 96);

kernels! {
    struct KvMoveKernels {
        kv_move_norm: KvMoveParams,
        kv_move_neox: KvMoveParams,
    }
}

/// Checks that tokens can be moved in a cache of this shape.
pub(crate) fn check_move(shape: &KvShape) -> Result<(), Limit> {
    let most = MAX_GRID * TEAMS / 2 / shape.page;
    Limit::check(shape.n_kv_heads <= most, shape.n_kv_heads, || {
        format!("at most {most} KV heads")
    })
}

/// Moves keys and values of a layer. Keys that move to lower positions are rotated back by `turn`; without it, keys do
/// not depend on positions. Runs outside the cache move nothing.
///
/// # Panics
/// If `back_by` exceeds the table, or shapes do not match.
pub fn kv_move(
    gpu: &Gpu,
    layer: &KvLayer<'_>,
    moves: &KvMoves<'_>,
    turn: Option<&KeyTurn<'_>>,
) -> Result<(), GpuError> {
    if moves.runs.is_empty() {
        return Ok(());
    }
    let KvShape {
        types,
        n_blocks,
        n_kv_heads,
        page,
        k_dim,
        values,
        ..
    } = layer.shape;
    let [k_cache, v_cache] = layer.planes();
    let mut params = KvMoveParams {
        k_cache,
        v_cache,
        runs: moves.runs.table(),
        n_copied: moves.n_copied as u32,
        n_kv_heads: n_kv_heads as u32,
        k_dim: k_dim as u32,
        v_dim: layer.shape.stored_v_dim() as u32,
        page: page as u32,
        n_slots: u32::try_from(n_blocks * page).unwrap_or(u32::MAX),
        back_by: moves.back_by,
        table: Address::NULL,
        n_rot: 0,
        inverse_magnitude: 0.0,
        first_rot: 0,
        k_hadamard: layer.shape.hadamard_lens()[0] as u32,
        pad: 0,
    };
    let kernels = gpu.kernels().kv_move.of(types);
    let mut kernel = &kernels.kv_move_norm;
    if let Some(turn) = turn {
        let Rotation {
            style,
            table,
            n_rot,
            start,
        } = turn.rotation;
        assert!(
            n_rot.is_multiple_of(2) && start + n_rot <= k_dim,
            "{n_rot} of {k_dim} values rotated, from {start} on"
        );
        assert!(
            (moves.back_by as usize + 1) * n_rot <= table.len(),
            "the table has no angle for {} positions",
            moves.back_by
        );
        params.table = table.address();
        params.n_rot = n_rot as u32;
        params.first_rot = start as u32;
        params.inverse_magnitude = 1.0 / turn.magnitude;
        if style == RopeStyle::Neox {
            kernel = &kernels.kv_move_neox;
        }
    }
    let n_rows = match values {
        Values::Apart => 2 * n_kv_heads * page,
        Values::InKeys => n_kv_heads * page,
    };
    let grid = [moves.runs.len() as u32, n_rows.div_ceil(TEAMS) as u32, 1];
    let shared_bytes = match types.keys().has_scales() {
        true => TEAMS as u32 * params.k_dim * size_of::<f32>() as u32,
        false => 0,
    };
    gpu.launch(kernel, grid, THREADS, shared_bytes, &params)
}
