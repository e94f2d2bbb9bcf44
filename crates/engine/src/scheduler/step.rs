//! Builds the batch of a step and remembers what its output rows are for.

use std::ops::Range;

use super::pace::Load;
use crate::kv_cache::{BlockPool, Rows};
use crate::progress::RequestState;
use crate::request::PromptOutput;
use crate::sequence::{PendingSample, RowPurpose, Sequence};
use crate::sequences::{Member, Slot};
use rocmforge_plan::{Batch, BatchSeq, InputToken, LogitsRow, SampleRow, StepRows, Want};
use rocmforge_runtime::{ContextPolicy, Limits, PrefixSharing};

/// The meaning of a submitted step's output rows.
#[derive(Debug, Default)]
pub(crate) struct StepRecord {
    /// The sequences of the step.
    pub(crate) members: Vec<Member>,
    /// Of each of them, the index of its first token and its rows.
    pub(crate) computed: Vec<(usize, Range<usize>)>,
    /// The purpose of each output row.
    pub(crate) rows: Vec<RowRecord>,
    /// Sequences without generated tokens, whose prompt ends in this step.
    pub(crate) evaluated: Vec<Member>,
    pub(crate) load: Load,
}

/// The purpose of an output row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRecord {
    pub(crate) member: Member,
    pub(crate) purpose: RowPurpose,
}

/// A batch under construction.
pub(super) struct Step {
    pub(super) batch: Batch,
    pub(super) record: StepRecord,
    limits: Limits,
    prefill: Prefill,
    /// Whether the model keeps a state of each sequence.
    has_states: bool,
}

/// What a step takes of prompts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefill {
    /// Tokens of all prompts.
    pub(super) n_tokens: usize,
    /// Tokens of one prompt.
    pub(super) n_of_one: usize,
    /// Sequences that generate; each has a row beside the prompts.
    pub(super) n_decoding: usize,
}

impl Step {
    pub(super) fn new(
        (number, rows): (u64, StepRows),
        limits: Limits,
        prefill: Prefill,
        has_states: bool,
    ) -> Step {
        Step {
            batch: Batch {
                step: number,
                rows,
                ..Batch::default()
            },
            record: StepRecord::default(),
            limits,
            prefill,
            has_states,
        }
    }

    /// Returns how many rows of the sequence the step may have if it is of prompts or of answers only.
    fn max_rows_of(&self, sequence: &Sequence) -> usize {
        let n_of_prompt = sequence.n_prompt.saturating_sub(sequence.n_submitted);
        match (self.batch.rows, n_of_prompt) {
            (StepRows::Any, _) => usize::MAX,
            (StepRows::Prompt, n) => n,
            (StepRows::Answer, 0) => self.n_answer_rows_left(),
            (StepRows::Answer, _) => 0,
        }
    }

    /// Returns how many rows there are left in a step of answers, for one sequence. States that several rows of a sequence
    /// change in one step may have other bits than after a step for each.
    fn n_answer_rows_left(&self) -> usize {
        let most = self.limits.max_answer_rows.unwrap_or(usize::MAX);
        let n_left = most.saturating_sub(self.batch.tokens.len());
        match self.batch.rows == StepRows::Answer && self.has_states {
            true => n_left.min(1),
            false => n_left,
        }
    }

    /// Whether there is room for a prompt.
    pub(super) fn has_budget(&self) -> bool {
        self.batch.tokens.len() < self.limits.max_tokens
            && self.batch.logits.len() < self.limits.max_logits
            && self.record.load.n_prefill < self.prefill.n_tokens
    }

