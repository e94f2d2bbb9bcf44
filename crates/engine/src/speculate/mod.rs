//! Speculation: a drafter guesses the next tokens of a sequence, and one step of the model checks all of them. The text is
//! the same as without; it comes faster if enough guesses are right for what the longer steps cost.
//!
//! Speculative decoding by Leviathan et al. 2023, for samples that are a function of seed and position: a draft is right if
//! it is what would have been sampled. How many tokens are drafted is learned (`length`).

mod assistant;
mod block;
mod gain;
mod hidden;
mod length;
mod model;
mod ngram;

use std::time::{Duration, Instant};

use rocmforge_gguf::TokenId;
use rocmforge_runtime::RuntimeError;

use crate::kv_cache::BlockTable;
use crate::masks::Masks;
use crate::request::RequestId;
use crate::scheduler::{Load, Scheduler, StepRecord};
use crate::sequence::Sequence;
use crate::sequences::Slot;
pub use assistant::AssistantDrafter;
pub use block::BlockDrafter;
use gain::Gain;
use hidden::MOST_WAITING;
pub(crate) use length::Acceptance;
use length::{Costs, Outlook, best_length};
pub use model::ModelDrafter;
pub use ngram::NgramDrafter;

/// Of so many results, the first are those of steps without drafts.
const COMPARED_EVERY: u32 = 128;
const N_COMPARED: u32 = 4;
/// The most tokens of a draft.
pub const MAX_DRAFT: usize = 16;

/// How many tokens are drafted at a time; never more than [`MAX_DRAFT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftLength {
    /// As many as make the text come fastest, up to a number: none if drafts do not pay.
    UpTo(usize),
    /// As many as the drafter has, up to a number, for tests and measurements.
    Always(usize),
}

impl DraftLength {
    fn most(self) -> usize {
        match self {
            DraftLength::UpTo(n) | DraftLength::Always(n) => n.min(MAX_DRAFT),
        }
    }
}

/// How sure a drafter is of a draft: one of a few levels, for which acceptance is learned apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Trust(pub usize);

impl Trust {
    /// The number of levels.
    pub const N_LEVELS: usize = 3;
}

/// A sequence that a drafter continues.
#[derive(Debug)]
pub struct Wanted<'a> {
    pub request: RequestId,
    /// The prompt and the tokens so far. Each time, the same ones as before and some more.
    pub tokens: &'a [TokenId],
    /// The most tokens to draft.
    pub n_most: usize,
    /// The draft: what comes next, up to the first token of which the drafter knows too little.
    pub draft: Vec<TokenId>,
    pub trust: Trust,
    /// Where all of `tokens` but the last are in the cache of the model that checks the draft; `None` if a step in flight still
    /// computes one.
    pub cached: Option<Cached<'a>>,
    /// Whether the drafter still has tokens of the sequence to read, and reads some at each call.
    pub is_behind: bool,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(request: RequestId, tokens: &'a [TokenId], n_most: usize) -> Wanted<'a> {
        Wanted {
            request,
            tokens,
            n_most,
            draft: Vec::new(),
            trust: Trust::default(),
            cached: None,
            is_behind: false,
        }
    }
}

/// The positions of a sequence in the cache of the model that checks its drafts.
#[derive(Debug)]
pub struct Cached<'a> {
    pub table: &'a BlockTable,
    /// Fewer than the tokens before the last one if the context has shifted.
    pub n_positions: usize,
}

impl<'a> Cached<'a> {
    fn of(sequence: &'a Sequence) -> Option<Cached<'a>> {
        let is_computed = sequence.pending.is_none() && sequence.void_step.is_none();
        (is_computed && sequence.n_unsubmitted() == 1).then(|| Cached {
            table: &sequence.table,
            n_positions: sequence.n_positions(),
        })
    }
}

/// Guesses the next tokens of sequences. It runs on the engine's thread, between two steps.
pub trait Drafter: Send {
    /// A word for reports.
    fn name(&self) -> &'static str;

    /// Whether drafts need all tokens of a sequence. Others are made also while its last token is still computed, to see
    /// whether it is worth waiting for.
    fn needs_all(&self) -> bool {
        false
    }

    /// Whether a draft takes the same time whatever its length. Others take as long again for each token.
    fn drafts_at_once(&self) -> bool {
        false
    }

    /// The most sequences that it drafts for. Where more generate, none drafts.
    fn most_sequences(&self) -> usize {
        usize::MAX
    }

    /// Whether it takes the hidden values that the model exports: [`Drafter::computed`].
    fn takes_hidden(&self) -> bool {
        false
    }

    /// Takes the hidden values of tokens of a sequence, from index `first` on: `[n_tokens, width]`. The last of them may be of
    /// drafted tokens, and wrong.
    fn computed(&mut self, _request: RequestId, _first: usize, _hidden: &[f32]) {}

