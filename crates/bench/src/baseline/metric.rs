//! Derives from the name of a metric which direction is better, which samples it summarises, and whether it merely
//! restates another metric.

use std::collections::BTreeMap;

use rocmforge_profile::stats::percentile;
use serde::Serialize;

use super::schema::Measurement;

/// The direction in which a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    LowerIsBetter,
    HigherIsBetter,
}

/// Suffixes of rates (work per second).
const RATES: [&str; 13] = [
    "tokens_s",
    "elements_s",
    "ops_s",
    "flop_s",
    "gop_s",
    "gb_s",
    "mb_s",
    "bytes_s",
    "_per_s",
    "_per_sec",
    "_per_second",
    "_tps",
    "_ts",
];

/// Suffixes of costs (time, memory, waste).
const COSTS: [&str; 12] = [
    "_ms",
    "_us",
    "_ns",
    "_seconds",
    "_bytes",
    "_kib",
    "_mib",
    "_gib",
    "_mb",
    "_gb",
    "fragmentation",
    "overhead",
];

/// Returns the direction of a metric; `None` if it is neither a rate nor a cost, such as `iterations`, which is shown
/// but not compared.
pub fn direction(metric: &str) -> Option<Direction> {
    let ends = |ends: &[&str]| ends.iter().any(|end| metric.ends_with(end));
    // Rates first: `gb_s` is a rate, `_gb` is not.
    match (ends(&RATES), ends(&COSTS)) {
        (true, _) => Some(Direction::HigherIsBetter),
        (false, true) => Some(Direction::LowerIsBetter),
        (false, false) => None,
    }
}

/// How a metric summarises samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Statistic {
    Mean,
    Min,
    Max,
    Quantile(f64),
}

/// Prefixes of names; the statistic that shows a change best is first.
const PREFIXES: [(&str, Statistic); 7] = [
    ("p50_", Statistic::Quantile(0.50)),
    ("avg_", Statistic::Mean),
    ("min_", Statistic::Min),
    ("p90_", Statistic::Quantile(0.90)),
    ("p95_", Statistic::Quantile(0.95)),
    ("p99_", Statistic::Quantile(0.99)),
    ("max_", Statistic::Max),
];

impl Statistic {
    pub(super) const MEDIAN: Statistic = Statistic::Quantile(0.5);

    /// Returns the statistic of `samples`, which it sorts.
    ///
    /// # Panics
    /// If there are no samples.
    pub(super) fn of(self, samples: &mut [f64]) -> f64 {
        samples.sort_unstable_by(f64::total_cmp);
        match self {
            Statistic::Mean => samples.iter().sum::<f64>() / samples.len() as f64,
            Statistic::Min => samples[0],
            Statistic::Max => samples[samples.len() - 1],
            Statistic::Quantile(p) => percentile(samples, p),
        }
    }
}

/// Returns the statistic and the base name of a metric: `p50_ms` is the median of `ms`. `None` for other metrics.
fn statistic(metric: &str) -> Option<(Statistic, &str)> {
    PREFIXES.iter().find_map(|(prefix, statistic)| {
        let of = metric.strip_prefix(prefix)?;
        Some((*statistic, of))
    })
}

/// Returns the samples behind a metric and the statistic. A rate next to times is computed as work divided by each
/// time.
pub(super) fn samples_of(measured: &Measurement, metric: &str) -> Option<(Statistic, Vec<f64>)> {
    let kept = |name: &str| {
        measured
            .samples
            .get(name)
            .filter(|samples| !samples.is_empty())
    };
    if let Some(samples) = kept(metric) {
        return Some((Statistic::MEDIAN, samples.clone()));
    }
    if let Some((statistic, of)) = statistic(metric) {
        return Some((statistic, kept(of)?.clone()));
    }
    if !RATES.iter().any(|end| metric.ends_with(end)) {
        return None;
    }
    let rate = measured.metrics.get(metric)?;
    let times = kept("ms")?;
    let median = Statistic::MEDIAN.of(&mut times.clone());
    let rates = times.iter().map(|ms| rate * median / ms);
    Some((Statistic::MEDIAN, rates.collect()))
}

