//! The attention kernel: one query tile against blocks of keys and values, with online softmax.
//!
//! For each block of 16 positions: scores of all queries, softmax update per query, weighted sum of values
//! (`products.rs`), while the next block is prefetched (`ahead.rs`). The order of operations for a query depends only
//! on its row and position, never on its neighbours.

mod ahead;
mod partial;
mod products;
mod query_tile;
mod walk;

use super::simd::Simd;
use crate::arch::Kernel;
use crate::pool::Tile;
use partial::{Partial, finish, merge};
use query_tile::{LINE, PAD, SEGMENT, segment_positions};
use walk::{Buffers, walk};

pub(crate) use partial::partial_len;
pub(crate) use query_tile::{BLOCK, QueryTile, segments};

/// Processes all positions of a tile.
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

/// Processes one segment of a tile, into a partial of its own.
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

/// Merges the partials of a tile's segments, in order, into its output.
pub(crate) struct MergeTile<'a, 't> {
    pub(crate) tile: QueryTile<'a>,
    /// `stride` f32 values for each segment that the tile sees.
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
    /// Returns `N` slices of the given lengths, each aligned to a cache line; they hold old values.
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
