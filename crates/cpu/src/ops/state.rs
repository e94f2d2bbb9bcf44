//! States of sequences: what recurrent operations keep of each sequence, in slots.

use rocmforge_plan::{SeqState, StateStart};

/// The rows of one sequence in a step, and where its state is.
#[derive(Clone, Copy, Debug)]
pub struct StateSeq<'a> {
    /// The sequence's first row.
    pub first_row: usize,
    pub n_rows: usize,
    pub state: &'a SeqState,
}

impl StateSeq<'_> {
    /// Returns the slots that the step writes.
    pub(super) fn written(&self) -> impl Iterator<Item = u32> {
        let kept = self.state.kept.iter().map(|kept| kept.slot);
        kept.chain([self.state.slot])
    }
}

/// Puts what each sequence begins from into its slot: `states` [n_slots, len].
///
/// # Panics
/// If a slot does not exist.
pub(super) fn begin(seqs: &[StateSeq<'_>], len: usize, states: &mut [f32]) {
    for seq in seqs {
        let slot = seq.state.slot as usize * len;
        match seq.state.start {
            StateStart::Empty => states[slot..][..len].fill(0.0),
            StateStart::Slot(from) if from == seq.state.slot => {}
            StateStart::Slot(from) => {
                let from = from as usize * len;
                states.copy_within(from..from + len, slot);
            }
        }
    }
}

/// Checks that the sequences have whole rows of `n_rows`, and kept rows in order.
///
/// # Panics
/// If they do not.
pub(super) fn check(seqs: &[StateSeq<'_>], n_rows: usize) {
    for seq in seqs {
        assert!(seq.first_row + seq.n_rows <= n_rows, "rows of the step");
        let kept = &seq.state.kept;
        assert!(kept.is_sorted_by_key(|kept| kept.n_rows), "in order");
        let last = kept.last().map_or(0, |kept| kept.n_rows);
        assert!(last <= seq.n_rows, "states of the step");
    }
}
