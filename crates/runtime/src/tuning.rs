//! Tuning as callers see it: which launches of a model were measured, what came of it, and who remembers.
//!
//! A GPU's kernels can be launched in several ways that give the same bits (`rocmforge_gpu::Tuning`). A backend measures
//! them on the model that it has, on demand or while it has nothing else to do; a store keeps what was found for the next
//! start.

pub use crate::tuning_files::{Known, TuningFiles};
use std::fmt::Debug;

pub use rocmforge_gpu::{BlockOrder, Choice, Decided, NoTuning, Shape, Tuning};

/// Remembers what was found, by what it was found with: device, driver and kernels.
pub trait TuningStore: Debug + Send + Sync {
    /// What is known for `key`, one line of text.
    fn load(&self, key: &str) -> Tuning;

    /// Adds to it, at once or not: requests wait meanwhile. Nothing is lost but time if it cannot be remembered.
    fn keep(&self, key: &str, found: &[(Shape, Choice)]) -> Kept;
}

/// What came of the wish to remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is remembered, or never will be.
    Settled,
    /// Another program is about to add something; later there is room for this.
    Busy,
}

/// How far the tuning of a model is, and what came of it since the last time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TuneProgress {
    /// What results are for.
    pub key: String,
    /// Launches of the model's steps that can be made in several ways.
    pub n_shapes: usize,
    /// Those that the backend knew of when it started.
    pub n_known: usize,
    /// Those that are still to be measured.
    pub n_left: usize,
    pub decided: Vec<Decided>,
    pub untuned: Vec<Untuned>,
}

impl TuneProgress {
    /// What was decided.
    pub fn found(&self) -> Vec<(Shape, Choice)> {
        let choices = self.decided.iter().map(|one| (one.shape, one.choice()));
        choices.collect()
    }
}

/// A launch that could not be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Untuned {
    pub shape: Shape,
    pub reason: String,
}
