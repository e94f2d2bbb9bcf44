//! Ctrl-C handling. During an answer, the first Ctrl-C stops the answer; a second one, or one at any other time, ends
//! the program. While a file is written, every Ctrl-C only requests a stop, so that the unfinished file is removed.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};

use crate::{exit, output};

const IDLE: u8 = 0;
const WORKING: u8 = 1;
const ASKED: u8 = 2;
const WRITING: u8 = 3;
const ASKED_WRITING: u8 = 4;

/// The Ctrl-C state.
#[derive(Clone)]
pub struct Interrupt {
    state: Arc<AtomicU8>,
    /// What the program does while Ctrl-C ends it at once; empty where nothing is lost.
    doing: Arc<Mutex<&'static str>>,
}

impl Interrupt {
    /// Installs the SIGINT handler. Call once.
    pub fn install() -> Result<Interrupt> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let doing = Arc::new(Mutex::new(""));
        let (of_handler, doing_of_handler) = (Arc::clone(&state), Arc::clone(&doing));
        ctrlc::set_handler(move || {
            let asked = |state| match state {
                WORKING => Some(ASKED),
                WRITING | ASKED_WRITING => Some(ASKED_WRITING),
                _ => None,
            };
            if of_handler
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, asked)
                .is_err()
            {
                let doing = *doing_of_handler
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if !doing.is_empty() {
                    output::note(&format!("notice: stopped while {doing}; no results"));
                }
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
        })
        .context("cannot handle Ctrl-C")?;
        Ok(Interrupt { state, doing })
    }

    /// Names what a Ctrl-C outside guarded work stops, such as `loading the model`.
    pub fn doing(&self, what: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// Makes Ctrl-C a request until the returned guard is dropped.
    pub fn guard(&self) -> Working<'_> {
        self.state.store(WORKING, Ordering::SeqCst);
        Working { interrupt: self }
    }

    /// Like [`Interrupt::guard`], for work that must remove an unfinished file.
    pub fn guard_output(&self) -> Working<'_> {
        self.state.store(WRITING, Ordering::SeqCst);
        Working { interrupt: self }
    }
}

/// Interruptible work.
pub struct Working<'a> {
    interrupt: &'a Interrupt,
}

impl Working<'_> {
    /// Returns whether Ctrl-C was pressed since the guard was created.
    pub fn asked(&self) -> bool {
        let state = self.interrupt.state.load(Ordering::SeqCst);
        matches!(state, ASKED | ASKED_WRITING)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.interrupt.state.store(IDLE, Ordering::SeqCst);
    }
}
