//! A run compared with a baseline, as text and JSON.

use std::fmt::Write as _;

use rocmforge_gguf::escape_control;
use serde::Serialize;

use super::compare::{
    Comparison, ComparisonResult, Doubt, Method, MetricComparison, compare_metrics,
};
use super::rules::Rules;
use super::schema::PerformanceBaseline;

/// All comparisons of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RegressionReport {
    /// Names of the two sides.
    pub baseline: String,
    pub current: String,
    /// The worst result of all.
    pub result: ComparisonResult,
    pub results: Vec<Comparison>,
    /// Benchmarks only in the baseline, and only in the current run.
    pub missing: Vec<String>,
    pub added: Vec<String>,
}

impl RegressionReport {
    /// Creates a report of `results`, in their order.
    pub fn from_results(results: Vec<Comparison>) -> RegressionReport {
        let all = results.iter().map(|comparison| comparison.result);
        RegressionReport {
            baseline: "baseline".to_string(),
            current: "now".to_string(),
            result: all.max().unwrap_or(ComparisonResult::Ok),
            results,
            missing: Vec::new(),
            added: Vec::new(),
        }
    }

    /// Compares the benchmarks on both sides, in the order of `current`.
    pub fn compare(
        baseline: &PerformanceBaseline,
        current: &PerformanceBaseline,
        rules: &Rules,
    ) -> RegressionReport {
        let mut results = Vec::new();
        let mut added = Vec::new();
        for now in &current.benchmarks {
            match baseline.get(&now.measured.name) {
                Some(then) => results.push(compare_metrics(then, now, rules)),
                None => added.push(now.measured.name.clone()),
            }
        }
        let names = baseline.benchmarks.iter().map(|of| &of.measured.name);
        let missing = names.filter(|name| current.get(name).is_none());
        let missing = missing.cloned().collect();
        RegressionReport {
            missing,
            added,
            ..RegressionReport::from_results(results)
        }
    }

    /// Sets the names of the two sides.
    pub fn called(mut self, baseline: &str, current: &str) -> RegressionReport {
        self.baseline = baseline.to_string();
        self.current = current.to_string();
        self
    }

    /// Returns the number of benchmarks with this result.
    pub fn count(&self, result: ComparisonResult) -> usize {
        self.results.iter().filter(|of| of.result == result).count()
    }

    /// Returns the number of metrics that could not be judged.
    pub fn inconclusive(&self) -> usize {
        let metrics = self.results.iter().flat_map(|of| &of.metrics);
        metrics.filter(|metric| !metric.conclusive).count()
    }

    /// Returns a summary such as `3 benchmarks: 1 regression, 2 unchanged`.
    pub fn totals(&self) -> String {
        let n = self.results.len();
        let mut text = format!("{n} benchmark{}", if n == 1 { "" } else { "s" });
        let mut before = ": ";
        for (result, one, more) in [
            (
                ComparisonResult::HardwareMismatch,
                "on other hardware",
                "on other hardware",
            ),
            (ComparisonResult::Regression, "regression", "regressions"),
            (ComparisonResult::Improved, "improved", "improved"),
            (ComparisonResult::Ok, "unchanged", "unchanged"),
        ] {
            let count = self.count(result);
            if count > 0 {
                let word = if count == 1 { one } else { more };
                let _ = write!(text, "{before}{count} {word}");
                before = ", ";
            }
        }
        text
    }

    /// Formats the report for a terminal.
    pub fn to_terminal(&self) -> String {
        let rows: Vec<[String; 6]> = self.rows().map(|row| row.cells()).collect();
        let head = ["benchmark", "metric", "baseline", "now", "change", "result"].map(String::from);
        let mut widths = [0; 6];
        for row in std::iter::once(&head).chain(&rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut text = format!(
            "{} against {}\n",
            escape_control(&self.current),
            escape_control(&self.baseline)
        );
        for row in std::iter::once(&head).chain(&rows) {
            let mut line = String::new();
            for (i, (cell, width)) in row.iter().zip(widths).enumerate() {
                // Numbers are right-aligned.
                let _ = match (2..5).contains(&i) {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        for line in self.remarks() {
            let _ = writeln!(text, "{}", escape_control(&line));
        }
        let _ = writeln!(text, "{}", self.totals());
        text
    }

    /// Formats the report as indented JSON.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("a report has only string keys and finite values") + "\n"
    }

    /// Returns the rows of a table: one per metric, or one for a benchmark without metrics. Unchanged sizes are
    /// skipped, unless there is nothing else.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.results.iter().flat_map(|of| {
            let is_still = |metric: &MetricComparison| {
                metric.method == Method::Threshold && metric.baseline == metric.current
            };
            let all_still = of.metrics.iter().all(is_still);
            let shown = of.metrics.iter().enumerate();
            let shown =
                shown.filter(move |(i, metric)| !is_still(metric) || (all_still && *i == 0));
            let none = of.metrics.is_empty().then_some(None);
            let metrics = shown.map(|(_, metric)| Some(metric)).chain(none);
            metrics.map(move |metric| Row { of, metric })
        })
    }

