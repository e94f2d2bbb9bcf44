//! States of recurrent layers: the slot of the device that holds a sequence's state, and snapshots of it.
//!
//! A state is that after all tokens of a sequence, so another sequence can continue from it only where it was copied. A
//! copy at the end of a block is a snapshot: it has a slot of its own, found by the hash of that block (`prefix`), and a
//! prefix is shared up to the last block that has one. Slots are in a [`BlockPool`]; one with a snapshot that no sequence
//! uses is kept until its slot is needed. The method is that of SGLang's cache for hybrid models: snapshots after a prompt,
//! within the answer, and where sequences part, instead of at the end of every block.

use std::ops::Range;

use rocmforge_plan::{KeptState, SeqState, StateStart};

use super::block_pool::{BlockId, BlockPool};
use super::block_table::BlockTable;
use super::prefix::PrefixHash;

/// The slots of one sequence; none before it is admitted.
#[derive(Debug, Default)]
pub struct StateTable {
    slot: Option<BlockId>,
    start: Start,
    /// A snapshot that a step in flight may read for the first time.
    read: Option<BlockId>,
    /// Copies whose tokens are not all known, or whose step is not submitted.
    kept: Vec<Kept>,
    /// Where a step in flight leaves the state after the last known token, and after each drafted one but the last. Which
    /// of them becomes the state is known when the draft is checked.
    planes: Vec<BlockId>,
    /// The end of a prefix that is cached without a snapshot.
    parting: Option<usize>,
    /// The snapshot in the answer so far.
    of_answer: Option<PrefixHash>,
}

/// The tokens of a sequence in a step.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// Tokens before.
    pub first: usize,
    /// Known tokens.
    pub n: usize,
    /// Drafted tokens after them.
    pub n_drafted: usize,
}

/// What the next step begins from.
#[derive(Debug, Default)]
enum Start {
    #[default]
    Empty,
    Snapshot(BlockId),
    Own,
}

/// A copy of the state after `n_tokens` tokens.
#[derive(Debug)]
struct Kept {
    slot: BlockId,
    n_tokens: usize,
    is_in_answer: bool,
}

impl StateTable {
    /// Takes a slot, for a sequence that begins from `snapshot`, or from its first token. `parting` is the end of the
    /// prefix that is cached beyond. Returns `false` and releases `snapshot` if all slots are in use.
    ///
    /// # Panics
    /// If the table has a slot.
    pub fn begin(
        &mut self,
        slots: &mut BlockPool,
        snapshot: Option<BlockId>,
        parting: usize,
    ) -> bool {
        assert!(self.slot.is_none(), "a sequence has one slot");
        (self.slot, self.start) = match (slots.allocate(), snapshot) {
            (Some(slot), None) => (Some(slot), Start::Empty),
            (Some(slot), Some(snapshot)) => (Some(slot), Start::Snapshot(snapshot)),
            // No other slot is free: the sequence continues in that of the snapshot.
            (None, Some(snapshot)) if slots.n_references(snapshot) == 1 => {
                slots.forget_content(snapshot);
                (Some(snapshot), Start::Own)
            }
            (None, snapshot) => {
                snapshot.into_iter().for_each(|slot| slots.release(slot));
                return false;
            }
        };
        self.parting = Some(parting);
        true
    }

    /// Takes slots for the states of a draft of `n` tokens. Returns for how many tokens they are enough.
    pub fn reserve_planes(&mut self, slots: &mut BlockPool, n: usize) -> usize {
        while self.planes.len() < n
            && let Some(plane) = slots.allocate()
        {
            self.planes.push(plane);
        }
        self.planes.len()
    }

