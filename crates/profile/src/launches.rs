//! Measures the host's cost of kernel launches and recommends how to lower it.

use std::time::{Duration, Instant};

use crate::schema::{Launches, Recommendation, Verdict};
use crate::stats::Summary;

/// Overheads of a token in microseconds above which a graph pays, fewer launches pay, and a wait should be deferred.
const USE_GRAPH_US: f64 = 200.0;
const BATCH_US: f64 = 50.0;
const DEFER_US: f64 = 20.0;

/// Collects the durations of launches and the tokens they belong to.
#[derive(Debug, Clone, Default)]
pub struct LaunchOverheadTracker {
    /// Host time of each launch in microseconds.
    submits_us: Vec<f64>,
    n_tokens: usize,
    kernels: Duration,
}

/// How generation runs without profiling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unprofiled {
    /// Whether each token runs as one graph.
    pub graphs: bool,
    /// Wall-clock time of a token in microseconds.
    pub token_us: f64,
}

/// Averages of a token; times in microseconds.
struct PerToken {
    n_launches: f64,
    submit_us: f64,
    kernels_us: f64,
    token_us: f64,
    graphs: bool,
}

impl LaunchOverheadTracker {
    pub fn new() -> LaunchOverheadTracker {
        LaunchOverheadTracker::default()
    }

    /// Measures how long the host takes to run `launch`, which queues a kernel.
    pub fn measure_launch<T>(&mut self, launch: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let launched = launch();
        self.add_launch(started.elapsed());
        launched
    }

    /// Adds a launch that was measured elsewhere.
    pub fn add_launch(&mut self, submit: Duration) {
        self.submits_us.push(submit.as_secs_f64() * 1e6);
    }

    /// Ends a token: assigns it the launches since the last one and the time its kernels took on the device.
    pub fn add_token(&mut self, kernels: Duration) {
        self.n_tokens += 1;
        self.kernels += kernels;
    }

    fn per_token(&self, unprofiled: Unprofiled) -> Option<PerToken> {
        if self.n_tokens == 0 || self.submits_us.is_empty() {
            return None;
        }
        let n = self.n_tokens as f64;
        Some(PerToken {
            n_launches: self.submits_us.len() as f64 / n,
            submit_us: self.submits_us.iter().sum::<f64>() / n,
            kernels_us: self.kernels.as_secs_f64() * 1e6 / n,
            token_us: unprofiled.token_us,
            graphs: unprofiled.graphs,
        })
    }

    /// Returns all recommendations, largest gain first. [`Recommendation::NoAction`] is last and applies if no other
    /// does. Empty if no token with launches was measured.
    pub fn get_recommendations(&self, unprofiled: Unprofiled) -> Vec<Verdict> {
        let Some(token) = self.per_token(unprofiled) else {
            return Vec::new();
        };
        let mut verdicts = vec![token.use_graph(), token.batch(), token.defer()];
        let nothing = verdicts.iter().all(|verdict| !verdict.applies);
        verdicts.push(Verdict {
            recommendation: Recommendation::NoAction,
            applies: nothing,
            reason: format!(
                "{:.0} us of {:.0} us a token are not spent in kernels",
                token.overhead_us(),
                token.token_us
            ),
        });
        verdicts
    }

    /// Returns the summary, or `None` if no token with launches was measured.
    pub fn report(&self, unprofiled: Unprofiled) -> Option<Launches> {
        let token = self.per_token(unprofiled)?;
        let verdicts = self.get_recommendations(unprofiled);
        let first = verdicts.iter().find(|verdict| verdict.applies)?;
        Some(Launches {
            per_token: token.n_launches,
            graphs: unprofiled.graphs,
            submit_us: Summary::of(&self.submits_us)?,
            overhead_us: token.overhead_us(),
            recommendation: first.recommendation,
            reason: first.reason.clone(),
            verdicts: verdicts.clone(),
        })
    }
}

impl PerToken {
    /// Time of a token beyond its kernels. Without graphs it is at least the host's launch time, during which a fast
    /// device is idle.
    fn overhead_us(&self) -> f64 {
        let beyond = (self.token_us - self.kernels_us).max(0.0);
        match self.graphs {
            true => beyond,
            false => beyond.max(self.submit_us),
        }
    }

    fn use_graph(&self) -> Verdict {
        let overhead = self.overhead_us();
        let (applies, reason) = match self.graphs {
            true => (false, "tokens already run as graphs".to_string()),
            false => (
                overhead > USE_GRAPH_US,
                format!(
                    "{:.0} launches take {:.0} us of host time per token, and the overhead is {overhead:.0} us; a graph is one \
                     launch and pays above {USE_GRAPH_US:.0} us",
                    self.n_launches, self.submit_us
                ),
            ),
        };
        Verdict {
            recommendation: Recommendation::UseHipGraph,
            applies,
            reason,
        }
    }

