//! All sequences of an engine, found by slot or by request in constant time.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use crate::request::RequestId;
use crate::sequence::Sequence;

/// The place of a sequence in [`Sequences`]. It is reused after the sequence has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(u32);

/// A sequence that a step computes. It may end while the step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) slot: Slot,
    pub(crate) id: RequestId,
}

#[derive(Debug, Default)]
pub(crate) struct Sequences {
    slots: Vec<Option<Sequence>>,
    free: Vec<Slot>,
    by_id: HashMap<RequestId, Slot>,
}

impl Sequences {
    pub(crate) fn insert(&mut self, sequence: Sequence) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot(self.slots.len() as u32 - 1)
        });
        self.by_id.insert(sequence.id, slot);
        self.slots[slot.0 as usize] = Some(sequence);
        slot
    }

    /// Returns the slot of a request that has not ended.
    pub(crate) fn find(&self, id: RequestId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// Returns a member's sequence, if it has not ended.
    pub(crate) fn member(&mut self, member: Member) -> Option<&mut Sequence> {
        let sequence = self.slots[member.slot.0 as usize].as_mut()?;
        (sequence.id == member.id).then_some(sequence)
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Sequence {
        let sequence = self.slots[slot.0 as usize].take();
        let sequence = sequence.expect("the slot is in use");
        self.by_id.remove(&sequence.id);
        self.free.push(slot);
        sequence
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.slots.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

impl Index<Slot> for Sequences {
    type Output = Sequence;

    fn index(&self, slot: Slot) -> &Sequence {
        self.slots[slot.0 as usize]
            .as_ref()
            .expect("the slot is in use")
    }
}

impl IndexMut<Slot> for Sequences {
    fn index_mut(&mut self, slot: Slot) -> &mut Sequence {
        self.slots[slot.0 as usize]
            .as_mut()
            .expect("the slot is in use")
    }
}
