//! Errors of external tools. Every message says what to do.

use std::io;
use std::path::PathBuf;

/// Why a tool gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    #[error("{tool} is not in PATH; {install}")]
    NotFound { tool: String, install: &'static str },
    /// The name of a retired tool.
    #[error("{old} {fate}; use {new}: {example}")]
    Renamed {
        old: &'static str,
        fate: &'static str,
        new: &'static str,
        example: &'static str,
    },
    #[error("unknown tool '{name}'; known: {known}")]
    UnknownTool { name: String, known: String },
    /// A request that the tool does not support.
    #[error("{0}")]
    BadRequest(String),
    #[error(
        "{program} did not end within {seconds} s and was stopped with all its processes; {hint}"
    )]
    TimedOut {
        program: String,
        seconds: f64,
        hint: &'static str,
    },
    #[error("{program} was stopped")]
    Cancelled { program: String },
    #[error("{tool} has no permission to read the counters: \"{said}\"; {fix}")]
    NoPermission {
        tool: String,
        said: String,
        fix: String,
    },
    #[error("{tool} cannot collect these counters in one run: \"{said}\"; {fix}")]
    TooManyCounters {
        tool: String,
        said: String,
        fix: &'static str,
    },
    #[error("{program} failed ({status}): {said}")]
    Failed {
        program: String,
        status: String,
        said: String,
    },
    #[error("no results in {}: {expected}", dir.display())]
    NoResults { dir: PathBuf, expected: String },
    #[error("{} has results of an earlier run; use an empty folder", dir.display())]
    NotEmpty { dir: PathBuf },
    #[error("{what} is not what {tool} writes: {reason}")]
    Malformed {
        tool: &'static str,
        what: String,
        reason: String,
    },
    #[error("{what} is larger than {limit_mib} MiB; {hint}")]
    TooLarge {
        what: String,
        limit_mib: u64,
        hint: &'static str,
    },
    /// A utilization source that is missing or gives no reading.
    #[error("{source_name} cannot measure device utilization: {reason}")]
    Unavailable { source_name: String, reason: String },
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot start {program}")]
    Start { program: String, source: io::Error },
}

impl ExternalError {
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        ExternalError::Io {
            action,
            path: path.into(),
            source,
        }
    }

    pub(super) fn malformed(
        tool: &'static str,
        what: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        ExternalError::Malformed {
            tool,
            what: what.into(),
            reason: reason.into(),
        }
    }
}
