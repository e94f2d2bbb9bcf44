//! Follows baselines over time: a series of points for each benchmark, metric and machine. Each point is compared with
//! the one before it, and the last with the first, since many small losses add up.

use super::compare::{Comparison, ComparisonResult, MetricComparison, compare_metrics};
use super::hardware::Hardware;
use super::metric::{direction, is_restated};
use super::rules::{HardwareRule, Rules};
use super::schema::{Benchmark, Measurement};
use super::store::Stored;

/// The series of all baselines in a folder.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trend {
    /// Series grouped by benchmark, in order of first appearance.
    pub series: Vec<Series>,
    pub n_baselines: usize,
    /// Skipped files, and why.
    pub unreadable: Vec<String>,
}

/// A metric of a benchmark on a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub benchmark: String,
    pub metric: String,
    /// Name of the device.
    pub hardware: String,
    /// Points sorted by time.
    pub points: Vec<Point>,
    /// The last point compared with the first, if there are two.
    pub since_first: Option<MetricComparison>,
    /// A loss that the last point still has.
    pub lost: Option<Lost>,
}

/// A loss from an earlier point to the last.
#[derive(Debug, Clone, PartialEq)]
pub struct Lost {
    /// The name of the earlier baseline.
    pub since: String,
    pub change: MetricComparison,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Name of the baseline.
    pub baseline: String,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// Known version and commit of the program.
    pub program: String,
    pub value: f64,
    /// From the smallest sample to the 95th percentile.
    pub spread: Option<[f64; 2]>,
    /// Comparison with the previous point; `None` for the first.
    pub before: Option<MetricComparison>,
}

impl Trend {
    /// Builds the series of `all`, comparing points by the thresholds of `rules`. Each machine has its own series.
    pub fn of(all: &[Stored], rules: &Rules) -> Trend {
        let mut trend = Trend::default();
        let rules = Rules {
            hardware: HardwareRule::Same,
            ..rules.clone()
        };
        // A series has one benchmark name and one machine.
        let mut lines: Vec<Vec<(&str, &Benchmark)>> = Vec::new();
        for stored in all {
            match &stored.baseline {
                Err(error) => trend.unreadable.push(error.to_string()),
                Ok(baseline) => {
                    trend.n_baselines += 1;
                    for benchmark in &baseline.benchmarks {
                        let fits = |line: &&mut Vec<(&str, &Benchmark)>| {
                            let (_, first) = line[0];
                            first.measured.name == benchmark.measured.name
                                && is_same(&first.hardware, &benchmark.hardware)
                        };
                        match lines.iter_mut().find(fits) {
                            Some(line) => line.push((&stored.name, benchmark)),
                            None => lines.push(vec![(&stored.name, benchmark)]),
                        }
                    }
                }
            }
        }
        for mut line in lines {
            line.sort_by_key(|(_, benchmark)| benchmark.timestamp);
            trend.series.extend(series_of(&line, &rules));
        }
        trend
    }

    /// Returns the series that are worse now than at their first point or before a step. A loss that was made good since
    /// does not count.
    pub fn regressions(&self) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(|series| series.lost.is_some())
    }
}

fn is_same(a: &Hardware, b: &Hardware) -> bool {
    a == b || (a.differences(b).is_empty() && b.differences(a).is_empty())
}

/// Builds a series for each metric that does not restate another one.
fn series_of(line: &[(&str, &Benchmark)], rules: &Rules) -> Vec<Series> {
    let steps: Vec<Comparison> = line
        .windows(2)
        .map(|pair| compare_metrics(pair[0].1, pair[1].1, rules))
        .collect();
    let (_, first) = line[0];
    let (_, last) = line[line.len() - 1];
    let whole = (line.len() > 1).then(|| compare_metrics(first, last, rules));
    // Losses of the last point: to the first, and to those before a step that got worse.
    let is_worse = |of: &&Comparison| of.result == ComparisonResult::Regression;
    let before_steps = steps.iter().enumerate().filter(|(_, step)| is_worse(step));
    let before_steps = before_steps.map(|(i, _)| i).filter(|i| *i > 0);
    let losses: Vec<(&str, Comparison)> = std::iter::once(0)
        .chain(before_steps)
        .filter(|_| line.len() > 1)
        .map(|i| (line[i].0, compare_metrics(line[i].1, last, rules)))
        .collect();
    let of_metric = |comparison: &Comparison, metric: &str| {
        comparison
            .metrics
            .iter()
            .find(|of| of.metric == metric)
            .cloned()
    };
    let metrics = last.measured.metrics.keys();
    let metrics = metrics.filter(|metric| {
        direction(metric).is_some() && !is_restated(metric, &last.measured, &last.measured)
    });
    let series = metrics.map(|metric| {
        let points = line
            .iter()
            .enumerate()
            .filter_map(|(i, (baseline, benchmark))| {
                let measured = &benchmark.measured;
                Some(Point {
                    baseline: baseline.to_string(),
                    timestamp: benchmark.timestamp,
                    program: program(&benchmark.hardware),
                    value: *measured.metrics.get(metric)?,
                    spread: spread(measured, metric),
                    before: i
                        .checked_sub(1)
                        .and_then(|step| of_metric(&steps[step], metric)),
                })
            });
        Series {
            benchmark: last.measured.name.clone(),
            metric: metric.clone(),
            hardware: last.hardware.label(),
            points: points.collect(),
            since_first: whole.as_ref().and_then(|whole| of_metric(whole, metric)),
            lost: losses.iter().find_map(|(since, comparison)| {
                let change = of_metric(comparison, metric)?;
                (change.result == ComparisonResult::Regression).then(|| Lost {
                    since: since.to_string(),
                    change,
                })
            }),
        }
    });
    series.collect()
}

