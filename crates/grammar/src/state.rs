//! The state of a grammar in one sequence.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llguidance::Matcher;
use rocmforge_gguf::TokenId;
use rocmforge_plan::{Constraint, ConstraintError, Progress};

use crate::error::told;
use crate::limits::{EXTRA_TIME, STEP_TIME, USUAL_STEP_TIME};
use crate::vocabulary::Vocabulary;
use crate::watch;

/// The error of a step that takes too long, and of those after it.
pub(crate) const TOO_SLOW: &str =
    "finding the tokens that fit takes too long; use a simpler grammar";

/// A grammar after the tokens of a sequence. A clone goes on by itself.
pub struct State {
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    /// Tokens that come next whatever is chosen, as far as the last mask has shown.
    forced: VecDeque<TokenId>,
    /// Whether forced tokens are looked for: no limit was reached with that.
    looks_ahead: bool,
    /// How much longer than usual the steps took, all together.
    extra: Duration,
}

impl State {
    pub(crate) fn new(matcher: Matcher, vocabulary: Arc<Vocabulary>) -> State {
        State {
            matcher,
            vocabulary,
            forced: VecDeque::new(),
            looks_ahead: true,
            extra: Duration::ZERO,
        }
    }

    /// Takes a step of the matcher, if there is time for it.
    fn step<T, E: std::fmt::Display>(
        &mut self,
        work: impl FnOnce(&mut Matcher) -> Result<T, E>,
    ) -> Result<T, ConstraintError> {
        let started = Instant::now();
        let done = watch::within(STEP_TIME, &mut self.matcher, work);
        // Quick steps make up for slow ones.
        self.extra = (self.extra + started.elapsed()).saturating_sub(USUAL_STEP_TIME);
        if self.matcher.is_cancelled() || self.extra > EXTRA_TIME {
            return Err(ConstraintError(TOO_SLOW.into()));
        }
        done.map_err(failed)
    }

    /// Finds the tokens that come next whatever is chosen of `allowed`, if it is worth a look. It is looked at in a copy, so
    /// that a limit which is reached there changes nothing.
    fn find_forced(&mut self, allowed: &[u32]) -> Vec<TokenId> {
        let ids = allowed.iter().enumerate().flat_map(|(at, &word)| {
            let bits = (0..32).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| 32 * at as TokenId + bit)
        });
        let mut firsts = ids.map(|id| self.vocabulary.tokenizer.token_bytes(id).first());
        let first = firsts.next().flatten();
        // One that leads elsewhere comes early in most masks.
        if !self.looks_ahead || first.is_none() || firsts.any(|other| other != first) {
            return Vec::new();
        }
        let mut copy = self.matcher.deep_clone();
        let text = watch::within(USUAL_STEP_TIME, &mut copy, Matcher::compute_ff_bytes);
        self.looks_ahead = !copy.is_error();
        match text.len() < 2 || !self.looks_ahead {
            true => Vec::new(),
            false => self.vocabulary.tokens_within(&text),
        }
    }

    /// Returns whether the text so far is complete; more may follow.
    ///
    /// # Errors
    /// An earlier token was not allowed, or reached a limit.
    pub fn is_accepting(&mut self) -> Result<bool, ConstraintError> {
        match self.matcher.is_error() {
            false if self.matcher.is_stopped() => Ok(true),
            _ => self.step(Matcher::is_accepting),
        }
    }
}

impl Clone for State {
    fn clone(&self) -> State {
        State {
            matcher: self.matcher.deep_clone(),
            vocabulary: Arc::clone(&self.vocabulary),
            forced: self.forced.clone(),
            looks_ahead: self.looks_ahead,
            extra: self.extra,
        }
    }
}

impl Constraint for State {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        allowed.fill(0);
        let found = self.step(Matcher::compute_mask_or_eos)?;
        let words = found.as_slice().iter().zip(&self.vocabulary.text);
        for (allowed, (found, text)) in allowed.iter_mut().zip(words) {
            *allowed = found & text;
        }
        let is_accepting = self.is_accepting()?;
        self.forced = match is_accepting {
            true => VecDeque::new(),
            false => self.find_forced(allowed).into(),
        };
        if is_accepting {
            for &end in &self.vocabulary.ends {
                if let Some(word) = allowed.get_mut(end as usize / 32) {
                    *word |= 1 << (end % 32);
                }
            }
        }
        match allowed.iter().all(|&word| word == 0) {
            true => Err(ConstraintError("no token of the vocabulary fits".into())),
            false => Ok(()),
        }
    }

    fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
        self.step(|matcher| matcher.consume_token(token))?;
        if self.forced.pop_front() != Some(token) {
            self.forced.clear();
        }
        match self.matcher.is_stopped() {
            true => Ok(Progress::Complete),
            false => Ok(Progress::Open),
        }
    }

    fn forced(&mut self) -> Vec<TokenId> {
        self.forced.iter().copied().collect()
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

fn failed(error: impl std::fmt::Display) -> ConstraintError {
    ConstraintError(told(&error))
}
