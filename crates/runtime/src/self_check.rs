//! Settings and results of the GPU self-check, which compares a GPU with the CPU.

use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;

/// When to compare a GPU with the scalar path before serving.
#[derive(Debug, Clone, Default)]
pub enum SelfCheck {
    #[default]
    Never,
    Always,
    /// Unless the check passed before with the same device, driver, kernels, formats and shapes.
    FirstUse(Arc<dyn PassedChecks>),
}

/// Stores which checks passed.
pub trait PassedChecks: Debug + Send + Sync {
    /// Returns whether `key`, one line of text, was inserted.
    fn contains(&self, key: &str) -> bool;

    /// Inserts `key`. Implementations may ignore failures: the check then runs again at the next start.
    fn insert(&self, key: &str);
}

/// A step of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Prefill of two prompts.
    Prompt,
    /// Decode of one token in each of the two sequences.
    Decode,
    /// Decode of two tokens in one of them, as of a draft, and one in the other.
    Few,
    /// Decode of one token in one of them.
    Single,
}

/// The result for one compared operation.
#[derive(Debug, Clone, Serialize)]
pub struct OpCheck {
    pub step: Step,
    /// Index of the operation in the plan.
    pub index: usize,
    pub op: &'static str,
    /// Name of its weight matrix, if it has one.
    pub tensor: Option<String>,
    pub shape: String,
    pub format: String,
    /// Tokens in the step.
    pub n_tokens: usize,
    /// Largest difference. Infinite (null in JSON) if values differ that are NaN or infinite.
    pub max_abs: f64,
    /// Largest difference relative to the magnitude of its row.
    pub max_rel: f64,
    /// Maximum allowed `max_rel`.
    pub bound: f64,
    pub passed: bool,
}
