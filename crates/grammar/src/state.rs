//! The state of a grammar in one sequence.

use std::sync::Arc;

use llguidance::Matcher;
use rocmforge_gguf::TokenId;
use rocmforge_plan::{Constraint, ConstraintError, Progress};

use crate::error::told;
use crate::vocabulary::Vocabulary;

/// A grammar after the tokens of a sequence. A clone goes on by itself.
pub struct State {
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
}

impl State {
    pub(crate) fn new(matcher: Matcher, vocabulary: Arc<Vocabulary>) -> State {
        State {
            matcher,
            vocabulary,
        }
    }

    /// Returns whether the text so far is complete; more may follow.
    ///
    /// # Errors
    /// An earlier token was not allowed, or reached a limit.
    pub fn is_accepting(&mut self) -> Result<bool, ConstraintError> {
        match self.matcher.is_error() {
            false if self.matcher.is_stopped() => Ok(true),
            _ => self.matcher.is_accepting().map_err(failed),
        }
    }
}

impl Clone for State {
    fn clone(&self) -> State {
        State::new(self.matcher.deep_clone(), Arc::clone(&self.vocabulary))
    }
}

impl Constraint for State {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        allowed.fill(0);
        let found = self.matcher.compute_mask_or_eos().map_err(failed)?;
        let words = found.as_slice().iter().zip(&self.vocabulary.text);
        for (allowed, (found, text)) in allowed.iter_mut().zip(words) {
            *allowed = found & text;
        }
        if self.is_accepting()? {
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
        self.matcher.consume_token(token).map_err(failed)?;
        match self.matcher.is_stopped() {
            true => Ok(Progress::Complete),
            false => Ok(Progress::Open),
        }
    }

    fn forced(&mut self) -> Vec<TokenId> {
        let text = self.matcher.compute_ff_bytes();
        match text.len() < 2 {
            true => Vec::new(),
            false => self.vocabulary.tokens_within(&text),
        }
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

fn failed(error: impl std::fmt::Display) -> ConstraintError {
    ConstraintError(told(&error))
}
