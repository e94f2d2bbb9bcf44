//! The scheduler: builds the batch of the next step (continuous batching with chunked prefill).
//!
//! Every running sequence gets its next token (decode) or its next chunk of the prompt (prefill) in the same batch, in
//! order of priority and age. Decode comes first: prompts share a budget of tokens beside it. Waiting requests are
//! admitted in turn (`queue.rs`) while budget is left. When the cache runs out of blocks, the last sequence of that order is preempted: it
//! releases its blocks and is computed again later, mostly from the prefix cache. A preempted sequence repeats its context
//! shifts at the same positions, so its text does not change.
//!
//! The work per token does not depend on the number of sequences: they are found by slot, and block tables are shared
//! with the batch.

mod forecast;
mod pace;
mod queue;
mod recovery;
mod room;
mod step;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::context;
use crate::draft::{DraftCounts, Verified};
use crate::event::Failure;
use crate::kv_cache::{BlockPool, BlockTable, ContextShifts, KvUsage, StateTable};
use crate::masks::Constrained;
use crate::progress::RequestState;
use crate::request::RequestId;
use crate::sequence::{Sequence, Turn};
use crate::sequences::{Member, Sequences, Slot};
use crate::stats::{BlockUsage, EngineStats, PrefixLookups, Queued};
pub(crate) use pace::Load;
use pace::Pace;
use queue::Queue;
use recovery::Trials;
use rocmforge_plan::{Batch, StepRows};
use rocmforge_runtime::{ContextPolicy, Limits, PrefixSharing};
use room::Answers;
pub(crate) use step::StepRecord;
use step::{Prefill, Step};

/// All sequences and the KV-cache accounting.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    /// Slots for states of sequences; `None` if the model keeps none.
    slots: Option<BlockPool>,
    sequences: Sequences,
    waiting: Queue,
    /// By turn.
    running: Vec<Slot>,
    /// When sequences end or fail, by [`Sequence::alarm`].
    alarms: BTreeSet<(Instant, RequestId)>,
    trials: Trials,
    pace: Pace,
    answers: Answers,
    next_step: u64,
    /// Of the last step.
    last_rows: StepRows,
    shifts: ContextShifts,
    kv_usage: KvUsage,
    drafts: DraftCounts,
    prefix: PrefixLookups,
    n_preemptions: u64,
    n_failed_steps: u64,
    /// The sequences that were admitted, or ended before.
    left_queue: Queued,
}

impl Scheduler {
    pub(crate) fn new(limits: Limits, pool: BlockPool, n_slots: usize) -> Scheduler {
        Scheduler {
            limits,
            pool,
            // A page of one token: a slot holds one state.
            slots: (n_slots > 0).then(|| BlockPool::new(n_slots, 1)),
            sequences: Sequences::default(),
            waiting: Queue::default(),
            running: Vec::new(),
            alarms: BTreeSet::new(),
            trials: Trials::default(),
            pace: Pace::default(),
            answers: Answers::default(),
            next_step: 0,
            last_rows: StepRows::default(),
            shifts: ContextShifts::default(),
            kv_usage: KvUsage::default(),
            drafts: DraftCounts::default(),
            prefix: PrefixLookups::default(),
            n_preemptions: 0,
            n_failed_steps: 0,
            left_queue: Queued::default(),
        }
    }

    /// Lets a sequence wait.
    pub(crate) fn add(&mut self, mut sequence: Sequence) {
        if let Some(alarm) = sequence.alarm() {
            self.alarms.insert((alarm, sequence.id));
        }
        if let Some(leader) = sequence.leader
            && self.find(leader).is_none()
        {
            sequence.leader = None;
        }
        let slot = self.sequences.insert(sequence);
        self.waiting.push(&self.sequences[slot], slot);
    }

    /// Lets the followers of a sequence have their turns: its prompt is computed, or it has ended.
    pub(crate) fn release_followers(&mut self, leader: RequestId) {
        while let Some(slot) = self.waiting.follower(leader) {
            let sequence = &mut self.sequences[slot];
            self.waiting.remove(sequence);
            sequence.leader = None;
            self.waiting.push(sequence, slot);
        }
    }

