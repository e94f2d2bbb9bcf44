//! What can go wrong between us and a hub, and whether trying again may help.

use std::time::Duration;

use anyhow::{Error, Result, anyhow};

use crate::output;

/// A request that failed.
#[derive(Debug)]
pub enum Failure {
    /// May work later.
    Again {
        reason: String,
        /// When the server wants to be asked again.
        after: Option<Duration>,
    },
    /// Will not.
    Fatal(Error),
}

impl Failure {
    pub fn again(reason: impl Into<String>) -> Failure {
        Failure::Again {
            reason: reason.into(),
            after: None,
        }
    }

    pub fn fatal(message: impl Into<String>) -> Failure {
        Failure::Fatal(anyhow!(message.into()))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Fatal(error)
    }
}

/// First wait before another try; each is twice the one before.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait, also if the server wants a longer one.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How often to try again.
pub struct Patience {
    retries: u32,
    failed: u32,
}

impl Patience {
    pub fn new(retries: u32) -> Patience {
        Patience { retries, failed: 0 }
    }

    /// Something worked: the count begins again.
    pub fn renew(&mut self) {
        self.failed = 0;
    }

    /// Waits for the next try, or ends with the reason if there is none.
    pub fn wait(&mut self, failure: Failure) -> Result<()> {
        let (reason, after) = match failure {
            Failure::Fatal(error) => return Err(error),
            Failure::Again { reason, after } => (reason, after),
        };
        if self.failed >= self.retries {
            return Err(match self.failed {
                0 => anyhow!(reason),
                n => anyhow!("{reason} (after {} tries)", n + 1),
            });
        }
        let wait = after
            .unwrap_or(FIRST_WAIT.saturating_mul(1 << self.failed.min(16)))
            .min(MAX_WAIT);
        self.failed += 1;
        output::note(&format!(
            "notice: {reason}; trying again in {:.1} s",
            wait.as_secs_f64()
        ));
        std::thread::sleep(wait);
        Ok(())
    }

    /// Tries until it works or there is no patience left.
    pub fn retry<T>(&mut self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => self.wait(failure)?,
            }
        }
    }
}