    /// Returns the remarks below a table, each once.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = Vec::new();
        let mut say = |text: String| {
            if !remarks.contains(&text) {
                remarks.push(text);
            }
        };
        for of in &self.results {
            of.hardware.iter().for_each(|difference| {
                say(match difference.fact {
                    "model" => format!("other {difference}"),
                    _ => format!("other hardware: {difference}"),
                })
            });
            of.notes
                .iter()
                .for_each(|note| say(format!("note: {note}")));
        }
        for (what, names) in [
            ("not measured now", &self.missing),
            ("not in the baseline", &self.added),
        ] {
            if !names.is_empty() {
                say(format!("{what}: {}", names.join(", ")));
            }
        }
        for (doubt, advice) in [
            (
                Doubt::Busy,
                "because the machine was busy; measure on an idle one, or run both programs in turn with compare",
            ),
            (
                Doubt::Pace,
                "because the machine itself was slower or faster; run both programs in turn with compare",
            ),
            (Doubt::Noise, "because of noise; measure more often"),
            (Doubt::FewSamples, "for too few samples; measure more often"),
        ] {
            let metrics = self.results.iter().flat_map(|of| &of.metrics);
            match metrics.filter(|of| of.doubt == Some(doubt)).count() {
                0 => {}
                1 => say(format!("1 metric was not judged {advice}")),
                n => say(format!("{n} metrics were not judged {advice}")),
            }
        }
        remarks
    }
}

/// A row of a table.
pub struct Row<'a> {
    pub of: &'a Comparison,
    pub metric: Option<&'a MetricComparison>,
}

impl Row<'_> {
    /// Returns the cells: benchmark, metric, baseline, now, change, result.
    pub fn cells(&self) -> [String; 6] {
        let name = escape_control(&self.of.name).into_owned();
        let Some(metric) = self.metric else {
            let nothing = String::new;
            let result = match self.of.result {
                ComparisonResult::HardwareMismatch if self.of.is_other_model() => {
                    "other model, not compared"
                }
                ComparisonResult::HardwareMismatch => "other hardware, not compared",
                _ => "no metric in common",
            };
            return [
                name,
                nothing(),
                nothing(),
                nothing(),
                nothing(),
                result.to_string(),
            ];
        };
        [
            name,
            escape_control(&metric.metric).into_owned(),
            four_digits(metric.baseline),
            four_digits(metric.current),
            metric.change_text(),
            metric.result_text().to_string(),
        ]
    }
}

impl Comparison {
    /// Whether it was not made because the models differ.
    pub fn is_other_model(&self) -> bool {
        self.metrics.is_empty() && self.hardware.iter().any(|of| of.fact == "model")
    }
}

impl MetricComparison {
    /// Formats the change, such as `+12.3 % [+10.1, +14.0]`.
    pub fn change_text(&self) -> String {
        let percent = |share: f64| format!("{:+.1}", 100.0 * share);
        match self.interval {
            Some([low, high]) => format!(
                "{} % [{}, {}]",
                percent(self.change),
                percent(low),
                percent(high)
            ),
            None => format!("{} %", percent(self.change)),
        }
    }

    /// Describes the result.
    pub fn result_text(&self) -> &'static str {
        match (self.result, self.doubt) {
            (ComparisonResult::Ok, None) => "ok",
            (ComparisonResult::Ok, Some(Doubt::Busy)) => "not judged: machine was busy",
            (ComparisonResult::Ok, Some(Doubt::Pace)) => "not judged: machine changed speed",
            (ComparisonResult::Ok, Some(Doubt::Noise)) => "not judged: too noisy",
            (ComparisonResult::Ok, Some(Doubt::FewSamples)) => "not judged: too few samples",
            (ComparisonResult::Improved, _) => "improved",
            (ComparisonResult::Regression, _) => "REGRESSION",
            (ComparisonResult::HardwareMismatch, _) => "other hardware",
        }
    }
}

impl Method {
    /// Describes the method.
    pub fn text(self) -> &'static str {
        match self {
            Method::Ranks => "ranks of the samples",
            Method::Bootstrap => "resampling",
            Method::Spread => "spread, because one side has too few samples",
            Method::Threshold => "the two values alone, because their spread is unknown",
        }
    }
}

