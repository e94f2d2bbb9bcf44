//! Whether a benchmark got worse.
//!
//! For each metric there is an interval of the ratio of now to then ([`super::ratio`]), turned so that above 1 is worse.
//! With the threshold t, the smallest loss that matters, a metric has
//!
//! - **regressed** if the whole interval is above 1 (no change does not explain it) and its upper end reaches 1 + t (a
//!   loss that matters is not excluded);
//! - **improved** if the mirror image holds;
//! - otherwise not changed, which is *inconclusive* if the interval holds both 1 and 1 + t: the noise hides whether t
//!   was lost, and more samples would tell.
//!
//! So noise alone is called a regression less than once in 200 metrics, and a true loss of t is missed only if it cannot
//! be told from no change. Finding a loss of 10 % in 95 of 100 cases takes 6 samples on each side where samples deviate by
//! 2 % of their mean, 14 at 5 %, 50 at 10 % and 110 at 15 %.
//!
//! The interval comes from kept samples where both sides have enough; else from the spread that the metrics tell (p95
//! against p50 or the mean, over the root of the iterations); else there is none, and the ratio itself is held against
//! the threshold.

use serde::Serialize;

use super::again::MEASUREMENTS;
use super::hardware::Difference;
use super::metric::{Direction, Statistic, direction, is_restated, samples_of};
use super::ratio::{Interval, Uncertain, by_bootstrap, by_ranks, by_spread};
use super::rules::{HardwareRule, Rules};
use super::schema::{Benchmark, Measurement};
use rocmforge_profile::stats::Summary;

/// What became of a metric or of a benchmark. The order is that of what matters most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonResult {
    Ok,
    Improved,
    Regression,
    /// Not compared: measured on other hardware.
    HardwareMismatch,
}

/// Where the interval comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Ranks of the samples of both sides.
    Ranks,
    /// Resampling of both sides.
    Bootstrap,
    /// The spread of one or both sides.
    Spread,
    /// No interval: the ratio alone.
    Threshold,
}

/// A metric of a benchmark, then and now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricComparison {
    pub metric: String,
    pub direction: Direction,
    pub baseline: f64,
    pub current: f64,
    /// Now over then, minus 1: by the samples if there are, else by the two values.
    pub change: f64,
    /// What the change may be, at 99 % confidence.
    pub interval: Option<[f64; 2]>,
    /// As a share.
    pub threshold: f64,
    pub method: Method,
    pub result: ComparisonResult,
    /// Whether a loss of the threshold is either seen or excluded.
    pub conclusive: bool,
}

/// A benchmark, then and now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub name: String,
    /// The gravest of its metrics'.
    pub result: ComparisonResult,
    /// What of the hardware is not the same.
    pub hardware: Vec<Difference>,
    /// What else differs: software, and facts of the benchmark.
    pub notes: Vec<String>,
    /// Those that are judged.
    pub metrics: Vec<MetricComparison>,
}

/// Compares two measurements of a benchmark, metric by metric. Metrics that restate another one are left out unless
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

/// `None` if a side does not have the metric, or there is no ratio to 0.
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
    // A ratio that is the threshold but for rounding counts as it.
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
            // Resampling never finds anything beyond the extremes.
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

/// A metric with the standard error of a median (1.2533 deviations over the root of the samples). `None` if nothing says
/// how much it deviates.
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
            // Without a number of iterations the spread is that of one.
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
        notes.push(format!("measured {n} times, the best counts"));
    }
    let facts = baseline.measured.metadata.iter();
    for (fact, was) in facts.filter(|(fact, _)| *fact != MEASUREMENTS) {
        if let Some(is) = now.get(fact).filter(|is| *is != was) {
            notes.push(format!("{fact}: {was} then, {is} now"));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
