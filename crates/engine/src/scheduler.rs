//! The scheduler: builds the batch of the next step (continuous batching with chunked prefill).
//!
//! Every running sequence gets its next token (decode) or its next chunk of the prompt (prefill) in the same batch,
//! oldest first, within a budget of tokens. Waiting requests are admitted while budget is left. When the cache runs out
//! of blocks, the youngest sequence is preempted: it releases its blocks and is computed again later, mostly from the
//! prefix cache. A preempted sequence repeats its context shifts at the same positions, so its text does not change.

use std::collections::VecDeque;

use crate::context;
use crate::kv_cache::{BlockId, BlockPool, ContextShifts, KvUsage};
use crate::request::{PromptOutput, RequestId};
use crate::sequence::{PendingSample, RowPurpose, Sequence};
use rocmforge_plan::{Batch, BatchSeq, InputToken, LogitsRow, Want};
use rocmforge_runtime::{ContextPolicy, Limits, PrefixSharing};

/// The meaning of a submitted step's output rows.
#[derive(Debug, Default)]
pub(crate) struct StepRecord {
    /// Request and purpose of each output row.
    pub(crate) rows: Vec<(RequestId, RowPurpose)>,
    /// Requests whose prompt ends in this step.
    pub(crate) prompts_done: Vec<RequestId>,
}

