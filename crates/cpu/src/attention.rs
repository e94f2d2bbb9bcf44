//! Attention over a paged key-value cache.
//!
//! Work is split into query tiles: a few consecutive rows of one sequence, with all query heads that share one KV head,
//! so that each block of keys and values is read and widened to f32 once per tile. Keys are processed in blocks of 16
//! positions with an online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022). The cost is linear
//! in the context, and no buffer has its size.
//!
//! The result for a row and head has the same bits for any tiling, chunking or batch, any page size and any number of
//! threads: blocks and segments of 1024 positions begin at absolute multiples of their length, each segment has its own
//! softmax, and segments are merged in order. Segments may therefore run in parallel, which a long context with fewer
//! KV heads than threads needs.
//!
//! The vector kernel is in `generic/attention`, the scalar reference in `scalar.rs`.

mod scalar;
pub(crate) mod shape;

use std::cell::RefCell;
use std::ops::Range;

use crate::generic::attention::{
    BLOCK, MergeTile, QueryTile, Scratch, SegmentOfTile, WholeTile, partial_len, segments,
};
use crate::isa::Isa;
use crate::pool::Pool;
use shape::{AttnInputs, AttnShape};

/// Maximum number of queries (rows times heads of a group) per tile: with heads of 64 values, its queries, sums and one
/// block of keys and values fill about 40 KiB of cache.
const MAX_TILE_QUERIES: usize = 64;
/// Tiles are not split below this many rows to give every thread work: widening the keys would then cost as much as
/// using them.
const MIN_SPLIT_ROWS: usize = 4;

/// The rows of one sequence in a call.
#[derive(Clone, Copy, Debug)]
pub struct AttnSeq<'a> {
    /// Index of its first row in `q` and `out`.
    pub first_row: usize,
    pub n_rows: usize,
    /// Position of its first row. Row i sees positions `0..=first_pos + i`, or up to that of the last row, within the
    /// mask.
    pub first_pos: usize,
    /// Cache block of each page of positions, at least up to the last row.
    pub block_table: &'a [u32],
}

/// Computes attention for all rows of `seqs` into `out` `[n_tokens, n_heads * v_dim]`; other rows of `out` are left
/// alone.
///
/// # Panics
/// If lengths do not match the shape, sequences overlap, or a block table is too short or names a block that the cache
/// does not have.
pub fn attention(
    isa: Isa,
    pool: &Pool,
    shape: &AttnShape,
    inputs: AttnInputs<'_>,
    seqs: &[AttnSeq<'_>],
    out: &mut [f32],
) {
    check(shape, inputs, seqs, out);
    let tiles = query_tiles(pool, shape, seqs);
    let row_ranges: Vec<Range<usize>> = tiles.iter().map(|t| t.rows.clone()).collect();
    let out_width = shape.n_heads * shape.v_dim;
    let group_width = out_width / shape.n_kv_heads;
    let view = |tile: usize, kv_head: usize| QueryTile {
        shape: *shape,
        inputs,
        block_table: tiles[tile].block_table,
        kv_head,
        first_row: tiles[tile].rows.start,
        n_rows: tiles[tile].rows.len(),
        first_pos: tiles[tile].first_pos,
        len: tiles[tile].len,
    };
    match isa.vector() {
        None => pool.for_each_range(out, out_width, &row_ranges, group_width, &|i, out| {
            scalar::attend(&view(i, out.cols().start / group_width), out);
        }),
        Some(isa) => {
            let n_segments = |i| segments(&view(i, 0).visible_to_any()).len();
            let max_segments = (0..tiles.len()).map(n_segments).max().unwrap_or(0);
            if max_segments == 1 || tiles.len() * shape.n_kv_heads >= pool.n_threads() {
                pool.for_each_range(out, out_width, &row_ranges, group_width, &|i, out| {
                    let tile = view(i, out.cols().start / group_width);
                    SCRATCH.with_borrow_mut(|scratch| isa.run(WholeTile { tile, scratch, out }));
                });
                return;
            }
            let max_queries = row_ranges.iter().map(|r| r.len()).max().unwrap_or(0) * shape.group();
            let stride = partial_len(max_queries, shape.v_dim);
            let per_tile = stride * max_segments;
            PARTIALS.with_borrow_mut(|partials| {
                let len = tiles.len() * shape.n_kv_heads * per_tile;
                if partials.len() < len {
                    partials.resize(len, 0.0);
                }
                let partials = &mut partials[..len];
                pool.for_each_rows(partials, stride, 1, &|task, partial| {
                    let (tile, i) = (task / max_segments, task % max_segments);
                    let tile = view(tile / shape.n_kv_heads, tile % shape.n_kv_heads);
                    if let Some(segment) = segments(&tile.visible_to_any()).nth(i) {
                        SCRATCH.with_borrow_mut(|scratch| {
                            isa.run(SegmentOfTile {
                                tile,
                                segment,
                                scratch,
                                partial,
                            });
                        });
                    }
                });
                let partials = &*partials;
                pool.for_each_range(out, out_width, &row_ranges, group_width, &|i, out| {
                    let kv_head = out.cols().start / group_width;
                    let task = i * shape.n_kv_heads + kv_head;
                    let partials = &partials[task * per_tile..(task + 1) * per_tile];
                    SCRATCH.with_borrow_mut(|scratch| {
                        let tile = view(i, kv_head);
                        isa.run(MergeTile {
                            tile,
                            partials,
                            stride,
                            scratch,
                            out,
                        });
                    });
                });
            });
        }
    }
}

thread_local! {
    /// Working memory of a task, kept by the threads of the pool.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// Partial results of segments, kept by the calling thread.
    static PARTIALS: RefCell<Vec<f32>> = RefCell::default();
}

/// Rows of one tile.
struct SeqTile<'a> {
    rows: Range<usize>,
    first_pos: usize,
    /// Positions of the sequence.
    len: usize,
    block_table: &'a [u32],
}