    /// Returns how many of the sequence's tokens fit. 0 if its pending token is older than the last step, or if the steps
    /// in flight complete it, or if one of them checks its draft.
    pub(super) fn rows_for(&self, sequence: &Sequence) -> usize {
        let complete = sequence.n_generated() > 0 && !sequence.wants_sample(self.limits.n_ctx);
        if complete
            || sequence.draft.is_in_flight()
            || sequence
                .pending
                .is_some_and(|pending| pending.step + 1 != self.batch.step)
        {
            return 0;
        }
        let n_left = match (
            self.limits.n_ctx - sequence.n_positions(),
            sequence.context_policy,
        ) {
            // A shift frees more positions, but only a preempted sequence has more than one token left.
            (0, ContextPolicy::Shift { .. }) => 1,
            (n_left, _) => n_left,
        };
        let mut n = sequence
            .n_unsubmitted()
            .min(n_left)
            .min(self.max_rows_of(sequence))
            .min(self.limits.max_tokens - self.batch.tokens.len());
        let mut max_outputs = self.limits.max_logits - self.batch.logits.len();
        if !sequence.is_decoding() && !self.limits.whole_sequences {
            let Load {
                n_decoding,
                n_prefill,
                ..
            } = self.record.load;
            let left = self.prefill.n_tokens.saturating_sub(n_prefill);
            // One that generates goes on, also with forced tokens, which count as those of a prompt.
            let least = usize::from(sequence.n_generated() > 0);
            n = n.min(left.min(self.prefill.n_of_one).max(least));
            let n_to_come = self.prefill.n_decoding.saturating_sub(n_decoding);
            max_outputs = max_outputs.saturating_sub(n_to_come);
        }
        if self.outputs_in(sequence, n) > max_outputs {
            // Each token has at most two output rows, so this ends quickly.
            n = (0..n)
                .rev()
                .find(|&fewer| self.outputs_in(sequence, fewer) <= max_outputs)
                .unwrap_or(0);
        }
        match self.limits.whole_sequences && n < sequence.n_unsubmitted() {
            true => 0,
            false => n,
        }
    }

    /// Returns how many drafted tokens fit beside the next token of a sequence that generates.
    pub(super) fn drafted_for(&self, sequence: &Sequence) -> usize {
        let n_drafted = sequence.draft.to_compute().len();
        if n_drafted == 0 || !sequence.is_decoding() {
            return 0;
        }
        // Other sequences that generate have their rows first.
        let n_to_come = (self.prefill.n_decoding).saturating_sub(self.record.load.n_decoding);
        let left = |most: usize, used: usize| most.saturating_sub(used + n_to_come.max(1));
        n_drafted
            .min((self.n_answer_rows_left()).saturating_sub(n_to_come.max(1)))
            .min(left(self.limits.max_tokens, self.batch.tokens.len()))
            .min(left(self.limits.max_logits, self.batch.logits.len()))
            .min(sequence.n_draftable(self.limits.n_ctx))
    }

    /// Returns how many output rows the sequence's next `n` tokens need.
    fn outputs_in(&self, sequence: &Sequence, n: usize) -> usize {
        let end = sequence.n_submitted + n;
        let sample = usize::from(end == sequence.len() && sequence.wants_sample(self.limits.n_ctx));
        let from = sequence.n_submitted.max(sequence.n_prompt_outputs);
        let of_prompt = match sequence.request.prompt_output {
            PromptOutput::Nothing => 0,
            PromptOutput::Scores { from: first, .. } => end
                .min(sequence.n_prompt - 1)
                .saturating_sub(from.max(first.saturating_sub(1))),
            PromptOutput::Logits { from: first } => {
                end.min(sequence.n_prompt).saturating_sub(from.max(first))
            }
            PromptOutput::Embedding(_) => {
                let positions = sequence.embedded();
                end.min(positions.end)
                    .saturating_sub(from.max(positions.start))
            }
        };
        sample + of_prompt
    }

