//! Free text before the text that follows a grammar: the reasoning of models that think first. The prompt has opened it, or
//! the model may, with a mark; then both that mark and the grammar's text may come first.
//!
//! The marks that end it may be one token or several. A token that goes on after such a mark is not allowed: the grammar
//! begins with a token of its own. What follows from the bytes so far is the state of an automaton over all marks, as in
//! the algorithm of Aho and Corasick, so a mask depends on nothing else and is computed once for each state.

use std::sync::{Arc, OnceLock};

use rocmforge_gguf::TokenId;
use rocmforge_plan::{Constraint, ConstraintError, Progress};
use rocmforge_text::tokenizer::Tokenizer;

use crate::state::TOO_SLOW;

/// What may stand before a constrained text. Requests share it.
pub struct Preamble {
    tokenizer: Arc<Tokenizer>,
    /// For each state and byte, what follows. The first state is that of the beginning.
    steps: Vec<[Step; 256]>,
    /// The tokens allowed in each state.
    masks: Vec<OnceLock<Vec<u32>>>,
    /// The mark that begins the text, and the tokens that go on in it after each of its bytes; none if the text has begun.
    open: Vec<u8>,
    openings: Vec<OnceLock<Vec<u32>>>,
}

/// The marks of a preamble. None of them is empty.
#[derive(Debug, Clone, Copy)]
pub struct Marks<'a> {
    /// What begins it, if it is not open already; without this text, there is none.
    pub open: Option<&'a str>,
    /// What ends it.
    pub ends: &'a [&'a str],
    /// What must not come in it.
    pub never: &'a [&'a str],
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
    /// Describes text that ends with the first of the marks that end it.
    pub fn new(tokenizer: &Arc<Tokenizer>, marks: Marks<'_>) -> Arc<Preamble> {
        let Marks { open, ends, never } = marks;
        assert_ne!(open, Some(""), "a mark is empty");
        let open = open.unwrap_or_default().as_bytes().to_vec();
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
            openings: open.iter().map(|_| OnceLock::new()).collect(),
            open,
        })
    }

    /// Returns the constraint of a sequence that begins with this text and goes on as `then` says.
    pub fn before(self: &Arc<Preamble>, then: Box<dyn Constraint>) -> Box<dyn Constraint> {
        Box::new(Preceded {
            preamble: Arc::clone(self),
            at: match self.open.is_empty() {
                true => At::Free(0),
                false => At::Open {
                    n_bytes: 0,
                    without: Some(then.clone()),
                },
            },
            then,
        })
    }

    /// Returns how many bytes of the first mark there are with this token, or `None` if it does not go on in it.
    fn opened(&self, n_bytes: usize, token: TokenId) -> Option<usize> {
        if token as usize >= self.tokenizer.n_vocab() || self.tokenizer.is_eog(token) {
            return None;
        }
        let bytes = self.tokenizer.token_bytes(token);
        let goes_on = !bytes.is_empty() && self.open[n_bytes..].starts_with(bytes);
        goes_on.then_some(n_bytes + bytes.len())
    }

    /// Returns the tokens that go on in the first mark.
    fn opening(&self, n_bytes: usize) -> &[u32] {
        self.openings[n_bytes].get_or_init(|| self.words(|id| self.opened(n_bytes, id).is_some()))
    }

    /// Returns a bit for each token.
    fn words(&self, may_come: impl Fn(TokenId) -> bool) -> Vec<u32> {
        let n_vocab = self.tokenizer.n_vocab();
        let mut words = vec![0; n_vocab.div_ceil(32)];
        for id in 0..n_vocab as TokenId {
            words[id as usize / 32] |= u32::from(may_come(id)) << (id % 32);
        }
        words
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
        self.masks[state].get_or_init(|| self.words(|id| self.step(state, id).is_some()))
    }
}

/// A constraint that begins after a preamble.
struct Preceded {
    preamble: Arc<Preamble>,
    at: At,
    then: Box<dyn Constraint>,
}

/// Where a sequence is.
enum At {
    /// Within the mark that begins the preamble, or in a text without one, if that is possible still.
    Open {
        n_bytes: usize,
        without: Option<Box<dyn Constraint>>,
    },
    /// Within the preamble, in this state.
    Free(usize),
    After,
}

impl Constraint for Preceded {
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError> {
        let free = match &mut self.at {
            At::After => return self.then.mask(allowed),
            At::Free(state) => {
                allowed.fill(0);
                self.preamble.mask(*state)
            }
            At::Open { n_bytes, without } => {
                // A text without a preamble may have no way to go on, while the mark has.
                let has_text = match without.as_mut().map(|text| text.mask(allowed)) {
                    Some(Err(error)) if error.0 == TOO_SLOW => return Err(error),
                    text => text.is_some_and(|mask| mask.is_ok()),
                };
                if !has_text {
                    allowed.fill(0);
                }
                self.preamble.opening(*n_bytes)
            }
        };
        for (allowed, free) in allowed.iter_mut().zip(free) {
            *allowed |= *free;
        }
        Ok(())
    }

    fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError> {
        match &mut self.at {
            At::After => return self.then.accept(token),
            At::Free(state) => {
                self.at = match self.preamble.step(*state, token) {
                    Some(Step::To(next)) => At::Free(next),
                    Some(Step::End) => At::After,
                    Some(Step::Never) | None => {
                        let what =
                            format!("token {token} may not come before the constrained text");
                        return Err(ConstraintError(what));
                    }
                };
            }
            At::Open { n_bytes, without } => {
                let mut text = without.take();
                let progress = text.as_mut().map(|text| text.accept(token));
                let opened = self.preamble.opened(*n_bytes, token);
                self.at = match (opened, progress) {
                    (Some(n), _) if n == self.preamble.open.len() => At::Free(0),
                    (Some(n), progress) => At::Open {
                        n_bytes: n,
                        without: text.filter(|_| matches!(progress, Some(Ok(_)))),
                    },
                    (None, Some(Ok(progress))) => {
                        if let Some(text) = text {
                            self.then = text;
                        }
                        self.at = At::After;
                        return Ok(progress);
                    }
                    (None, Some(Err(error))) => return Err(error),
                    (None, None) => {
                        let what = format!("token {token} is not in the mark of the reasoning");
                        return Err(ConstraintError(what));
                    }
                };
            }
        }
        Ok(Progress::Open)
    }

    fn forced(&mut self) -> Vec<TokenId> {
        match self.at {
            At::After => self.then.forced(),
            At::Open { .. } | At::Free(_) => Vec::new(),
        }
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(Preceded {
            preamble: Arc::clone(&self.preamble),
            at: match &self.at {
                At::Open { n_bytes, without } => At::Open {
                    n_bytes: *n_bytes,
                    without: without.clone(),
                },
                At::Free(state) => At::Free(*state),
                At::After => At::After,
            },
            then: self.then.clone(),
        })
    }
}
