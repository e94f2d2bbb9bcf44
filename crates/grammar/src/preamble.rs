//! Free text before the text that follows a grammar: the reasoning of models that think first.
//!
//! The marks that end it may be one token or several. A token that goes on after such a mark is not allowed: the grammar
//! begins with a token of its own. What follows from the bytes so far is the state of an automaton over all marks, as in
//! the algorithm of Aho and Corasick, so a mask depends on nothing else and is computed once for each state.

use std::sync::{Arc, OnceLock};

use rocmforge_gguf::TokenId;
use rocmforge_plan::{Constraint, ConstraintError, Progress};
use rocmforge_text::tokenizer::Tokenizer;

/// What may stand before a constrained text. Requests share it.
pub struct Preamble {
    tokenizer: Arc<Tokenizer>,
    /// For each state and byte, what follows. The first state is that of the beginning.
    steps: Vec<[Step; 256]>,
    /// The tokens allowed in each state.
    masks: Vec<OnceLock<Vec<u32>>>,
}

/// What a byte leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The state with this index.
    To(usize),
    /// The end of the free text.
    End,
    /// A mark that must not come.
    Never,
}

impl Preamble {
    /// Describes text that ends with the first of the texts `ends`, and has none of the texts `never` in it. None of them
    /// is empty.
    pub fn new(tokenizer: &Arc<Tokenizer>, ends: &[&str], never: &[&str]) -> Arc<Preamble> {
        let marks = || ends.iter().chain(never).map(|mark| mark.as_bytes());
        assert!(marks().all(|mark| !mark.is_empty()), "a mark is empty");
        let mut states: Vec<&[u8]> = vec![&[]];
        states.extend(marks().flat_map(|mark| (1..mark.len()).map(|len| &mark[..len])));
        states.sort_unstable();
        states.dedup();
        let has = |marks: &[&str], text: &[u8]| {
            let mut marks = marks.iter();
            marks.any(|mark| text.ends_with(mark.as_bytes()))
        };
        let step = |state: &[u8], byte: u8| {
            let text = [state, &[byte]].concat();
            if has(ends, &text) {
                return Step::End;
            }
            if has(never, &text) {
                return Step::Never;
            }
            let known = (0..=text.len()).find_map(|at| states.binary_search(&&text[at..]).ok());
            Step::To(known.expect("the empty text is a state"))
        };
        let steps = states
            .iter()
            .map(|state| std::array::from_fn(|byte| step(state, byte as u8)));
        Arc::new(Preamble {
            tokenizer: Arc::clone(tokenizer),
            steps: steps.collect(),
            masks: states.iter().map(|_| OnceLock::new()).collect(),
        })
    }

    /// Returns the constraint of a sequence that begins with this text and goes on as `then` says.
    pub fn before(self: &Arc<Preamble>, then: Box<dyn Constraint>) -> Box<dyn Constraint> {
        Box::new(Preceded {
            preamble: Arc::clone(self),
            state: Some(0),
            then,
        })
    }

    /// Returns what a token leads to, or `None` if it may not come: it ends the generation, has a mark that must not come,
    /// or goes on after the end.
    fn step(&self, mut state: usize, token: TokenId) -> Option<Step> {
        if token as usize >= self.tokenizer.n_vocab() || self.tokenizer.is_eog(token) {
            return None;
        }
        let bytes = self.tokenizer.token_bytes(token);
        for (at, &byte) in bytes.iter().enumerate() {
            match self.steps[state][usize::from(byte)] {
                Step::To(next) => state = next,
                Step::End if at + 1 == bytes.len() => return Some(Step::End),
                Step::End | Step::Never => return None,
            }
        }
        Some(Step::To(state))
    }

    fn mask(&self, state: usize) -> &[u32] {
        self.masks[state].get_or_init(|| {
            let n_vocab = self.tokenizer.n_vocab();
            let mut words = vec![0; n_vocab.div_ceil(32)];
            for id in 0..n_vocab as TokenId {
                let may_come = self.step(state, id).is_some();
                words[id as usize / 32] |= u32::from(may_come) << (id % 32);
            }
            words
        })
    }
}

/// A constraint that begins after a preamble.
struct Preceded {
    preamble: Arc<Preamble>,
    /// The state of the preamble; `None` once it has ended.
    state: Option<usize>,
    then: Box<dyn Constraint>,
}

impl Constraint for Preceded {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        let Some(state) = self.state else {
            return self.then.mask(allowed);
        };
        allowed.fill(0);
        for (allowed, free) in allowed.iter_mut().zip(self.preamble.mask(state)) {
            *allowed = *free;
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
        let Some(state) = self.state else {
            return self.then.accept(token);
        };
        self.state = match self.preamble.step(state, token) {
            Some(Step::To(next)) => Some(next),
            Some(Step::End) => None,
            Some(Step::Never) | None => {
                let what = format!("token {token} may not come before the constrained text");
                return Err(ConstraintError(what));
            }
        };
        Ok(Progress::Open)
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(Preceded {
            preamble: Arc::clone(&self.preamble),
            state: self.state,
            then: self.then.clone(),
        })
    }
}
