//! The phases of the server's life, and the requests that are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::http::error::ApiError;

/// What the server does now. Later phases are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It checks itself.
    Starting,
    Ready,
    /// It takes no requests and finishes those that run.
    Draining,
    /// It ends those that still run.
    Aborting,
    Ended,
}

/// Time for the last error events to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Lifecycle {
    phase: watch::Sender<Phase>,
    n_under_way: AtomicUsize,
    /// Sent when a request ends.
    one_less: tokio::sync::Notify,
}

impl Lifecycle {
    pub(crate) fn new() -> Lifecycle {
        Lifecycle {
            phase: watch::Sender::new(Phase::Starting),
            n_under_way: AtomicUsize::new(0),
            one_less: tokio::sync::Notify::new(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Enters a later phase; a phase that has passed does not come again.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let is_later = phase > *now;
            *now = phase.max(*now);
            is_later
        });
    }

    /// Returns a view of the phases, for one that waits for them often.
    pub(crate) fn phases(&self) -> Phases {
        Phases(self.phase.subscribe())
    }

    async fn reached(&self, phase: Phase) {
        self.phases().reached(phase).await;
    }

    /// Waits until the server is told to stop.
    pub(crate) async fn draining(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Waits until running requests are to end.
    pub(crate) async fn aborting(&self) {
        self.reached(Phase::Aborting).await;
    }

    /// Waits until no connection is served any more.
    pub(crate) async fn ended(&self) {
        self.reached(Phase::Ended).await;
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The server is about to end.
    pub(crate) fn admit(self: &Arc<Lifecycle>) -> Result<UnderWay, ApiError> {
        self.n_under_way.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(Arc::clone(self));
        match self.phase() >= Phase::Draining {
            true => Err(ApiError::stopping()),
            false => Ok(under_way),
        }
    }

    /// Finishes what runs, but no longer than `timeout`, and ends.
    pub(crate) async fn drain(&self, timeout: Duration) {
        self.enter(Phase::Draining);
        let is_empty = async |timeout| {
            let empty = async {
                loop {
                    let next = self.one_less.notified();
                    if self.n_under_way.load(Ordering::SeqCst) == 0 {
                        return;
                    }
                    next.await;
                }
            };
            tokio::time::timeout(timeout, empty).await.is_ok()
        };
        if !is_empty(timeout).await {
            self.enter(Phase::Aborting);
            is_empty(LAST_WORDS).await;
        }
        self.enter(Phase::Ended);
    }
}

/// A view of the phases.
#[derive(Debug)]
pub(crate) struct Phases(watch::Receiver<Phase>);

impl Phases {
    /// Waits for a phase or a later one.
    pub(crate) async fn reached(&mut self, phase: Phase) {
        if self.0.wait_for(|now| *now >= phase).await.is_err() {
            // Without a server there are no phases.
            std::future::pending().await
        }
    }
}

/// A request that is under way. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Lifecycle>);

impl UnderWay {
    /// Whether the server ends what still runs.
    pub(crate) fn is_to_end(&self) -> bool {
        self.0.phase() >= Phase::Aborting
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.n_under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.one_less.notify_one();
    }
}