fn program(hardware: &Hardware) -> String {
    let parts = [&hardware.program_version, &hardware.program_commit];
    let known: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
    known.join(" ")
}

fn spread(measured: &Measurement, metric: &str) -> Option<[f64; 2]> {
    let of = metric
        .strip_prefix("p50_")
        .or(metric.strip_prefix("avg_"))?;
    let get = |prefix: &str| measured.metrics.get(&format!("{prefix}{of}")).copied();
    Some([get("min_")?, get("p95_")?])
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::super::hardware::tests::some_cpu;
    use super::super::schema::PerformanceBaseline;
    use super::*;

    pub(crate) fn stored(name: &str, timestamp: u64, ms: f64, hardware: Hardware) -> Stored {
        let times: Vec<f64> = (0..20)
            .map(|i| ms * (1.0 + 0.001 * f64::from(i % 5)))
            .collect();
        let mut baseline =
            PerformanceBaseline::of(&hardware, Measurement::of_times("matmul", &times));
        baseline.benchmarks[0].timestamp = timestamp;
        Stored {
            name: name.to_string(),
            path: PathBuf::from(name),
            baseline: Ok(baseline),
        }
    }

    #[test]
    fn groups_series_by_machine_and_time() {
        let other = Hardware {
            cpu_model: Some("Other CPU".into()),
            ..some_cpu()
        };
        let mut all = vec![
            stored("c", 300, 10.8, some_cpu()),
            stored("a", 100, 10.0, some_cpu()),
            stored("x", 150, 50.0, other),
            stored("d", 400, 11.6, some_cpu()),
            stored("b", 200, 10.4, some_cpu()),
            stored("e", 500, 20.0, some_cpu()),
        ];
        all.push(Stored {
            name: "bad".into(),
            path: PathBuf::from("bad.json"),
            baseline: super::super::store::read(std::path::Path::new("/nonexistent/bad.json")),
        });
        let trend = Trend::of(&all, &Rules::default());
        assert_eq!((trend.n_baselines, trend.unreadable.len()), (6, 1));
        let [ours, theirs] = &trend.series[..] else {
            panic!("{:?}", trend.series);
        };
        assert_eq!(
            (ours.metric.as_str(), ours.hardware.as_str()),
            ("p50_ms", "Some CPU, 2 threads")
        );
        let names: Vec<&str> = ours
            .points
            .iter()
            .map(|point| point.baseline.as_str())
            .collect();
        assert_eq!(names, ["a", "b", "c", "d", "e"]);
        let results = ours
            .points
            .iter()
            .map(|point| point.before.as_ref().map(|of| of.result));
        use ComparisonResult::{Ok, Regression};
        assert_eq!(
            results.collect::<Vec<_>>(),
            [None, Some(Ok), Some(Ok), Some(Ok), Some(Regression)]
        );
        assert_eq!((theirs.points.len(), &theirs.since_first), (1, &None));
        assert_eq!(trend.regressions().count(), 1);

        // Steps of 4 to 8 % pass individually, but not in total.
        all.retain(|stored| stored.name != "e");
        let trend = Trend::of(&all, &Rules::default());
        let since = trend.series[0].since_first.as_ref().unwrap();
        assert_eq!(since.result, Regression);
        assert_eq!(trend.regressions().count(), 1);
        assert_eq!(Trend::of(&[], &Rules::default()).series, []);
    }

    #[test]
    fn losses_that_were_made_good_do_not_count() {
        let lost = |times: &[f64]| {
            let all: Vec<Stored> = times
                .iter()
                .enumerate()
                .map(|(i, ms)| stored(&format!("b{i}"), 100 + i as u64, *ms, some_cpu()))
                .collect();
            let trend = Trend::of(&all, &Rules::default());
            assert_eq!(
                trend.regressions().count(),
                usize::from(trend.series[0].lost.is_some())
            );
            trend.series[0].lost.as_ref().map(|of| of.since.clone())
        };
        for (times, since) in [
            (&[10.0, 5.0][..], None),
            (&[10.0, 15.0], Some("b0")),
            // Worse for one build only.
            (&[10.0, 15.0, 10.0], None),
            // Better than at first, but half of the gain was lost again.
            (&[10.0, 5.0, 8.0], Some("b1")),
            (&[10.0, 5.0, 8.0, 5.0], None),
            (&[10.0, 5.0, 8.0, 7.0], Some("b1")),
            (&[10.0], None),
        ] {
            assert_eq!(lost(times).as_deref(), since, "{times:?}");
        }
    }
}
