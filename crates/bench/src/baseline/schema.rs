//! A baseline in memory, and written as schema A:
//!
//! ```json
//! { "baselines": { NAME: { "name", "timestamp", "hardware": {}, "metrics": {}, "metadata": {}, "samples": {} } },
//!   "metadata": {} }
//! ```
//!
//! `samples` and some facts of `hardware` are ours; a reader of schema A finds all it knows under the names it knows.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::hardware::Hardware;
use super::metric::STATISTICS;
use rocmforge_profile::clock;
use rocmforge_profile::stats::Summary;

/// Samples of a metric that are kept: more say nothing new, and every pair of them is compared.
pub const MAX_SAMPLES: usize = 512;

/// The version of our additions to schema A.
pub(super) const FORM: u64 = 1;

/// What a benchmark found, whatever measured it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurement {
    /// Says everything that was asked for, so that equal names are comparable.
    pub name: String,
    /// By name; the unit is in the name, such as `p50_ms`, `tokens_s`, `peak_memory_gb`.
    pub metrics: BTreeMap<String, f64>,
    /// By the name of a metric, or by the unit of those that summarize them: `ms` for `p50_ms`, `avg_ms` and so on.
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Further facts, such as `backend`, `format`, `model`.
    pub metadata: BTreeMap<String, String>,
}

impl Measurement {
    /// Times of a benchmark, in milliseconds: schema A's metrics and the samples themselves. `None` without samples.
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

/// A benchmark of a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Benchmark {
    pub measured: Measurement,
    /// Seconds since 1970.
    pub timestamp: u64,
    pub hardware: Hardware,
}

impl Benchmark {
    /// Leaves at most [`MAX_SAMPLES`] of each kind: every k-th.
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

/// Measurements that later ones are compared with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PerformanceBaseline {
    /// In the order of measuring; each name once.
    pub benchmarks: Vec<Benchmark>,
    /// Of the whole, such as `description`, `hardware_type`, `baseline_date`.
    pub metadata: BTreeMap<String, String>,
}

impl PerformanceBaseline {
    /// What was measured on `hardware`, at this moment. Of two measurements of a name the later one stays.
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

    /// Adds a benchmark, in the place of the one that has its name. Of many samples [`MAX_SAMPLES`] are kept, evenly
    /// spread over the run.
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

    /// Adds all of `newer`, in the place of what has the same names.
    pub fn extend(&mut self, newer: PerformanceBaseline) {
        newer
            .benchmarks
            .into_iter()
            .for_each(|benchmark| self.insert(benchmark));
        self.metadata.extend(newer.metadata);
    }

    /// When the last of its benchmarks was measured.
    pub fn timestamp(&self) -> Option<u64> {
        self.benchmarks.iter().map(|of| of.timestamp).max()
    }

    /// The text of a file.
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
            // What is no number is no measurement.
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