    /// Drafts for each sequence. Tokens that are out of the vocabulary are not allowed.
    ///
    /// # Errors
    /// The drafter cannot go on. It is not used again.
    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError>;

    /// Lets go of the cache of the model that checks drafts, which ends. Returns whether the drafter cannot do without.
    fn lose_cache(&mut self) -> bool {
        false
    }

    /// Forgets a sequence that has ended.
    fn end(&mut self, request: RequestId);
}

/// Decides which sequences draft, and how much.
pub(crate) struct Speculator {
    drafter: Box<dyn Drafter>,
    length: DraftLength,
    costs: Costs,
    gain: Gain,
    clock: ResultClock,
    /// What the drafter took before the next step.
    draft_time: Duration,
    /// Whether the drafter has read tokens of a sequence before the next step.
    has_read: bool,
    /// Results so far.
    n_results: u32,
    /// The sequences that the drafter knows and that have not ended, and whether it has drafted for them.
    known: Vec<(RequestId, bool)>,
    /// Why the drafter is not used any more.
    failure: Option<String>,
}

impl Speculator {
    pub(crate) fn new(drafter: Box<dyn Drafter>, length: DraftLength) -> Speculator {
        Speculator {
            costs: Costs::of(drafter.drafts_at_once()),
            drafter,
            length,
            gain: Gain::default(),
            clock: ResultClock::default(),
            draft_time: Duration::ZERO,
            has_read: false,
            n_results: 0,
            known: Vec::new(),
            failure: None,
        }
    }

    pub(crate) fn status(&self) -> DrafterStatus {
        DrafterStatus {
            name: self.drafter.name(),
            pauses: self.gain.pauses(),
            failure: self.failure.clone(),
        }
    }

    /// Prepares for the end of the model's backend, whose cache the drafter may read.
    pub(crate) fn lose_cache(&mut self) {
        if self.drafter.lose_cache() && self.failure.is_none() {
            self.failure = Some("the model whose KV cache it reads was started again".into());
        }
    }

    /// Returns what is to be known of a step that is about to be submitted. `overlaps`: it follows another one as closely as
    /// without drafts.
    pub(crate) fn attempt(&mut self, overlaps: bool) -> Attempt {
        let draft_time = std::mem::take(&mut self.draft_time);
        Attempt {
            draft_time,
            is_plain: overlaps && draft_time == Duration::ZERO,
            has_read: std::mem::take(&mut self.has_read),
        }
    }

    /// Whether the drafter takes hidden values of a step.
    pub(crate) fn takes_hidden(&mut self, record: &StepRecord, scheduler: &Scheduler) -> bool {
        if !self.drafter.takes_hidden() || self.failure.is_some() {
            return false;
        }
        let steps = record.members.iter().zip(&record.computed);
        if record.members.len() > self.drafter.most_sequences() {
            // What it has of these sequences does not lead to their next tokens any more.
            for (member, _) in steps {
                if let Some(at) = self.known.iter().position(|(known, _)| *known == member.id) {
                    self.known.swap_remove(at);
                    self.drafter.end(member.id);
                }
            }
            return false;
        }
        // Not those far before the end of a prompt.
        { steps }.any(|(member, (first, rows))| {
            let end = first + rows.len();
            scheduler.sequence(member.slot).tokens.len() <= end + MOST_WAITING
        })
    }

    /// Hands hidden values to the drafter, `[n_tokens, width]` of the step's tokens; none if it did not ask for them.
    pub(crate) fn computed(&mut self, record: &StepRecord, hidden: &[f32]) {
        let n_rows = record.computed.last().map_or(0, |(_, rows)| rows.end);
        if hidden.is_empty() || n_rows == 0 {
            return;
        }
        let width = hidden.len() / n_rows;
        for (member, (first, rows)) in record.members.iter().zip(&record.computed) {
            if !self.known.iter().any(|(known, _)| *known == member.id) {
                self.known.push((member.id, false));
            }
            let of_member = &hidden[rows.start * width..rows.end * width];
            self.drafter.computed(member.id, *first, of_member);
        }
    }

    /// Learns from a step: its load, when it was submitted, when its result came, and how many tokens it made.
    pub(crate) fn record_step(
        &mut self,
        load: Load,
        attempt: Attempt,
        (submitted, now): (Instant, Instant),
        n_tokens: usize,
    ) {
        let time = self.clock.tick(submitted, now, attempt.draft_time);
        self.n_results = self.n_results.wrapping_add(1);
        if load.n_prefill > 0 || attempt.has_read {
            self.gain.record_plain();
            return;
        }
        let without_draft = time.saturating_sub(attempt.draft_time).as_secs_f64();
        if load.n_drafted > 0 {
            self.costs.record_check(load.n_rows(), without_draft);
        } else if attempt.is_plain {
            self.costs.record_plain(load.n_decoding, without_draft);
        }
        let is_plain = load.n_drafted == 0 && attempt.is_plain;
        match self.costs.plain(load.n_decoding) {
            Some(plain) if !is_plain && load.n_decoding > 0 => {
                let each = plain / load.n_decoding as f64;
                self.gain.record(time, n_tokens, each);
            }
            _ => self.gain.record_plain(),
        }
    }

