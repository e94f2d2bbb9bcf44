//! How the program ends: errors that need an exit code of their own, and the exit code of every error.

use std::fmt;

use anyhow::Error;
use rocmforge_runtime::gpu::image_targets;

use crate::flags::{self, Cause};

/// An end with an exit code of its own. Found anywhere in an error's chain.
#[derive(Debug, PartialEq, Eq)]
pub enum Early {
    /// The reader of stdout has closed it; the program ends quietly.
    PipeClosed,
    /// Ctrl-C, after the results so far were printed.
    Interrupted,
    /// A result is worse than its baseline.
    Regression(String),
    /// The baseline was measured on other hardware.
    HardwareMismatch(String),
    /// A comparison with a baseline could not be judged, and that is to fail.
    Inconclusive(String),
    /// A benchmark missed a target.
    TargetMissed(String),
    /// A server has lost its only model.
    ModelFailed(String),
    /// Wrong usage that clap cannot detect.
    Usage(String),
}

impl fmt::Display for Early {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Early::PipeClosed => f.write_str("the output was closed"),
            Early::Interrupted => f.write_str("interrupted"),
            Early::Regression(message)
            | Early::HardwareMismatch(message)
            | Early::Inconclusive(message)
            | Early::ModelFailed(message)
            | Early::TargetMissed(message)
            | Early::Usage(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Early {}

/// Returns an error of wrong usage.
pub fn usage(message: impl Into<String>) -> Error {
    Early::Usage(message.into()).into()
}

const FAILURE: u8 = 1;
const USAGE: u8 = 2;

/// Exit code after Ctrl-C, as in shells: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Exit codes of comparisons with baselines.
pub const REGRESSION: u8 = 3;
pub const HARDWARE_MISMATCH: u8 = 4;
pub const INCONCLUSIVE: u8 = 5;

/// Exit code of a server whose only model has failed, such as by a lost device.
pub const MODEL_FAILED: u8 = 6;

/// Exit code of a benchmark that missed a target.
pub const TARGET_MISSED: u8 = 7;

/// Longest message of an error, in characters.
const MAX_MESSAGE_CHARS: usize = 8000;

/// Returns the exit code of `error` and its message on one line, if there is anything to report.
pub fn code_and_message(error: &Error) -> (u8, Option<String>) {
    match error.downcast_ref::<Early>() {
        Some(Early::PipeClosed) => (0, None),
        Some(Early::Interrupted) => (INTERRUPTED, None),
        Some(Early::Usage(message)) => (USAGE, Some(message.clone())),
        Some(Early::Regression(message)) => (REGRESSION, Some(message.clone())),
        Some(Early::HardwareMismatch(message)) => (HARDWARE_MISMATCH, Some(message.clone())),
        Some(Early::Inconclusive(message)) => (INCONCLUSIVE, Some(message.clone())),
        Some(Early::ModelFailed(message)) => (MODEL_FAILED, Some(message.clone())),
        Some(Early::TargetMissed(message)) => (TARGET_MISSED, Some(message.clone())),
        None => {
            let cause = Cause::of(error);
            let code = match &cause {
                Some(cause) if cause.is_usage() => USAGE,
                _ => FAILURE,
            };
            let mut message = cut(one_line(error));
            if let Some(first) = cause.and_then(|cause| cause.of_build(&image_targets())) {
                message = format!("{first} ({message})");
            }
            if let Some(flags) = flags::of(error)
                && !message.contains(flags)
            {
                message.push_str(&format!(" ({flags})"));
            }
            (code, Some(message))
        }
    }
}

/// Cuts a message that a person would not read to its end. What is foreign in it was cut before, where it is known
/// which part that is; this is for errors of libraries, which may quote all of their input.
fn cut(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
        message.truncate(end);
        message.push_str("...");
    }
    message
}

/// Joins the chain of causes, without those that the message before them already ends with.
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
    use rocmforge_engine::{ConfigError, DeviceError, EngineError, RequestError};

    use super::*;

    #[test]
    fn joins_causes_on_one_line() {
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
    fn names_the_flags_of_engine_errors() {
        let too_long = RequestError::PromptTooLong {
            n_tokens: 4,
            n_ctx: 4,
        };
        for error in [
            Error::from(EngineError::Request(too_long)).context("chat"),
            Error::from(rocmforge::Error::Config(ConfigError::TooFewPositions {
                n_ctx: 9,
                n_positions: 8,
            })),
        ] {
            let (code, message) = code_and_message(&error);
            assert_eq!(code, FAILURE);
            assert!(message.unwrap().ends_with("(--ctx)"));
        }
    }

    #[test]
    fn cuts_what_libraries_quote() {
        let json = format!("\"{}\"", "é".repeat(2 << 20));
        let error = Error::from(serde_json::from_str::<u32>(&json).unwrap_err());
        assert!(error.to_string().len() > 2 << 20);
        let (code, message) = code_and_message(&error);
        let message = message.unwrap();
        assert_eq!(
            (code, message.chars().count()),
            (FAILURE, MAX_MESSAGE_CHARS + 3)
        );
        assert!(message.ends_with("é..."));
    }

    #[test]
    fn names_the_build_before_the_driver() {
        let no_gpu = DeviceError::NoGpu {
            reasons: "no CUDA driver library".into(),
        };
        let cause = Cause::Device(&no_gpu);
        for targets in [&[][..], &["host-gfx11"]] {
            assert!(
                cause
                    .of_build(targets)
                    .unwrap()
                    .contains("ROCMFORGE_GPU_TARGETS")
            );
        }
        assert_eq!(cause.of_build(&["sm_90a", "host-nv"]), None);
        let lost = DeviceError::LostStep { step: 1, found: 2 };
        assert_eq!(Cause::Device(&lost).of_build(&[]), None);
    }

    #[test]
    fn finds_early_ends_below_context() {
        let error = Error::from(Early::Interrupted).context("while measuring");
        assert_eq!(code_and_message(&error), (INTERRUPTED, None));
    }
}