    /// Adds the sequence's next `n` tokens, and `n_drafted` that may come after them.
    pub(super) fn push(
        &mut self,
        slot: Slot,
        sequence: &mut Sequence,
        (n, n_drafted): (usize, usize),
        (pool, slots): (&mut BlockPool, Option<&mut BlockPool>),
    ) {
        let member = Member {
            slot,
            id: sequence.id,
        };
        self.record.members.push(member);
        match sequence.is_decoding() {
            true => {
                self.record.load.n_decoding += 1;
                self.record.load.n_drafted += n_drafted;
                sequence.progress.enter(RequestState::Decode);
            }
            false => {
                self.record.load.n_prefill += n;
                sequence.progress.enter(RequestState::Prefill);
            }
        }
        let first_row = self.batch.tokens.len();
        let first = sequence.n_submitted;
        let first_pos = sequence.n_positions();
        let end = first + n;
        let drafted = &sequence.draft.to_compute()[..n_drafted];
        for index in first..end + n_drafted {
            let row = self.batch.tokens.len();
            let position = index - sequence.n_forgotten;
            let token = match (sequence.tokens.get(index), sequence.pending) {
                (Some(&id), _) => InputToken::Id(id),
                (None, Some(pending)) => InputToken::Sampled { row: pending.row },
                (None, None) => InputToken::Id(drafted[index - end]),
            };
            self.batch.tokens.push(token);
            self.batch.positions.push(position as u32);
            self.batch
                .slots
                .push(sequence.table.slot(pool.page(), position));
            self.prompt_output(member, sequence, index, row);
        }
        let rows = first_row..self.batch.tokens.len();
        self.record.computed.push((first, rows));
        let keeps = self.limits.prefix_sharing == PrefixSharing::On;
        let page = pool.page();
        self.batch.seqs.push(BatchSeq {
            first_row,
            n_rows: n + n_drafted,
            first_pos,
            block_table: sequence.table.shared(),
            state: slots.map(|slots| {
                let snapshots = keeps.then_some((sequence.n_prompt, page));
                let rows = Rows {
                    first,
                    n,
                    n_drafted,
                };
                sequence.states.submit(slots, rows, snapshots)
            }),
        });
        let ends_prompt =
            first < sequence.n_prompt && end >= sequence.n_prompt && sequence.n_generated() == 0;
        if ends_prompt && sequence.request.max_tokens == 0 {
            self.record.evaluated.push(member);
        }
        let samples = end == sequence.len() && sequence.wants_sample(self.limits.n_ctx);
        let n_sampled = if samples { 1 + n_drafted } else { 0 };
        // Before one of them is pending.
        let samples: Vec<SampleRow> = (0..n_sampled)
            .map(|n_before| sequence.sample_row(self.limits.n_ctx, n_before))
            .collect();
        sequence.n_submitted = end;
        sequence.n_prompt_outputs = sequence.n_prompt_outputs.max(end.min(sequence.n_prompt));
        let n_indexed = self.limits.n_shareable(end, sequence.n_prompt);
        sequence.table.index_full_blocks(
            pool,
            &sequence.tokens[..n_indexed.min(sequence.tokens.len())],
        );
        if !samples.is_empty() {
            sequence.draft.submit(self.batch.step, n_drafted);
            sequence.pending = Some(PendingSample {
                step: self.batch.step,
                row: self.batch.logits.len(),
            });
        }
        let first_sampled = self.batch.tokens.len() - samples.len();
        for (n_before, sample) in samples.into_iter().enumerate() {
            let purpose = match n_before {
                0 => RowPurpose::Sample { ends_prompt },
                _ => RowPurpose::Drafted { n_before },
            };
            let row = first_sampled + n_before;
            self.output(member, row, purpose, Want::Sample(sample));
        }
    }

    /// Requests the prompt output at `position`, unless it was requested before.
    fn prompt_output(&mut self, member: Member, sequence: &Sequence, position: usize, row: usize) {
        if position >= sequence.n_prompt || position < sequence.n_prompt_outputs {
            return;
        }
        match sequence.request.prompt_output {
            PromptOutput::Scores { from, top }
                if position + 1 >= from.max(1) && position + 1 < sequence.n_prompt =>
            {
                let want = Want::Score {
                    target: sequence.tokens[position + 1],
                    top,
                };
                let purpose = RowPurpose::PromptScore {
                    position: position + 1,
                };
                self.output(member, row, purpose, want);
            }
            PromptOutput::Logits { from } if position >= from => {
                let purpose = RowPurpose::PromptLogits { position };
                self.output(member, row, purpose, Want::Logits);
            }
            PromptOutput::Embedding(_) if sequence.embedded().contains(&position) => {
                let purpose = RowPurpose::Embedding { position };
                self.output(member, row, purpose, Want::Hidden);
            }
            PromptOutput::Scores { .. }
            | PromptOutput::Logits { .. }
            | PromptOutput::Embedding(_)
            | PromptOutput::Nothing => {}
        }
    }

    fn output(&mut self, member: Member, row: usize, purpose: RowPurpose, want: Want) {
        self.batch.logits.push(LogitsRow { row, want });
        self.record.rows.push(RowRecord { member, purpose });
    }
}
