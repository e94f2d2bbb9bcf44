//! What happens after a step that the device did not compute.
//!
//! The cache may hold anything for the tokens of that step, so every running sequence gives its blocks back, no prefix
//! is found again, and all sequences are computed anew from their tokens: none loses any. Those of the failed step are
//! tried again in two halves, each without the other and without the rest, and so on until the step fails with one
//! sequence alone.

use std::collections::{BTreeMap, VecDeque};

use super::{Scheduler, StepRecord};
use crate::request::RequestId;
use crate::sequence::RowPurpose;
use crate::sequences::{Member, Slot};

/// Groups of sequences that were in failed steps. Only the sequences of the first group run.
#[derive(Debug, Default)]
pub(super) struct Trials {
    groups: VecDeque<Trial>,
    n_groups_so_far: u64,
    /// The group that ran last.
    last: Option<u64>,
}

#[derive(Debug)]
struct Trial {
    number: u64,
    n_left: usize,
}

impl Trials {
    /// Adds a group in front.
    fn push_front(&mut self, n_left: usize) -> u64 {
        let number = self.n_groups_so_far;
        self.n_groups_so_far += 1;
        self.groups.push_front(Trial { number, n_left });
        number
    }

    /// Takes one sequence out of a group.
    pub(super) fn leave(&mut self, number: u64) {
        let at = self.groups.iter().position(|trial| trial.number == number);
        let at = at.expect("a group lasts as long as its sequences are in it");
        self.groups[at].n_left -= 1;
        if self.groups[at].n_left == 0 {
            self.groups.remove(at);
        }
    }
}

impl Scheduler {
    /// Returns the group that runs now. When another one begins, it gets all blocks.
    pub(super) fn next_trial(&mut self) -> Option<u64> {
        let current = self.trials.groups.front().map(|trial| trial.number);
        if current.is_some() && current != self.trials.last {
            for slot in std::mem::take(&mut self.running) {
                self.take_back(slot);
            }
        }
        self.trials.last = current;
        current
    }

    /// Records that the device computed a step with these sequences.
    pub(crate) fn step_succeeded(&mut self, members: &[Member]) {
        if !self.trials.groups.is_empty() {
            for &member in members {
                if let Some(sequence) = self.sequences.member(member) {
                    sequence.failed_alone = false;
                }
            }
        }
    }

    /// Ends the trial of a sequence that has made a token since the failed step.
    pub(crate) fn acquit(&mut self, member: Member) {
        let sequence = self.sequences.member(member);
        if let Some(trial) = sequence.and_then(|sequence| sequence.trial.take()) {
            self.trials.leave(trial);
        }
    }

    /// Records that a step with a sequence alone has failed. Returns whether it is not the first time.
    pub(crate) fn failed_before(&mut self, slot: Slot) -> bool {
        std::mem::replace(&mut self.sequences[slot].failed_alone, true)
    }

    /// Lets steps in flight end whose masks depend on a step that was not computed.
    pub(crate) fn break_promises(&mut self) {
        for sequence in self.sequences.iter_mut() {
            if let Some(constrained) = &mut sequence.constrained {
                constrained.break_promise();
            }
        }
    }

    /// Takes all sequences back after the steps of `failed` were not computed; no other step is in flight. Returns the
    /// sequence of the failed steps if it was alone in them.
    pub(crate) fn recover(&mut self, failed: &[StepRecord]) -> Option<Slot> {
        self.n_failed_steps += u64::from(!failed.is_empty());
        for slot in std::mem::take(&mut self.running) {
            self.take_back(slot);
        }
        self.pool.forget_all_content();
        if let Some(slots) = &mut self.slots {
            slots.forget_all_content();
        }
        for sequence in self.sequences.iter_mut() {
            sequence.pending = None;
            sequence.draft.drop_all();
        }
        self.break_promises();
        // By age.
        let mut suspects: BTreeMap<RequestId, Member> = BTreeMap::new();
        for record in failed {
            suspects.extend(record.members.iter().map(|member| (member.id, *member)));
            for row in &record.rows {
                let lost = match row.purpose {
                    RowPurpose::Sample { .. } | RowPurpose::Drafted { .. } => continue,
                    RowPurpose::PromptScore { position } => position - 1,
                    RowPurpose::PromptLogits { position } | RowPurpose::Embedding { position } => {
                        position
                    }
                };
                if let Some(sequence) = self.sequences.member(row.member) {
                    sequence.n_prompt_outputs = sequence.n_prompt_outputs.min(lost);
                }
            }
        }
        suspects.retain(|_, member| self.sequences.member(*member).is_some());
        let suspects: Vec<Slot> = suspects.into_values().map(|member| member.slot).collect();
        for &slot in &suspects {
            if let Some(trial) = self.sequences[slot].trial.take() {
                self.trials.leave(trial);
            }
        }
        // The first half is tried first.
        let (first, second) = suspects.split_at(suspects.len().div_ceil(2));
        for half in [second, first] {
            if half.is_empty() {
                continue;
            }
            let trial = self.trials.push_front(half.len());
            for &slot in half {
                self.sequences[slot].trial = Some(trial);
            }
        }
        match suspects[..] {
            [alone] => Some(alone),
            _ => None,
        }
    }
}
