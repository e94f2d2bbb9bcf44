//! Ctrl-C. While an answer is made it only asks for the answer's end; at any other time, and when it
//! comes again before the answer has ended, it ends the program. While a file is written it asks only,
//! however often: the unfinished file is to be removed first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result};

use crate::exit;

const IDLE: u8 = 0;
const WORKING: u8 = 1;
const ASKED: u8 = 2;
const WRITING: u8 = 3;
const ASKED_WRITING: u8 = 4;

/// Whether the user wants the work in hand to stop.
#[derive(Clone)]
pub struct Interrupt {
    state: Arc<AtomicU8>,
}

impl Interrupt {
    /// Takes over SIGINT. Call once.
    pub fn install() -> Result<Interrupt> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let of_handler = Arc::clone(&state);
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
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
        })
        .context("cannot take over Ctrl-C")?;
        Ok(Interrupt { state })
    }

    /// From now on Ctrl-C is a question, until the returned guard is dropped.
    pub fn guard(&self) -> Working<'_> {
        self.state.store(WORKING, Ordering::SeqCst);
        Working { interrupt: self }
    }

    /// As [`Interrupt::guard`], for work that leaves an unfinished file behind if it is cut off.
    pub fn guard_output(&self) -> Working<'_> {
        self.state.store(WRITING, Ordering::SeqCst);
        Working { interrupt: self }
    }
}

/// Work that can be stopped.
pub struct Working<'a> {
    interrupt: &'a Interrupt,
}

impl Working<'_> {
    /// Whether Ctrl-C came since the guard was made.
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
