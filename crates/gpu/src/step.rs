//! What the kernels know of a step: which rows belong to which sequence, and where its keys and values are.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::Slice;

/// The rows of one sequence, as kernels read them (`SeqRows` in `kernels/step.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct SeqRows {
    pub first_row: u32,
    /// 0 in places that a smaller step leaves empty.
    pub n_rows: u32,
    /// Position of the first row in the sequence; the others follow.
    pub first_pos: u32,
    pub _pad: u32,
}

/// A step in device memory. Addresses are the same for every step of a size, so that it can be a graph.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// Position of each row in its sequence, `[n_rows]`.
    pub positions: Slice<'a, u32>,
    /// Where each row's K and V go: `block * page + offset`; `u32::MAX` for a row that only fills up the
    /// step and has no sequence. `[n_rows]`.
    pub slots: Slice<'a, u32>,
    /// The sequence of each row, `[n_rows]`; `u32::MAX` as above.
    pub seq_of_row: Slice<'a, u32>,
    /// `[n_seqs]`.
    pub seqs: Slice<'a, SeqRows>,
    /// The cache block of each page of each sequence, `[n_seqs, max_pages]`.
    pub block_tables: Slice<'a, u32>,
    pub max_pages: usize,
    /// No sequence has more rows than this.
    pub max_rows_of_seq: usize,
}

impl Step<'_> {
    pub fn n_rows(&self) -> usize {
        self.positions.len()
    }

    pub fn n_seqs(&self) -> usize {
        self.seqs.len()
    }
}
