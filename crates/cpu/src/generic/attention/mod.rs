//! The attention kernel: one query tile against blocks of keys and values, with online softmax.
//!
//! Per block of 16 positions: scores of all queries, softmax update per query, weighted sum of
//! values (`products.rs`), while the lines of the next block are on their way (`ahead.rs`). The
//! order of operations for one query depends only on its row and position, never on its
//! neighbours.

mod ahead;
mod partial;
mod products;
mod walk;

use std::ops::Range;

use super::simd::Simd;
use crate::arch::Kernel;
use crate::attention::{AttnShape, KvSlice};
use crate::pool::Tile;
use partial::{Partial, finish, merge};
use walk::{Buffers, walk};

pub(crate) use partial::partial_len;

/// Positions per step of the online softmax; divides every page size.
pub(crate) const BLOCK: usize = 16;
/// Positions per independent softmax; a multiple of [`BLOCK`].
pub(crate) const SEGMENT: usize = 1024;
/// Rows of buffers are padded to a multiple of this many f32, so to whole vectors of any ISA.
const PAD: usize = 16;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Consecutive rows of one sequence, with the query heads of one KV head.
///
/// Queries of a tile are numbered `row * group + head`.
#[derive(Clone, Copy)]
pub(crate) struct QueryTile<'a> {
    pub(crate) shape: AttnShape,
    pub(crate) q: &'a [f32],
    pub(crate) k: KvSlice<'a>,
    pub(crate) v: KvSlice<'a>,
    pub(crate) block_table: &'a [u32],
    pub(crate) kv_head: usize,
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) first_pos: usize,
}

impl QueryTile<'_> {
    pub(crate) fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    fn n_queries(&self) -> usize {
        self.n_rows * self.group()
    }

    /// Positions that `row` of the tile sees.
    pub(crate) fn visible(&self, row: usize) -> Range<usize> {
        visible(&self.shape, self.first_pos + row)
    }

    /// Positions that any row of the tile sees.
    pub(crate) fn visible_to_any(&self) -> Range<usize> {
        self.visible(0).start..self.visible(self.n_rows - 1).end
    }

    /// Query `i`, unscaled.
    pub(crate) fn query(&self, i: usize) -> &[f32] {
        let (row, head) = (self.first_row + i / self.group(), i % self.group());
        let head = self.kv_head * self.group() + head;
        let start = (row * self.shape.n_heads + head) * self.shape.k_dim;
        &self.q[start..start + self.shape.k_dim]
    }

    /// First slot, counted in rows of `dim` elements, of `position` in `k` and `v`.
    pub(crate) fn slot(&self, position: usize) -> usize {
        let page = self.shape.page;
        let block = self.block_table[position / page] as usize;
        (block * self.shape.n_kv_heads + self.kv_head) * page + position % page
    }

    fn k_pad(&self) -> usize {
        self.shape.k_dim.next_multiple_of(PAD)
    }

    fn v_pad(&self) -> usize {
        self.shape.v_dim.next_multiple_of(PAD)
    }
}

/// Positions that a row at `pos` sees.
pub(crate) fn visible(shape: &AttnShape, pos: usize) -> Range<usize> {
    let window = shape.window.map_or(usize::MAX, |w| w as usize);
    (pos + 1).saturating_sub(window)..pos + 1
}

/// Segments that `positions` touch.
pub(crate) fn segments(positions: &Range<usize>) -> Range<usize> {
    positions.start / SEGMENT..positions.end.div_ceil(SEGMENT)
}

fn segment_positions(segment: usize) -> Range<usize> {
    segment * SEGMENT..(segment + 1) * SEGMENT
}

/// A tile from first to last position.
pub(crate) struct WholeTile<'a, 't> {
    pub(crate) tile: QueryTile<'a>,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: &'a mut Tile<'t>,
}

impl Kernel for WholeTile<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { tile, scratch, out } = self;
        let n_queries = tile.n_queries();
        let partial_len = partial_len(n_queries, tile.shape.v_dim);
        let [total, part, rest] = scratch.split([partial_len, partial_len, Buffers::len(&tile)]);
        let mut buffers = Buffers::new(rest, &tile);
        buffers.pack_queries(&tile);
        let mut total = Partial::new_mut(total, n_queries);
        let mut part = Partial::new_mut(part, n_queries);
        let positions = tile.visible_to_any();
        for segment in segments(&positions) {
            let first = segment * SEGMENT <= positions.start;
            let target = if first { &mut total } else { &mut part };
            target.reset();
            walk(s, &tile, segment_positions(segment), &mut buffers, target);
            if !first {
                merge(s, &tile, segment, &mut total, &part.as_ref());
            }
        }
        finish(s, &tile, &total.as_ref(), out);
    }
}

/// One segment of a tile, into a partial of its own.
pub(crate) struct SegmentOfTile<'a> {
    pub(crate) tile: QueryTile<'a>,
    pub(crate) segment: usize,
    pub(crate) scratch: &'a mut Scratch,
    /// At least [`partial_len`] long.
    pub(crate) partial: &'a mut [f32],
}

impl Kernel for SegmentOfTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            tile,
            segment,
            scratch,
            partial,
        } = self;
        let [rest] = scratch.split([Buffers::len(&tile)]);
        let mut buffers = Buffers::new(rest, &tile);
        buffers.pack_queries(&tile);
        let partial = &mut partial[..partial_len(tile.n_queries(), tile.shape.v_dim)];
        let mut partial = Partial::new_mut(partial, tile.n_queries());
        partial.reset();
        walk(
            s,
            &tile,
            segment_positions(segment),
            &mut buffers,
            &mut partial,
        );
    }
}

/// The partials of a tile's segments, in order, merged into its output.
pub(crate) struct MergeTile<'a, 't> {
    pub(crate) tile: QueryTile<'a>,
    /// `stride` f32 for each segment that the tile sees.
    pub(crate) partials: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) out: &'a mut Tile<'t>,
}

impl Kernel for MergeTile<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            tile,
            partials,
            stride,
            scratch,
            out,
        } = self;
        let n_queries = tile.n_queries();
        let len = partial_len(n_queries, tile.shape.v_dim);
        let [total] = scratch.split([len]);
        total.copy_from_slice(&partials[..len]);
        let mut total = Partial::new_mut(total, n_queries);
        let segments = segments(&tile.visible_to_any());
        for (segment, part) in segments.zip(partials.chunks_exact(stride)).skip(1) {
            merge(
                s,
                &tile,
                segment,
                &mut total,
                &Partial::new(&part[..len], n_queries),
            );
        }
        finish(s, &tile, &total.as_ref(), out);
    }
}

/// Buffers of a thread, kept between tasks.
#[derive(Default)]
pub(crate) struct Scratch(Vec<f32>);

impl Scratch {
    /// `N` slices of the given lengths, each on a cache line; they hold old values.
    fn split<const N: usize>(&mut self, lens: [usize; N]) -> [&mut [f32]; N] {
        let total: usize = lens.iter().map(|len| len.next_multiple_of(PAD)).sum();
        if self.0.len() < total + PAD {
            self.0.resize(total + PAD, 0.0);
        }
        let skip = self.0.as_ptr().align_offset(LINE).min(PAD);
        let mut rest = &mut self.0[skip..];
        lens.map(|len| {
            let (slice, tail) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(PAD));
            rest = tail;
            &mut slice[..len]
        })
    }
}
