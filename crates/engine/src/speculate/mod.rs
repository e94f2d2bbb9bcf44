//! Speculation: a drafter guesses the next tokens of a sequence, and one step of the model checks all of them. The text is
//! the same as without; it comes faster if enough guesses are right for what the longer steps cost.
//!
//! Speculative decoding by Leviathan et al. 2023, for samples that are a function of seed and position: a draft is right if
//! it is what would have been sampled. How many tokens are drafted is learned (`length`).

mod length;
mod ngram;

use std::time::{Duration, Instant};

use rocmforge_gguf::TokenId;

use crate::masks::Masks;
use crate::request::RequestId;
use crate::scheduler::{Load, Scheduler};
use crate::sequences::Slot;
pub(crate) use length::Acceptance;
use length::{Costs, Offer};
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

    /// Drafts for each sequence. Tokens that are out of the vocabulary are not allowed.
    fn draft(&mut self, wanted: &mut [Wanted<'_>]);

    /// Forgets a sequence that has ended.
    fn end(&mut self, request: RequestId);
}

/// Decides which sequences draft, and how much.
pub(crate) struct Speculator {
    drafter: Box<dyn Drafter>,
    length: DraftLength,
    costs: Costs,
    /// The sequences that drafted and have not ended.
    drafting: Vec<RequestId>,
}

impl Speculator {
    pub(crate) fn new(drafter: Box<dyn Drafter>, length: DraftLength) -> Speculator {
        Speculator {
            drafter,
            length,
            costs: Costs::default(),
            drafting: Vec::new(),
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.drafter.name()
    }

    /// Learns from a step: its load, and the time from the result before to its own.
    pub(crate) fn record_step(&mut self, load: Load, time: Duration) {
        if load.n_prefill == 0 {
            self.costs.record(load.n_rows(), time.as_secs_f64());
        }
    }

    /// Drafts for the next step.
    pub(crate) fn prepare(&mut self, scheduler: &mut Scheduler, masks: &mut Masks) {
        let drafter = &mut self.drafter;
        self.drafting.retain(|&request| {
            let lives = scheduler.find(request).is_some();
            if !lives {
                drafter.end(request);
            }
            lives
        });
        let n_decoding = scheduler.n_decoding();
        let (n_most, is_learned) = match self.length {
            DraftLength::UpTo(n) => (n.min(MAX_DRAFT), true),
            DraftLength::Always(n) => (n.min(MAX_DRAFT), false),
        };
        let candidates: Vec<(Slot, Offer)> = { scheduler.may_draft() }
            .filter_map(|(slot, sequence, n_left)| {
                let offer = Offer {
                    n_decoding,
                    n_most: n_left.min(n_most),
                    n_generated: sequence.n_generated(),
                };
                let is_worth =
                    !is_learned || sequence.draft.acceptance.most(&self.costs, offer) > 0;
                is_worth.then_some((slot, offer))
            })
            .collect();
        let mut wanted: Vec<Wanted<'_>> = { candidates.iter() }
            .map(|&(slot, offer)| {
                let sequence = scheduler.sequence(slot);
                // A pending token is drafted first.
                let n_pending = sequence.len() - sequence.tokens.len();
                Wanted::new(sequence.id, &sequence.tokens, offer.n_most + n_pending)
            })
            .collect();
        self.drafter.draft(&mut wanted);
        let drafts: Vec<(Vec<TokenId>, Trust)> = { wanted.into_iter() }
            .map(|wanted| (wanted.draft, wanted.trust))
            .collect();
        for ((slot, offer), (mut tokens, trust)) in candidates.into_iter().zip(drafts) {
            let sequence = scheduler.sequence_mut(slot);
            if !self.drafting.contains(&sequence.id) {
                self.drafting.push(sequence.id);
            }
            let n_pending = sequence.len() - sequence.tokens.len();
            if tokens.len() <= n_pending {
                continue;
            }
            let n = match is_learned {
                true => {
                    let acceptance = &mut sequence.draft.acceptance;
                    acceptance.choose(&mut self.costs, offer, trust)
                }
                false => offer.n_most,
            };
            if n_pending > 0 {
                sequence.draft.is_awaited = n > 0;
                continue;
            }
            tokens.truncate(n);
            let after = match &sequence.constrained {
                Some(constrained) if n > 0 => masks.begin_draft(constrained, &tokens),
                _ => Vec::new(),
            };
            sequence.draft.set(tokens, after, trust);
        }
    }
}

/// Measures the time between the results of steps, without waits for requests.
#[derive(Debug, Default)]
pub(crate) struct ResultClock(Option<Instant>);

impl ResultClock {
    /// Returns the time from the result before, or from when the step was submitted if the engine was idle before.
    pub(crate) fn tick(&mut self, submitted: Instant, now: Instant) -> Duration {
        /// The longest time that an engine with requests takes between a result and the next step.
        const LONGEST_GAP: Duration = Duration::from_millis(5);
        let before = self.0.replace(now);
        let begun = before.filter(|&before| submitted <= before + LONGEST_GAP);
        now - begun.unwrap_or(submitted)
    }
}
