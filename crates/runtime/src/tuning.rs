//! Autotuning results and their storage.
//!
//! Many GPU kernels have several launch variants that give the same bits (`rocmforge_gpu::Tuning`). A backend measures
//! them on its model, on demand or while idle. A store keeps the results for the next start.

pub use crate::tuning_files::{Known, TuningFiles};
use std::fmt::Debug;

pub use rocmforge_gpu::{BlockOrder, Choice, Decided, NoTuning, Shape, Tuning};

/// Stores tuning results by device, driver and kernels.
pub trait TuningStore: Debug + Send + Sync {
    /// Returns the results stored for `key`, one line of text.
    fn load(&self, key: &str) -> Tuning;

    /// Adds results to those of `key`. Must not block, because requests wait for it. Results that cannot be stored may
    /// be dropped.
    fn keep(&self, key: &str, found: &[(Shape, Choice)]) -> Kept;
}

/// The outcome of [`TuningStore::keep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Stored, or dropped for good.
    Settled,
    /// Another program is writing; try again later.
    Busy,
}

/// The state of a model's tuning, and the results since the last call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TuneProgress {
    /// The key of the results in a [`TuningStore`].
    pub key: String,
    /// Launch shapes of the model that have several variants.
    pub n_shapes: usize,
    /// Shapes that were tuned before the backend started.
    pub n_known: usize,
    /// Shapes that are still to be measured.
    pub n_left: usize,
    /// Shapes measured since the last call.
    pub decided: Vec<Decided>,
    /// Shapes that could not be measured since the last call.
    pub untuned: Vec<Untuned>,
}

impl TuneProgress {
    /// Returns the chosen variant of each measured shape.
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