/// Splits all sequences into tiles, the costliest first.
fn query_tiles<'a>(pool: &Pool, shape: &AttnShape, seqs: &[AttnSeq<'a>]) -> Vec<SeqTile<'a>> {
    let n_rows: usize = seqs.iter().map(|s| s.n_rows).sum();
    let mut tile_rows = (MAX_TILE_QUERIES * shape.n_kv_heads / shape.n_heads).max(1);
    while tile_rows > MIN_SPLIT_ROWS
        && n_rows.div_ceil(tile_rows) * shape.n_kv_heads < 2 * pool.n_threads()
    {
        tile_rows /= 2;
    }
    let mut tiles: Vec<SeqTile<'a>> = Vec::new();
    for seq in seqs {
        for i in (0..seq.n_rows).step_by(tile_rows) {
            let rows = seq.first_row + i..seq.first_row + (i + tile_rows).min(seq.n_rows);
            tiles.push(SeqTile {
                rows,
                first_pos: seq.first_pos + i,
                len: seq.first_pos + seq.n_rows,
                block_table: seq.block_table,
            });
        }
    }
    let n_visible = |t: &SeqTile<'_>| shape.visible(t.first_pos + t.rows.len() - 1, t.len).len();
    tiles.sort_by_key(|t| std::cmp::Reverse(n_visible(t) * t.rows.len()));
    tiles
}

fn check(shape: &AttnShape, inputs: AttnInputs<'_>, seqs: &[AttnSeq<'_>], out: &[f32]) {
    let AttnInputs { q, k, v, sinks } = inputs;
    let AttnShape {
        n_heads,
        n_kv_heads,
        k_dim,
        v_dim,
        page,
        ..
    } = *shape;
    assert!(
        n_kv_heads > 0 && k_dim > 0 && v_dim > 0 && page > 0,
        "attention shape {shape:?}"
    );
    assert!(
        n_heads > 0 && n_heads.is_multiple_of(n_kv_heads),
        "attention shape {shape:?}"
    );
    assert!(
        page.is_multiple_of(BLOCK),
        "a page of {page} positions is not a multiple of {BLOCK}"
    );
    assert!(
        k_dim.is_multiple_of(k.block_len())
            && v.is_none_or(|v| v_dim.is_multiple_of(v.block_len())),
        "heads of {k_dim} and {v_dim} values are not whole blocks"
    );
    assert!(
        k_dim.is_multiple_of(shape.k_hadamard) && v_dim.is_multiple_of(shape.v_hadamard),
        "attention shape {shape:?}"
    );
    shape.mask.check();
    assert!(
        sinks.is_none_or(|sinks| sinks.len() == n_heads),
        "a sink for each head"
    );
    assert!(
        q.len().is_multiple_of(n_heads * k_dim),
        "q holds whole rows"
    );
    let n_tokens = q.len() / (n_heads * k_dim);
    assert_eq!(
        out.len(),
        n_tokens * n_heads * v_dim,
        "out has the rows of q"
    );
    let n_blocks = k.len() / (n_kv_heads * page * k_dim);
    assert_eq!(
        k.len(),
        n_blocks * n_kv_heads * page * k_dim,
        "k holds whole blocks"
    );
    match v {
        Some(v) => assert_eq!(
            v.len(),
            n_blocks * n_kv_heads * page * v_dim,
            "v has the blocks of k"
        ),
        None => assert!(v_dim <= k_dim, "a value is a part of its key"),
    }
    for seq in seqs.iter().filter(|s| s.n_rows > 0) {
        assert!(
            seq.first_row + seq.n_rows <= n_tokens,
            "rows of a sequence lie in q"
        );
        let n_pages = (seq.first_pos + seq.n_rows).div_ceil(page);
        assert!(
            seq.block_table.len() >= n_pages,
            "the block table covers the sequence"
        );
        let first_page = shape.mask.first_seen(seq.first_pos) / page;
        let mut blocks = seq.block_table[first_page..n_pages].iter();
        assert!(
            blocks.all(|&b| (b as usize) < n_blocks),
            "the block table names existing blocks"
        );
    }
}
