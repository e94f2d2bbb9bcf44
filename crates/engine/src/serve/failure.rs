//! Whether the engine's thread has ended before it was told to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::Failure;

/// Takes the failure of an engine.
type Told = Box<dyn FnOnce(Failure) + Send>;

/// The failure of an engine, and who is to be told.
pub(super) struct FailureWatch(Mutex<State>);

enum State {
    Serving(Vec<Told>),
    Failed(Failure),
}

impl FailureWatch {
    pub(super) fn new() -> FailureWatch {
        FailureWatch(Mutex::new(State::Serving(Vec::new())))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Option<Failure> {
        match &*self.lock() {
            State::Serving(_) => None,
            State::Failed(failure) => Some(failure.clone()),
        }
    }

    /// Has `told` called once, when the engine fails, or now if it has.
    pub(super) fn tell(&self, told: Told) {
        let mut state = self.lock();
        let failure = match &mut *state {
            State::Serving(all) => return all.push(told),
            State::Failed(failure) => failure.clone(),
        };
        drop(state);
        told(failure);
    }

    /// Notes the failure; the first one counts.
    pub(super) fn set(&self, failure: Failure) {
        let mut state = self.lock();
        let State::Serving(all) = &mut *state else {
            return;
        };
        let all = std::mem::take(all);
        *state = State::Failed(failure.clone());
        drop(state);
        for told in all {
            told(failure.clone());
        }
    }
}

/// Notes a failure if its thread panics.
pub(super) struct PanicGuard(pub(super) Arc<FailureWatch>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(Failure::EngineStopped);
        }
    }
}
