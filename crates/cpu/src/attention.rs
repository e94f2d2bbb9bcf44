//! Attention over a paged key-value cache.
//!
//! Work is cut into query tiles: a few consecutive rows of one sequence, with all the query heads
//! that share one KV head, so that each block of keys and values is read and widened to f32 once
//! per tile. Keys are walked in blocks of 16 positions with an online softmax (Milakov and
//! Gimelshein 2018; FlashAttention, Dao et al. 2022), so the cost is linear in depth and nothing of
//! the size of the context is stored.
//!
//! The result of a (row, head) has the same bits however rows are tiled, chunked or batched,
//! whatever the page size and number of threads: blocks and segments of 1024 positions begin
//! at absolute multiples of their length, each segment has a softmax of its own, and segments are
//! merged in order. Segments may therefore also run in parallel, which a long context with fewer
//! KV heads than threads needs.
//!
//! `generic/attention` has the vector kernel, `scalar.rs` the oracle.

mod scalar;

use std::cell::RefCell;
use std::ops::Range;

use rocmforge_gguf::quant::f8;
use rocmforge_gguf::quant::legacy::Q8_0;
use rocmforge_gguf::quant::plain::F16;

use crate::generic::attention::{
    BLOCK, MergeTile, QueryTile, Scratch, SegmentOfTile, WholeTile, partial_len, segments, visible,
};
use crate::isa::Isa;
use crate::pool::Pool;

/// Most queries (rows times heads of a group) of a tile: with head size 64 its queries, sums and
/// one block of keys and values fill about 40 KiB of cache.
const MAX_TILE_QUERIES: usize = 64;
/// Tiles are not made smaller than this many rows to give every thread work: widening the keys
/// would begin to cost as much as using them.
const MIN_SPLIT_ROWS: usize = 4;

/// Values of a block of [`Q8_0`].
const QK: usize = 32;

/// How a head is kept as a scale of two bytes and a code of eight bits for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadCode {
    /// As rows of [`rocmforge_gguf::quant::f8`].
    F8E4M3,
    /// As a block of `Q8_0`, but of as many values as the head has, less than 32.
    Q8_0,
}

impl HeadCode {
    /// Bytes of a head of `dim` values.
    pub const fn head_bytes(self, dim: usize) -> usize {
        f8::SCALE_BYTES + dim
    }

    /// The scale of a head and its codes.
    #[inline(always)]
    pub(crate) fn load(self, head: &[u8]) -> (f32, &[u8]) {
        match self {
            HeadCode::F8E4M3 => f8::load(head),
            HeadCode::Q8_0 => {
                let (scale, codes) = head
                    .split_first_chunk()
                    .expect("a head begins with its scale");
                (F16(*scale).to_f32(), codes)
            }
        }
    }

    /// What a code is multiplied with the scale for; the product is exact in f32.
    #[inline(always)]
    pub(crate) fn number(self, code: u8) -> f32 {
        match self {
            HeadCode::F8E4M3 => f8::number(code),
            HeadCode::Q8_0 => f32::from(code as i8),
        }
    }

    /// The values of a head.
    pub fn values(self, head: &[u8]) -> impl Iterator<Item = f32> {
        let (scale, codes) = self.load(head);
        codes.iter().map(move |&code| self.number(code) * scale)
    }
}

