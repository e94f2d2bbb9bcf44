//! Ends work of llguidance that takes too long. Its own limits count items and states, and what one of these costs grows with
//! their number.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use llguidance::{CancellationHandle, Matcher};

/// How often the watcher looks. It ends when it has found nothing to watch for [`IDLE_LOOKS`].
const LOOK: Duration = Duration::from_millis(20);
const IDLE_LOOKS: u32 = 250;

/// What runs now, in all threads.
struct Running {
    jobs: Vec<Job>,
    next_id: u64,
    has_watcher: bool,
}

struct Job {
    id: u64,
    deadline: Instant,
    handle: CancellationHandle,
}

static RUNNING: Mutex<Running> = Mutex::new(Running {
    jobs: Vec::new(),
    next_id: 0,
    has_watcher: false,
});

fn running() -> MutexGuard<'static, Running> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job under watch. It ends when this is dropped.
struct Watched(u64);

impl Drop for Watched {
    fn drop(&mut self) {
        running().jobs.retain(|job| job.id != self.0);
    }
}

/// Runs `work`, which fails if it takes longer than `time`. After that, the matcher always fails.
pub(crate) fn within<T>(
    time: Duration,
    matcher: &mut Matcher,
    work: impl FnOnce(&mut Matcher) -> T,
) -> T {
    // Those that can be cancelled have a handle.
    let watched = matcher.cancellation_handle().map(|handle| {
        let mut running = running();
        let id = running.next_id;
        running.next_id += 1;
        let deadline = Instant::now() + time;
        running.jobs.push(Job {
            id,
            deadline,
            handle,
        });
        if !running.has_watcher {
            let thread = std::thread::Builder::new().name("rocmforge-watch".into());
            running.has_watcher = thread.spawn(watch).is_ok();
        }
        Watched(id)
    });
    let result = work(matcher);
    drop(watched);
    result
}

fn watch() {
    let mut n_idle = 0;
    loop {
        std::thread::sleep(LOOK);
        let mut running = running();
        let now = Instant::now();
        for job in running.jobs.iter().filter(|job| job.deadline <= now) {
            job.handle.cancel();
        }
        n_idle = if running.jobs.is_empty() {
            n_idle + 1
        } else {
            0
        };
        if n_idle == IDLE_LOOKS {
            running.has_watcher = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use llguidance::ParserFactory;
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities};

    use super::*;

    /// Work that does not end by itself is cancelled, once it is late; copies made before are not.
    #[test]
    fn late_work_is_cancelled() {
        let tokens = ApproximateTokEnv::single_byte_env();
        let factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &[]).unwrap();
        let grammar = TopLevelGrammar::from_lark("start: \"a\"+".into());
        let mut matcher = Matcher::new(factory.create_parser(grammar)).into_cancellable();
        let mut copy = matcher.deep_clone();
        within(Duration::from_secs(3600), &mut matcher, |_| ());
        assert!(!matcher.is_cancelled());
        within(Duration::from_millis(1), &mut matcher, |matcher| {
            while !matcher.is_cancelled() {
                std::thread::yield_now();
            }
        });
        assert!(matcher.compute_mask_or_eos().is_err());
        assert!(copy.compute_mask_or_eos().is_ok());
    }
}
