//! Parameters of the kernels of attention: of `kernels/kv/attention_decode.hip`, and of `attention_prefill.hip` and
//! `kernels/hopper/attend.hip`.

use super::norm::ActsOut;
use crate::kernel::{Table, layout};
use crate::kv::{KvLayer, Planes};
use crate::memory::Address;
use crate::step::{SeqRows, Step};

/// `KvCache` in attention.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CacheParams {
    pub(super) k: Planes,
    pub(super) v: Planes,
    pub(super) block_tables: Address,
    pub(super) max_pages: u32,
    pub(super) page_shift: u32,
    pub(super) n_kv_heads: u32,
    pub(super) pad: u32,
}

impl CacheParams {
    pub(super) fn new(kv: &KvLayer<'_>, step: &Step<'_>) -> CacheParams {
        let [k, v] = kv.planes();
        CacheParams {
            k,
            v,
            block_tables: step.block_tables.address(),
            max_pages: step.max_pages as u32,
            page_shift: kv.shape.page.trailing_zeros(),
            n_kv_heads: kv.shape.n_kv_heads as u32,
            pad: 0,
        }
    }
}

layout!(CacheParams {
    k,
    v,
    block_tables,
    max_pages,
    page_shift,
    n_kv_heads,
    pad
});

/// `Scores` in attention.h.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ScoreParams {
    pub(super) sinks: Address,
    pub(super) scale: f32,
    pub(super) soft_cap: f32,
    pub(super) window: u32,
    pub(super) chunk_bits: u32,
    pub(super) slope: f32,
    pub(super) step: u32,
    pub(super) offset: u32,
    pub(super) ahead: u32,
    pub(super) alibi: f32,
    pub(super) alibi_heads: u32,
}

layout!(ScoreParams {
    sinks,
    scale,
    soft_cap,
    window,
    chunk_bits,
    slope,
    step,
    offset,
    ahead,
    alibi,
    alibi_heads
});

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DecodeParams {
    pub(super) q: Address,
    pub(super) out: Address,
    pub(super) partial: Address,
    pub(super) positions: Address,
    pub(super) seq_of_row: Address,
    pub(super) seqs: Table<SeqRows>,
    pub(super) cache: CacheParams,
    pub(super) scores: ScoreParams,
    pub(super) n_rows: u32,
    pub(super) n_heads: u32,
    pub(super) n_splits: u32,
    pub(super) k_dim: u32,
    pub(super) v_dim: u32,
    pub(super) v_row: u32,
}

layout!(DecodeParams {
    q,
    out,
    partial,
    positions,
    seq_of_row,
    seqs,
    cache,
    scores,
    n_rows,
    n_heads,
    n_splits,
    k_dim,
    v_dim,
    v_row
});

const _: () = assert!(size_of::<DecodeParams>() == 176);

/// `CombineActsParams` in kv/attention_decode.hip.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CombineActsParams {
    pub(super) decode: DecodeParams,
    pub(super) acts: ActsOut,
}

layout!(CombineActsParams { decode, acts });

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PrefillParams {
    pub(super) q: Address,
    pub(super) out: Address,
    pub(super) partial: Address,
    pub(super) seqs: Table<SeqRows>,
    pub(super) seq_of_row: Address,
    pub(super) cache: CacheParams,
    pub(super) scores: ScoreParams,
    pub(super) n_rows: u32,
    pub(super) n_heads: u32,
    pub(super) v_dim: u32,
    pub(super) tile_rows: u32,
    pub(super) tile_heads: u32,
    pub(super) n_splits: u32,
    pub(super) grain: u32,
    pub(super) v_hadamard: u32,
}

layout!(PrefillParams {
    q,
    out,
    partial,
    seqs,
    seq_of_row,
    cache,
    scores,
    n_rows,
    n_heads,
    v_dim,
    tile_rows,
    tile_heads,
    n_splits,
    grain,
    v_hadamard
});

const _: () = assert!(size_of::<PrefillParams>() == 176);