/// Formats a number with four significant digits, and an exponent only if it is tiny.
pub fn four_digits(value: f64) -> String {
    let size = value.abs();
    if size < 1e-4 && value != 0.0 {
        return format!("{value:.3e}");
    }
    // Number of digits before the point, minus one.
    let power = if value == 0.0 {
        0.0
    } else {
        size.log10().floor()
    };
    let decimals = (3.0 - power).max(0.0) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::hardware::Hardware;
    use super::super::hardware::tests::some_cpu;
    use super::super::schema::{Benchmark, Measurement};
    use super::*;

    /// A name with special characters of every output format.
    pub(crate) const HOSTILE: &str = "a|b <&\"'> `x` [y](z) @me https://z\u{1b}[2J\n]]>-->";

    /// A report with every kind of result.
    pub(crate) fn report() -> RegressionReport {
        let times = |name: &str, ms: f64| {
            let samples: Vec<f64> = (0..10).map(|i| ms + 0.01 * f64::from(i)).collect();
            Measurement::of_times(name, &samples)
        };
        let noisy = |shift: f64| {
            let samples: Vec<f64> = (0..10).map(|i| shift + 10.0 * f64::from(i % 3)).collect();
            Measurement::of_times("noisy", &samples)
        };
        let then = [
            times(HOSTILE, 10.0),
            times("quick", 10.0),
            times("same", 10.0),
            noisy(20.0),
            times("gone", 1.0),
        ];
        let now = [
            times(HOSTILE, 15.0),
            times("quick", 5.0),
            times("same", 10.0),
            noisy(21.0),
            times("new", 1.0),
        ];
        let newer = Hardware {
            program_version: Some("0.2.0".into()),
            ..some_cpu()
        };
        let mut then = PerformanceBaseline::of(&some_cpu(), then.into_iter().flatten());
        let mut now = PerformanceBaseline::of(&newer, now.into_iter().flatten());
        let foreign = Hardware {
            cpu_model: Some("Other <CPU>".into()),
            ..some_cpu()
        };
        for (baseline, hardware) in [(&mut then, foreign), (&mut now, some_cpu())] {
            baseline.insert(Benchmark {
                measured: times("foreign", 1.0).unwrap(),
                timestamp: 0,
                hardware,
            });
        }
        RegressionReport::compare(&then, &now, &Rules::default()).called("main <1>", "this & that")
    }

    #[test]
    fn counts_results() {
        let report = report();
        assert_eq!(
            report.totals(),
            "5 benchmarks: 1 on other hardware, 1 regression, 1 improved, 2 unchanged"
        );
        assert_eq!(report.result, ComparisonResult::HardwareMismatch);
        assert_eq!(
            (report.missing.as_slice(), report.added.as_slice()),
            (&["gone".to_string()][..], &["new".to_string()][..])
        );
        assert_eq!(report.inconclusive(), 1);
        let empty = RegressionReport::from_results(Vec::new());
        assert_eq!(
            (empty.result, empty.totals().as_str()),
            (ComparisonResult::Ok, "0 benchmarks")
        );
    }

    #[test]
    fn escapes_control_characters_for_a_terminal() {
        let text = report().to_terminal();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "this & that against main <1>");
        assert!(lines[1].starts_with("benchmark") && lines[1].ends_with("result"));
        let line = |name: &str| lines.iter().find(|line| line.starts_with(name)).unwrap();
        assert!(line("a|b").ends_with("REGRESSION"), "{text}");
        assert!(
            line("quick").contains("-49.8 % [-50.1, -49.5]") && line("quick").ends_with("improved"),
            "{text}"
        );
        assert!(line("same").ends_with(" ok"), "{text}");
        assert!(line("noisy").ends_with("not judged: too noisy"), "{text}");
        assert!(
            line("foreign").ends_with("other hardware, not compared"),
            "{text}"
        );
        for part in [
            "other hardware: cpu_model: was Other <CPU>",
            "program_version: was 0.1.0, is 0.2.0",
            "not measured now: gone",
            "not in the baseline: new",
            "1 metric was not judged because of noise",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn json_contains_everything() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["result"], "hardware_mismatch");
        assert_eq!(json["baseline"], "main <1>");
        let first = &json["results"][0];
        assert_eq!(
            (&first["name"], &first["result"]),
            (&HOSTILE.into(), &"regression".into())
        );
        let metric = &first["metrics"][0];
        assert_eq!(
            (&metric["metric"], &metric["method"]),
            (&"p50_ms".into(), &"ranks".into())
        );
        assert_eq!(metric["direction"], "lower_is_better");
        assert!((metric["change"].as_f64().unwrap() - 0.5).abs() < 0.01);
        assert!(metric["interval"][0].as_f64().unwrap() > 0.4);
    }

    #[test]
    fn numbers_have_four_significant_digits() {
        for (value, expected) in [
            (123_456.7, "123457"),
            (123.45, "123.5"),
            (12.345, "12.35"),
            (1.2345, "1.234"),
            (0.123_45, "0.1235"),
            (0.597_728_1, "0.5977"),
            (0.000_123_46, "0.0001235"),
            (0.5, "0.5000"),
            (0.0, "0.000"),
            (1.2e-7, "1.200e-7"),
        ] {
            assert_eq!(four_digits(value), expected);
        }
    }
}