    /// Drafts for the next step. Returns `false` if that step should wait for those in flight: they check drafts, or make
    /// tokens after which sequences will draft. Then all sequences go on together.
    pub(crate) fn prepare(&mut self, scheduler: &mut Scheduler, masks: &mut Masks) -> bool {
        let drafter = &mut self.drafter;
        self.known.retain(|&(request, _)| {
            let lives = scheduler.find(request).is_some();
            if !lives {
                drafter.end(request);
            }
            lives
        });
        if self.failure.is_some() {
            return true;
        }
        let is_learned = matches!(self.length, DraftLength::UpTo(_));
        if scheduler.has_drafts_in_flight() {
            return false;
        }
        // Now and then, to learn what steps without drafts take.
        let compares = self.n_results % COMPARED_EVERY < N_COMPARED;
        if is_learned && (self.gain.pauses() || compares) {
            return true;
        }
        match self.drafts(scheduler) {
            Ok(drafts) if drafts.iter().any(|draft| draft.is_after_pending) => false,
            Ok(drafts) => {
                for Drafted {
                    slot,
                    tokens,
                    trust,
                    ..
                } in drafts
                {
                    let sequence = scheduler.sequence_mut(slot);
                    let after = match &sequence.constrained {
                        Some(constrained) => masks.begin_draft(constrained, &tokens),
                        None => Vec::new(),
                    };
                    sequence.draft.set(tokens, after, trust);
                }
                true
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                true
            }
        }
    }

    /// Returns the drafts that are worth checking.
    fn drafts(&mut self, scheduler: &mut Scheduler) -> Result<Vec<Drafted>, RuntimeError> {
        let n_decoding = scheduler.n_decoding();
        let offers: Vec<(Slot, usize)> = { scheduler.may_draft() }
            .filter(|(_, sequence, _)| match self.length {
                DraftLength::Always(_) => true,
                DraftLength::UpTo(_) => {
                    let acceptance = &sequence.draft.acceptance;
                    !acceptance.pauses(sequence.n_generated())
                }
            })
            .map(|(slot, _, n_left)| (slot, n_left.min(self.length.most())))
            .collect();
        // Prompts would wait for drafts, and need the rows that these take.
        let is_free = matches!(self.length, DraftLength::Always(_)) || !scheduler.has_prompts();
        let has_room = is_free && n_decoding <= self.drafter.most_sequences();
        if offers.is_empty() || !has_room {
            return Ok(Vec::new());
        }
        let best = |slot: Slot, n: usize| scheduler.sequence(slot).draft.acceptance.best_outlook(n);
        let outlooks: Vec<Outlook> = offers.iter().map(|&(slot, n)| best(slot, n)).collect();
        let n_most = match self.length {
            DraftLength::Always(n) => n,
            DraftLength::UpTo(_) => {
                let acceptance = |slot: Slot| &scheduler.sequence(slot).draft.acceptance;
                // After a pause, one tries with a token.
                let tries = offers.iter().any(|&(slot, _)| acceptance(slot).is_off());
                best_length(&self.costs, n_decoding, &outlooks).max(usize::from(tries))
            }
        };
        if n_most == 0 {
            if self.costs.plain(n_decoding).is_some() {
                for (slot, _) in offers {
                    let sequence = scheduler.sequence_mut(slot);
                    let n_generated = sequence.n_generated();
                    match n_decoding {
                        1 => sequence.draft.acceptance.pause(n_generated),
                        // Others may be the reason.
                        _ => sequence.draft.acceptance.rest(n_generated),
                    }
                }
            }
            return Ok(Vec::new());
        }
        let is_pending = |slot: Slot| scheduler.sequence(slot).pending.is_some();
        if self.drafter.needs_all() && offers.iter().any(|&(slot, _)| is_pending(slot)) {
            let waits = |(slot, _)| Drafted {
                slot,
                tokens: Vec::new(),
                trust: Trust::default(),
                is_after_pending: true,
            };
            return Ok(offers.into_iter().map(waits).collect());
        }
        let mut drafts = self.draft(scheduler, &offers, n_most)?;
        if let DraftLength::UpTo(_) = self.length {
            self.shorten(scheduler, n_decoding, &mut drafts);
        }
        Ok(drafts)
    }

