//! Speculation: a drafter guesses the next tokens of a sequence, and one step of the model checks all of them. The text is
//! the same as without; it comes faster if enough guesses are right for what the longer steps cost.
//!
//! Speculative decoding by Leviathan et al. 2023, for samples that are a function of seed and position: a draft is right if
//! it is what would have been sampled. How many tokens are drafted is learned (`length`).

mod length;
mod model;
mod ngram;

use std::time::{Duration, Instant};

use rocmforge_gguf::TokenId;
use rocmforge_runtime::RuntimeError;

use crate::masks::Masks;
use crate::request::RequestId;
use crate::scheduler::{Load, Scheduler};
use crate::sequence::Sequence;
use crate::sequences::Slot;
pub(crate) use length::Acceptance;
use length::{Costs, Offer};
pub use model::ModelDrafter;
pub use ngram::NgramDrafter;

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
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(request: RequestId, tokens: &'a [TokenId], n_most: usize) -> Wanted<'a> {
        Wanted {
            request,
            tokens,
            n_most,
            draft: Vec::new(),
            trust: Trust::default(),
        }
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

    /// Drafts for each sequence. Tokens that are out of the vocabulary are not allowed.
    ///
    /// # Errors
    /// The drafter cannot go on. It is not used again.
    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError>;

    /// Forgets a sequence that has ended.
    fn end(&mut self, request: RequestId);
}

/// Decides which sequences draft, and how much.
pub(crate) struct Speculator {
    drafter: Box<dyn Drafter>,
    length: DraftLength,
    costs: Costs,
    clock: ResultClock,
    /// What the drafter took before the last step.
    draft_time: Duration,
    /// The sequences that drafted and have not ended.
    drafting: Vec<RequestId>,
    /// Why the drafter is not used any more.
    failure: Option<String>,
}

impl Speculator {
    pub(crate) fn new(drafter: Box<dyn Drafter>, length: DraftLength) -> Speculator {
        Speculator {
            drafter,
            length,
            costs: Costs::default(),
            clock: ResultClock::default(),
            draft_time: Duration::ZERO,
            drafting: Vec::new(),
            failure: None,
        }
    }

    pub(crate) fn status(&self) -> DrafterStatus {
        DrafterStatus {
            name: self.drafter.name(),
            failure: self.failure.clone(),
        }
    }

    /// Learns from a step: its load, when it was submitted, and when its result came.
    pub(crate) fn record_step(&mut self, load: Load, submitted: Instant, now: Instant) {
        let time = self.clock.tick(submitted, now, self.draft_time);
        if load.n_prefill == 0 {
            self.costs.record(load.n_rows(), time.as_secs_f64());
        }
    }

    /// Drafts for the next step.
    pub(crate) fn prepare(&mut self, scheduler: &mut Scheduler, masks: &mut Masks) {
        self.draft_time = Duration::ZERO;
        let drafter = &mut self.drafter;
        self.drafting.retain(|&request| {
            let lives = scheduler.find(request).is_some();
            if !lives {
                drafter.end(request);
            }
            lives
        });
        let offers = self.offers(scheduler);
        let needs_all = self.drafter.needs_all();
        let (waiting, ready): (Vec<_>, Vec<_>) = { offers.into_iter() }
            .partition(|&(slot, _)| needs_all && scheduler.sequence(slot).pending.is_some());
        for (slot, _) in waiting {
            scheduler.sequence_mut(slot).draft.is_awaited = true;
        }
        if ready.is_empty() {
            return;
        }
        match self.draft(scheduler, &ready) {
            Ok(drafts) => {
                for ((slot, offer), draft) in ready.into_iter().zip(drafts) {
                    self.take(scheduler.sequence_mut(slot), offer, draft, masks);
                }
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    /// Returns the sequences that may draft and for which it is worth it.
    fn offers(&self, scheduler: &mut Scheduler) -> Vec<(Slot, Offer)> {
        let n_decoding = scheduler.n_decoding();
        let candidates = scheduler.may_draft().filter(|_| self.failure.is_none());
        let offers = candidates.filter_map(|(slot, sequence, n_left)| {
            let n_generated = sequence.n_generated();
            let offer = |n: usize| Offer {
                n_decoding,
                n_most: n.min(MAX_DRAFT).min(n_left),
                n_generated,
            };
            let offer = match self.length {
                DraftLength::Always(n) => offer(n),
                DraftLength::UpTo(n) => {
                    let most = sequence.draft.acceptance.most(&self.costs, offer(n));
                    offer(most)
                }
            };
            (offer.n_most > 0).then_some((slot, offer))
        });
        offers.collect()
    }

    /// Returns the drafts of sequences.
    fn draft(
        &mut self,
        scheduler: &Scheduler,
        ready: &[(Slot, Offer)],
    ) -> Result<Vec<(Vec<TokenId>, Trust)>, RuntimeError> {
        let mut wanted = Vec::new();
        let mut are_known = true;
        for &(slot, offer) in ready {
            let sequence = scheduler.sequence(slot);
            if !self.drafting.contains(&sequence.id) {
                self.drafting.push(sequence.id);
                are_known = false;
            }
            // A pending token is drafted first.
            let n_pending = sequence.len() - sequence.tokens.len();
            let n_most = offer.n_most + n_pending;
            wanted.push(Wanted::new(sequence.id, &sequence.tokens, n_most));
        }
        let began = Instant::now();
        self.drafter.draft(&mut wanted)?;
        self.draft_time = began.elapsed();
        // The drafter may read the prompt of a new sequence, once.
        let longest = wanted.iter().map(|one| one.draft.len()).max();
        if are_known && let Some(n @ 1..) = longest {
            self.costs.record_draft(n, self.draft_time.as_secs_f64());
        }
        Ok(wanted
            .into_iter()
            .map(|one| (one.draft, one.trust))
            .collect())
    }

    /// Gives a sequence its draft, or lets it wait for its pending token.
    fn take(
        &mut self,
        sequence: &mut Sequence,
        offer: Offer,
        (mut tokens, trust): (Vec<TokenId>, Trust),
        masks: &mut Masks,
    ) {
        let n_pending = sequence.len() - sequence.tokens.len();
        if tokens.len() <= n_pending {
            return;
        }
        let n = match self.length {
            DraftLength::Always(_) => offer.n_most,
            DraftLength::UpTo(_) => {
                let acceptance = &mut sequence.draft.acceptance;
                acceptance.choose(&mut self.costs, offer, trust)
            }
        };
        if n_pending > 0 {
            sequence.draft.is_awaited = n > 0;
            return;
        }
        tokens.truncate(n);
        let after = match &sequence.constrained {
            Some(constrained) if n > 0 => masks.begin_draft(constrained, &tokens),
            _ => Vec::new(),
        };
        sequence.draft.set(tokens, after, trust);
    }
}

/// The drafter of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrafterStatus {
    pub name: &'static str,
    /// Why it is not used any more.
    pub failure: Option<String>,
}

/// Measures the time between the results of steps, without waits for requests.
#[derive(Debug, Default)]
struct ResultClock(Option<Instant>);

impl ResultClock {
    /// Returns the time from the result before, or from when the step was submitted if the engine was idle before; without
    /// `draft_time`, which came between them.
    fn tick(&mut self, submitted: Instant, now: Instant, draft_time: Duration) -> Duration {
        /// The longest time that an engine with requests takes between a result and the next step.
        const LONGEST_GAP: Duration = Duration::from_millis(5);
        match self.0.replace(now) {
            Some(before) if submitted <= before + draft_time + LONGEST_GAP => {
                (now - before).saturating_sub(draft_time)
            }
            _ => now - submitted,
        }
    }
}
