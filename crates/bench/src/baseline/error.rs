//! What can be wrong with a baseline: each message has the file, the fact and what to do.

use std::io;
use std::path::PathBuf;

use rocmforge_gguf::escape_control;
use thiserror::Error;

/// A baseline that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BaselineError {
    #[error("cannot read the baseline {}: {source}", shown(path))]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "cannot write the baseline {}: {source}; take another folder with --baseline-dir",
        shown(path)
    )]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "{} has more than {max_mib} MiB, which no baseline has; is it another file?",
        shown(path)
    )]
    TooLarge { path: PathBuf, max_mib: u64 },
    #[error("{} is no baseline that can be read: {source}", shown(path))]
    Schema { path: PathBuf, source: SchemaError },
    #[error(
        "no baseline is called '{}' in {}{}",
        escape_control(name),
        shown(dir),
        instead(near)
    )]
    Unknown {
        name: String,
        dir: PathBuf,
        /// Names that are there, the likeliest first.
        near: Vec<String>,
    },
    #[error(
        "'{}' is no name of a baseline; take 1 to {max} letters, digits, '.', '_' and '-', the first a letter or digit",
        escape_control(name)
    )]
    BadName { name: String, max: usize },
}

/// What is wrong with a baseline's text.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaError {
    #[error(
        "it is not JSON ({0}), so it was cut off or damaged; restore it, or delete it and save the baseline again"
    )]
    NotJson(String),
    #[error(
        "it has none of the known forms ({0}); a baseline is what --save-baseline writes, an object with `baselines`"
    )]
    UnknownForm(String),
    #[error("it has form {0} and this program knows form {1}; use a newer program")]
    Newer(u64, u64),
    #[error(
        "{} should be {expected}, and is {}; correct it, or save the baseline again",
        escape_control(at),
        escape_control(found)
    )]
    Wrong {
        /// Such as `baselines.matmul.metrics.p50_ms`.
        at: String,
        expected: &'static str,
        found: String,
    },
    #[error(
        "{} has {n} parts, more than the {max} that are read; is it another file?",
        escape_control(at)
    )]
    TooMany { at: String, n: usize, max: usize },
}

pub(super) fn shown(path: &std::path::Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}

fn instead(near: &[String]) -> String {
    if near.is_empty() {
        return "; there is none yet: save one with rocmforge bench --save-baseline NAME"
            .to_string();
    }
    format!("; there are: {}", near.join(", "))
}