    /// Returns the drafts of up to `n_most` tokens that the drafter has.
    fn draft(
        &mut self,
        scheduler: &Scheduler,
        offers: &[(Slot, usize)],
        n_most: usize,
    ) -> Result<Vec<Drafted>, RuntimeError> {
        let mut wanted = Vec::new();
        let mut are_known = true;
        for &(slot, n) in offers {
            let sequence = scheduler.sequence(slot);
            let known = self
                .known
                .iter_mut()
                .find(|(known, _)| *known == sequence.id);
            match known {
                Some((_, has_drafted)) => are_known &= std::mem::replace(has_drafted, true),
                None => {
                    self.known.push((sequence.id, true));
                    are_known = false;
                }
            }
            // A pending token is drafted first.
            let n_pending = sequence.len() - sequence.tokens.len();
            let n = n.min(n_most) + n_pending;
            wanted.push(Wanted {
                cached: Cached::of(sequence),
                ..Wanted::new(sequence.id, &sequence.tokens, n)
            });
        }
        let began = Instant::now();
        self.drafter.draft(&mut wanted)?;
        if self.drafter.needs_all() {
            self.draft_time = began.elapsed();
        }
        self.has_read = !are_known || wanted.iter().any(|one| one.is_behind);
        let longest = wanted.iter().map(|one| one.draft.len()).max();
        if !self.has_read
            && let Some(n @ 1..) = longest
        {
            self.costs.record_draft(n, began.elapsed().as_secs_f64());
        }
        let drafts = wanted.into_iter().zip(offers).map(|(one, &(slot, _))| {
            let n_pending = usize::from(scheduler.sequence(slot).pending.is_some());
            Drafted {
                slot,
                tokens: one.draft.into_iter().skip(n_pending).collect(),
                trust: one.trust,
                is_after_pending: n_pending > 0,
            }
        });
        Ok(drafts.filter(|draft| !draft.tokens.is_empty()).collect())
    }

    /// Cuts drafts to what is worth checking.
    fn shorten(&mut self, scheduler: &mut Scheduler, n_decoding: usize, drafts: &mut Vec<Drafted>) {
        let mut outlooks = Vec::new();
        let mut tries = false;
        drafts.retain_mut(|draft| {
            let sequence = scheduler.sequence_mut(draft.slot);
            let n_generated = sequence.n_generated();
            let acceptance = &mut sequence.draft.acceptance;
            let was_off = acceptance.is_off();
            let outlook = acceptance.outlook(draft.trust, draft.tokens.len());
            if draft.is_after_pending {
                let is_worth = was_off || acceptance.is_worth(&self.costs, n_decoding, outlook);
                tries |= was_off;
                if is_worth {
                    outlooks.push(outlook);
                }
                return is_worth;
            }
            let n = acceptance.choose(&mut self.costs, n_decoding, outlook, n_generated);
            sequence.draft.note(&sequence.progress);
            draft.tokens.truncate(n);
            tries |= n > 0 && was_off;
            if n > 0 {
                outlooks.push(outlook);
            }
            n > 0
        });
        let n = match best_length(&self.costs, n_decoding, &outlooks) {
            0 if tries => 1,
            n => n,
        };
        drafts.iter_mut().for_each(|draft| draft.tokens.truncate(n));
        drafts.retain(|draft| !draft.tokens.is_empty());
    }
}

/// How a step came to be submitted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attempt {
    /// What a drafter took before it.
    draft_time: Duration,
    /// Whether no drafts, and no wait for them, delayed it.
    is_plain: bool,
    /// Whether the drafter has read tokens before it, which says nothing of later steps.
    has_read: bool,
}

/// The draft of a sequence.
struct Drafted {
    slot: Slot,
    tokens: Vec<TokenId>,
    trust: Trust,
    /// Whether it comes after a token that a step in flight makes, so that it is only a hint.
    is_after_pending: bool,
}

/// The drafter of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrafterStatus {
    pub name: &'static str,
    /// Whether drafts are not made at present, because they did not pay.
    pub pauses: bool,
    /// Why it is not used any more.
    pub failure: Option<String>,
}

/// Measures the time between the results of steps, without waits for requests.
#[derive(Debug, Default)]
struct ResultClock(Option<Instant>);

impl ResultClock {
    /// Returns the time from the result before, or from when the step was submitted if the engine was idle before.
    /// `draft_time` of it was spent on drafts.
    fn tick(&mut self, submitted: Instant, now: Instant, draft_time: Duration) -> Duration {
        /// The longest time that an engine with requests takes between a result and the next step.
        const LONGEST_GAP: Duration = Duration::from_millis(5);
        match self.0.replace(now) {
            Some(before) if submitted <= before + draft_time + LONGEST_GAP => now - before,
            _ => now - submitted + draft_time,
        }
    }
}
