//! A measured case as plain data, as suites produce, exports print and baselines keep it.
//!
//! Times have the names of the baselines' metrics. What was not measured is `None`, never zero.

use std::collections::BTreeMap;

use rocmforge_profile::stats::{Summary, median_interval};
use serde::{Deserialize, Serialize};

use crate::harness::Series;

/// Samples count as noisy if their standard deviation exceeds this share of the mean.
pub const NOISY: f64 = 0.05;

/// A measured case. In JSON a flat object, with nested objects `hardware`, `metadata` and `metrics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// Unique name `SUITE/CASE/DEVICE`, the same in every run, such as `matmul/quantized/Q4_K/1x4096x4096/cpu`.
    pub name: String,
    pub suite: String,
    /// `cpu`, `cuda:0`, `hip:0`, `host:nv`.
    pub device: String,
    /// Whether the device is an emulated GPU, whose times say nothing about real GPUs.
    pub emulated: bool,
    /// Format of the weights, the cache or the values; `None` if there is no single one.
    pub format: Option<String>,
    /// Size of the case, such as `tokens x outputs x inputs`.
    pub shape: String,
    #[serde(flatten)]
    pub times: Times,
    #[serde(flatten)]
    pub rates: Rates,
    /// Other measurements by name with unit, such as `kv_bytes_per_token`.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Notes for the reader, such as that the device has no fast kernel for the case.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Seconds since 1970.
    pub timestamp: u64,
    pub hardware: Hardware,
    /// Facts such as `backend`, `model`, `version`.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// Times of one run of the case in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Times {
    pub avg_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    /// Measured runs: samples times `runs_per_sample`.
    pub iterations: u64,
    /// Runs timed together; a sample is their mean.
    pub runs_per_sample: u64,
    /// Confidence interval of the median, at least 95 %; `None` for fewer than 6 samples.
    pub ci95_low_ms: Option<f64>,
    pub ci95_high_ms: Option<f64>,
    /// Standard deviation of the samples divided by their mean.
    pub noise: f64,
    pub samples_ms: Vec<f64>,
}

impl Times {
    /// Summarises samples; `None` without samples.
    pub fn of(series: &Series) -> Option<Times> {
        let summary = Summary::of(&series.samples_ms)?;
        let interval = median_interval(&series.samples_ms);
        Some(Times {
            avg_ms: summary.mean,
            min_ms: summary.min,
            max_ms: summary.max,
            p50_ms: summary.p50,
            p95_ms: summary.p95,
            p99_ms: summary.p99,
            iterations: series.runs_per_sample * summary.n as u64,
            runs_per_sample: series.runs_per_sample,
            ci95_low_ms: interval.map(|[low, _]| low),
            ci95_high_ms: interval.map(|[_, high]| high),
            noise: match summary.mean > 0.0 {
                true => summary.noise(),
                false => 0.0,
            },
            samples_ms: series.samples_ms.clone(),
        })
    }

    /// Whether the samples vary so much that the row should be measured again.
    pub fn is_noisy(&self) -> bool {
        self.noise > NOISY
    }
}

/// Rates computed from the median time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// 1e9 operations per second, f32 and int8; a multiply-add counts as two.
    pub gflop_s: Option<f64>,
    /// 1e9 bytes per second that the case must read and write.
    pub gb_s: Option<f64>,
    pub elements_s: Option<f64>,
    pub tokens_s: Option<f64>,
    /// `gb_s` relative to the read bandwidth measured in the same run. Above 1 where the data stays in a cache.
    pub bandwidth_roofline_share: Option<f64>,
    /// Time of the operations at the peak rates measured in the same run, relative to the median time. `None` on an
    /// emulated GPU.
    pub compute_roofline_share: Option<f64>,
}

/// The hardware a row was measured on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// GPU name from its driver; `None` if the CPU computed.
    pub gpu_name: Option<String>,
    /// Architecture such as `gfx1100`, `sm_90`.
    pub gpu_architecture: Option<String>,
    /// Version of HIP; `None` on other devices.
    pub rocm_version: Option<String>,
    /// Version of the GPU's driver.
    pub driver: Option<String>,
    /// CPU model name, if the system reports it.
    pub cpu_model: Option<String>,
    /// Architecture such as `x86_64`.
    pub cpu_arch: String,
    /// Number of compute threads.
    pub n_threads: usize,
    pub os: String,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn row() -> BenchRow {
        let series = Series {
            samples_ms: vec![4.0, 1.0, 2.0, 10.0, 3.0],
            runs_per_sample: 3,
        };
        BenchRow {
            name: "matmul/dense/F32/1x2x3/cpu".to_string(),
            suite: "matmul".to_string(),
            device: "cpu".to_string(),
            emulated: false,
            format: Some("F32".to_string()),
            shape: "1x2x3".to_string(),
            times: Times::of(&series).unwrap(),
            rates: Rates {
                gflop_s: Some(1.5),
                ..Rates::default()
            },
            metrics: BTreeMap::from([("weight_bytes".to_string(), 24.0)]),
            notes: vec!["slow, \"really\"".to_string()],
            timestamp: 1_700_000_000,
            hardware: Hardware::default(),
            metadata: BTreeMap::new(),
        }
    }

    #[test]
    fn rows_survive_json_as_flat_objects() {
        let row = row();
        let json = serde_json::to_value(&row).unwrap();
        // numpy: mean, min, max, percentile([1, 2, 3, 4, 10], [50, 95, 99]).
        for (field, expected) in [
            ("avg_ms", 4.0),
            ("min_ms", 1.0),
            ("max_ms", 10.0),
            ("p50_ms", 3.0),
            ("p95_ms", 8.8),
            ("p99_ms", 9.76),
            ("iterations", 15.0),
            ("gflop_s", 1.5),
        ] {
            let found = json[field].as_f64().unwrap();
            assert!((found - expected).abs() < 1e-12, "{field}: {found}");
        }
        assert!(json["ci95_low_ms"].is_null() && json["gb_s"].is_null());
        assert_eq!(serde_json::from_value::<BenchRow>(json).unwrap(), row);
        assert!(row.times.is_noisy());
    }

    #[test]
    fn no_samples_give_no_times() {
        let series = Series {
            samples_ms: Vec::new(),
            runs_per_sample: 1,
        };
        assert_eq!(Times::of(&series), None);
    }
}
