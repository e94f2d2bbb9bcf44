//! When a GPU is checked against the CPU, and the result for one operation.

use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;

/// When a GPU is compared with the scalar path before it serves.
#[derive(Debug, Clone, Default)]
pub enum SelfCheck {
    #[default]
    Never,
    Always,
    /// Unless it passed with the same driver, kernels, formats and shapes.
    FirstUse(Arc<dyn PassedChecks>),
}

/// Remembers which checks passed.
pub trait PassedChecks: Debug + Send + Sync {
    /// Whether `key`, one line of text, was inserted.
    fn contains(&self, key: &str) -> bool;

    /// Nothing is lost but time if it cannot be remembered.
    fn insert(&self, key: &str);
}

/// A part of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Some tokens each of two prompts.
    Prompt,
    /// The next token of both.
    Decode,
}

/// One compared operation.
#[derive(Debug, Clone, Serialize)]
pub struct OpCheck {
    pub step: Step,
    /// Its place in the plan.
    pub index: usize,
    pub op: &'static str,
    /// The matrix, where the operation has one.
    pub tensor: Option<String>,
    pub shape: String,
    pub format: String,
    /// Tokens in the step.
    pub n_tokens: usize,
    /// Largest difference. Infinite, and null in JSON, if one side has a number where the other has none.
    pub max_abs: f64,
    /// Largest difference relative to the magnitude of its row.
    pub max_rel: f64,
    /// What `max_rel` may be.
    pub bound: f64,
    pub passed: bool,
}
