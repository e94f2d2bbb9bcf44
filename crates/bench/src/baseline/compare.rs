//! Decides whether a benchmark got worse.
//!
//! For each metric, [`super::ratio`] computes a confidence interval of the ratio of the current to the baseline value,
//! oriented so that above 1 is worse. With the threshold t, the smallest loss that matters, a metric has
//!
//! - **regressed** if the whole interval is above 1 (noise does not explain it) and its upper end reaches 1 + t (a loss
//!   that matters is not excluded);
//! - **improved** if the mirror image holds;
//! - otherwise not changed. That is *inconclusive* if the interval contains both 1 and 1 + t: noise hides whether t was
//!   lost, and more samples would tell.
//!
//! So noise alone causes a regression in less than one of 200 metrics, and a true loss of t is missed only if it cannot
//! be told from no change. Finding a loss of 10 % in 95 of 100 cases takes 6 samples per side at a standard deviation
//! of 2 % of the mean, 14 at 5 %, 50 at 10 % and 110 at 15 %.
//!
//! The interval is computed from stored samples if both sides have enough; else from the spread implied by the metrics
//! (p95 against p50 or the mean, divided by the root of the iterations); else there is none, and the ratio itself is
//! compared with the threshold.

use rocmforge_profile::stats::Summary;
use serde::Serialize;

use super::hardware::Difference;
use super::metric::{Direction, Statistic, direction, is_restated, samples_of};
use super::ratio::{Interval, Uncertain, by_bootstrap, by_ranks, by_spread};
use super::rules::{HardwareRule, Rules};
use super::schema::{Benchmark, MEASUREMENTS, Measurement};

/// The result for a metric or a benchmark, ordered by severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonResult {
    Ok,
    Improved,
    Regression,
    /// Not compared: measured on other hardware.
    HardwareMismatch,
}

/// How the interval was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// From the ranks of the samples of both sides.
    Ranks,
    /// By resampling both sides.
    Bootstrap,
    /// From the spread of one or both sides.
    Spread,
    /// No interval, only the ratio.
    Threshold,
}

/// The comparison of a metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricComparison {
    pub metric: String,
    pub direction: Direction,
    pub baseline: f64,
    pub current: f64,
    /// Current over baseline, minus 1: from the samples if there are any, else from the two values.
    pub change: f64,
    /// Confidence interval (99 %) of the change.
    pub interval: Option<[f64; 2]>,
    /// The threshold as a share.
    pub threshold: f64,
    pub method: Method,
    pub result: ComparisonResult,
    /// Whether a loss of the threshold is either shown or excluded.
    pub conclusive: bool,
}

/// The comparison of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub name: String,
    /// The worst result of its metrics.
    pub result: ComparisonResult,
    /// Differences in hardware.
    pub hardware: Vec<Difference>,
    /// Other differences: software, and facts of the benchmark.
    pub notes: Vec<String>,
    /// The metrics that were compared.
    pub metrics: Vec<MetricComparison>,
}

/// Compares two measurements of a benchmark, metric by metric. Metrics that restate another one are skipped unless
/// `rules` has a threshold for them.
pub fn compare_metrics(baseline: &Benchmark, current: &Benchmark, rules: &Rules) -> Comparison {
    let hardware = baseline.hardware.differences(&current.hardware);
    let mut comparison = Comparison {
        name: current.measured.name.clone(),
        result: ComparisonResult::HardwareMismatch,
        notes: notes(baseline, current),
        hardware,
        metrics: Vec::new(),
    };
    if !comparison.hardware.is_empty() && rules.hardware == HardwareRule::Same {
        return comparison;
    }
    let (then, now) = (&baseline.measured, &current.measured);
    for metric in then.metrics.keys() {
        let is_wanted = rules.thresholds.own(metric).is_some() || !is_restated(metric, then, now);
        if let Some(direction) = direction(metric).filter(|_| is_wanted) {
            let judged = judge(metric, direction, (then, now), rules.thresholds.of(metric));
            comparison.metrics.extend(judged);
        }
    }
    let results = comparison.metrics.iter().map(|metric| metric.result);
    comparison.result = results.max().unwrap_or(ComparisonResult::Ok);
    comparison
}

