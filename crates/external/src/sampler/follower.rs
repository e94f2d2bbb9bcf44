//! Follows a gauge for as long as a program runs, such as a server: a thread reads it now and then, and whoever asks gets
//! the newest reading without waiting.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Probe, Reading, Source, Stop};
use crate::error::ExternalError;

/// Time after which a gauge that failed is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Longest wait for a tool: nvidia-smi takes half a minute where many GPUs have to wake up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reading counts as unknown when it is older than so many intervals.
const MAX_AGE: u32 = 10;

/// Reads a gauge until it is dropped.
#[derive(Debug)]
pub struct Follower {
    now: Arc<Mutex<Now>>,
    stop: Arc<Stop>,
    max_age: Duration,
}

#[derive(Debug, Default)]
struct Now {
    newest: Option<(Instant, Reading)>,
    joules: Option<f64>,
}

impl Follower {
    /// Follows `source` at intervals of `every`. `on_error` hears why there are no readings, once for each new reason.
    /// Returns at once, even where the gauge takes long to start.
    pub fn start(
        source: Source,
        every: Duration,
        on_error: impl FnMut(&ExternalError) + Send + 'static,
    ) -> Follower {
        let open = move || source.probe(every, PATIENCE);
        Follower::with_probe(open, (every, RETRY), on_error)
    }

    /// Like [`Follower::start`], with any gauge, which is opened again after the second time if it failed.
    pub fn with_probe(
        mut open: impl FnMut() -> Result<Box<dyn Probe>, ExternalError> + Send + 'static,
        (every, retry): (Duration, Duration),
        mut on_error: impl FnMut(&ExternalError) + Send + 'static,
    ) -> Follower {
        let stop = Arc::new(Stop::default());
        let now = Arc::new(Mutex::new(Now::default()));
        let max_age = every * MAX_AGE;
        let (asked, readings) = (Arc::clone(&stop), Arc::clone(&now));
        thread::spawn(move || {
            let mut told = None;
            loop {
                let mut follow = || -> Result<(), ExternalError> {
                    let mut probe = open()?;
                    loop {
                        if let Some(reading) = probe.read()? {
                            lock(&readings).add(reading, Instant::now(), max_age);
                        }
                        if asked.wait(every) {
                            return Ok(());
                        }
                    }
                };
                let Err(error) = follow() else { return };
                if asked.wait(Duration::ZERO) {
                    return;
                }
                let text = Some(error.to_string());
                if told != text {
                    on_error(&error);
                    told = text;
                }
                if asked.wait(retry) {
                    return;
                }
            }
        });
        Follower { now, stop, max_age }
    }

    /// The newest reading; `None` if there is none of late.
    pub fn newest(&self) -> Option<Reading> {
        let newest = lock(&self.now).newest;
        newest.and_then(|(time, reading)| (time.elapsed() <= self.max_age).then_some(reading))
    }

    /// Energy so far, by power and the time between readings; `None` if the gauge has told no power. Times without
    /// readings are left out.
    pub fn joules(&self) -> Option<f64> {
        lock(&self.now).joules
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.ask();
    }
}

fn lock(now: &Mutex<Now>) -> MutexGuard<'_, Now> {
    now.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Now {
    fn add(&mut self, reading: Reading, time: Instant, max_gap: Duration) {
        if let Some(power) = reading.power_watts {
            let joules = self.joules.get_or_insert(0.0);
            if let Some((before, earlier)) = self.newest
                && let Some(earlier) = earlier.power_watts
                && time - before <= max_gap
            {
                *joules += (earlier + power) / 2.0 * (time - before).as_secs_f64();
            }
        }
        self.newest = Some((time, reading));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A generous timeout; what it bounds ends long before.
    const LONG: Duration = Duration::from_secs(60);

    fn watts(power_watts: f64) -> Reading {
        Reading {
            power_watts: Some(power_watts),
            ..Reading::default()
        }
    }

    #[test]
    fn energy_is_power_over_the_times_with_readings() {
        let start = Instant::now();
        let mut now = Now::default();
        let mut add = |reading, seconds| {
            let time = start + Duration::from_secs(seconds);
            now.add(reading, time, Duration::from_secs(10));
            now.joules
        };
        assert_eq!(add(Reading::default(), 0), None);
        assert_eq!(add(watts(100.0), 1), Some(0.0));
        assert_eq!(add(watts(300.0), 3), Some(400.0));
        // A gap, and a reading without power.
        assert_eq!(add(watts(300.0), 60), Some(400.0));
        assert_eq!(add(Reading::default(), 61), Some(400.0));
        assert_eq!(add(watts(50.0), 62), Some(400.0));
        assert_eq!(add(watts(50.0), 64), Some(500.0));
    }

    /// A gauge whose readings a test sends; `None` makes it fail.
    struct Sent(mpsc::Receiver<Option<Reading>>);

    impl Probe for Sent {
        fn read(&mut self) -> Result<Option<Reading>, ExternalError> {
            match self.0.recv() {
                Ok(Some(reading)) => Ok(Some(reading)),
                _ => Err(failed("it ended")),
            }
        }
    }

    fn failed(reason: &str) -> ExternalError {
        ExternalError::Unavailable {
            source_name: "the test".to_string(),
            reason: reason.to_string(),
        }
    }

    fn wait_for(is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < LONG, "it never came");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn nobody_waits_for_the_gauge_and_a_failed_one_is_opened_again() {
        let (gauges, opened) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let every = Duration::from_millis(20);
        let follower = Follower::with_probe(
            move || match opened.recv() {
                Ok(Some(gauge)) => Ok(Box::new(Sent(gauge))),
                _ => Err(failed("it is missing")),
            },
            (every, Duration::from_millis(1)),
            move |error: &ExternalError| tell.send(error.to_string()).unwrap(),
        );
        // It has not even been opened.
        assert_eq!((follower.newest(), follower.joules()), (None, None));
        // The same reason again says nothing new.
        gauges.send(None).unwrap();
        gauges.send(None).unwrap();
        let (send, gauge) = mpsc::channel();
        gauges.send(Some(gauge)).unwrap();
        send.send(Some(watts(70.0))).unwrap();
        wait_for(|| follower.newest() == Some(watts(70.0)));
        assert_eq!(follower.joules(), Some(0.0));
        // It hangs: what it said becomes old.
        wait_for(|| follower.newest().is_none());
        send.send(None).unwrap();
        let reasons = [(); 2].map(|()| told.recv_timeout(LONG).unwrap());
        assert!(reasons[0].contains("missing") && reasons[1].contains("ended"));
        assert!(told.try_recv().is_err());
        let (send, gauge) = mpsc::channel();
        gauges.send(Some(gauge)).unwrap();
        send.send(Some(watts(80.0))).unwrap();
        wait_for(|| follower.newest() == Some(watts(80.0)));
        // The thread ends, and closes the gauge.
        drop(follower);
        wait_for(|| send.send(Some(watts(90.0))).is_err());
    }
}
