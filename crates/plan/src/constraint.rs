//! What restricts the text of a request: which tokens may come next.
//!
//! A [`Constraint`] is the state of one sequence after its generated tokens. Its masks may be computed on another thread
//! while the model runs: a [`TokenMask`] is the place where the sampler waits for one.

use std::fmt;
use std::sync::OnceLock;

use rocmforge_gguf::TokenId;

/// Restricts the tokens of one sequence, such as by a grammar. Its work for one token is bounded in time and memory: one
/// that would need more fails.
pub trait Constraint: Send {
    /// Sets bit `id % 32` of word `id / 32` for each token that may come next, and clears all others. A token that ends
    /// the generation may come exactly if the text so far is complete.
    ///
    /// # Errors
    /// A limit is reached, or no token may come next.
    fn mask(&mut self, allowed: &mut [u32]) -> Result<(), ConstraintError>;

    /// Takes the next token of the sequence.
    ///
    /// # Errors
    /// The token may not come next, or a limit is reached.
    fn accept(&mut self, token: TokenId) -> Result<Progress, ConstraintError>;

    /// Returns tokens whose text comes next whatever is chosen; none if that is not known, as before the first mask. They are
    /// not taken. Others with the same text may be allowed, too. Takes no time: what there is to compute is part of `mask`.
    fn forced(&mut self) -> Vec<TokenId> {
        Vec::new()
    }

    /// Returns a copy that goes on from the same state.
    fn clone_box(&self) -> Box<dyn Constraint>;
}

/// Whether anything may follow the tokens so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Open,
    /// The text is complete, and only its end may follow.
    Complete,
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Box<dyn Constraint> {
        self.clone_box()
    }
}

impl fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}

/// Why a constraint cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConstraintError(pub String);

/// The tokens that one row may choose, or why they are not known. Whoever computes them sets them once; readers wait.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TokenMask(OnceLock<Result<Vec<u32>, ConstraintError>>);

impl TokenMask {
    /// Sets the mask, bit `id % 32` of word `id / 32` for each token; keeps the first one if it is set twice.
    pub fn set(&self, mask: Result<Vec<u32>, ConstraintError>) {
        // The error is the mask that came too late.
        drop(self.0.set(mask));
    }

    /// Whether [`TokenMask::wait`] returns at once.
    pub fn is_known(&self) -> bool {
        self.0.get().is_some()
    }

    /// Waits for the mask.
    ///
    /// # Errors
    /// It could not be computed.
    pub fn wait(&self) -> Result<&[u32], &ConstraintError> {
        self.0.wait().as_ref().map(Vec::as_slice)
    }
}
