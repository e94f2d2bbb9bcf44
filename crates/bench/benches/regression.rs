//! Checks that a real slowdown is found, and no slowdown of equal work: `cargo bench -p rocmforge-bench --bench
//! regression`.
//!
//! The slow version computes a quarter more dot products. Its samples, and those of the fast version twice, are
//! compared like baselines. `-- --json` prints the samples; the unit tests of the comparison use such a recording.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use rocmforge_bench::baseline::{
    ComparisonResult, Hardware, Measurement, PerformanceBaseline, RegressionReport, Rules,
};

const N_SAMPLES: usize = 100;
/// Dot products per sample, and values per product.
const N_PRODUCTS: usize = 400;
const N_VALUES: usize = 4096;

fn work(n_products: usize, a: &[f32], b: &[f32]) -> f32 {
    (0..n_products)
        .map(|_| {
            let (a, b) = (black_box(a), black_box(b));
            a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>()
        })
        .sum()
}

fn main() -> ExitCode {
    let (a, b) = (vec![1.5f32; N_VALUES], vec![0.5f32; N_VALUES]);
    let time = |n_products| {
        let started = Instant::now();
        black_box(work(n_products, &a, &b));
        started.elapsed().as_secs_f64() * 1e3
    };
    let [mut then, mut same, mut slower] = [const { Vec::new() }; 3];
    time(10 * N_PRODUCTS);
    // Interleaved, so that other load on the machine affects all equally.
    for _ in 0..N_SAMPLES {
        then.push(time(N_PRODUCTS));
        same.push(time(N_PRODUCTS));
        slower.push(time(N_PRODUCTS + N_PRODUCTS / 4));
    }
    if std::env::args().any(|arg| arg == "--json") {
        let micros = |ms: &[f64]| -> Vec<u64> { ms.iter().map(|ms| (ms * 1e3) as u64).collect() };
        let all = [&then, &same, &slower].map(|samples| micros(samples));
        println!("{all:?}");
        return ExitCode::SUCCESS;
    }
    let baseline = |[same, slower]: [&[f64]; 2]| {
        let kept = [("same work", same), ("a quarter more", slower)];
        let kept = kept.map(|(name, ms)| Measurement::of_times(name, ms));
        PerformanceBaseline::of(&Hardware::of_this_build(), kept.into_iter().flatten())
    };
    let rules = Rules {
        hardware: rocmforge_bench::baseline::HardwareRule::Any,
        ..Rules::default()
    };
    let report = RegressionReport::compare(
        &baseline([&then, &then]),
        &baseline([&same, &slower]),
        &rules,
    );
    print!("{}", report.to_terminal());
    let results: Vec<ComparisonResult> = report.results.iter().map(|of| of.result).collect();
    match results[..] {
        [ComparisonResult::Ok, ComparisonResult::Regression] => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