    /// Prepares a sequence for the cache.
    ///
    /// # Errors
    /// Its first token would come too late.
    pub(crate) fn check(&mut self, sequence: &mut Sequence) -> Result<(), Failure> {
        if let Some(salt) = &sequence.request.cache_salt {
            let n_shared = sequence.request.shared_tokens.min(sequence.n_prompt);
            let n_unsalted = n_shared / self.pool.page();
            sequence.table = BlockTable::new(Some(self.pool.salted(salt)), n_unsalted);
        }
        self.check_wait(sequence)
    }

    /// Returns the tokens of a block.
    pub(crate) fn block_tokens(&self) -> usize {
        self.pool.page()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Returns the slot of a request that has not ended.
    pub(crate) fn find(&self, id: RequestId) -> Option<Slot> {
        self.sequences.find(id)
    }

    /// Returns the number of sequences that run.
    pub(crate) fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Returns a member's sequence, if it has not ended.
    pub(crate) fn member(&mut self, member: Member) -> Option<&mut Sequence> {
        self.sequences.member(member)
    }

    /// Returns a sequence whose time is over, and whether that is its deadline.
    pub(crate) fn overdue(&self) -> Option<(Slot, bool)> {
        let &(alarm, id) = self.alarms.first()?;
        if alarm > Instant::now() {
            return None;
        }
        let slot = self.find(id).expect("alarms are of sequences");
        Some((slot, self.sequences[slot].request.deadline == Some(alarm)))
    }

    /// Returns what was admitted or ended before, since the start.
    pub(crate) fn left_queue(&self) -> Queued {
        self.left_queue
    }

    /// Ends a sequence and frees its blocks. Steps in flight may still write to them, but they run before any step that
    /// reuses the blocks.
    pub(crate) fn remove(&mut self, slot: Slot) -> Sequence {
        let sequence = &mut self.sequences[slot];
        let n_known = sequence.n_submitted.min(sequence.tokens.len());
        let n_known = self.limits.n_shareable(n_known, sequence.n_prompt);
        sequence
            .table
            .index_full_blocks(&mut self.pool, &sequence.tokens[..n_known]);
        self.settle_states(slot);
        self.take_out(slot)
    }

    /// Ends a sequence whose results are wrong. No request finds its blocks again, nor those that it shared.
    pub(crate) fn discard(&mut self, slot: Slot) -> Sequence {
        self.sequences[slot].table.forget_content(&mut self.pool);
        // Its snapshots, too; which ones they are is not known any more.
        if let Some(slots) = &mut self.slots {
            slots.forget_all_content();
        }
        self.take_out(slot)
    }

    fn take_out(&mut self, slot: Slot) -> Sequence {
        let sequence = &self.sequences[slot];
        if !self.waiting.remove(sequence) {
            let at = self.place(sequence.turn());
            debug_assert_eq!(self.running[at], slot, "running sequences are in order");
            self.running.remove(at);
            self.waiting.stop(sequence);
        }
        let mut sequence = self.sequences.remove(slot);
        self.release_followers(sequence.id);
        self.drafts += sequence.draft.counts;
        self.record_end(&sequence);
        if let Some(alarm) = sequence.alarm() {
            self.alarms.remove(&(alarm, sequence.id));
        }
        if let Some(trial) = sequence.trial.take() {
            self.trials.leave(trial);
        }
        if !sequence.was_admitted {
            self.left_queue += Queued::by(&sequence);
        }
        sequence.table.release(&mut self.pool);
        if let Some(slots) = &mut self.slots {
            sequence.states.release(slots);
        }
        sequence
    }

    /// Lets other sequences find the snapshots that a sequence has made.
    fn settle_states(&mut self, slot: Slot) {
        let sequence = &mut self.sequences[slot];
        if let Some(slots) = &mut self.slots {
            let page = self.pool.page();
            sequence.states.settle(slots, &sequence.table, page);
        }
    }

    /// Returns the place of `turn` in `running`.
    fn place(&self, turn: Turn) -> usize {
        let is_before = |slot: &Slot| self.sequences[*slot].turn() < turn;
        self.running.partition_point(is_before)
    }

    /// Returns the next batch, or `None` if there is no sequence or every one waits for a step in flight.
    pub(crate) fn schedule(&mut self) -> Option<(Batch, StepRecord)> {
        let trial = self.next_trial();
        for at in 0..self.running.len() {
            self.settle_states(self.running[at]);
        }
        let rows: &[StepRows] = match (self.limits.max_answer_rows, self.last_rows) {
            (None, _) => &[StepRows::Any],
            // They take turns.
            (Some(_), StepRows::Prompt) => &[StepRows::Answer, StepRows::Prompt],
            (Some(_), _) => &[StepRows::Prompt, StepRows::Answer],
        };
        let step = rows.iter().find_map(|&rows| self.step_of(rows, trial))?;
        self.next_step += 1;
        self.last_rows = step.batch.rows;
        Some((step.batch, step.record))
    }

    /// Returns the next step with such rows, if there are any.
    fn step_of(&mut self, rows: StepRows, trial: Option<u64>) -> Option<Step> {
        let mut step = Step::new(
            (self.next_step, rows),
            self.limits,
            self.prefill(rows, trial),
            self.slots.is_some(),
        );
        let mut usage = KvUsage::default();
        let mut at = 0;
        while at < self.running.len() {
            let slot = self.running[at];
            let sequence = &self.sequences[slot];
            let n_tokens = match sequence.trial == trial {
                true => step.rows_for(sequence),
                false => 0,
            };
            if n_tokens > 0 {
                let is_full = sequence.n_positions() == self.limits.n_ctx;
                if is_full && !self.shift(at, &mut step.batch)
                    || !self.reserve_or_preempt(at, n_tokens)
                {
                    // This sequence was the last one and was preempted.
                    break;
                }
                let n_drafted = self.reserve_draft(slot, &step);
                let pools = (&mut self.pool, self.slots.as_mut());
                step.push(
                    slot,
                    &mut self.sequences[slot],
                    (n_tokens, n_drafted),
                    pools,
                );
            }
            self.add_usage(slot, &mut usage);
            at += 1;
        }
        while rows != StepRows::Answer
            && self.running.len() < self.limits.max_seqs
            && step.has_budget()
        {
            let Some(slot) = self.next_waiting(trial) else {
                break;
            };
            if self.sequences[slot].pending.is_some() || !self.admit(slot) {
                break;
            }
            let sequence = &mut self.sequences[slot];
            let n_tokens = step.rows_for(sequence);
            // A sequence with a full context from the prefix cache shifts in the next step.
            if n_tokens > 0 && sequence.n_positions() < self.limits.n_ctx {
                let pools = (&mut self.pool, self.slots.as_mut());
                step.push(slot, sequence, (n_tokens, 0), pools);
            }
            self.add_usage(slot, &mut usage);
            let at = self.place(self.sequences[slot].turn());
            self.running.insert(at, slot);
        }
        self.kv_usage = usage;
        (!step.batch.tokens.is_empty()).then_some(step)
    }

    /// Records the time of a step that the device computed.
    pub(crate) fn record_time(&mut self, load: Load, time: Duration) {
        self.pace.record(load, time);
    }

    /// Returns what the next step takes of prompts. Sequences that generate have their row first. While one prompt waits
    /// for another, none takes more than half.
    fn prefill(&self, rows: StepRows, trial: Option<u64>) -> Prefill {
        let running = self.running.iter().map(|slot| &self.sequences[*slot]);
        let n_decoding = running
            .filter(|sequence| sequence.trial == trial && sequence.is_decoding())
            .count();
        let n_free = self.limits.max_seqs - self.running.len();
        let n_prompts = self.running.len() - n_decoding + self.waiting.len().min(n_free);
        let page = self.pool.page();
        let most = self.limits.max_tokens.saturating_sub(n_decoding);
        let paced = match self.limits.step_target {
            Some(target) if n_decoding > 0 => self.pace.budget(target),
            _ => None,
        };
        let n_tokens = paced.map_or(most, |n| n.max(page).min(most));
        let n_of_one = match n_prompts {
            0 | 1 => n_tokens,
            _ => (n_tokens / 2).max(page),
        };
        Prefill {
            n_tokens,
            n_of_one,
            n_decoding: match rows {
                StepRows::Any | StepRows::Answer => n_decoding,
                StepRows::Prompt => 0,
            },
        }
    }

    fn add_usage(&self, slot: Slot, usage: &mut KvUsage) {
        let sequence = &self.sequences[slot];
        usage.n_slots += sequence.table.blocks().len() * self.pool.page();
        usage.n_tokens += sequence.n_positions();
    }

    /// Returns the next waiting sequence of a trial, or of all if there is none. Those of a trial ran before.
    fn next_waiting(&self, trial: Option<u64>) -> Option<Slot> {
        match trial {
            None => self.waiting.next(),
            Some(_) => {
                let mut preempted = self.waiting.preempted();
                preempted.find(|&slot| self.sequences[slot].trial == trial)
            }
        }
    }

    /// Allocates blocks for all tokens of a waiting sequence and the next one, and a slot for its state, and ends its wait.
    /// Returns `false` if there are too few, now or when answers have grown (`room.rs`).
    fn admit(&mut self, slot: Slot) -> bool {
        let sequence = &mut self.sequences[slot];
        let n_ctx = self.limits.n_ctx;
        if self.limits.prefix_sharing == PrefixSharing::On {
            let n_shareable = (self.limits).n_shareable(sequence.n_shareable(), sequence.n_prompt);
            let n_shareable = n_shareable.min(n_ctx);
            sequence.n_submitted =
                sequence
                    .table
                    .share_prefix(&mut self.pool, &sequence.tokens, n_shareable);
        }
        let n_cached = sequence.n_submitted;
        let mut snapshot = None;
        if let Some(slots) = &mut self.slots {
            (sequence.n_submitted, snapshot) =
                sequence.table.cut_to_snapshot(&mut self.pool, slots);
        }
        // Before anything is taken: blocks and slots keep what is cached in them.
        let mut fits = self.has_room(slot);
        let sequence = &mut self.sequences[slot];
        if let Some(slots) = &mut self.slots {
            match fits {
                true => fits = sequence.states.begin(slots, snapshot, n_cached),
                false => snapshot
                    .into_iter()
                    .for_each(|snapshot| slots.release(snapshot)),
            }
        }
        let n_tokens = (sequence.len() + 1).min(n_ctx);
        if !fits || !sequence.table.reserve(&mut self.pool, n_tokens) {
            sequence.table.release(&mut self.pool);
            if let Some(slots) = &mut self.slots {
                sequence.states.release(slots);
            }
            sequence.n_submitted = 0;
            return false;
        }
        if sequence.n_prompt_outputs == 0 && sequence.tokens.len() == sequence.n_prompt {
            sequence.n_cached = sequence.n_submitted;
        }
        self.waiting.start(sequence);
        if !sequence.was_admitted {
            if let Some(alarm) = sequence.alarm() {
                self.alarms.remove(&(alarm, sequence.id));
            }
            sequence.was_admitted = true;
            sequence.queue_time = sequence.added.elapsed();
            sequence
                .progress
                .admitted(sequence.queue_time, sequence.n_cached);
            if let Some(alarm) = sequence.alarm() {
                self.alarms.insert((alarm, sequence.id));
            }
            self.left_queue += Queued::by(sequence);
            self.prefix.queries += sequence.n_prompt as u64;
            self.prefix.hits += sequence.n_submitted as u64;
        }
        true
    }

    /// Reserves blocks for `n_tokens` more tokens of `running[at]`, preempting later sequences as needed. Returns
    /// `false` if the sequence itself was preempted.
    fn reserve_or_preempt(&mut self, at: usize, n_tokens: usize) -> bool {
        loop {
            let sequence = &mut self.sequences[self.running[at]];
            let n_tokens = sequence.n_positions() + n_tokens;
            if sequence.table.reserve(&mut self.pool, n_tokens) {
                return true;
            }
            self.preempt_last();
            if self.running.len() == at {
                return false;
            }
        }
    }

    /// Reserves blocks for the draft of a sequence that `step` is about to take, as far as others do not need them. Returns
    /// how many tokens of it the step takes.
    fn reserve_draft(&mut self, slot: Slot, step: &Step) -> usize {
        let sequence = &mut self.sequences[slot];
        let n_drafted = step.drafted_for(sequence);
        let is_spare = self.pool.n_free() > self.running.len();
        let n_tokens = sequence.n_positions() + 1 + n_drafted;
        let has_room = |pool: &BlockPool| n_tokens <= sequence.table.blocks().len() * pool.page();
        if n_drafted == 0 || !(is_spare || has_room(&self.pool)) {
            return 0;
        }
        if !sequence.table.reserve(&mut self.pool, n_tokens) {
            return 0;
        }
        match &mut self.slots {
            // Sequences that will begin have theirs first.
            Some(slots) => {
                let n_to_come = self.limits.max_seqs - self.running.len();
                let n_free = slots.n_free().saturating_sub(n_to_come);
                sequence.states.reserve_planes(slots, n_drafted.min(n_free))
            }
            None => n_drafted,
        }
    }

    /// Returns the number of sequences that generate.
    pub(crate) fn n_decoding(&self) -> usize {
        let running = self.running.iter().map(|slot| &self.sequences[*slot]);
        running.filter(|sequence| sequence.is_decoding()).count()
    }

    /// Whether prompts wait or are computed.
    pub(crate) fn has_prompts(&self) -> bool {
        let mut running = self.running.iter().map(|slot| &self.sequences[*slot]);
        self.waiting.len() > 0 || running.any(|sequence| !sequence.is_decoding())
    }

    /// Whether a step in flight checks a draft.
    pub(crate) fn has_drafts_in_flight(&self) -> bool {
        let mut running = self.running.iter().map(|slot| &self.sequences[*slot]);
        running.any(|sequence| sequence.draft.is_in_flight())
    }

    /// Drops the drafts that no step has taken. Returns the sequences that may draft, each with the most tokens of a draft.
    pub(crate) fn may_draft(&mut self) -> impl Iterator<Item = (Slot, &Sequence, usize)> {
        for &slot in &self.running {
            let draft = &mut self.sequences[slot].draft;
            if !draft.is_in_flight() {
                draft.drop_all();
            }
        }
        let n_ctx = self.limits.n_ctx;
        let running = self
            .running
            .iter()
            .map(|&slot| (slot, &self.sequences[slot]));
        running.filter_map(move |(slot, sequence)| {
            // Mirostat's state depends on the token before.
            let can = sequence.trial.is_none()
                && sequence.is_decoding()
                && !sequence.draft.is_in_flight()
                && sequence.request.sampling.mirostat.is_none()
                && { sequence.constrained.as_ref() }.is_none_or(Constrained::may_draft)
                && sequence.wants_sample(n_ctx);
            let n_most = sequence.n_draftable(n_ctx);
            (can && n_most > 0).then_some((slot, sequence, n_most))
        })
    }

    pub(crate) fn sequence(&self, slot: Slot) -> &Sequence {
        &self.sequences[slot]
    }

    pub(crate) fn sequence_mut(&mut self, slot: Slot) -> &mut Sequence {
        &mut self.sequences[slot]
    }

    /// Ends the draft of a sequence whose step is over: the tokens that it sampled as drafted are computed.
    pub(crate) fn settle_draft(&mut self, member: Member) -> Option<Verified> {
        let sequence = self.sequences.member(member)?;
        let verified = sequence.draft.settle()?;
        let first = sequence.n_submitted;
        sequence.n_submitted += verified.n_right;
        if let Some(slots) = &mut self.slots {
            let keeps = self.limits.prefix_sharing == PrefixSharing::On;
            let snapshots = keeps.then_some((sequence.n_prompt, self.pool.page()));
            sequence
                .states
                .adopt(slots, (first, verified.n_right), snapshots);
        }
        Some(verified)
    }

    /// Moves the last running sequence back to the waiting ones.
    fn preempt_last(&mut self) {
        let last = self.running.pop().expect("a sequence is running");
        self.n_preemptions += 1;
        self.sequences[last].progress.preempted();
        self.take_back(last);
    }

    /// Releases the blocks of a sequence that was running, and lets it wait.
    fn take_back(&mut self, slot: Slot) {
        self.settle_states(slot);
        let sequence = &mut self.sequences[slot];
        sequence.table.release(&mut self.pool);
        if let Some(slots) = &mut self.slots {
            sequence.states.release(slots);
        }
        sequence.n_submitted = 0;
        sequence.n_forgotten = 0;
        sequence.draft.drop_all();
        sequence.progress.enter(RequestState::Queued);
        self.waiting.stop(sequence);
        self.waiting.push(sequence, slot);
    }

    /// Shifts the full context of `running[at]` before `batch` runs. Preempts later sequences if copies need blocks;
    /// returns `false` if the sequence itself was preempted.
    fn shift(&mut self, at: usize, batch: &mut Batch) -> bool {
        let n_ctx = self.limits.n_ctx;
        let slot = self.running[at];
        let ContextPolicy::Shift { n_sinks } = self.sequences[slot].context_policy else {
            unreachable!("a sequence that stops has no token past its context");
        };
        let n_forgotten = context::n_forgotten(n_ctx, n_sinks, self.pool.page());
        loop {
            let sequence = &mut self.sequences[slot];
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
            self.preempt_last();
            if self.running.len() == at {
                return false;
            }
        }
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let mut drafts = self.drafts;
        { self.sequences.iter() }.for_each(|sequence| drafts += sequence.draft.counts);
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            queue_time: self.queue_time(),
            blocks: BlockUsage::of(&self.pool),
            states: self.slots.as_ref().map(BlockUsage::of).unwrap_or_default(),
            prefix: self.prefix,
            drafts,
            preemptions: self.n_preemptions,
            failed_steps: self.n_failed_steps,
            // The engine counts them.
            restarts: 0,
            kv_usage: self.kv_usage,
            context_shifts: self.shifts,
        }
    }

