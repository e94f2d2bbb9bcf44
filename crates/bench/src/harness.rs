//! Times a case: warm-up, then samples until the median is precise enough or the time budget is spent. Runs too short
//! for the clock are timed in groups.
//!
//! The harness has no clock: a case returns how long its runs took by its device's clock, so everything here depends on
//! those numbers alone.

use rocmforge_profile::stats::{median_interval, percentile};

use crate::error::BenchError;

/// Time budget and precision of a case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Seconds of warm-up; at least one run.
    pub warm_up_s: f64,
    /// Seconds of a sample. Shorter runs are repeated, so that neither clock resolution nor its cost matters.
    pub sample_s: f64,
    /// Seconds of samples.
    pub total_s: f64,
    /// Wanted half-width of the median's confidence interval, relative to the median.
    pub precision: f64,
    /// Samples to take even if the time is spent.
    pub min_samples: usize,
    pub max_samples: usize,
}

/// If `min_samples` would take more than this many times the budget, [`FEWEST`] samples suffice.
const PATIENCE: f64 = 5.0;
const FEWEST: usize = 3;
/// Most runs per sample.
const MAX_RUNS: u64 = 1 << 24;

impl Budget {
    pub const FULL: Budget = Budget {
        warm_up_s: 0.2,
        sample_s: 1e-3,
        total_s: 2.0,
        precision: 0.01,
        min_samples: 10,
        max_samples: 500,
    };
    /// For checking that everything runs; the numbers are rough.
    pub const QUICK: Budget = Budget {
        warm_up_s: 1e-3,
        sample_s: 1e-4,
        total_s: 0.02,
        precision: 0.05,
        min_samples: 6,
        max_samples: 20,
    };
}

/// Samples of a part of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Milliseconds of one run, each the mean of `runs_per_sample` runs.
    pub samples_ms: Vec<f64>,
    pub runs_per_sample: u64,
}

/// Tells whether to stop.
pub type Stop<'a> = dyn Fn() -> bool + 'a;

/// Runs a case the given number of times and returns the total seconds of each of its parts. Cases with long runs poll
/// whether to stop, and then fail with [`BenchError::Stopped`].
pub type Run<'a> = dyn FnMut(u64, &Stop<'_>) -> Result<Vec<f64>, BenchError> + 'a;

/// Returns the samples of each part. `stop` is polled before every sample.
///
/// # Errors
/// Those of the runs, and [`BenchError::Stopped`].
pub fn collect(
    budget: &Budget,
    run: &mut Run<'_>,
    stop: &Stop<'_>,
) -> Result<Vec<Series>, BenchError> {
    let runs_per_sample = warm_up(budget, run, stop)?;
    let mut series: Vec<Series> = Vec::new();
    let mut spent = 0.0;
    loop {
        go_on(stop)?;
        let seconds = run(runs_per_sample, stop)?;
        spent += seconds.iter().sum::<f64>();
        series.resize_with(seconds.len(), || Series {
            samples_ms: Vec::new(),
            runs_per_sample,
        });
        for (series, seconds) in series.iter_mut().zip(&seconds) {
            series
                .samples_ms
                .push(1e3 * seconds / runs_per_sample as f64);
        }
        let n = series.first().map_or(0, |series| series.samples_ms.len());
        let enough = n >= budget.min_samples
            && (spent >= budget.total_s || series.iter().all(|s| is_precise(s, budget.precision)));
        let too_long = n >= FEWEST && spent >= PATIENCE * budget.total_s;
        if enough || too_long || n >= budget.max_samples || series.is_empty() {
            return Ok(series);
        }
    }
}

fn go_on(stop: &Stop<'_>) -> Result<(), BenchError> {
    match stop() {
        true => Err(BenchError::Stopped),
        false => Ok(()),
    }
}

