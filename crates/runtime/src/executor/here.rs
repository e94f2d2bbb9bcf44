//! A backend that runs on the threads of those who call it, and a thread that gives it time for background work while no
//! step comes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::{IDLE_AFTER, IDLE_SLICE, panic_text};
use crate::backend::{Backend, IdleWork, Wait};
use crate::error::{DeviceError, RuntimeError};

pub(super) struct Here {
    pub(super) shared: Arc<Shared>,
    background: Option<JoinHandle<()>>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    /// How many steps have begun, and how many have ended.
    n_steps: AtomicU64,
    /// Whether the thread for background work sleeps until the next step.
    sleeps: AtomicBool,
    is_closed: AtomicBool,
}

struct State {
    /// `None` once it is closed or has panicked.
    backend: Option<Box<dyn Backend>>,
    /// The message of the panic that ended it.
    panic: Option<String>,
}

impl Here {
    pub(super) fn new(backend: Box<dyn Backend>) -> Result<Here, RuntimeError> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                backend: Some(backend),
                panic: None,
            }),
            n_steps: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        });
        let work = {
            let shared = Arc::clone(&shared);
            move || while shared.work_when_idle() {}
        };
        let background = std::thread::Builder::new()
            .name("rocmforge-idle".into())
            .spawn(work)
            .map_err(DeviceError::Threads)?;
        Ok(Here {
            shared,
            background: Some(background),
        })
    }

    pub(super) fn begin_step(&self) {
        self.shared.n_steps.fetch_add(1, Ordering::SeqCst);
        if self.shared.sleeps.swap(false, Ordering::SeqCst)
            && let Some(background) = &self.background
        {
            background.thread().unpark();
        }
    }

    /// Frees the backend. Returns the message of the panic that ended it before, if one did.
    pub(super) fn close(&mut self) -> Option<String> {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        if let Some(background) = self.background.take() {
            background.thread().unpark();
            // It catches the panics of the backend.
            let _ = background.join();
        }
        // Memory is not freed while the device uses it.
        self.shared.call(|backend| backend.finish(Wait::All));
        let mut state = self.shared.lock();
        state.backend = None;
        state.panic.take()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn end_step(&self) {
        self.n_steps.fetch_add(1, Ordering::SeqCst);
    }

    /// Calls the backend. Returns `None` if it is gone; a panic ends it.
    pub(super) fn call<T>(&self, call: impl FnOnce(&mut dyn Backend) -> T) -> Option<T> {
        let mut state = self.lock();
        let backend = state.backend.as_mut()?;
        match catch_unwind(AssertUnwindSafe(|| call(&mut **backend))) {
            Ok(result) => Some(result),
            Err(panic) => {
                state.panic = Some(panic_text(&*panic));
                state.backend = None;
                None
            }
        }
    }

    /// Waits, and does background work if no step came meanwhile. Returns `false` once the backend is closed.
    fn work_when_idle(&self) -> bool {
        let n_steps = self.n_steps.load(Ordering::SeqCst);
        std::thread::park_timeout(IDLE_AFTER);
        let is_idle = || {
            let same = n_steps == self.n_steps.load(Ordering::SeqCst);
            same && !self.is_closed.load(Ordering::SeqCst)
        };
        let mut work = IdleWork::Now;
        while work == IdleWork::Now && is_idle() {
            // A step may have ended, and another begun, while it waited for the backend.
            let done = self.call(|backend| match backend.n_in_flight() == 0 && is_idle() {
                true => backend.idle(IDLE_SLICE),
                false => IdleWork::Later,
            });
            work = done.unwrap_or(IdleWork::Done);
        }
        if work == IdleWork::Done {
            self.sleeps.store(true, Ordering::SeqCst);
            while is_idle() {
                std::thread::park();
            }
        }
        !self.is_closed.load(Ordering::SeqCst)
    }
}
