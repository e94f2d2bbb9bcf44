//! Ctrl-C. While an answer is made it only asks for the answer's end; at any other time, and when it
//! comes again before the answer has ended, it ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context as _, Result};

use crate::exit;

const IDLE: u8 = 0;
const WORKING: u8 = 1;
const ASKED: u8 = 2;

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
            if of_handler
                .compare_exchange(WORKING, ASKED, Ordering::SeqCst, Ordering::SeqCst)
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
}

/// Work that can be stopped.
pub struct Working<'a> {
    interrupt: &'a Interrupt,
}

impl Working<'_> {
    /// Whether Ctrl-C came since the guard was made.
    pub fn asked(&self) -> bool {
        self.interrupt.state.load(Ordering::SeqCst) == ASKED
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.interrupt.state.store(IDLE, Ordering::SeqCst);
    }
}