/// Returns the number of runs per sample.
fn warm_up(budget: &Budget, run: &mut Run<'_>, stop: &Stop<'_>) -> Result<u64, BenchError> {
    let (mut n_runs, mut spent) = (1, 0.0);
    loop {
        go_on(stop)?;
        let seconds = run(n_runs, stop)?.iter().sum::<f64>();
        spent += seconds;
        // The last warm-up runs are the most representative.
        let wanted = (budget.sample_s * n_runs as f64 / seconds).ceil();
        let wanted = if wanted >= MAX_RUNS as f64 {
            MAX_RUNS
        } else {
            (wanted as u64).max(1)
        };
        if spent >= budget.warm_up_s || n_runs == MAX_RUNS {
            return Ok(wanted);
        }
        n_runs = wanted.min(2 * n_runs);
    }
}

fn is_precise(series: &Series, precision: f64) -> bool {
    let Some([low, high]) = median_interval(&series.samples_ms) else {
        return false;
    };
    let mut sorted = series.samples_ms.clone();
    sorted.sort_by(f64::total_cmp);
    high - low <= 2.0 * precision * percentile(&sorted, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        warm_up_s: 0.1,
        sample_s: 0.01,
        total_s: 1.0,
        precision: 0.01,
        min_samples: 10,
        max_samples: 50,
    };

    /// Collects samples of a case whose run i (from 0, including warm-up) takes `seconds(i)`.
    fn collected(seconds: impl Fn(u64) -> f64) -> (Vec<Series>, u64) {
        let mut n_done = 0;
        let mut run = |n: u64, _: &Stop<'_>| {
            let total = (n_done..n_done + n).map(&seconds).sum();
            n_done += n;
            Ok(vec![total])
        };
        let series = collect(&BUDGET, &mut run, &|| false).unwrap();
        (series, n_done)
    }

    #[test]
    fn steady_runs_need_few_samples() {
        let (series, n_done) = collected(|_| 1.0 / 32.0);
        assert_eq!((series.len(), series[0].runs_per_sample), (1, 1));
        assert_eq!(series[0].samples_ms, [31.25; 10]);
        // Four runs of warm-up.
        assert_eq!(n_done, 14);
    }

    #[test]
    fn groups_short_runs() {
        let (series, _) = collected(|_| 1e-5);
        assert!(
            (995..=1005).contains(&series[0].runs_per_sample),
            "{}",
            series[0].runs_per_sample
        );
        assert!(
            series[0]
                .samples_ms
                .iter()
                .all(|ms| (ms - 0.01).abs() < 1e-9)
        );
        // A clock that always shows zero must not loop forever.
        let (series, _) = collected(|_| 0.0);
        assert_eq!(series[0].runs_per_sample, MAX_RUNS);
    }

    #[test]
    fn unsteady_runs_take_the_whole_budget() {
        // Half the runs take 20 ms, half 30 ms: the interval of the median stays wide.
        let (series, _) = collected(|i| if i % 2 == 0 { 0.02 } else { 0.03 });
        let n = series[0].samples_ms.len();
        // 1 s at 25 ms is 40 samples.
        assert!((39..=41).contains(&n), "{n}");
    }

    #[test]
    fn long_runs_stop_early() {
        let (series, n_done) = collected(|_| 60.0);
        assert_eq!((series[0].samples_ms.len(), n_done), (FEWEST, 4));
    }

    #[test]
    fn stops_when_asked() {
        let n_asked = std::cell::Cell::new(0);
        let stop = || {
            n_asked.set(n_asked.get() + 1);
            n_asked.get() > 8
        };
        let collected = collect(&BUDGET, &mut |_, _| Ok(vec![0.02]), &stop);
        assert!(matches!(collected, Err(BenchError::Stopped)));
    }

    #[test]
    fn parts_have_separate_samples() {
        let mut run = |n: u64, _: &Stop<'_>| Ok(vec![0.1 * n as f64, 0.3 * n as f64]);
        let series = collect(&BUDGET, &mut run, &|| false).unwrap();
        let medians: Vec<f64> = series.iter().map(|s| s.samples_ms[0]).collect();
        assert!((medians[0] - 100.0).abs() < 1e-9 && (medians[1] - 300.0).abs() < 1e-9);
    }
}
