//! The steps of an engine: counts each, keeps the last ones, and passes them on to profiles.
//!
//! [`Steps::add`] runs on the engine's thread. It takes a lock that others hold only to copy pointers, and drops what a
//! slow profile has not taken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Counter, Histogram};
use rocmforge_engine::ComputedStep;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::serving::costs::Costs;

/// Steps of which the share of the roofline is told.
const N_RECENT: usize = 64;
/// Steps that a profile may be behind.
const MAX_BEHIND: usize = 1024;
/// Profiles at the same time.
const MAX_PROFILES: usize = 4;

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Decode,
    Prefill,
    /// Prompts beside sequences that generate.
    Mixed,
}

impl Phase {
    pub(crate) const ALL: [Phase; 3] = [Phase::Decode, Phase::Prefill, Phase::Mixed];

    pub(crate) fn of(step: &ComputedStep) -> Phase {
        match (step.n_decoding, step.n_prefill) {
            (_, 0) => Phase::Decode,
            (0, _) => Phase::Prefill,
            _ => Phase::Mixed,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
            Phase::Mixed => "mixed",
        }
    }
}

/// The steps of an engine.
pub(crate) struct Steps {
    /// By phase.
    seconds: [Counter; 3],
    tokens: Histogram,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    recent: VecDeque<Arc<ComputedStep>>,
    profiles: Vec<Follower>,
}

struct Follower {
    to: Sender<Arc<ComputedStep>>,
    n_missed: Arc<AtomicU64>,
}

/// The steps for a profile.
pub(crate) struct Followed {
    pub(crate) steps: Receiver<Arc<ComputedStep>>,
    /// Steps that it was too slow for.
    pub(crate) n_missed: Arc<AtomicU64>,
}

impl Steps {
    pub(crate) fn new(seconds: [Counter; 3], tokens: Histogram) -> Steps {
        Steps {
            seconds,
            tokens,
            log: Mutex::default(),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step. Does not wait.
    pub(crate) fn add(&self, step: ComputedStep) {
        self.seconds[Phase::of(&step) as usize].inc_by(step.time.as_secs_f64());
        self.tokens
            .observe((step.n_decoding + step.n_prefill) as f64);
        let step = Arc::new(step);
        let mut log = self.log();
        log.profiles
            .retain(|profile| match profile.to.try_send(Arc::clone(&step)) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    profile.n_missed.fetch_add(1, Relaxed);
                    true
                }
                Err(TrySendError::Closed(_)) => false,
            });
        log.recent.truncate(N_RECENT - 1);
        log.recent.push_front(step);
    }

    /// Returns the steps from now on; `None` if too many profiles run.
    pub(crate) fn follow(&self) -> Option<Followed> {
        let mut log = self.log();
        log.profiles.retain(|profile| !profile.to.is_closed());
        if log.profiles.len() == MAX_PROFILES {
            return None;
        }
        let (to, steps) = channel(MAX_BEHIND);
        let n_missed = Arc::default();
        log.profiles.push(Follower {
            to,
            n_missed: Arc::clone(&n_missed),
        });
        Some(Followed { steps, n_missed })
    }

    /// Returns the share of the roofline that the last steps reached; `None` without steps or peaks.
    pub(crate) fn roofline_share(&self, costs: &Costs) -> Option<f64> {
        let recent: Vec<_> = self.log().recent.iter().cloned().collect();
        let least = recent.iter().map(|step| costs.least_seconds(&step.shape));
        let least: f64 = least.sum::<Option<f64>>()?;
        let time: f64 = recent.iter().map(|step| step.time.as_secs_f64()).sum();
        (time > 0.0).then(|| least / time)
    }
}