/// All sequences and the KV-cache accounting.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    /// In order of arrival.
    waiting: VecDeque<Sequence>,
    /// In order of admission.
    running: Vec<Sequence>,
    next_step: u64,
    shifts: ContextShifts,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, pool: BlockPool) -> Scheduler {
        Scheduler {
            limits,
            pool,
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_step: 0,
            shifts: ContextShifts::default(),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn add(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Returns the sequence `id`, if it has not ended.
    pub(crate) fn sequence(&mut self, id: RequestId) -> Option<&mut Sequence> {
        self.running
            .iter_mut()
            .chain(&mut self.waiting)
            .find(|sequence| sequence.id == id)
    }

    /// Ends the sequence `id` and frees its blocks. Steps in flight may still write to them, but they run before any
    /// step that reuses the blocks.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let mut sequence =
            if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
                self.running.remove(at)
            } else {
                let at = self.waiting.iter().position(|sequence| sequence.id == id)?;
                self.waiting.remove(at)?
            };
        let n_known = sequence.n_submitted.min(sequence.tokens.len());
        sequence
            .table
            .index_full_blocks(&mut self.pool, &sequence.tokens[..n_known]);
        sequence.table.release(&mut self.pool);
        Some(sequence)
    }

    /// Returns the next batch, or `None` if there is no sequence or every one waits for a step in flight.
    pub(crate) fn schedule(&mut self) -> Option<(Batch, StepRecord)> {
        let mut step = Step {
            batch: Batch {
                step: self.next_step,
                ..Batch::default()
            },
            record: StepRecord::default(),
            limits: self.limits,
        };
        let mut at = 0;
        while at < self.running.len() {
            let n_tokens = step.rows_for(&self.running[at]);
            if n_tokens > 0 {
                let is_full = self.running[at].n_positions() == self.limits.n_ctx;
                if is_full && !self.shift(at, &mut step.batch)
                    || !self.reserve_or_preempt(at, n_tokens)
                {
                    // This sequence was the youngest and was preempted.
                    break;
                }
                step.push(&mut self.running[at], n_tokens, &mut self.pool);
            }
            at += 1;
        }
        while self.running.len() < self.limits.max_seqs && step.has_budget() {
            let Some(mut sequence) = self.waiting.pop_front() else {
                break;
            };
            if sequence.pending.is_some() || !self.admit(&mut sequence) {
                self.waiting.push_front(sequence);
                break;
            }
            let n_tokens = step.rows_for(&sequence);
            // A sequence with a full context from the prefix cache shifts in the next step.
            if n_tokens > 0 && sequence.n_positions() < self.limits.n_ctx {
                step.push(&mut sequence, n_tokens, &mut self.pool);
            }
            self.running.push(sequence);
        }
        if step.batch.tokens.is_empty() {
            return None;
        }
        self.next_step += 1;
        Some((step.batch, step.record))
    }

    /// Allocates blocks for all tokens of a waiting sequence and the next one. Returns `false` if there are too few.
    fn admit(&mut self, sequence: &mut Sequence) -> bool {
        if self.limits.prefix_sharing == PrefixSharing::On {
            let n_shareable = sequence.n_shareable().min(self.limits.n_ctx);
            sequence.n_submitted =
                sequence
                    .table
                    .share_prefix(&mut self.pool, &sequence.tokens, n_shareable);
        }
        if !sequence
            .table
            .reserve(&mut self.pool, (sequence.len() + 1).min(self.limits.n_ctx))
        {
            sequence.table.release(&mut self.pool);
            sequence.n_submitted = 0;
            return false;
        }
        if sequence.n_prompt_outputs == 0 && sequence.tokens.len() == sequence.n_prompt {
            sequence.n_cached = sequence.n_submitted;
        }
        true
    }

    /// Reserves blocks for `n_tokens` more tokens of `running[at]`, preempting younger sequences as needed. Returns
    /// `false` if the sequence itself was preempted.
    fn reserve_or_preempt(&mut self, at: usize, n_tokens: usize) -> bool {
        loop {
            let sequence = &mut self.running[at];
            if sequence
                .table
                .reserve(&mut self.pool, sequence.n_positions() + n_tokens)
            {
                return true;
            }
            self.preempt_youngest();
            if self.running.len() == at {
                return false;
            }
        }
    }

    /// Moves the youngest running sequence back to the waiting queue and releases its blocks.
    fn preempt_youngest(&mut self) {
        let mut youngest = self.running.pop().expect("a sequence is running");
        youngest.table.release(&mut self.pool);
        youngest.n_submitted = 0;
        youngest.n_forgotten = 0;
        self.waiting.push_front(youngest);
    }

    /// Shifts the full context of `running[at]` before `batch` runs. Preempts younger sequences if copies need blocks;
    /// returns `false` if the sequence itself was preempted.
    fn shift(&mut self, at: usize, batch: &mut Batch) -> bool {
        let n_ctx = self.limits.n_ctx;
        let ContextPolicy::Shift { n_sinks } = self.running[at].context_policy else {
            unreachable!("a sequence that stops has no token past its context");
        };
        let n_forgotten = context::n_forgotten(n_ctx, n_sinks, self.pool.page());
        loop {
            let sequence = &mut self.running[at];
            let positions = n_sinks..n_sinks + n_forgotten;
            if let Some((shift, compaction)) =
                sequence.table.forget(&mut self.pool, positions, n_ctx)
            {
                sequence.n_forgotten += n_forgotten;
                batch.shifts.push(shift);
                self.shifts.n_shifts += 1;
                self.shifts.n_tokens += n_forgotten;
                self.shifts.compaction = compaction;
                return true;
            }
            self.preempt_youngest();
            if self.running.len() == at {
                return false;
            }
        }
    }

    pub(crate) fn context_shifts(&self) -> ContextShifts {
        self.shifts
    }

    pub(crate) fn kv_usage(&self) -> KvUsage {
        let n_blocks = self.running.iter().map(|s| s.table.blocks().len());
        KvUsage {
            n_slots: n_blocks.sum::<usize>() * self.pool.page(),
            n_tokens: self.running.iter().map(Sequence::n_positions).sum(),
        }
    }

    /// Checks that no block leaks or is shared wrongly.
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        let tables: Vec<&[BlockId]> = self
            .running
            .iter()
            .chain(&self.waiting)
            .map(|sequence| sequence.table.blocks())
            .collect();
        self.pool.check_integrity(tables.into_iter())?;
        if self.is_empty() && self.pool.n_free() != self.pool.n_blocks() {
            return Err(format!(
                "{} blocks have leaked",
                self.pool.n_blocks() - self.pool.n_free()
            ));
        }
        Ok(())
    }
}

