//! The tokens that are expected after the known ones of a sequence.
//!
//! A step computes them beside the last known token, and samples a token after each of them. As long as the sampled token
//! is the expected one, the next sample is right, too: it saw the same tokens as without a draft. The first one that differs
//! is still right; what comes after it is dropped.

use std::sync::Arc;

use rocmforge_gguf::TokenId;
use serde::Serialize;

use crate::masks::AfterDraft;
use crate::progress::Tracker;
use crate::speculate::{Acceptance, Trust};

/// Tokens that were drafted, and those that were sampled as drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DraftCounts {
    pub n_drafted: u64,
    pub n_accepted: u64,
}

impl std::ops::AddAssign for DraftCounts {
    fn add_assign(&mut self, more: DraftCounts) {
        self.n_drafted += more.n_drafted;
        self.n_accepted += more.n_accepted;
    }
}

impl std::ops::Sub for DraftCounts {
    type Output = DraftCounts;

    fn sub(self, before: DraftCounts) -> DraftCounts {
        DraftCounts {
            n_drafted: self.n_drafted - before.n_drafted,
            n_accepted: self.n_accepted - before.n_accepted,
        }
    }
}

/// The draft of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Expected after the last known token. With a step in flight, those that it computes.
    tokens: Vec<TokenId>,
    /// What may come after each of them, if the sequence is constrained.
    after: Vec<Arc<AfterDraft>>,
    trust: Trust,
    /// The step in flight that computes them.
    step: Option<u64>,
    /// How many of them that step has sampled so far.
    n_right: usize,
    pub(crate) counts: DraftCounts,
    pub(crate) acceptance: Acceptance,
}

/// A draft whose step is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verified {
    pub(crate) trust: Trust,
    pub(crate) n_drafted: usize,
    pub(crate) n_right: usize,
}

impl Draft {
    /// Sets what the next step computes. `after` is what may come after each token, or nothing.
    ///
    /// # Panics
    /// If a step in flight computes a draft.
    pub(crate) fn set(&mut self, tokens: Vec<TokenId>, after: Vec<Arc<AfterDraft>>, trust: Trust) {
        assert!(self.step.is_none(), "its tokens are not known yet");
        (self.tokens, self.after, self.trust) = (tokens, after, trust);
    }

    /// Returns the tokens to compute; none with a step in flight.
    pub(crate) fn to_compute(&self) -> &[TokenId] {
        match self.step {
            None => &self.tokens,
            Some(_) => &[],
        }
    }

    /// Returns what may come after the first `n` tokens, if the sequence is constrained. `n` is at least 1.
    pub(crate) fn after(&self, n: usize) -> Option<&AfterDraft> {
        self.after.get(n - 1).map(Arc::as_ref)
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.step.is_some()
    }

    /// Takes the number of the step that computes the first `n` tokens.
    pub(crate) fn submit(&mut self, step: u64, n: usize) {
        self.tokens.truncate(n);
        self.n_right = 0;
        if n > 0 {
            self.step = Some(step);
            self.counts.n_drafted += n as u64;
        }
    }

    /// Whether the sample of `step` after `n` drafted tokens is one of the sequence: all of them were right.
    pub(crate) fn reaches(&self, step: u64, n: usize) -> bool {
        self.step == Some(step) && self.n_right == n
    }

    /// Compares a token that `step` sampled with the drafted one. Returns whether it is the same, so that the step has the
    /// token after it, too.
    pub(crate) fn confirm(&mut self, step: u64, sampled: TokenId) -> bool {
        let is_right = self.step == Some(step)
            && self
                .tokens
                .get(self.n_right)
                .is_some_and(|&it| it == sampled);
        if is_right {
            self.n_right += 1;
            self.counts.n_accepted += 1;
        }
        is_right
    }

    /// Takes the last right token back as one to compute: what comes after it could not be sampled.
    pub(crate) fn step_back(&mut self) {
        self.n_right = self.n_right.saturating_sub(1);
    }

    /// Ends the draft that a step has computed.
    pub(crate) fn settle(&mut self) -> Option<Verified> {
        self.step.take()?;
        Some(Verified {
            trust: self.trust,
            n_drafted: std::mem::take(&mut self.tokens).len(),
            n_right: self.n_right,
        })
    }

    /// Tells others about it.
    pub(crate) fn note(&self, progress: &Tracker) {
        progress.drafted(self.counts, self.acceptance.is_off());
    }

    /// Forgets the draft: what a step in flight samples after it is not used.
    pub(crate) fn drop_all(&mut self) {
        self.step = None;
        self.tokens.clear();
        self.after.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_count_up_to_the_first_that_was_not_drafted() {
        let mut draft = Draft::default();
        draft.set(vec![5, 6, 7, 8], Vec::new(), Trust::default());
        assert_eq!(draft.to_compute(), [5, 6, 7, 8]);
        draft.submit(3, 3);
        assert!(draft.is_in_flight() && draft.to_compute().is_empty());
        assert!(!draft.confirm(2, 5), "a sample of another step");
        assert!(draft.confirm(3, 5) && draft.reaches(3, 1) && !draft.reaches(3, 2));
        assert!(draft.confirm(3, 6) && draft.reaches(3, 2));
        assert!(!draft.confirm(3, 9) && !draft.reaches(3, 3));
        let verified = draft.settle().unwrap();
        assert_eq!((verified.n_drafted, verified.n_right), (3, 2));
        assert_eq!(draft.settle(), None);
        let counts = draft.counts;
        assert_eq!((counts.n_drafted, counts.n_accepted), (3, 2));
    }

    #[test]
    fn after_the_last_drafted_token_comes_one_more() {
        let mut draft = Draft::default();
        draft.set(vec![5], Vec::new(), Trust::default());
        draft.submit(0, 1);
        assert!(draft.confirm(0, 5) && draft.reaches(0, 1));
        assert!(!draft.confirm(0, 6), "no token was drafted there");
        assert_eq!(draft.settle().unwrap().n_right, 1);
    }

    #[test]
    fn nothing_of_a_dropped_draft_is_used() {
        let mut draft = Draft::default();
        draft.set(vec![5, 6], Vec::new(), Trust::default());
        draft.submit(4, 2);
        draft.drop_all();
        assert!(!draft.confirm(4, 5) && !draft.reaches(4, 0) && draft.settle().is_none());
        // An empty one is none.
        draft.set(Vec::new(), Vec::new(), Trust::default());
        draft.submit(5, 0);
        assert!(!draft.is_in_flight());
    }
}
