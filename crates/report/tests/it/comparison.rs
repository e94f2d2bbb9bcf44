//! A comparison with every kind of result, and the baselines of a trend.

use std::path::PathBuf;

use rocmforge_bench::baseline::{
    Benchmark, Hardware, Measurement, PerformanceBaseline, RegressionReport, Rules, Stored,
};

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

pub(crate) fn stored(name: &str, timestamp: u64, ms: f64, hardware: Hardware) -> Stored {
    let times: Vec<f64> = (0..20)
        .map(|i| ms * (1.0 + 0.001 * f64::from(i % 5)))
        .collect();
    let mut baseline = PerformanceBaseline::of(&hardware, Measurement::of_times("matmul", &times));
    baseline.benchmarks[0].timestamp = timestamp;
    Stored {
        name: name.to_string(),
        path: PathBuf::from(name),
        baseline: Ok(baseline),
    }
}

pub(crate) fn some_cpu() -> Hardware {
    Hardware {
        cpu_arch: Some("x86_64".into()),
        os: Some("linux".into()),
        cpu_model: Some("Some CPU".into()),
        n_threads: Some(2),
        program_version: Some("0.1.0".into()),
        ..Hardware::default()
    }
}
