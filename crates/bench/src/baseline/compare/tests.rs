//! Tests with constructed and real changes.

use std::collections::BTreeMap;

use super::super::hardware::tests::some_cpu;
use super::super::ratio::Random;
use super::super::rules::Thresholds;
use super::*;
use crate::pace::PACE;
use ComparisonResult::{Improved, Ok, Regression};
use rocmforge_testkit::sweep::is_full_run;

fn benchmark(ms: &[f64]) -> Benchmark {
    of(Measurement::of_times("a", ms).unwrap())
}

fn of(measured: Measurement) -> Benchmark {
    Benchmark {
        measured,
        timestamp: 0,
        hardware: some_cpu(),
    }
}

/// Metrics without samples.
fn summary(metrics: &[(&str, f64)]) -> Benchmark {
    of(Measurement {
        name: "a".to_string(),
        metrics: metrics
            .iter()
            .map(|(name, value)| (name.to_string(), *value))
            .collect(),
        ..Measurement::default()
    })
}

fn with(thresholds: &str) -> Rules {
    Rules {
        thresholds: thresholds.parse().unwrap(),
        ..Rules::default()
    }
}

/// Log-normal times around `ms` with standard deviation `noise` of the logarithm (Box-Muller).
fn noisy(random: &mut Random, n: usize, ms: f64, noise: f64) -> Vec<f64> {
    let mut uniform = || (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    let mut normal =
        || (-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    (0..n).map(|_| ms * (noise * normal()).exp()).collect()
}

/// The share of `n_draws` comparisons (or in the short run of half as many) that end as `wanted`: `n` noisy samples per side,
/// the later ones `factor` times as long.
fn rate(wanted: ComparisonResult, (noise, n): (f64, usize), factor: f64, n_draws: usize) -> f64 {
    let mut random = Random(7);
    let mut found = 0;
    let n_draws = if is_full_run() { n_draws } else { n_draws / 2 };
    for _ in 0..n_draws {
        let then = benchmark(&noisy(&mut random, n, 10.0, noise));
        let now = benchmark(&noisy(&mut random, n, 10.0 * factor, noise));
        let comparison = compare_metrics(&then, &now, &Rules::default());
        found += usize::from(comparison.result == wanted);
    }
    found as f64 / n_draws as f64
}

/// Noise levels, and the samples needed to find a loss of 10 %.
const NOISE: [(f64, usize); 4] = [(0.02, 6), (0.05, 14), (0.10, 50), (0.15, 110)];

#[test]
fn noise_is_not_a_regression() {
    for case in NOISE {
        // Sides of 50 samples and more are compared in the same way.
        for n in [5, case.1, (2 * case.1).min(110)] {
            let alarms = rate(Regression, (case.0, n), 1.0, 500);
            assert!(alarms <= 0.01, "{case:?} {n}: {alarms}");
        }
    }
}

#[test]
fn finds_a_loss_of_ten_percent() {
    for case in NOISE {
        for factor in [1.10, 1.12] {
            let found = rate(Regression, case, factor, 400);
            assert!(found >= 0.95, "{case:?} {factor}: {found}");
            let improved = rate(Improved, case, 1.0 / factor, 400);
            assert!(improved >= 0.95, "{case:?} {factor}: {improved}");
        }
    }
}

#[test]
fn ignores_small_certain_losses() {
    for factor in [1.02, 1.05] {
        let found = rate(Regression, (0.02, 60), factor, 200);
        assert!(found <= 0.01, "{factor}: {found}");
    }
}

#[test]
fn one_slow_sample_is_not_a_regression() {
    let then: Vec<f64> = (0..20).map(|i| 10.0 + 0.01 * f64::from(i)).collect();
    let mut now = then.clone();
    now[3] = 1000.0;
    let comparison = compare_metrics(&benchmark(&then), &benchmark(&now), &Rules::default());
    assert_eq!(comparison.result, Ok);
    assert!(comparison.metrics[0].conclusive);
}

#[test]
fn too_few_noisy_samples_are_inconclusive() {
    let mut random = Random(1);
    let [a, b] = [(); 2].map(|()| benchmark(&noisy(&mut random, 5, 10.0, 0.15)));
    let comparison = compare_metrics(&a, &b, &Rules::default());
    let [metric] = &comparison.metrics[..] else {
        panic!("one metric");
    };
    assert_eq!(
        (metric.result, metric.conclusive, metric.method),
        (Ok, false, Method::Ranks)
    );
}

#[test]
fn applies_directions_and_thresholds() {
    // Single values: the ratio is compared with the threshold.
    for (metric, then, now, rules, expected) in [
        ("ttft_ms", 100.0, 109.9, Rules::default(), Ok),
        ("ttft_ms", 100.0, 110.0, Rules::default(), Regression),
        ("ttft_ms", 110.0, 100.0, Rules::default(), Improved),
        ("ttft_ms", 100.0, 106.0, with("5"), Regression),
        ("ttft_ms", 100.0, 106.0, with("5,ttft_ms=7"), Ok),
        ("ttft_ms", 100.0, 106.0, with("generation_tps=5"), Ok),
        ("generation_tps", 110.0, 100.0, Rules::default(), Regression),
        ("generation_tps", 100.0, 110.0, Rules::default(), Improved),
        (
            "generation_tps",
            103.1,
            100.0,
            with("generation_tps=3"),
            Regression,
        ),
        ("peak_memory_gb", 5.0, 6.0, Rules::default(), Regression),
        ("fragmentation", 0.0, 0.0, Rules::default(), Ok),
    ] {
        let comparison = compare_metrics(
            &summary(&[(metric, then)]),
            &summary(&[(metric, now)]),
            &rules,
        );
        assert_eq!(
            comparison.result, expected,
            "{metric} {then} {now} {rules:?}"
        );
        assert_eq!(comparison.metrics[0].method, Method::Threshold);
    }
    // Metrics without direction or ratio are not compared.
    for (metric, then, now) in [
        ("iterations", 5.0, 500.0),
        ("fragmentation", 0.0, 0.5),
        ("x_share", 0.9, 0.1),
    ] {
        let comparison = compare_metrics(
            &summary(&[(metric, then)]),
            &summary(&[(metric, now)]),
            &Rules::default(),
        );
        assert_eq!(
            (comparison.result, comparison.metrics.len()),
            (Ok, 0),
            "{metric}"
        );
    }
}

#[test]
fn uses_the_spread_of_summaries() {
    let now = benchmark(&[11.0, 11.01, 11.02, 11.03, 11.04, 11.05]);
    for (p95, iterations, result, conclusive) in [
        // Spread of 0.1 % over 100 runs: 10.0 is precise.
        (10.01, 100.0, Regression, true),
        // Spread of 24 % over 4 runs: 10.0 is very uncertain.
        (14.0, 4.0, Ok, false),
    ] {
        let then = summary(&[
            ("p50_ms", 10.0),
            ("p95_ms", p95),
            ("iterations", iterations),
        ]);
        let comparison = compare_metrics(&then, &now, &Rules::default());
        let [metric] = &comparison.metrics[..] else {
            panic!("{comparison:?}");
        };
        assert_eq!(
            (metric.method, metric.result, metric.conclusive),
            (Method::Spread, result, conclusive)
        );
    }
    // Schema B has no iterations and no median.
    let b = summary(&[("avg_ms", 5.2), ("p95_ms", 5.5), ("tokens_s", 192.3)]);
    let slower = compare_metrics(&b, &now, &Rules::default());
    let metrics: Vec<&str> = slower
        .metrics
        .iter()
        .map(|metric| metric.metric.as_str())
        .collect();
    assert_eq!((slower.result, metrics), (Regression, vec!["avg_ms"]));
}

#[test]
fn compares_metrics_with_a_threshold_too() {
    let then: Vec<f64> = (0..60).map(|i| 10.0 + 0.02 * f64::from(i % 10)).collect();
    // A fifth of the samples takes twice as long: the 95th percentile changes, the median does not.
    let now: Vec<f64> = then
        .iter()
        .enumerate()
        .map(|(i, ms)| if i % 5 == 0 { 2.0 * ms } else { *ms })
        .collect();
    let rules = with("p95_ms=20,min_ms=1");
    let comparison = compare_metrics(&benchmark(&then), &benchmark(&now), &rules);
    let results: Vec<_> = comparison
        .metrics
        .iter()
        .map(|of| (of.metric.as_str(), of.method, of.result))
        .collect();
    assert_eq!(
        results,
        [
            ("min_ms", Method::Threshold, Ok),
            ("p50_ms", Method::Ranks, Ok),
            ("p95_ms", Method::Bootstrap, Regression),
        ]
    );
    // The result is deterministic.
    assert_eq!(
        comparison,
        compare_metrics(&benchmark(&then), &benchmark(&now), &rules)
    );
}

#[test]
fn skips_other_hardware_by_default() {
    let then = benchmark(&[10.0; 6]);
    let mut now = benchmark(&[20.0; 6]);
    now.hardware.cpu_model = Some("Other CPU".into());
    now.hardware.program_version = Some("0.2.0".into());
    now.measured.metadata.insert("format".into(), "Q8_0".into());
    let mut rules = Rules::default();
    let comparison = compare_metrics(&then, &now, &rules);
    assert_eq!(comparison.result, ComparisonResult::HardwareMismatch);
    assert_eq!(
        (comparison.metrics.len(), comparison.hardware.len()),
        (0, 1)
    );
    rules.hardware = HardwareRule::Any;
    let comparison = compare_metrics(&then, &now, &rules);
    assert_eq!(
        (comparison.result, comparison.hardware.len()),
        (Regression, 1)
    );
    assert_eq!(comparison.notes, ["program_version: was 0.1.0, is 0.2.0"]);
    assert_eq!(Thresholds::default(), rules.thresholds);
}

#[test]
fn finds_a_real_slowdown_and_no_false_one() {
    // Microseconds measured by `cargo bench --bench regression -- --json` on two cores, alone and next to four busy
    // programs, where the standard deviation equals the mean.
    let measured = include_str!("../../../tests/data/slowdown_us.json");
    let measured: BTreeMap<String, BTreeMap<String, Vec<f64>>> =
        serde_json::from_str(measured).unwrap();
    assert_eq!(measured.len(), 2);
    for (machine, samples) in &measured {
        let of = |what: &str| benchmark(&samples[what]);
        let found = compare_metrics(&of("then"), &of("slower"), &Rules::default());
        assert_eq!(found.result, Regression, "{machine}: {found:?}");
        let same = compare_metrics(&of("then"), &of("same"), &Rules::default());
        assert_eq!(same.result, Ok, "{machine}: {same:?}");
    }
}

/// Times without noise, on a machine of which other programs took `share`.
fn loaded(ms: f64, share: f64) -> Benchmark {
    let mut measured = Measurement::of_times("a", &[ms; 10]).unwrap();
    let load = [
        (OTHER_LOAD.to_string(), share),
        ("weight_bytes".to_string(), ms),
    ];
    measured.metrics.extend(load);
    of(measured)
}

#[test]
fn a_busy_machine_cannot_show_small_losses() {
    let judged = |then: (f64, f64), now: (f64, f64)| {
        let comparison = compare_metrics(
            &loaded(then.0, then.1),
            &loaded(now.0, now.1),
            &Rules::default(),
        );
        let [time, size] = &comparison.metrics[..] else {
            panic!("{comparison:?}");
        };
        assert_eq!(
            (time.metric.as_str(), size.metric.as_str()),
            ("p50_ms", "weight_bytes")
        );
        // Sizes do not depend on other programs.
        assert_eq!(size.doubt, None);
        let is_said = comparison.notes.iter().any(|note| note.contains("busy"));
        assert_eq!(
            is_said,
            then.1 >= BUSY || now.1 >= BUSY,
            "{:?}",
            comparison.notes
        );
        (time.result, time.doubt)
    };
    for (then, now, expected) in [
        ((10.0, 0.01), (13.0, 0.01), (Regression, None)),
        // The loss may be that of other programs.
        ((10.0, 0.01), (13.0, 0.30), (Ok, Some(Doubt::Busy))),
        ((10.0, 0.01), (19.0, 0.30), (Ok, Some(Doubt::Busy))),
        // Beyond what they explain.
        ((10.0, 0.01), (28.0, 0.30), (Ok, Some(Doubt::Busy))),
        // 2 / (1 - 0.3) is 2.86.
        ((10.0, 0.01), (29.0, 0.30), (Regression, None)),
        ((10.0, 0.01), (29.0, 0.65), (Ok, Some(Doubt::Busy))),
        ((10.0, 0.01), (1e4, 1.0), (Regression, None)),
        // A baseline that was slowed down may hide a loss.
        ((10.0, 0.30), (10.0, 0.01), (Ok, Some(Doubt::Busy))),
        ((10.0, 0.30), (13.0, 0.01), (Regression, None)),
        // Faster in spite of other programs.
        ((10.0, 0.01), (8.0, 0.30), (Improved, None)),
        ((10.0, 0.30), (8.0, 0.01), (Ok, Some(Doubt::Busy))),
        ((10.0, 0.30), (10.0, 0.30), (Ok, Some(Doubt::Busy))),
        ((10.0, 0.01), (10.0, 0.01), (Ok, None)),
    ] {
        assert_eq!(judged(then, now), expected, "{then:?} {now:?}");
    }
}

#[test]
fn the_pace_of_the_machine_is_no_loss() {
    let paced = |ms: f64, pace: [f64; 2]| {
        let mut measured = Measurement::of_times("a", &[ms; 10]).unwrap();
        let rates = PACE.map(str::to_string).into_iter().zip(pace);
        measured.metrics.extend(rates);
        of(measured)
    };
    let judged = |(then, was): (f64, [f64; 2]), (now, is): (f64, [f64; 2])| {
        let rules = Rules::default();
        let comparison = compare_metrics(&paced(then, was), &paced(now, is), &rules);
        let [time] = &comparison.metrics[..] else {
            panic!("{comparison:?}");
        };
        (time.result, time.doubt)
    };
    let usual = [30.0, 900.0];
    for (then, now, expected) in [
        ((10.0, usual), (12.0, usual), (Regression, None)),
        // The machine reads, or computes, a fifth slower.
        (
            (10.0, usual),
            (12.0, [25.0, 900.0]),
            (Ok, Some(Doubt::Pace)),
        ),
        (
            (10.0, usual),
            (12.0, [30.0, 750.0]),
            (Ok, Some(Doubt::Pace)),
        ),
        // Slower than that explains.
        ((10.0, usual), (12.1, [25.0, 900.0]), (Regression, None)),
        // A faster machine may hide a loss, and a gain.
        (
            (10.0, usual),
            (10.0, [36.0, 900.0]),
            (Ok, Some(Doubt::Pace)),
        ),
        ((10.0, usual), (8.4, [36.0, 900.0]), (Ok, None)),
        ((10.0, usual), (8.0, [36.0, 900.0]), (Improved, None)),
        // What a gauge varies, and damaged rates.
        ((10.0, usual), (12.0, [29.0, 930.0]), (Regression, None)),
        ((10.0, [0.0, f64::NAN]), (12.0, usual), (Regression, None)),
    ] {
        assert_eq!(judged(then, now), expected, "{then:?} {now:?}");
    }
}

#[test]
fn other_models_are_not_compared() {
    let of_model = |name: Option<&str>| {
        let mut measured = Measurement::of_times("a", &[10.0; 6]).unwrap();
        let model = name.map(|name| ("model".to_string(), name.to_string()));
        measured.metadata.extend(model);
        of(measured)
    };
    let any = Rules {
        hardware: HardwareRule::Any,
        ..Rules::default()
    };
    let compared = |a, b| compare_metrics(&of_model(a), &of_model(b), &any);
    let other = compared(Some("x.gguf"), Some("y.gguf"));
    assert_eq!(other.result, ComparisonResult::HardwareMismatch);
    assert!(other.is_other_model() && other.metrics.is_empty());
    assert_eq!(
        other.hardware[0].to_string(),
        "model: was x.gguf, is y.gguf"
    );
    for (a, b) in [
        (Some("x.gguf"), Some("x.gguf")),
        (None, Some("y.gguf")),
        (None, None),
    ] {
        assert_eq!(compared(a, b).result, Ok, "{a:?} {b:?}");
    }
}

/// Samples of which the last `n_slow` are ten times as long; the median does not show it.
fn with_slow(n: usize, n_slow: usize) -> Benchmark {
    let mut ms: Vec<f64> = (0..n).map(|i| 10.0 + 0.01 * (i % 7) as f64).collect();
    ms[n - n_slow..].iter_mut().for_each(|ms| *ms *= 10.0);
    benchmark(&ms)
}

#[test]
fn tails_are_judged_if_asked() {
    let tails = Rules {
        tails: Tails::Judged,
        ..Rules::default()
    };
    let results = |then: &Benchmark, now: &Benchmark, rules: &Rules| {
        let comparison = compare_metrics(then, now, rules);
        let metrics = comparison.metrics.iter();
        let results = metrics.map(|of| (of.metric.clone(), of.result, of.doubt));
        (results.collect::<Vec<_>>(), comparison.notes)
    };
    let named = |list: &[(&str, ComparisonResult, Option<Doubt>)]| {
        let list = list
            .iter()
            .map(|(name, result, doubt)| (name.to_string(), *result, *doubt));
        list.collect::<Vec<_>>()
    };
    let (then, now) = (with_slow(100, 0), with_slow(100, 20));
    let (found, notes) = results(&then, &now, &tails);
    assert_eq!(
        found,
        named(&[
            ("avg_ms", Regression, None),
            ("p50_ms", Ok, None),
            ("p95_ms", Regression, None)
        ])
    );
    assert_eq!(notes, Vec::<String>::new());
    // Otherwise they are said.
    let (found, notes) = results(&then, &now, &Rules::default());
    assert_eq!(found, named(&[("p50_ms", Ok, None)]));
    assert!(
        notes.len() == 2 && notes[0].starts_with("avg_ms is +1"),
        "{notes:?}"
    );
    // Without a change there is nothing to say.
    let (found, notes) = results(&then, &then, &tails);
    assert!(
        found.iter().all(|of| (of.1, of.2) == (Ok, None)) && notes.is_empty(),
        "{found:?}"
    );
    // Too few for a tail.
    let (found, _) = results(&with_slow(9, 0), &with_slow(9, 1), &tails);
    let few = Some(Doubt::FewSamples);
    assert_eq!(
        found,
        named(&[
            ("avg_ms", Ok, few),
            ("p50_ms", Ok, None),
            ("p95_ms", Ok, few)
        ])
    );
}
