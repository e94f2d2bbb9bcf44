//! How far a request is. The engine's thread notes it as it goes; other threads read it, and neither waits.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::draft::DraftCounts;

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum RequestState {
    /// It waits for a place in the cache, for the first time or because it was preempted.
    #[default]
    Queued,
    /// Its prompt is computed, or what it had when it was preempted.
    Prefill,
    /// It generates.
    Decode,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestProgress {
    pub state: RequestState,
    /// How long it waited for its first place in the cache; `None` while it does.
    pub queue_time: Option<Duration>,
    /// Tokens of its prompt that came from the prefix cache.
    pub cached_tokens: usize,
    pub generated_tokens: usize,
    pub drafts: DraftCounts,
    /// Whether it drafts no more at present, because its drafts did not pay.
    pub drafts_off: bool,
    /// Times that it gave its place in the cache to another request.
    pub preemptions: usize,
}

/// A [`RequestProgress`] that the engine's thread writes.
#[derive(Debug)]
pub(crate) struct Tracker {
    state: AtomicU8,
    queue_us: AtomicU64,
    n_cached: AtomicUsize,
    n_generated: AtomicUsize,
    n_drafted: AtomicU64,
    n_accepted: AtomicU64,
    drafts_off: AtomicBool,
    n_preempted: AtomicUsize,
}

/// The value of `queue_us` while a request waits.
const WAITS: u64 = u64::MAX;

impl Default for Tracker {
    fn default() -> Tracker {
        Tracker {
            state: AtomicU8::new(RequestState::default() as u8),
            queue_us: AtomicU64::new(WAITS),
            n_cached: AtomicUsize::new(0),
            n_generated: AtomicUsize::new(0),
            n_drafted: AtomicU64::new(0),
            n_accepted: AtomicU64::new(0),
            drafts_off: AtomicBool::new(false),
            n_preempted: AtomicUsize::new(0),
        }
    }
}

impl Tracker {
    pub(crate) fn enter(&self, state: RequestState) {
        self.state.store(state as u8, Relaxed);
    }

    pub(crate) fn admitted(&self, queue_time: Duration, n_cached: usize) {
        self.n_cached.store(n_cached, Relaxed);
        let us = u64::try_from(queue_time.as_micros()).unwrap_or(WAITS - 1);
        self.queue_us.store(us, Relaxed);
    }

    pub(crate) fn generated(&self, n: usize) {
        self.n_generated.store(n, Relaxed);
    }

    pub(crate) fn drafted(&self, counts: DraftCounts, is_off: bool) {
        self.n_drafted.store(counts.n_drafted, Relaxed);
        self.n_accepted.store(counts.n_accepted, Relaxed);
        self.drafts_off.store(is_off, Relaxed);
    }

    pub(crate) fn preempted(&self) {
        self.n_preempted.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> RequestProgress {
        let queue_us = self.queue_us.load(Relaxed);
        let states = [
            RequestState::Queued,
            RequestState::Prefill,
            RequestState::Decode,
        ];
        RequestProgress {
            state: states[usize::from(self.state.load(Relaxed))],
            queue_time: (queue_us != WAITS).then(|| Duration::from_micros(queue_us)),
            cached_tokens: self.n_cached.load(Relaxed),
            generated_tokens: self.n_generated.load(Relaxed),
            drafts: DraftCounts {
                n_drafted: self.n_drafted.load(Relaxed),
                n_accepted: self.n_accepted.load(Relaxed),
            },
            drafts_off: self.drafts_off.load(Relaxed),
            preemptions: self.n_preempted.load(Relaxed),
        }
    }
}