    /// Returns where the state of the next tokens is. With `snapshots`, the length of the prompt and that of a block, it is
    /// copied at ends of blocks where later sequences will begin, as far as slots are free: after the prompt, in the
    /// answer, and where the sequence parts from others. Drafted tokens have planes.
    ///
    /// # Panics
    /// If the table has no slot.
    pub fn submit(
        &mut self,
        slots: &mut BlockPool,
        Rows {
            first,
            n,
            n_drafted,
        }: Rows,
        snapshots: Option<(usize, usize)>,
    ) -> SeqState {
        assert_eq!(
            self.planes.len(),
            n_drafted,
            "a plane for each drafted token"
        );
        let slot = self.slot.expect("the sequence is admitted");
        let mut kept = Vec::new();
        if let Some((n_prompt, page)) = snapshots {
            for n_tokens in self.ends_to_keep(first..first + n, n_prompt, page) {
                let Some(slot) = slots.allocate() else { break };
                kept.push(KeptState {
                    n_rows: n_tokens - first,
                    slot: slot.0,
                });
                self.kept.push(Kept {
                    slot,
                    n_tokens,
                    is_in_answer: n_tokens >= n_prompt,
                });
            }
        }
        let planes = self.planes.iter().enumerate();
        kept.extend(planes.map(|(n_before, plane)| KeptState {
            n_rows: n + n_before,
            slot: plane.0,
        }));
        let start = match std::mem::replace(&mut self.start, Start::Own) {
            Start::Empty => StateStart::Empty,
            Start::Own => StateStart::Slot(slot.0),
            Start::Snapshot(snapshot) => {
                self.read = Some(snapshot);
                StateStart::Slot(snapshot.0)
            }
        };
        SeqState {
            slot: slot.0,
            start,
            kept,
        }
    }

    /// Goes on from the state after `n_right` of the drafted tokens, which follow `first` known ones. Others are released, or
    /// become snapshots as in [`StateTable::submit`].
    pub fn adopt(
        &mut self,
        slots: &mut BlockPool,
        (first, n_right): (usize, usize),
        snapshots: Option<(usize, usize)>,
    ) {
        let mut planes = std::mem::take(&mut self.planes);
        // After all of them, the state is in the sequence's own slot.
        if let Some(plane) = planes.get_mut(n_right) {
            let own = self.slot.as_mut().expect("the sequence is admitted");
            std::mem::swap(own, plane);
        }
        let ends = snapshots.map_or_else(Vec::new, |(n_prompt, page)| {
            self.ends_to_keep(first..first + n_right, n_prompt, page)
        });
        for (n_before, slot) in planes.into_iter().enumerate() {
            let n_tokens = first + n_before;
            match n_before < n_right && ends.contains(&n_tokens) {
                true => self.kept.push(Kept {
                    slot,
                    n_tokens,
                    is_in_answer: snapshots.is_some_and(|(n_prompt, _)| n_tokens >= n_prompt),
                }),
                false => slots.release(slot),
            }
        }
    }

    /// Returns the ends of blocks to keep among those that the tokens `tokens` reach, in order.
    fn ends_to_keep(&self, tokens: Range<usize>, n_prompt: usize, page: usize) -> Vec<usize> {
        let before = |position: usize| position / page * page;
        let of_prompt = before(n_prompt.saturating_sub(1));
        let of_answer = Some(before(tokens.end)).filter(|&at| at >= n_prompt);
        let ends = [Some(of_prompt), self.parting, of_answer];
        let is_reached = |at: &usize| tokens.start < *at && *at <= tokens.end;
        let mut ends: Vec<usize> = ends.into_iter().flatten().filter(is_reached).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Makes the copies of submitted steps snapshots, as far as the hashes of their blocks are in `table`. A newer one in
    /// the answer replaces the one before. Must not be called between the submissions of a step.
    pub fn settle(&mut self, slots: &mut BlockPool, table: &BlockTable, page: usize) {
        if let Some(snapshot) = self.read.take() {
            slots.release(snapshot);
        }
        let of_answer = &mut self.of_answer;
        self.kept.retain(|kept| {
            let Some(hash) = table.hash_of(kept.n_tokens / page) else {
                return true;
            };
            slots.index(kept.slot, hash);
            slots.release(kept.slot);
            if kept.is_in_answer {
                let older = of_answer.replace(hash).filter(|older| *older != hash);
                older.into_iter().for_each(|older| slots.forget(older));
            }
            false
        });
    }

    /// Releases all slots. Copies that are no snapshots are lost.
    pub fn release(&mut self, slots: &mut BlockPool) {
        for slot in self.slots() {
            slots.release(slot);
        }
        *self = StateTable {
            of_answer: self.of_answer,
            ..StateTable::default()
        };
    }

    /// Returns the slots that the sequence holds.
    pub fn slots(&self) -> Vec<BlockId> {
        let start = match self.start {
            Start::Snapshot(snapshot) => Some(snapshot),
            Start::Empty | Start::Own => None,
        };
        let kept = self.kept.iter().map(|kept| kept.slot);
        let own = [self.slot, start, self.read];
        let planes = self.planes.iter().copied();
        own.into_iter()
            .flatten()
            .chain(kept)
            .chain(planes)
            .collect()
    }
}
