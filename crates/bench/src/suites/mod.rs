//! The suites: lists of cases. Helpers used by several suites are in [`matmul`].

mod attention;
mod batch;
mod dequant;
mod inference;
mod matmul;
mod memory;

use crate::case::Case;
use crate::options::{Options, Suite};

/// Returns the cases of a suite. [`Suite::Inference`] has none without a model.
pub(crate) fn cases(options: &Options<'_>) -> Vec<Case> {
    let (effort, subject) = (options.effort, options.subject);
    match options.suite {
        Suite::Matmul => matmul::cases(effort),
        Suite::Attention => attention::cases(effort),
        Suite::Dequant => dequant::cases(effort),
        Suite::Inference => subject.map_or(Vec::new(), |s| inference::cases(effort, s)),
        Suite::Memory => memory::cases(effort),
        Suite::Batch => batch::cases(effort, subject),
    }
}
