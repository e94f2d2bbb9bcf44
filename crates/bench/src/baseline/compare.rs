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
//! The machine itself may be faster or slower than it was (see [`crate::pace`]). An interval of times or rates is widened
//! by as much, so that neither a loss nor a gain of the machine counts as the program's.
//!
//! On a busy machine (see [`crate::load`]) samples agree with each other and are still too long by an unknown amount. So
//! such an interval is widened on the side of each busy measurement by the most that other programs can have cost. What
//! this leaves open counts as not judged.
//!
//! The interval is computed from stored samples if both sides have enough; else from the spread implied by the metrics
//! (p95 against p50 or the mean, divided by the root of the iterations); else there is none, and the ratio itself is
//! compared with the threshold.

use rocmforge_profile::stats::Summary;
use serde::Serialize;

use super::hardware::Difference;
use super::metric::{Direction, Statistic, direction, is_restated, samples_of};
use super::ratio::{Interval, Uncertain, by_bootstrap, by_ranks, by_spread};
use super::rules::{HardwareRule, Rules, Tails};
use super::schema::{Benchmark, MEASUREMENTS, MODEL, Measurement, OTHER_LOAD};
use crate::load::BUSY;
use crate::pace::PACE;

/// Most that shared caches and waiting for a slower thread cost, besides the time that other programs took.
const SHARING: f64 = 2.0;
/// Changes of the machine's pace up to this factor are within what the gauge itself varies.
const STEADY: f64 = 1.04;

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
    /// Why not.
    pub doubt: Option<Doubt>,
}

/// Why a comparison is not conclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// Other programs used the machine.
    Busy,
    /// The machine itself was slower or faster.
    Pace,
    /// Noise hides the loss.
    Noise,
    /// A tail needs more samples.
    FewSamples,
}

/// The comparison of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub name: String,
    /// The worst result of its metrics.
    pub result: ComparisonResult,
    /// Differences in hardware, and in the model.
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
    if let Some(difference) = other_model(then, now) {
        comparison.hardware.insert(0, difference);
        return comparison;
    }
    let mut tails = Vec::new();
    for metric in then.metrics.keys() {
        let Some(direction) = direction(metric) else {
            continue;
        };
        let judged = || judge(metric, direction, (then, now), rules.thresholds.of(metric));
        if rules.thresholds.own(metric).is_some() || !is_restated(metric, then, now) {
            comparison.metrics.extend(judged());
        } else if let Some(n) = tail_samples(metric, then, now) {
            let has_enough = n >= enough_for_tail(metric);
            match (rules.tails, has_enough) {
                (Tails::Judged, true) => comparison.metrics.extend(judged()),
                (Tails::Judged, false) => {
                    let few = judged().map(|of| of.not_judged(Doubt::FewSamples));
                    comparison.metrics.extend(few);
                }
                (Tails::Remarked, true) => tails.push((metric, direction)),
                (Tails::Remarked, false) => {}
            }
        }
    }
    let results = comparison.metrics.iter().map(|metric| metric.result);
    comparison.result = results.max().unwrap_or(ComparisonResult::Ok);
    // A tail is news only where the median is no worse.
    if comparison.result != ComparisonResult::Regression {
        for (metric, direction) in tails {
            let threshold = rules.thresholds.of(metric);
            let value = |of: &Measurement| of.metrics.get(metric).copied().unwrap_or(0.0);
            let is_longer = value(now) > (1.0 + threshold) * value(then);
            let judged = is_longer.then(|| judge(metric, direction, (then, now), threshold));
            let worse = judged.flatten();
            let worse = worse.filter(|of| of.result == ComparisonResult::Regression);
            comparison.notes.extend(worse.map(|of| {
                let change = of.change_text();
                format!("{metric} is {change} and not judged; judge tails to fail on it")
            }));
        }
    }
    comparison
}

/// Returns how the models differ, if both are known. Their times have nothing to do with each other.
fn other_model(then: &Measurement, now: &Measurement) -> Option<Difference> {
    let [was, is] = [then, now].map(|of| of.metadata.get(MODEL));
    (was.is_some() && is.is_some() && was != is).then(|| Difference {
        fact: MODEL,
        baseline: was.cloned(),
        current: is.cloned(),
    })
}

/// Returns the samples of the side with fewer, for metrics that show a tail; `None` for others.
fn tail_samples(metric: &str, then: &Measurement, now: &Measurement) -> Option<usize> {
    let n = |of| match samples_of(of, metric)? {
        (Statistic::Mean | Statistic::Quantile(0.95), samples) => Some(samples.len()),
        _ => None,
    };
    Some(n(then)?.min(n(now)?))
}