    fn batch(&self) -> Verdict {
        let overhead = self.overhead_us();
        Verdict {
            recommendation: Recommendation::BatchOperations,
            applies: overhead > BATCH_US,
            reason: format!(
                "{:.0} launches per token with {:.1} us of overhead each; fewer and larger launches (more operations per \
                 kernel, or more sequences per step) pay above {BATCH_US:.0} us per token",
                self.n_launches,
                overhead / self.n_launches
            ),
        }
    }

    fn defer(&self) -> Verdict {
        let idle = self.token_us - self.kernels_us.max(self.submit_us);
        Verdict {
            recommendation: Recommendation::DeferSynchronization,
            applies: idle > DEFER_US,
            reason: match idle > 0.0 {
                true => format!(
                    "neither kernels nor launches run for {idle:.0} us of a token: host and device wait for each other; deferring \
                     that pays above {DEFER_US:.0} us"
                ),
                false => "kernels or launches run throughout".to_string(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Recommendation::*;

    const US: Duration = Duration::from_micros(1);

    /// Three tokens with `n` launches of `submit` us each, whose kernels take `kernels` us.
    fn tracker(n: u32, submit: u32, kernels: u32) -> LaunchOverheadTracker {
        let mut tracker = LaunchOverheadTracker::new();
        for _ in 0..3 {
            for _ in 0..n {
                tracker.add_launch(submit * US);
            }
            tracker.add_token(kernels * US);
        }
        tracker
    }

    #[test]
    fn recommends_by_overhead_and_idle_time() {
        // Launches, us per launch, us of kernels; graphs, us per token; expected recommendations; overhead.
        for (n, submit, kernels, graphs, token_us, applying, overhead) in [
            // 300 launches of 1 us that do not overlap with kernels.
            (
                300,
                1,
                100,
                false,
                320.0,
                &[UseHipGraph, BatchOperations][..],
                300.0,
            ),
            // The same as a graph: 20 us remain, exactly the limit for deferring.
            (300, 1, 300, true, 320.0, &[NoAction], 20.0),
            // A graph with gaps between its kernels.
            (
                300,
                1,
                300,
                true,
                380.0,
                &[BatchOperations, DeferSynchronization],
                80.0,
            ),
            // Few launches, but the host waits.
            (10, 1, 300, false, 340.0, &[DeferSynchronization], 40.0),
            (10, 1, 5000, false, 5010.0, &[NoAction], 10.0),
            (
                201,
                1,
                5000,
                false,
                5000.0,
                &[UseHipGraph, BatchOperations],
                201.0,
            ),
            (200, 1, 5000, false, 5000.0, &[BatchOperations], 200.0),
            // Events between kernels slowed the profiled run below the unprofiled one.
            (100, 1, 900, true, 700.0, &[NoAction], 0.0),
        ] {
            let unprofiled = Unprofiled { graphs, token_us };
            let tracker = tracker(n, submit, kernels);
            let verdicts = tracker.get_recommendations(unprofiled);
            let all: Vec<Recommendation> = verdicts.iter().map(|v| v.recommendation).collect();
            assert_eq!(
                all,
                [UseHipGraph, BatchOperations, DeferSynchronization, NoAction]
            );
            let found: Vec<Recommendation> = verdicts
                .iter()
                .filter(|verdict| verdict.applies)
                .map(|verdict| verdict.recommendation)
                .collect();
            assert_eq!(found, applying, "{n} {kernels} {token_us}");
            assert!(verdicts.iter().all(|verdict| !verdict.reason.is_empty()));
            let report = tracker.report(unprofiled).unwrap();
            assert_eq!(report.recommendation, applying[0]);
            assert_eq!(
                report.reason,
                verdicts[all.iter().position(|r| *r == applying[0]).unwrap()].reason
            );
            assert_eq!(report.per_token, f64::from(n));
            assert!(
                (report.overhead_us - overhead).abs() < 1e-6,
                "{}",
                report.overhead_us
            );
            assert!((report.submit_us.p50 - f64::from(submit)).abs() < 1e-6);
        }
    }

    #[test]
    fn reasons_contain_the_numbers() {
        let unprofiled = Unprofiled {
            graphs: false,
            token_us: 700.0,
        };
        let report = tracker(300, 2, 100).report(unprofiled).unwrap();
        for number in ["300 launches", "600 us"] {
            assert!(report.reason.contains(number), "{}", report.reason);
        }
    }

    #[test]
    fn measures_launches_by_wall_clock() {
        let mut tracker = LaunchOverheadTracker::new();
        let outer = Instant::now();
        let mut least = Duration::ZERO;
        let result = tracker.measure_launch(|| {
            let inner = Instant::now();
            while inner.elapsed() < 20 * US {}
            least = inner.elapsed();
            7
        });
        let most = outer.elapsed();
        assert_eq!(result, 7);
        let unprofiled = Unprofiled {
            graphs: true,
            token_us: 100.0,
        };
        assert_eq!(tracker.report(unprofiled), None);
        tracker.add_token(10 * US);
        let submit = tracker.report(unprofiled).unwrap().submit_us;
        let bounds = [least, most].map(|time| time.as_secs_f64() * 1e6);
        assert!(submit.max >= bounds[0] && submit.max <= bounds[1]);
    }
}
