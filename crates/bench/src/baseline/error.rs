//! Errors of baselines. Each message names the file, the fact and what to do.

use std::io;
use std::path::PathBuf;

use rocmforge_gguf::{escape_control, shown as foreign};
use thiserror::Error;

/// Why a baseline cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BaselineError {
    #[error("cannot read the baseline {}: {source}", shown(path))]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "cannot write the baseline {}: {source}; choose another folder with --baseline-dir",
        shown(path)
    )]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "{} is larger than {max_mib} MiB, which no baseline is; is it another file?",
        shown(path)
    )]
    TooLarge { path: PathBuf, max_mib: u64 },
    #[error("{} is not a readable baseline: {source}", shown(path))]
    Schema { path: PathBuf, source: SchemaError },
    #[error(
        "there is no baseline '{}' in {}{}",
        foreign(name),
        shown(dir),
        instead(near)
    )]
    Unknown {
        name: String,
        dir: PathBuf,
        /// Existing names, most similar first.
        near: Vec<String>,
    },
    #[error(
        "'{}' is not a baseline name; use 1 to {max} letters, digits, '.', '_' and '-', the first a letter or digit",
        foreign(name)
    )]
    BadName { name: String, max: usize },
}

/// What is wrong with the text of a baseline.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaError {
    #[error(
        "it is not valid JSON ({0}), so it is truncated or damaged; restore it, or delete it and save the baseline again"
    )]
    NotJson(String),
    #[error("it has no known schema ({0}); --save-baseline writes an object with `baselines`")]
    UnknownForm(String),
    #[error("it has schema version {0}, and this program knows version {1}; use a newer program")]
    Newer(u64, u64),
    #[error(
        "{} should be {expected}, but is {}; correct it, or save the baseline again",
        foreign(at),
        foreign(found)
    )]
    Wrong {
        /// Path such as `baselines.matmul.metrics.p50_ms`.
        at: String,
        expected: &'static str,
        found: String,
    },
    #[error(
        "{} has {n} entries, above the limit of {max}; is it another file?",
        foreign(at)
    )]
    TooMany { at: String, n: usize, max: usize },
}

pub(super) fn shown(path: &std::path::Path) -> String {
    escape_control(&path.to_string_lossy()).into_owned()
}

fn instead(near: &[String]) -> String {
    if near.is_empty() {
        return "; there are no baselines yet: save one with rocmforge bench --save-baseline NAME"
            .to_string();
    }
    format!("; existing baselines: {}", near.join(", "))
}
