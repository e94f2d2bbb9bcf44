//! Compiles sources.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use llguidance::Matcher;

use crate::error::{GrammarError, told};
use crate::limits::{COMPILE_TIME, COMPILER_STACK_BYTES, MAX_OVERDUE};
use crate::source::Source;
use crate::state::State;
use crate::vocabulary::Vocabulary;
use crate::watch;

/// What an answer must be, compiled for a vocabulary. Clones share it.
#[derive(Clone)]
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// The state of a new sequence.
    first: Arc<Mutex<Matcher>>,
}

impl Grammar {
    /// Compiles `source`. Takes milliseconds for usual sources and at most 5 seconds.
    ///
    /// # Errors
    /// The source is invalid, uses what is not supported, allows no text, or reaches a limit.
    pub fn compile(vocabulary: &Arc<Vocabulary>, source: &Source) -> Result<Grammar, GrammarError> {
        Grammar::compile_holding(vocabulary, source, ())
    }

    /// As [`Grammar::compile`]. Drops `held` when the compiler has ended, which may be later than this returns: one that is
    /// too slow goes on until it reaches another limit.
    ///
    /// # Errors
    /// As [`Grammar::compile`].
    pub fn compile_holding(
        vocabulary: &Arc<Vocabulary>,
        source: &Source,
        held: impl Send + 'static,
    ) -> Result<Grammar, GrammarError> {
        let first = within_time(source.what(), COMPILE_TIME, {
            let (vocabulary, source) = (Arc::clone(vocabulary), source.clone());
            move || {
                let _held = held;
                first_state(&vocabulary, &source)
            }
        })?;
        Ok(Grammar {
            vocabulary: Arc::clone(vocabulary),
            first: Arc::new(Mutex::new(first)),
        })
    }

    /// Returns the state before the first token of a sequence.
    pub fn start(&self) -> State {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        State::new(first.deep_clone(), Arc::clone(&self.vocabulary))
    }
}

fn first_state(vocabulary: &Vocabulary, source: &Source) -> Result<Matcher, GrammarError> {
    let refused = |message: String| refused(source.what(), &message);
    let parser = vocabulary.factory.create_parser(source.grammar()?);
    let parser = parser.map_err(|error| refused(told(&error)))?;
    let mut matcher = Matcher::new(Ok(parser)).into_cancellable();
    // Finds out here whether any text is possible.
    let mask = watch::within(COMPILE_TIME, &mut matcher, Matcher::compute_mask_or_eos);
    mask.map_err(|error| refused(told(&error)))?;
    Ok(matcher)
}

/// Sources that were refused for their time and are still compiling.
static OVERDUE: AtomicUsize = AtomicUsize::new(0);

/// Runs `compile` on a thread of its own, for at most `time`: parsers of schemas and expressions recurse, and a thread can
/// be left alone.
fn within_time<T: Send + 'static>(
    what: &'static str,
    time: Duration,
    compile: impl FnOnce() -> Result<T, GrammarError> + Send + 'static,
) -> Result<T, GrammarError> {
    if OVERDUE.load(Ordering::Relaxed) >= MAX_OVERDUE {
        return Err(GrammarError::Busy);
    }
    let (to, result) = mpsc::sync_channel(0);
    let thread = std::thread::Builder::new()
        .name("rocmforge-grammar".into())
        .stack_size(COMPILER_STACK_BYTES);
    let panicked = move || refused(what, "it causes an internal error");
    let work = move || {
        let compiled = catch_unwind(AssertUnwindSafe(compile));
        // Nobody receives the result of an overdue one.
        if to
            .send(compiled.unwrap_or_else(|_| Err(panicked())))
            .is_err()
        {
            OVERDUE.fetch_sub(1, Ordering::Relaxed);
        }
    };
    thread.spawn(work).map_err(GrammarError::Thread)?;
    match result.recv_timeout(time) {
        Ok(compiled) => compiled,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            OVERDUE.fetch_add(1, Ordering::Relaxed);
            drop(result);
            Err(GrammarError::TooSlow { what })
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(panicked()),
    }
}

/// Turns llguidance's message into an error.
fn refused(what: &'static str, message: &str) -> GrammarError {
    if let Some((_, list)) = message.split_once("Unimplemented keys: ") {
        let list = list.split(']').next().unwrap_or(list);
        let keywords = list.trim_start_matches('[').replace('"', "");
        return GrammarError::Keyword { keywords };
    }
    if message.contains("Only absolute $ref's")
        && let Some((_, reference)) = message.split_once("; ref '")
    {
        let reference = reference.split('\'').next().unwrap_or(reference).into();
        return GrammarError::Reference { reference };
    }
    GrammarError::Invalid {
        what,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Sources that take too long are refused, the next ones at once, until those have ended.
    #[test]
    fn overdue_sources_are_few() {
        let mut releases = Vec::new();
        for _ in 0..MAX_OVERDUE {
            let (release, wait) = mpsc::channel::<()>();
            let blocked = move || {
                let _ = wait.recv();
                Ok(())
            };
            let result = within_time("choice", Duration::from_millis(1), blocked);
            assert!(matches!(result, Err(GrammarError::TooSlow { .. })));
            releases.push(release);
        }
        let next = || within_time("choice", LONG, || Ok(3));
        assert!(matches!(next(), Err(GrammarError::Busy)));
        drop(releases);
        while OVERDUE.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        assert_eq!(next().unwrap(), 3);
        let panics = || -> Result<(), GrammarError> { panic!("a defect") };
        let message = within_time("choice", LONG, panics).unwrap_err();
        assert!(message.to_string().contains("internal error"), "{message}");
        assert_eq!(next().unwrap(), 3);
    }
}
