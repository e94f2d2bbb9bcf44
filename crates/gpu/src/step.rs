//! The step as kernels see it: which rows belong to which sequence, and where their keys and values are.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::kernel::layout;
use crate::memory::Slice;

/// The rows of one sequence, as kernels read them (`SeqRows` in `kernels/step.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct SeqRows {
    pub first_row: u32,
    /// 0 for unused entries of a smaller step.
    pub n_rows: u32,
    /// Position of the first row in the sequence. The others follow it.
    pub first_pos: u32,
    pub pad: u32,
}

layout!(SeqRows {
    first_row,
    n_rows,
    first_pos,
    pad
});

/// Where the state of a sequence is, as kernels read it (`SeqState` in `kernels/recurrent.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct SeqState {
    /// The slot that holds it after the step.
    pub slot: u32,
    /// The slot that holds it before; [`SeqState::EMPTY`] if it is zeros.
    pub start: u32,
    /// The first of its copies in [`States::kept`].
    pub first_kept: u32,
    pub n_kept: u32,
}

impl SeqState {
    /// In place of the slot of a state that is zeros.
    pub const EMPTY: u32 = u32::MAX;
    /// Of unused entries of a smaller step.
    pub const UNUSED: SeqState = SeqState {
        slot: SeqState::EMPTY,
        start: SeqState::EMPTY,
        first_kept: 0,
        n_kept: 0,
    };
}

layout!(SeqState {
    slot,
    start,
    first_kept,
    n_kept
});

/// A copy of a state on the way, as kernels read it (`KeptState` in `kernels/recurrent.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub struct KeptState {
    /// Rows of the sequence in this step that come before.
    pub n_rows: u32,
    pub slot: u32,
}

layout!(KeptState { n_rows, slot });

/// Where the states of a step's sequences are, in device memory. No sequence reads or writes a slot that another writes.
#[derive(Clone, Copy)]
pub struct States<'a> {
    /// `[n_seqs]`.
    pub seqs: Slice<'a, SeqState>,
    /// The copies of each sequence, by ascending rows; one sequence after the other.
    pub kept: Slice<'a, KeptState>,
}

/// A step in device memory. All steps of a size use the same addresses, so that a step can be a graph.
#[derive(Clone, Copy)]
pub struct Step<'a> {
    /// Position of each row in its sequence, `[n_rows]`.
    pub positions: Slice<'a, u32>,
    /// Where each row's K and V go: `block * page + offset`; `u32::MAX` for padding rows, which have no sequence.
    /// `[n_rows]`.
    pub slots: Slice<'a, u32>,
    /// The sequence of each row, `[n_rows]`; `u32::MAX` for padding rows.
    pub seq_of_row: Slice<'a, u32>,
    /// `[n_seqs]`.
    pub seqs: Slice<'a, SeqRows>,
    /// The cache block of each page of each sequence, `[n_seqs, max_pages]`.
    pub block_tables: Slice<'a, u32>,
    pub max_pages: usize,
    /// Maximum number of rows of one sequence.
    pub max_rows_of_seq: usize,
    /// Positions of the longest sequence, or more: graphs are for sequences of any length.
    pub longest: usize,
}

impl Step<'_> {
    pub fn n_rows(&self) -> usize {
        self.positions.len()
    }

    pub fn n_seqs(&self) -> usize {
        self.seqs.len()
    }
}