/// Keys or values of one layer: `[n_blocks, n_kv_heads, page, dim]`, as f16 bits, f32, blocks of
/// 32 values, of which `dim` is a multiple then, or heads with a scale each.
#[derive(Clone, Copy, Debug)]
pub enum KvSlice<'a> {
    F16(&'a [u16]),
    F32(&'a [f32]),
    Q8_0(&'a [Q8_0]),
    Heads {
        code: HeadCode,
        heads: &'a [u8],
        dim: usize,
    },
}

/// Keys or values of one layer, to be written: see [`KvSlice`].
#[derive(Debug)]
pub enum KvSliceMut<'a> {
    F16(&'a mut [u16]),
    F32(&'a mut [f32]),
    Q8_0(&'a mut [Q8_0]),
    Heads {
        code: HeadCode,
        heads: &'a mut [u8],
        dim: usize,
    },
}

impl<'a> KvSlice<'a> {
    /// The values of `range`, which are whole blocks or heads.
    pub(crate) fn get(self, range: Range<usize>) -> KvSlice<'a> {
        match self {
            KvSlice::F16(x) => KvSlice::F16(&x[range]),
            KvSlice::F32(x) => KvSlice::F32(&x[range]),
            KvSlice::Q8_0(x) => KvSlice::Q8_0(&x[range.start / QK..range.end / QK]),
            KvSlice::Heads { code, heads, dim } => {
                let head = code.head_bytes(dim);
                let heads = &heads[range.start / dim * head..range.end / dim * head];
                KvSlice::Heads { code, heads, dim }
            }
        }
    }

    pub(crate) fn as_ptr(self) -> *const u8 {
        match self {
            KvSlice::F16(x) => x.as_ptr().cast(),
            KvSlice::F32(x) => x.as_ptr().cast(),
            KvSlice::Q8_0(x) => x.as_ptr().cast(),
            KvSlice::Heads { heads, .. } => heads.as_ptr(),
        }
    }

    pub(crate) fn n_bytes(self) -> usize {
        match self {
            KvSlice::F16(x) => size_of_val(x),
            KvSlice::F32(x) => size_of_val(x),
            KvSlice::Q8_0(x) => size_of_val(x),
            KvSlice::Heads { heads, .. } => heads.len(),
        }
    }

    /// Values that share a scale.
    fn block_len(self) -> usize {
        match self {
            KvSlice::F16(_) | KvSlice::F32(_) => 1,
            KvSlice::Q8_0(_) => QK,
            KvSlice::Heads { dim, .. } => dim,
        }
    }

    /// Values.
    pub fn len(&self) -> usize {
        match self {
            KvSlice::F16(x) => x.len(),
            KvSlice::F32(x) => x.len(),
            KvSlice::Q8_0(x) => x.len() * QK,
            KvSlice::Heads { code, heads, dim } => heads.len() / code.head_bytes(*dim) * dim,
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is the same for all sequences of a layer.
#[derive(Clone, Copy, Debug)]
pub struct AttnShape {
    /// Query heads; a multiple of `n_kv_heads`.
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Width of a query and of a key.
    pub k_dim: usize,
    /// Width of a value and of an output.
    pub v_dim: usize,
    /// Positions per cache block; a multiple of 16.
    pub page: usize,
    /// Factor of the scores, usually 1 / sqrt(k_dim).
    pub scale: f32,
    /// With `Some(cap)` a scaled score `x` counts as `cap * tanh(x / cap)`. Positive.
    pub soft_cap: Option<f32>,
    /// With `Some(w)` a row sees itself and the w - 1 positions before it. Not 0.
    pub window: Option<u32>,
}

/// The rows of one sequence in a call.
#[derive(Clone, Copy, Debug)]
pub struct AttnSeq<'a> {
    /// Its first row in `q` and `out`.
    pub first_row: usize,
    pub n_rows: usize,
    /// Position of its first row; row i sees positions `0..=first_pos + i`, less what lies outside
    /// of the window.
    pub first_pos: usize,
    /// Cache block of each page of positions, at least up to its last row.
    pub block_table: &'a [u32],
}

/// Attention of all rows of `seqs`; other rows of `out` are left alone.
///
/// - `q` [n_tokens, n_heads * k_dim]
/// - `k` [n_blocks, n_kv_heads, page, k_dim], `v` [n_blocks, n_kv_heads, page, v_dim]: the keys and
///   values of the rows themselves are already there. Slots that no row sees may hold anything.
/// - `out` [n_tokens, n_heads * v_dim]
///
/// # Panics
/// If lengths do not fit the shape, sequences overlap, or a block table is too short or names a
/// block that `k` or `v` lack.
#[expect(
    clippy::too_many_arguments,
    reason = "operands of one op; shape holds what can be grouped"
)]
pub fn attention(
    isa: Isa,
    pool: &Pool,
    shape: &AttnShape,
    q: &[f32],
    k: KvSlice<'_>,
    v: KvSlice<'_>,
    seqs: &[AttnSeq<'_>],
    out: &mut [f32],
) {
    check(shape, q, k, v, seqs, out);
    let tiles = query_tiles(pool, shape, seqs);
    let row_ranges: Vec<Range<usize>> = tiles.iter().map(|t| t.rows.clone()).collect();
    let out_width = shape.n_heads * shape.v_dim;
    let group_width = out_width / shape.n_kv_heads;
    let view = |tile: usize, kv_head: usize| QueryTile {
        shape: *shape,
        q,
        k,
        v,
        block_table: tiles[tile].block_table,
        kv_head,
        first_row: tiles[tile].rows.start,
        n_rows: tiles[tile].rows.len(),
        first_pos: tiles[tile].first_pos,
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
            let max_queries = row_ranges.iter().map(|r| r.len()).max().unwrap_or(0)
                * (shape.n_heads / shape.n_kv_heads);
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
    /// Working memory of a task; threads of the pool keep it for the next.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// Partial results of segments, kept by the calling thread.
    static PARTIALS: RefCell<Vec<f32>> = RefCell::default();
}

/// Rows of one tile.
struct SeqTile<'a> {
    rows: Range<usize>,
    first_pos: usize,
    block_table: &'a [u32],
}

/// Tiles of all sequences, costliest first.
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
                block_table: seq.block_table,
            });
        }
    }
    let n_visible = |t: &SeqTile<'_>| visible(shape, t.first_pos + t.rows.len() - 1).len();
    tiles.sort_by_key(|t| std::cmp::Reverse(n_visible(t) * t.rows.len()));
    tiles
}

fn check(
    shape: &AttnShape,
    q: &[f32],
    k: KvSlice<'_>,
    v: KvSlice<'_>,
    seqs: &[AttnSeq<'_>],
    out: &[f32],
) {
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
        k_dim.is_multiple_of(k.block_len()) && v_dim.is_multiple_of(v.block_len()),
        "heads of {k_dim} and {v_dim} values are not whole blocks"
    );
    assert!(shape.window != Some(0), "a row sees itself");
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
    assert_eq!(
        v.len(),
        n_blocks * n_kv_heads * page * v_dim,
        "v has the blocks of k"
    );
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
        let first_page = visible(shape, seq.first_pos).start / page;
        let mut blocks = seq.block_table[first_page..n_pages].iter();
        assert!(
            blocks.all(|&b| (b as usize) < n_blocks),
            "the block table names existing blocks"
        );
    }
}
