//! A model that a server offers: how to load it, and whether it is in memory.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use rocmforge_engine::serve::Handle;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::http::error::ApiError;
use crate::serving::model::{Model, Served, unix_seconds};

/// Requests that wait for a model to be loaded, of each model.
const MAX_WAITING: usize = 1024;

/// Why a model cannot be loaded.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// A model that the server can load.
pub struct Offer {
    /// What clients call it.
    pub name: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// Fields for requests that leave them out, such as `temperature`.
    pub defaults: Map<String, Value>,
    /// Whether it is loaded before the server is ready. Others are loaded when somebody asks for them.
    pub at_start: bool,
    /// Its file, or the first one. A file that could not be loaded may be another one after a change.
    pub file: Option<PathBuf>,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// Finds out what memory it needs. It may be called again after the model was unloaded.
    pub prepare: Box<dyn Fn() -> Result<Prepared, LoadError> + Send + Sync>,
}

/// A model that is not in memory yet, and what it needs.
pub struct Prepared {
    /// Bytes that it takes, if it gets as many.
    pub bytes: u64,
    /// Loads it into at most this many bytes.
    pub start: Box<dyn FnOnce(u64) -> Result<Model, LoadError> + Send>,
}

/// A model, in memory or not.
pub(crate) struct Slot {
    pub(crate) offer: Offer,
    /// Since when it is offered, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) state: watch::Sender<State>,
    pub(crate) n_waiting: watch::Sender<usize>,
    last_use: Mutex<Instant>,
    /// How long it stays unused, if a client has said that.
    keep_alive: Mutex<Option<KeepAlive>>,
}

/// How long a model stays in the memory after its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepAlive {
    For(Duration),
    Forever,
}

/// Where a model is.
#[derive(Clone)]
pub(crate) enum State {
    Away,
    /// It could not be loaded, or has failed.
    Failed(Failed),
    Loading,
    Ready(Resident),
    /// Its last requests are being finished.
    Leaving {
        engine: Handle,
        bytes: u64,
    },
}

/// Why a model could not be loaded, or has failed, and when.
#[derive(Clone)]
pub(crate) struct Failed {
    pub(crate) reason: Arc<str>,
    pub(crate) at: Instant,
    /// The file that was read.
    pub(crate) file: FileVersion,
    /// Bytes that were made free for it in vain.
    pub(crate) freed: Option<u64>,
}

/// What tells a file from what it was before: its bytes and the time of its last change, if there is a file.
pub(crate) type FileVersion = Option<(u64, Option<SystemTime>)>;

/// Ends a state that lasts while a task runs, even if the task panics.
pub(crate) struct Then<'a> {
    slot: &'a Slot,
    /// What comes next.
    pub(crate) state: State,
}

impl Drop for Then<'_> {
    fn drop(&mut self) {
        self.slot.state.send_replace(self.state.clone());
    }
}

/// A model in memory.
#[derive(Clone)]
pub(crate) struct Resident {
    pub(crate) served: Arc<Served>,
    pub(crate) bytes: u64,
}

impl Slot {
    pub(crate) fn new(offer: Offer) -> Slot {
        Slot {
            offer,
            created: unix_seconds(),
            state: watch::Sender::new(State::Away),
            n_waiting: watch::Sender::new(0),
            last_use: Mutex::new(Instant::now()),
            keep_alive: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.offer.name
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.offer.file_bytes
    }

    /// Returns the model, if it is in memory.
    pub(crate) fn ready(&self) -> Option<Arc<Served>> {
        match &*self.state.borrow() {
            State::Ready(resident) => Some(Arc::clone(&resident.served)),
            _ => None,
        }
    }

    /// Returns whether it has failed in the last `time`, and was not loaded since.
    pub(crate) fn failed_within(&self, time: Duration) -> bool {
        match &*self.state.borrow() {
            State::Failed(failed) => failed.at.elapsed() < time,
            _ => false,
        }
    }

    /// Returns llama-server's word for the state of the model.
    pub(crate) fn status(&self) -> &'static str {
        match &*self.state.borrow() {
            State::Ready(_) => "loaded",
            State::Loading => "loading",
            State::Away | State::Failed(_) | State::Leaving { .. } => "unloaded",
        }
    }

    /// Returns how long the step under way of its engine takes.
    pub(crate) fn step_time(&self) -> Option<Duration> {
        match &*self.state.borrow() {
            State::Ready(resident) => resident.served.engine.step_time(),
            State::Leaving { engine, .. } => engine.step_time(),
            State::Away | State::Failed(_) | State::Loading => None,
        }
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.offer.name == name || self.offer.aliases.iter().any(|alias| alias == name)
    }

    pub(crate) fn touch(&self) {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn last_use(&self) -> Instant {
        *self.last_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long the model stays unused; `None` if nobody has said that.
    pub(crate) fn keep_alive(&self) -> Option<KeepAlive> {
        let keep_alive = self.keep_alive.lock();
        *keep_alive.unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long the model stays unused, until it leaves the memory.
    pub(crate) fn set_keep_alive(&self, keep_alive: Option<KeepAlive>) {
        let now = self.keep_alive.lock();
        *now.unwrap_or_else(PoisonError::into_inner) = keep_alive;
    }

    /// Returns which file there is now.
    pub(crate) fn file_version(&self) -> FileVersion {
        let facts = self.offer.file.as_deref()?.metadata().ok()?;
        Some((facts.len(), facts.modified().ok()))
    }

    /// Enters the state `Loading`, unless the model is there or on its way. Returns the state before.
    pub(crate) fn begin_loading(&self) -> Option<State> {
        let mut before = None;
        self.state.send_if_modified(|state| {
            if matches!(state, State::Away | State::Failed(_)) {
                before = Some(std::mem::replace(state, State::Loading));
            }
            before.is_some()
        });
        before
    }

    /// Enters `state` when the returned value is dropped.
    pub(crate) fn then(&self, state: State) -> Then<'_> {
        Then { slot: self, state }
    }

    /// Lets a model be loaded that could not be.
    pub(crate) fn forget_failure(&self) {
        self.state.send_if_modified(|state| {
            let is_failed = matches!(state, State::Failed(_));
            if is_failed {
                *state = State::Away;
            }
            is_failed
        });
    }

    /// Counts a request that waits for this model.
    ///
    /// # Errors
    /// Too many wait.
    pub(crate) fn wait(&self) -> Result<Waiting<'_>, ApiError> {
        self.n_waiting.send_modify(|n| *n += 1);
        let waiting = Waiting(self);
        match *self.n_waiting.borrow() > MAX_WAITING {
            true => {
                let message = "too many requests wait for this model to be loaded; try again later";
                let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message);
                Err(error.code("queue_full").retry_after(5))
            }
            false => Ok(waiting),
        }
    }
}

/// A request that waits for its model.
pub(crate) struct Waiting<'a>(&'a Slot);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.n_waiting.send_modify(|n| *n -= 1);
    }
}
