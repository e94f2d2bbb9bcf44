//! What can go wrong with a tool that is not ours. Every message says what to do.

use std::io;
use std::path::PathBuf;

/// Why a tool gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    #[error("{tool} is not in PATH; {install}")]
    NotFound { tool: String, install: &'static str },
    /// A name from before.
    #[error("{old} {fate}; use {new}: {example}")]
    Renamed {
        old: &'static str,
        fate: &'static str,
        new: &'static str,
        example: &'static str,
    },
    #[error("there is no tool called '{name}'; there are {known}")]
    UnknownTool { name: String, known: String },
    /// Something that makes no sense for the tool.
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
    #[error("{tool} may not read the counters: \"{said}\"; {fix}")]
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
    #[error("{} has results of an earlier run; give an empty folder", dir.display())]
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
    /// A gauge that is not there or says nothing.
    #[error("{source_name} cannot say how busy the device is: {reason}")]
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
