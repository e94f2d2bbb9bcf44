//! A baseline in memory, and how it is written as schema A:
//!
//! ```json
//! { "baselines": { NAME: { "name", "timestamp", "hardware": {}, "metrics": {}, "metadata": {}, "samples": {} } },
//!   "metadata": {} }
//! ```
//!
//! `samples` and some facts of `hardware` are our additions; readers of schema A find all fields they expect.

use std::collections::BTreeMap;

use rocmforge_profile::clock;
use rocmforge_profile::stats::Summary;
use serde_json::{Map, Value as Json, json};

use super::hardware::Hardware;

/// Most samples kept per metric: more add no precision, and every pair of them is compared.
pub const MAX_SAMPLES: usize = 512;

/// The version of our additions to schema A.
pub(super) const FORM: u64 = 1;

/// The metrics of schema A, in its order.
const STATISTICS: [&str; 7] = [
    "avg_ms",
    "min_ms",
    "max_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "iterations",
];

/// Metric: the share of the cores that other programs took ([`crate::load`]).
pub const OTHER_LOAD: &str = "other_load";

/// Metadata key: the model that was measured.
pub(super) const MODEL: &str = "model";

/// Samples that a side needs for an interval of the ratio ([`super::ratio`]).
pub const ENOUGH_SAMPLES: usize = 5;

/// Metadata key: how often a benchmark was measured.
pub(super) const MEASUREMENTS: &str = "measurements";

/// The result of a benchmark.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurement {
    /// Name that contains all parameters, so that equal names are comparable.
    pub name: String,
    /// Metrics by name with unit, such as `p50_ms`, `tokens_s`, `peak_memory_gb`.
    pub metrics: BTreeMap<String, f64>,
    /// Samples by metric name, or by the unit of the metrics that summarise them: `ms` for `p50_ms`, `avg_ms` and so
    /// on.
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Facts such as `backend`, `format`, `model`.
    pub metadata: BTreeMap<String, String>,
}

impl Measurement {
    /// Creates a measurement of times in milliseconds: the metrics of schema A and the samples. `None` without samples.
    pub fn of_times(name: impl Into<String>, ms: &[f64]) -> Option<Measurement> {
        let summary = Summary::of(ms)?;
        let metrics = [
            ("avg_ms", summary.mean),
            ("min_ms", summary.min),
            ("max_ms", summary.max),
            ("p50_ms", summary.p50),
            ("p95_ms", summary.p95),
            ("p99_ms", summary.p99),
            ("iterations", summary.n as f64),
        ];
        Some(Measurement {
            name: name.into(),
            metrics: metrics
                .map(|(name, value)| (name.to_string(), value))
                .into(),
            samples: BTreeMap::from([("ms".to_string(), ms.to_vec())]),
            metadata: BTreeMap::new(),
        })
    }
}

impl Measurement {
    /// Returns the largest number of samples of a metric.
    pub fn n_samples(&self) -> usize {
        self.samples.values().map(Vec::len).max().unwrap_or(0)
    }
}

/// A benchmark of a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Benchmark {
    pub measured: Measurement,
    /// Seconds since 1970.
    pub timestamp: u64,
    pub hardware: Hardware,
}

impl Benchmark {
    /// Keeps at most [`MAX_SAMPLES`] samples of each kind: every k-th.
    pub(super) fn thin(&mut self) {
        for samples in self.measured.samples.values_mut() {
            samples.retain(|sample| sample.is_finite());
            let n = samples.len();
            if n > MAX_SAMPLES {
                *samples = (0..MAX_SAMPLES)
                    .map(|i| samples[i * n / MAX_SAMPLES])
                    .collect();
            }
        }
    }
}

/// Measurements to compare later ones with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PerformanceBaseline {
    /// Benchmarks in the order of measurement, with unique names.
    pub benchmarks: Vec<Benchmark>,
    /// Facts of the whole file, such as `description`, `hardware_type`, `baseline_date`.
    pub metadata: BTreeMap<String, String>,
}

impl PerformanceBaseline {
    /// Creates a baseline of measurements on `hardware` with the current time. A later measurement replaces an earlier
    /// one with the same name.
    pub fn of(
        hardware: &Hardware,
        measurements: impl IntoIterator<Item = Measurement>,
    ) -> PerformanceBaseline {
        let device = match hardware.gpu_name {
            Some(_) => "gpu",
            None => "cpu",
        };
        let today = &clock::rfc_3339(clock::unix_now())[..10];
        let facts = [
            ("description", "Performance baseline for ROCmForge"),
            ("hardware_type", device),
            ("baseline_date", today),
        ];
        let mut baseline = PerformanceBaseline {
            benchmarks: Vec::new(),
            metadata: facts
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .into(),
        };
        for measured in measurements {
            baseline.insert(Benchmark {
                measured,
                timestamp: clock::unix_now(),
                hardware: hardware.clone(),
            });
        }
        baseline
    }

    pub fn get(&self, name: &str) -> Option<&Benchmark> {
        self.benchmarks.iter().find(|of| of.measured.name == name)
    }

    /// Adds a benchmark or replaces the one with its name. Keeps up to [`MAX_SAMPLES`] samples, evenly spread over the
    /// run.
    pub fn insert(&mut self, mut benchmark: Benchmark) {
        benchmark.thin();
        let name = &benchmark.measured.name;
        match self
            .benchmarks
            .iter_mut()
            .find(|of| of.measured.name == *name)
        {
            Some(old) => *old = benchmark,
            None => self.benchmarks.push(benchmark),
        }
    }

    /// Adds all of `newer`, replacing benchmarks with the same names.
    pub fn extend(&mut self, newer: PerformanceBaseline) {
        newer
            .benchmarks
            .into_iter()
            .for_each(|benchmark| self.insert(benchmark));
        self.metadata.extend(newer.metadata);
    }

    /// Returns the time of the latest benchmark.
    pub fn timestamp(&self) -> Option<u64> {
        self.benchmarks.iter().map(|of| of.timestamp).max()
    }

    /// Returns the text of the file.
    pub fn to_json(&self) -> String {
        let mut metadata: Map<String, Json> = Map::new();
        for (name, value) in &self.metadata {
            metadata.insert(name.clone(), value.clone().into());
        }
        metadata.insert("form".to_string(), FORM.to_string().into());
        let benchmarks = self.benchmarks.iter();
        let benchmarks: Map<String, Json> = benchmarks
            .map(|of| (of.measured.name.clone(), entry(of)))
            .collect();
        let mut text = format!(
            "{:#}",
            json!({ "baselines": benchmarks, "metadata": metadata })
        );
        text.push('\n');
        text
    }
}

fn entry(benchmark: &Benchmark) -> Json {
    let measured = &benchmark.measured;
    let mut metrics = Map::new();
    let known = STATISTICS.iter().map(|name| name.to_string());
    for name in known.chain(measured.metrics.keys().cloned()) {
        let Some(&value) = measured.metrics.get(&name) else {
            continue;
        };
        let number = match name == "iterations" && value >= 0.0 && value.fract() == 0.0 {
            true => Json::from(value as u64),
            // NaN and infinities are not measurements.
            false => Json::from(value),
        };
        if number.is_number() {
            metrics.insert(name, number);
        }
    }
    json!({
        "name": measured.name,
        "timestamp": benchmark.timestamp,
        "hardware": benchmark.hardware,
        "metrics": metrics,
        "metadata": measured.metadata,
        "samples": measured.samples,
    })
}
