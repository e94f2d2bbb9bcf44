//! Which failed requests are repeated, how often, and after how long.

use std::time::Duration;

use crate::error::Error;
use crate::event::{Event, Observer};

/// A request that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A later try may work.
    Transient {
        reason: String,
        /// How long the server asks to wait.
        retry_after: Option<Duration>,
    },
    /// A later try will fail as well.
    Fatal(Error),
}

impl Failure {
    pub(crate) fn transient(reason: impl Into<String>) -> Failure {
        Failure::Transient {
            reason: reason.into(),
            retry_after: None,
        }
    }

    /// A failure without an HTTP status.
    pub(crate) fn fatal(reason: impl Into<String>) -> Failure {
        Failure::refused(0, reason)
    }

    pub(crate) fn refused(status: u16, reason: impl Into<String>) -> Failure {
        Failure::Fatal(Error::Refused {
            status,
            reason: reason.into(),
        })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Fatal(error)
    }
}

/// First wait before another try; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Longest wait, even if the server asks for more.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Counts failures in a row and waits between tries.
pub(crate) struct Retries {
    limit: u32,
    failed: u32,
}

impl Retries {
    pub(crate) fn new(limit: u32) -> Retries {
        Retries { limit, failed: 0 }
    }

    /// Starts the count again after a success.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// The failure is fatal or the last allowed one.
    pub(crate) fn wait(
        &mut self,
        failure: Failure,
        observe: &mut Observer<'_>,
    ) -> Result<(), Error> {
        let (reason, retry_after) = match failure {
            Failure::Fatal(error) => return Err(error),
            Failure::Transient {
                reason,
                retry_after,
            } => (reason, retry_after),
        };
        if self.failed >= self.limit {
            let tries = self.failed + 1;
            return Err(Error::Connection { reason, tries });
        }
        let wait = retry_after
            .unwrap_or(FIRST_WAIT.saturating_mul(1 << self.failed.min(16)))
            .min(MAX_WAIT);
        self.failed += 1;
        observe(Event::Retrying {
            reason: &reason,
            wait,
        });
        std::thread::sleep(wait);
        Ok(())
    }

    /// Repeats `attempt` until it succeeds or no try is left.
    pub(crate) fn run<T>(
        &mut self,
        observe: &mut Observer<'_>,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Error> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => self.wait(failure, observe)?,
            }
        }
    }
}
