//! Measures again what looks worse.
//!
//! Other programs, clock rates and temperature slow a machine down for seconds or minutes. That is longer than a
//! benchmark runs, so its samples agree and the statistics of one run cannot tell it from a regression. A real
//! regression persists. So benchmarks that look worse are measured again after all others, and the measurement with the
//! smallest loss counts.

use super::compare::{Comparison, ComparisonResult, compare_metrics};
use super::metric::Direction;
use super::rules::Rules;
use super::schema::{Benchmark, MEASUREMENTS, PerformanceBaseline};

impl Comparison {
    /// Returns the largest loss among the metrics as a factor: 1.2 is a fifth slower. 0 without metrics.
    pub fn loss(&self) -> f64 {
        let losses = self.metrics.iter().map(|metric| match metric.direction {
            Direction::LowerIsBetter => 1.0 + metric.change,
            Direction::HigherIsBetter => 1.0 / (1.0 + metric.change),
        });
        losses.fold(0.0, f64::max)
    }
}

impl PerformanceBaseline {
    /// Returns the names of the benchmarks that are worse than in `then`, in order.
    pub fn worse_than(&self, then: &PerformanceBaseline, rules: &Rules) -> Vec<String> {
        let worse = self.benchmarks.iter().filter(|now| {
            let before = then.get(&now.measured.name);
            before.is_some_and(|before| {
                compare_metrics(before, now, rules).result == ComparisonResult::Regression
            })
        });
        worse.map(|now| now.measured.name.clone()).collect()
    }

    /// Merges a later measurement: for each benchmark, keeps the one with the smaller loss against `then` and counts
    /// the measurements.
    pub fn add_again(&mut self, again: Benchmark, then: &PerformanceBaseline, rules: &Rules) {
        let name = &again.measured.name;
        let Some((first, before)) = self.get(name).zip(then.get(name)) else {
            return self.insert(again);
        };
        let loss = |of| compare_metrics(before, of, rules).loss();
        let mut best = match loss(&again) < loss(first) {
            true => again.clone(),
            false => first.clone(),
        };
        let n_before = first.measured.metadata.get(MEASUREMENTS);
        let n_before = n_before.and_then(|n| n.parse().ok()).unwrap_or(1usize);
        let n = n_before.saturating_add(1).to_string();
        best.measured.metadata.insert(MEASUREMENTS.to_string(), n);
        self.insert(best);
    }
}

#[cfg(test)]
mod tests {
    use super::super::hardware::tests::some_cpu;
    use super::super::report::RegressionReport;
    use super::super::schema::Measurement;
    use super::*;

    /// Benchmarks with six samples around each of these times.
    fn measured<const N: usize>(times: [(&str, f64); N]) -> PerformanceBaseline {
        let of = times.map(|(name, ms)| {
            let samples = [0.99, 0.995, 1.0, 1.0, 1.005, 1.01].map(|noise| ms * noise);
            Measurement::of_times(name, &samples).unwrap()
        });
        PerformanceBaseline::of(&some_cpu(), of)
    }

    fn one(name: &str, ms: f64) -> Benchmark {
        measured([(name, ms)]).benchmarks.remove(0)
    }

    #[test]
    fn keeps_the_measurement_with_the_smallest_loss() {
        let rules = Rules::default();
        let then = measured([("drift", 10.0), ("slow", 10.0), ("same", 10.0)]);
        // The first was disturbed, the second is really slower.
        let mut now = measured([
            ("drift", 14.0),
            ("slow", 12.0),
            ("same", 10.1),
            ("new", 1.0),
        ]);
        assert_eq!(now.worse_than(&then, &rules), ["drift", "slow"]);
        now.add_again(one("drift", 10.2), &then, &rules);
        now.add_again(one("slow", 12.5), &then, &rules);
        assert_eq!(now.worse_than(&then, &rules), ["slow"]);
        now.add_again(one("slow", 12.3), &then, &rules);
        let medians =
            ["drift", "slow"].map(|name| now.get(name).unwrap().measured.metrics["p50_ms"]);
        assert_eq!(medians, [10.2, 12.0]);
        let report = RegressionReport::compare(&then, &now, &rules);
        let notes: Vec<&[String]> = report.results.iter().map(|of| &of.notes[..]).collect();
        assert_eq!(
            notes,
            [
                &["measured 2 times, best result used".to_string()][..],
                &["measured 3 times, best result used".to_string()],
                &[]
            ]
        );
        // New benchmarks are added.
        now.add_again(one("other", 1.0), &then, &rules);
        assert!(now.get("other").is_some());
    }

    #[test]
    fn rates_lose_when_they_fall() {
        let rate = |value: f64| {
            let metrics = [("tokens_s".to_string(), value)].into();
            let measured = Measurement {
                name: "a".to_string(),
                metrics,
                ..Measurement::default()
            };
            Benchmark {
                measured,
                timestamp: 0,
                hardware: some_cpu(),
            }
        };
        let loss = |now| compare_metrics(&rate(100.0), &rate(now), &Rules::default()).loss();
        assert_eq!((loss(50.0), loss(100.0), loss(200.0)), (2.0, 1.0, 0.5));
    }
}
