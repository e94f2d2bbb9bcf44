//! How long the step under way takes. The engine's thread notes it; other threads read it, and neither waits.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// When the step under way began.
pub(super) struct StepClock {
    zero: Instant,
    /// Since `zero`.
    began_us: AtomicU64,
}

/// The value of `began_us` between two steps.
const NONE: u64 = u64::MAX;

impl StepClock {
    pub(super) fn new() -> StepClock {
        StepClock {
            zero: Instant::now(),
            began_us: AtomicU64::new(NONE),
        }
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_micros()).unwrap_or(NONE - 1)
    }

    /// Does `work`, which is a step.
    pub(super) fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        self.began_us.store(self.now_us(), Relaxed);
        let done = work();
        self.began_us.store(NONE, Relaxed);
        done
    }

    /// Returns how long the step under way takes so far; `None` between two steps.
    pub(super) fn read(&self) -> Option<Duration> {
        let began_us = self.began_us.load(Relaxed);
        let us = self.now_us().saturating_sub(began_us);
        (began_us != NONE).then(|| Duration::from_micros(us))
    }
}