/// Returns the samples that a side needs: ten for resampling a mean, and so many that the 95th percentile is not the
/// largest.
fn enough_for_tail(metric: &str) -> usize {
    match metric.starts_with("p95_") {
        true => 40,
        false => 10,
    }
}

/// Whether a metric gets worse if other programs use the machine: times and rates, not sizes.
fn depends_on_load(metric: &str, direction: Direction) -> bool {
    let is_time = ["_ms", "_us", "_ns", "_seconds"];
    direction == Direction::HigherIsBetter || is_time.iter().any(|unit| metric.ends_with(unit))
}

/// Returns the share of the cores that other programs took, if that makes the machine busy.
fn busy_share(measured: &Measurement) -> Option<f64> {
    let share = measured.metrics.get(OTHER_LOAD).copied();
    share.filter(|share| *share >= BUSY)
}

/// Returns by which factor other programs that take this share of the cores can have slowed a measurement.
fn slowdown(share: f64) -> f64 {
    SHARING / (1.0 - share).max(0.01)
}

/// The factors by which the machine was slower and faster than for the baseline; 1 if not, or if unknown.
struct PaceChange {
    slower: f64,
    faster: f64,
}

impl PaceChange {
    fn between(then: &Measurement, now: &Measurement) -> PaceChange {
        let rates = |name: &str| Some((*then.metrics.get(name)?, *now.metrics.get(name)?));
        let slowdowns = PACE
            .iter()
            .filter_map(|name| rates(name))
            .map(|(then, now)| then / now);
        let mut change = PaceChange {
            slower: 1.0,
            faster: 1.0,
        };
        for slowdown in slowdowns.filter(|factor| factor.is_finite() && *factor > 0.0) {
            if slowdown > STEADY {
                change.slower = change.slower.max(slowdown);
            } else if slowdown < 1.0 / STEADY {
                change.faster = change.faster.max(1.0 / slowdown);
            }
        }
        change
    }
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
    let depends = depends_on_load(metric, direction);
    let [slowed_then, slowed_now] =
        [then, now].map(|of| busy_share(of).filter(|_| depends).map(slowdown));
    let pace = match depends {
        true => PaceChange::between(then, now),
        false => PaceChange {
            slower: 1.0,
            faster: 1.0,
        },
    };
    let widened = Interval {
        low: worse.low / pace.slower.max(slowed_now.unwrap_or(1.0)),
        high: worse.high * pace.faster.max(slowed_then.unwrap_or(1.0)),
        ..worse
    };
    // A ratio that differs from the threshold only by rounding counts as equal.
    let reaches = |ratio: f64| ratio >= (1.0 + threshold) * (1.0 - 1e-9);
    let result = if widened.low > 1.0 && reaches(widened.high) {
        ComparisonResult::Regression
    } else if widened.high < 1.0 && reaches(1.0 / widened.low) {
        ComparisonResult::Improved
    } else {
        ComparisonResult::Ok
    };
    let is_open = widened.low <= 1.0 && reaches(widened.high);
    let is_busy = slowed_then.or(slowed_now).is_some();
    let doubt = match is_open {
        false => None,
        true if is_busy => Some(Doubt::Busy),
        true if pace.slower > 1.0 || pace.faster > 1.0 => Some(Doubt::Pace),
        true => Some(Doubt::Noise),
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
        conclusive: doubt.is_none(),
        doubt,
    })
}

impl MetricComparison {
    /// Withdraws the result.
    fn not_judged(self, doubt: Doubt) -> MetricComparison {
        MetricComparison {
            result: ComparisonResult::Ok,
            conclusive: false,
            doubt: Some(doubt),
            ..self
        }
    }
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
    for (when, of) in [("baseline", &baseline.measured), ("now", &current.measured)] {
        if let Some(share) = busy_share(of) {
            notes.push(format!(
                "{when}: the machine was busy, other programs took {:.0} % of its cores and can have made it {:.1} times \
                 slower",
                100.0 * share,
                slowdown(share)
            ));
        }
    }
    let facts = baseline.measured.metadata.iter();
    let is_named = |fact: &str| fact == MEASUREMENTS || fact == MODEL;
    for (fact, was) in facts.filter(|(fact, _)| !is_named(fact)) {
        if let Some(is) = now.get(fact).filter(|is| *is != was) {
            notes.push(format!("{fact}: was {was}, is {is}"));
        }
    }
    notes
}

#[cfg(test)]
mod tests;
