//! One task of attention: a tile of queries, and the blocks and segments of positions it sees.

use std::ops::Range;

use crate::attention::shape::{AttnInputs, AttnShape};

/// Positions per step of the online softmax; divides every page size.
pub(crate) const BLOCK: usize = 16;
/// Positions per independent softmax; a multiple of [`BLOCK`].
pub(crate) const SEGMENT: usize = 1024;
/// Rows of buffers are padded to a multiple of this many f32 values, whole vectors of any ISA.
pub(super) const PAD: usize = 16;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Consecutive rows of one sequence, with the query heads of one KV head.
///
/// Queries of a tile are numbered `row * group + head`.
#[derive(Clone, Copy)]
pub(crate) struct QueryTile<'a> {
    pub(crate) shape: AttnShape,
    pub(crate) inputs: AttnInputs<'a>,
    pub(crate) block_table: &'a [u32],
    pub(crate) kv_head: usize,
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    pub(crate) first_pos: usize,
    /// Positions of the sequence.
    pub(crate) len: usize,
}

impl QueryTile<'_> {
    pub(crate) fn group(&self) -> usize {
        self.shape.group()
    }

    pub(super) fn n_queries(&self) -> usize {
        self.n_rows * self.group()
    }

    /// Positions that `row` of the tile sees.
    pub(crate) fn visible(&self, row: usize) -> Range<usize> {
        self.shape.visible(self.first_pos + row, self.len)
    }

    /// Positions that any row of the tile sees.
    pub(crate) fn visible_to_any(&self) -> Range<usize> {
        self.visible(0).start..self.visible(self.n_rows - 1).end
    }

    /// Query `i`, not yet scaled.
    pub(crate) fn query(&self, i: usize) -> &[f32] {
        let (row, head) = (self.first_row + i / self.group(), i % self.group());
        let head = self.kv_head * self.group() + head;
        let start = (row * self.shape.n_heads + head) * self.shape.k_dim;
        &self.inputs.q[start..start + self.shape.k_dim]
    }

    /// Returns the sink of `head` of the group.
    pub(crate) fn sink(&self, head: usize) -> Option<f32> {
        let first = self.kv_head * self.group();
        self.inputs.sinks.map(|sinks| sinks[first + head])
    }

    /// Returns the slope of the linear bias of `head` of the group.
    pub(crate) fn slope(&self, head: usize) -> Option<f32> {
        let head = self.kv_head * self.group() + head;
        let alibi = self.shape.alibi?;
        Some(alibi.slope(head, self.shape.n_heads))
    }

    /// Slot of `position` in `k` and `v`, counted in rows of one head.
    pub(crate) fn slot(&self, position: usize) -> usize {
        let page = self.shape.page;
        let block = self.block_table[position / page] as usize;
        (block * self.shape.n_kv_heads + self.kv_head) * page + position % page
    }

    pub(super) fn k_pad(&self) -> usize {
        self.shape.k_dim.next_multiple_of(PAD)
    }

    pub(super) fn v_pad(&self) -> usize {
        self.shape.v_dim.next_multiple_of(PAD)
    }
}

/// Segments that contain any of `positions`.
pub(crate) fn segments(positions: &Range<usize>) -> Range<usize> {
    positions.start / SEGMENT..positions.end.div_ceil(SEGMENT)
}

pub(super) fn segment_positions(segment: usize) -> Range<usize> {
    segment * SEGMENT..(segment + 1) * SEGMENT
}
