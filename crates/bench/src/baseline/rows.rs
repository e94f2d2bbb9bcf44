//! Converts rows of the bench suites to measurements of a baseline.

use super::hardware::Hardware;
use super::schema::{MODEL, Measurement};
use crate::BenchRow;

/// Between a row's name and its model, in names of baselines.
const OF_MODEL: &str = " of ";

/// Returns the name of the row behind a benchmark of a suite.
pub fn row_name(benchmark: &str) -> &str {
    benchmark
        .split_once(OF_MODEL)
        .map_or(benchmark, |(row, _)| row)
}

impl From<&BenchRow> for Measurement {
    fn from(row: &BenchRow) -> Measurement {
        let (times, rates) = (&row.times, &row.rates);
        let mut measured = Measurement {
            name: match row.metadata.get(MODEL) {
                Some(model) => format!("{}{OF_MODEL}{model}", row.name),
                None => row.name.clone(),
            },
            metrics: row.metrics.clone(),
            metadata: row.metadata.clone(),
            ..Measurement::default()
        };
        for (metric, value) in [
            ("avg_ms", Some(times.avg_ms)),
            ("min_ms", Some(times.min_ms)),
            ("max_ms", Some(times.max_ms)),
            ("p50_ms", Some(times.p50_ms)),
            ("p95_ms", Some(times.p95_ms)),
            ("p99_ms", Some(times.p99_ms)),
            ("iterations", Some(times.iterations as f64)),
            ("gflop_s", rates.gflop_s),
            ("gb_s", rates.gb_s),
            ("elements_s", rates.elements_s),
            ("tokens_s", rates.tokens_s),
            ("bandwidth_roofline_share", rates.bandwidth_roofline_share),
            ("compute_roofline_share", rates.compute_roofline_share),
        ] {
            if let Some(value) = value {
                measured.metrics.insert(metric.to_string(), value);
            }
        }
        let format = row.format.as_deref().unwrap_or_default();
        for (fact, text) in [
            ("suite", row.suite.as_str()),
            ("shape", &row.shape),
            ("format", format),
        ] {
            if !text.is_empty() {
                measured.metadata.insert(fact.to_string(), text.to_string());
            }
        }
        if row.emulated {
            measured
                .metadata
                .insert("emulated".to_string(), "true".to_string());
        }
        measured
            .samples
            .insert("ms".to_string(), times.samples_ms.clone());
        measured
    }
}

impl From<&crate::row::Hardware> for Hardware {
    /// CPU threads are a fact only if the CPU computed.
    fn from(found: &crate::row::Hardware) -> Hardware {
        Hardware {
            gpu_name: found.gpu_name.clone(),
            gpu_architecture: found.gpu_architecture.clone(),
            rocm_version: found.rocm_version.clone(),
            driver: found.driver.clone(),
            cpu_model: found.cpu_model.clone(),
            n_threads: found.gpu_name.is_none().then_some(found.n_threads as u64),
            ..Hardware::of_this_build()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::baseline::{ComparisonResult, PerformanceBaseline, RegressionReport, Rules};

    #[test]
    fn stores_and_compares_a_row() {
        let row = |p50: f64| -> BenchRow {
            let samples = [p50 * 0.99, p50, p50, p50, p50, p50 * 1.01];
            let row = json!({
                "name": "matmul/dense/F32/1x2x3/cpu", "suite": "matmul", "device": "cpu", "emulated": false,
                "format": "F32", "shape": "1x2x3",
                "avg_ms": p50, "min_ms": samples[0], "max_ms": samples[5], "p50_ms": p50, "p95_ms": p50, "p99_ms": p50,
                "iterations": 600, "runs_per_sample": 100, "ci95_low_ms": null, "ci95_high_ms": null, "noise": 0.01,
                "samples_ms": samples,
                "gflop_s": 1.0 / p50, "gb_s": null, "elements_s": null, "tokens_s": null,
                "bandwidth_roofline_share": 0.5, "compute_roofline_share": null,
                "metrics": {"weight_bytes": 24.0}, "notes": [], "timestamp": 1,
                "hardware": {
                    "gpu_name": null, "gpu_architecture": null, "rocm_version": null, "driver": null,
                    "cpu_model": "Some CPU", "cpu_arch": "x86_64", "n_threads": 2, "os": "linux"
                },
                "metadata": {"backend": "cpu"}
            });
            serde_json::from_value(row).unwrap()
        };
        let keep = |row: &BenchRow| {
            PerformanceBaseline::of(&Hardware::from(&row.hardware), [Measurement::from(row)])
        };
        let mut with_model = row(1.0);
        let model = ("model".to_string(), "a of b.gguf".to_string());
        with_model.metadata.extend([model]);
        let kept = Measurement::from(&with_model);
        assert_eq!(kept.name, "matmul/dense/F32/1x2x3/cpu of a of b.gguf");
        assert_eq!(row_name(&kept.name), with_model.name);
        assert_eq!(row_name(&with_model.name), with_model.name);
        let then = keep(&row(1.0));
        let kept = then.get("matmul/dense/F32/1x2x3/cpu").unwrap();
        assert_eq!(
            (
                kept.measured.metrics["gflop_s"],
                kept.measured.metrics["weight_bytes"]
            ),
            (1.0, 24.0)
        );
        assert_eq!(kept.measured.samples["ms"].len(), 6);
        assert_eq!(
            (kept.hardware.n_threads, kept.hardware.cpu_model.as_deref()),
            (Some(2), Some("Some CPU"))
        );
        let report =
            |now: f64| RegressionReport::compare(&then, &keep(&row(now)), &Rules::default());
        assert_eq!(report(1.2).result, ComparisonResult::Regression);
        assert_eq!(report(1.0).result, ComparisonResult::Ok);
        let judged: Vec<String> = report(1.2).results[0]
            .metrics
            .iter()
            .map(|of| of.metric.clone())
            .collect();
        assert_eq!(judged, ["p50_ms", "weight_bytes"]);
    }
}