/// Compares a metric; `None` if a side lacks it or the ratio is undefined because a value is 0.
fn judge(
    metric: &str,
    direction: Direction,
    (then, now): (&Measurement, &Measurement),
    threshold: f64,
) -> Option<MetricComparison> {
    let (baseline, current) = (*then.metrics.get(metric)?, *now.metrics.get(metric)?);
    let plain = match (baseline, current) {
        (0.0, 0.0) => 1.0,
        (0.0, _) | (_, 0.0) => return None,
        (baseline, current) => current / baseline,
    };
    let (method, interval) = interval(metric, then, now);
    let ratio = interval.map_or(plain, |interval| interval.estimate);
    let known = interval.unwrap_or(Interval {
        estimate: plain,
        low: plain,
        high: plain,
    });
    let worse = match direction {
        Direction::LowerIsBetter => known,
        Direction::HigherIsBetter => known.inverse(),
    };
    // A ratio that differs from the threshold only by rounding counts as equal.
    let reaches = |ratio: f64| ratio >= (1.0 + threshold) * (1.0 - 1e-9);
    let result = if worse.low > 1.0 && reaches(worse.high) {
        ComparisonResult::Regression
    } else if worse.high < 1.0 && reaches(1.0 / worse.low) {
        ComparisonResult::Improved
    } else {
        ComparisonResult::Ok
    };
    Some(MetricComparison {
        metric: metric.to_string(),
        direction,
        baseline,
        current,
        change: ratio - 1.0,
        interval: interval.map(|interval| [interval.low - 1.0, interval.high - 1.0]),
        threshold,
        method,
        result,
        conclusive: !(worse.low <= 1.0 && reaches(worse.high)),
    })
}

fn interval(metric: &str, then: &Measurement, now: &Measurement) -> (Method, Option<Interval>) {
    if let (Some((statistic, a)), Some((_, b))) =
        (samples_of(then, metric), samples_of(now, metric))
    {
        let found = match statistic {
            Statistic::MEDIAN => (Method::Ranks, by_ranks(&a, &b)),
            // Resampling never exceeds the extremes.
            Statistic::Min | Statistic::Max => (Method::Threshold, None),
            other => (Method::Bootstrap, by_bootstrap(&a, &b, other)),
        };
        if found.1.is_some() {
            return found;
        }
    }
    let spread = uncertain(then, metric).zip(uncertain(now, metric));
    match spread.and_then(|(then, now)| by_spread(then, now)) {
        Some(interval) => (Method::Spread, Some(interval)),
        None => (Method::Threshold, None),
    }
}

/// Returns a metric with the standard error of a median (1.2533 standard deviations divided by the root of the
/// samples). `None` if its deviation is unknown.
fn uncertain(measured: &Measurement, metric: &str) -> Option<Uncertain> {
    const OF_MEDIAN: f64 = 1.2533;
    /// The normal deviate of p95.
    const OF_P95: f64 = 1.6449;
    let value = *measured.metrics.get(metric)?;
    let (noise, n) = match samples_of(measured, metric) {
        Some((Statistic::MEDIAN, samples)) if samples.len() > 1 => {
            let summary = Summary::of(&samples)?;
            (summary.noise(), summary.n as f64)
        }
        _ => {
            let get = |name: &str| measured.metrics.get(name).copied();
            let of = metric
                .strip_prefix("p50_")
                .or(metric.strip_prefix("avg_"))?;
            let p95 = get(&format!("p95_{of}"))?;
            // Without a number of iterations the spread is that of one run.
            (
                (p95 - value) / OF_P95 / value,
                get("iterations").unwrap_or(1.0),
            )
        }
    };
    (n >= 1.0 && noise >= 0.0).then_some(Uncertain {
        value,
        relative_error: OF_MEDIAN * noise / n.sqrt(),
    })
}

fn notes(baseline: &Benchmark, current: &Benchmark) -> Vec<String> {
    let software = baseline.hardware.software_differences(&current.hardware);
    let mut notes: Vec<String> = software.iter().map(ToString::to_string).collect();
    let now = &current.measured.metadata;
    if let Some(n) = now.get(MEASUREMENTS) {
        notes.push(format!("measured {n} times, best result used"));
    }
    let facts = baseline.measured.metadata.iter();
    for (fact, was) in facts.filter(|(fact, _)| *fact != MEASUREMENTS) {
        if let Some(is) = now.get(fact).filter(|is| *is != was) {
            notes.push(format!("{fact}: was {was}, is {is}"));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