    /// Checks that no block leaks or is shared wrongly, and that each sequence either runs or waits.
    pub(crate) fn check_integrity(&self) -> Result<(), String> {
        let tables = self.sequences.iter().map(|sequence| &sequence.table);
        self.pool
            .check_integrity(tables.flat_map(BlockTable::blocks))?;
        if let Some(slots) = &self.slots {
            let held = self.sequences.iter().map(|sequence| &sequence.states);
            let checked = slots.check_integrity(held.flat_map(StateTable::slots));
            checked.map_err(|error| format!("slots of states: {error}"))?;
            if self.is_empty() && slots.n_free() != slots.n_blocks() {
                return Err("slots of states have leaked".into());
            }
        }
        let turns = self.running.iter().map(|&slot| self.sequences[slot].turn());
        if !turns.is_sorted() {
            return Err("the running sequences are out of order".into());
        }
        let n_sequences = self.sequences.iter().count();
        let (n_running, n_waiting) = (self.running.len(), self.waiting.len());
        if n_running + n_waiting != n_sequences {
            return Err(format!(
                "{n_running} sequences run and {n_waiting} wait, of {n_sequences}"
            ));
        }
        if self.is_empty() && self.pool.n_free() != self.pool.n_blocks() {
            return Err(format!(
                "{} blocks have leaked",
                self.pool.n_blocks() - self.pool.n_free()
            ));
        }
        Ok(())
    }
}