/// Whether `metric` restates another metric of both sides: one statistic represents all statistics of the same samples,
/// and rates next to times restate the times.
pub(super) fn is_restated(metric: &str, baseline: &Measurement, current: &Measurement) -> bool {
    let both = |name: &str| {
        let has = |metrics: &BTreeMap<String, f64>| metrics.contains_key(name);
        has(&baseline.metrics) && has(&current.metrics)
    };
    let leader = |of: &str| {
        let names = PREFIXES.iter().map(|(prefix, _)| format!("{prefix}{of}"));
        names.into_iter().find(|name| both(name))
    };
    match statistic(metric) {
        Some((_, of)) => leader(of).is_some_and(|name| name != metric),
        None => {
            let is_rate = direction(metric) == Some(Direction::HigherIsBetter);
            let own = current.samples.contains_key(metric);
            is_rate && !own && leader("ms").is_some()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derives_the_direction_from_the_name() {
        use Direction::{HigherIsBetter, LowerIsBetter};
        for (metric, expected) in [
            ("p50_ms", Some(LowerIsBetter)),
            ("ttft_ms", Some(LowerIsBetter)),
            ("launch_us", Some(LowerIsBetter)),
            ("peak_memory_gb", Some(LowerIsBetter)),
            ("fragmentation", Some(LowerIsBetter)),
            ("tokens_s", Some(HigherIsBetter)),
            ("tokens_per_sec", Some(HigherIsBetter)),
            ("generation_tps", Some(HigherIsBetter)),
            ("gflop_s", Some(HigherIsBetter)),
            ("gb_s", Some(HigherIsBetter)),
            ("elements_s", Some(HigherIsBetter)),
            ("iterations", None),
            ("bandwidth_roofline_share", None),
            ("", None),
        ] {
            assert_eq!(direction(metric), expected, "{metric}");
        }
    }

    fn with(metrics: &[(&str, f64)], samples: &[(&str, &[f64])]) -> Measurement {
        Measurement {
            metrics: metrics
                .iter()
                .map(|(name, value)| (name.to_string(), *value))
                .collect(),
            samples: samples
                .iter()
                .map(|(name, list)| (name.to_string(), list.to_vec()))
                .collect(),
            ..Measurement::default()
        }
    }

    #[test]
    fn finds_samples_by_unit() {
        let measured = with(
            &[
                ("p50_ms", 2.0),
                ("p95_ms", 4.0),
                ("tokens_s", 10.0),
                ("ttft_ms", 7.0),
            ],
            &[("ms", &[1.0, 2.0, 4.0]), ("queue_ms", &[5.0])],
        );
        for (metric, expected) in [
            ("p50_ms", Some((Statistic::MEDIAN, vec![1.0, 2.0, 4.0]))),
            (
                "p95_ms",
                Some((Statistic::Quantile(0.95), vec![1.0, 2.0, 4.0])),
            ),
            // 10 tokens/s at the median of 2 ms.
            ("tokens_s", Some((Statistic::MEDIAN, vec![20.0, 10.0, 5.0]))),
            ("queue_ms", Some((Statistic::MEDIAN, vec![5.0]))),
            ("max_queue_ms", Some((Statistic::Max, vec![5.0]))),
            ("ttft_ms", None),
            ("gb_s", None),
        ] {
            assert_eq!(samples_of(&measured, metric), expected, "{metric}");
        }
    }

    #[test]
    fn one_metric_represents_the_others() {
        let a = with(
            &[
                ("avg_ms", 1.0),
                ("p50_ms", 1.0),
                ("p95_ms", 1.0),
                ("tokens_s", 1.0),
                ("ttft_ms", 1.0),
            ],
            &[],
        );
        let b = with(
            &[
                ("avg_ms", 1.0),
                ("p95_ms", 1.0),
                ("tokens_s", 1.0),
                ("ttft_ms", 1.0),
            ],
            &[],
        );
        for (metric, of_a, of_b) in [
            ("p50_ms", false, true),
            ("avg_ms", true, false),
            ("p95_ms", true, true),
            ("tokens_s", true, true),
            ("ttft_ms", false, false),
        ] {
            assert_eq!(is_restated(metric, &a, &a), of_a, "{metric}");
            assert_eq!(is_restated(metric, &b, &a), of_b, "{metric}");
        }
        let rates = with(&[("tokens_s", 1.0)], &[]);
        assert!(!is_restated("tokens_s", &rates, &a));
    }
}
