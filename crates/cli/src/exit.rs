//! How the program ends: errors that are not failures of the work, and the exit code of each.

use std::fmt;
use std::process::ExitCode;

use anyhow::Error;
use rocmforge_engine::{ConfigError, EngineError, RequestError};

use crate::output;

/// Ends that need another exit code than a failure. Found anywhere in an error's chain.
#[derive(Debug, PartialEq, Eq)]
pub enum Early {
    /// Whoever read our output has gone; there is nobody left to tell.
    PipeClosed,
    /// Ctrl-C, after what was asked of it has been done.
    Interrupted,
    /// Something got worse than in the baseline it was compared with.
    Regression(String),
    /// The baseline to compare with is of another machine.
    HardwareMismatch(String),
    /// The command line makes no sense, in a way that only the command could see.
    Usage(String),
}

impl fmt::Display for Early {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Early::PipeClosed => f.write_str("the output was closed"),
            Early::Interrupted => f.write_str("interrupted"),
            Early::Regression(message)
            | Early::HardwareMismatch(message)
            | Early::Usage(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Early {}

/// An error of wrong usage.
pub fn usage(message: impl Into<String>) -> Error {
    Early::Usage(message.into()).into()
}

/// Exit code of a Ctrl-C, as shells have it: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Exit codes of comparisons with baselines, for scripts that act on them.
pub const REGRESSION: u8 = 3;
pub const HARDWARE_MISMATCH: u8 = 4;

/// Reports `error` on one line of stderr and returns the exit code.
pub fn report(error: &Error) -> ExitCode {
    match error.downcast_ref::<Early>() {
        Some(Early::PipeClosed) => ExitCode::SUCCESS,
        Some(Early::Interrupted) => ExitCode::from(INTERRUPTED),
        Some(Early::Usage(message)) => fail(message, 2),
        Some(Early::Regression(message)) => fail(message, REGRESSION),
        Some(Early::HardwareMismatch(message)) => fail(message, HARDWARE_MISMATCH),
        None => {
            output::note(&format!("error: {}", one_line(error)));
            match error.downcast_ref::<EngineError>() {
                Some(
                    EngineError::Config(ConfigError::Parameter(_))
                    | EngineError::Request(RequestError::Parameter(_)),
                ) => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    output::note(&format!("error: {message}"));
    ExitCode::from(code)
}

/// The chain of causes on one line. A cause that its effect's message already ends with is not repeated.
fn one_line(error: &Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let text = text.trim();
        if line.ends_with(text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(text);
    }
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn a_chain_is_one_line() {
        let error = anyhow!("no such\nfile").context("cannot read 'x'");
        assert_eq!(one_line(&error), "cannot read 'x': no such file");
        let io = Err::<(), _>(std::io::Error::other("disk on fire"));
        let error = io.context("cannot write: disk on fire").context("saving");
        assert_eq!(
            one_line(&error.unwrap_err()),
            "saving: cannot write: disk on fire"
        );
    }

    #[test]
    fn an_early_end_is_found_below_context() {
        let error = Error::from(Early::Interrupted).context("while measuring");
        assert_eq!(error.downcast_ref::<Early>(), Some(&Early::Interrupted));
    }
}