/// A batch under construction.
struct Step {
    batch: Batch,
    record: StepRecord,
    limits: Limits,
}

impl Step {
    fn has_budget(&self) -> bool {
        self.batch.tokens.len() < self.limits.max_tokens
            && self.batch.logits.len() < self.limits.max_logits
    }

    /// Returns how many of the sequence's tokens fit. 0 if its pending token is older than the last step, or if the
    /// steps in flight complete it.
    fn rows_for(&self, sequence: &Sequence) -> usize {
        let complete = sequence.n_generated() > 0 && !sequence.wants_sample(self.limits.n_ctx);
        if complete
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
            .min(self.limits.max_tokens - self.batch.tokens.len());
        let max_outputs = self.limits.max_logits - self.batch.logits.len();
        if self.outputs_in(sequence, n) > max_outputs {
            // Each token has at most two output rows, so this ends quickly.
            n = (0..n)
                .rev()
                .find(|&fewer| self.outputs_in(sequence, fewer) <= max_outputs)
                .unwrap_or(0);
        }
        n
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
            PromptOutput::Logits => end.min(sequence.n_prompt).saturating_sub(from),
        };
        sample + of_prompt
    }

    /// Adds the sequence's next `n` tokens.
    fn push(&mut self, sequence: &mut Sequence, n: usize, pool: &mut BlockPool) {
        let first_row = self.batch.tokens.len();
        let first = sequence.n_submitted;
        let first_pos = sequence.n_positions();
        let end = first + n;
        for index in first..end {
            let row = self.batch.tokens.len();
            let position = index - sequence.n_forgotten;
            let token = match (sequence.tokens.get(index), sequence.pending) {
                (Some(&id), _) => InputToken::Id(id),
                (None, Some(pending)) => InputToken::Sampled { row: pending.row },
                (None, None) => unreachable!("only existing tokens are submitted"),
            };
            self.batch.tokens.push(token);
            self.batch.positions.push(position as u32);
            self.batch
                .slots
                .push(sequence.table.slot(pool.page(), position));
            self.prompt_output(sequence, index, row);
        }
        self.batch.seqs.push(BatchSeq {
            first_row,
            n_rows: n,
            first_pos,
            block_table: sequence
                .table
                .blocks()
                .iter()
                .map(|block| block.0)
                .collect(),
        });
        if first < sequence.n_prompt && end >= sequence.n_prompt && sequence.n_generated() == 0 {
            self.record.prompts_done.push(sequence.id);
        }
        let samples = end == sequence.len() && sequence.wants_sample(self.limits.n_ctx);
        let sample = samples.then(|| sequence.sample_row(self.limits.n_ctx));
        sequence.n_submitted = end;
        sequence.n_prompt_outputs = sequence.n_prompt_outputs.max(end.min(sequence.n_prompt));
        sequence
            .table
            .index_full_blocks(pool, &sequence.tokens[..end.min(sequence.tokens.len())]);
        if let Some(sample) = sample {
            sequence.pending = Some(PendingSample {
                step: self.batch.step,
                row: self.batch.logits.len(),
            });
            self.output(
                sequence.id,
                self.batch.tokens.len() - 1,
                RowPurpose::Sample,
                Want::Sample(sample),
            );
        }
    }

    /// Requests the prompt output at `position`, unless it was requested before.
    fn prompt_output(&mut self, sequence: &Sequence, position: usize, row: usize) {
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
                self.output(
                    sequence.id,
                    row,
                    RowPurpose::PromptScore {
                        position: position + 1,
                    },
                    want,
                );
            }
            PromptOutput::Logits => {
                self.output(
                    sequence.id,
                    row,
                    RowPurpose::PromptLogits { position },
                    Want::Logits,
                );
            }
            PromptOutput::Scores { .. } | PromptOutput::Nothing => {}
        }
    }

    fn output(&mut self, id: RequestId, row: usize, purpose: RowPurpose, want: Want) {
        self.batch.logits.push(LogitsRow { row, want });
        self.record.rows.push((id, purpose));
    }
}
