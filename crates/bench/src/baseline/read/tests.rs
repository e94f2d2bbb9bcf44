//! Tests with valid and invalid files of both schemas.

use super::super::hardware::tests::some_cpu;
use super::*;

const A: &str = r#"{
  "baselines": {
    "benchmark_name": {
      "name": "benchmark_name",
      "timestamp": 1737220800,
      "hardware": {
        "gpu_name": "RX 7900 XT", "gpu_architecture": "RDNA3", "rocm_version": "6.0.0",
        "cpu_arch": "x86_64", "os": "linux", "rustc_version": "1.82.0"
      },
      "metrics": {
        "avg_ms": 10.5, "min_ms": 9.8, "max_ms": 11.2, "p50_ms": 10.3, "p95_ms": 10.9, "p99_ms": 11.1,
        "iterations": 100
      },
      "metadata": { "backend": "gpu", "format": "Q4_K_M" }
    }
  },
  "metadata": {
    "description": "Performance baseline for ROCmForge", "hardware_type": "gpu", "baseline_date": "2026-01-18"
  }
}"#;

const B: &str = r#"{
  "timestamp": "2026-01-18T00:00:00Z",
  "hardware": { "gpu": "AMD Radeon RX 7900 XT", "architecture": "gfx1100", "rocm_version": "7.1.52802" },
  "baselines": {
    "matmul_4096x4096": { "avg_ms": 5.2, "p95_ms": 5.5, "tokens_per_sec": 192.3 },
    "inference_7b_q4_k_m": { "ttft_ms": 145.2, "generation_tps": 42.5, "peak_memory_gb": 5.2 }
  }
}"#;

/// The specification prints schema B below a comment with the file's name.
#[test]
fn reads_files_with_comments() {
    let plain = PerformanceBaseline::from_json(B).unwrap();
    let name = "// benchmarks/baselines/rdna3-q4_k_m.json\n";
    let lines = B.replace(",\n", ", // see \"above\"\n");
    for text in [
        format!("{name}{B}"),
        format!("{name}{lines}\n// end"),
        B.replace('\n', "\r\n"),
    ] {
        assert_eq!(
            PerformanceBaseline::from_json(&text).unwrap(),
            plain,
            "{text}"
        );
    }
    // Slashes in texts are no comments, and neither is one slash.
    let text = A.replace("Performance baseline", r#"https://x \\\" // y \\"#);
    let description = &PerformanceBaseline::from_json(&text).unwrap().metadata["description"];
    assert_eq!(description, r#"https://x \" // y \ for ROCmForge"#);
    for bad in ["/", "{} /", "// only", "{ / / }"] {
        PerformanceBaseline::from_json(bad).unwrap_err();
    }
}

#[test]
fn reads_and_writes_schema_a() {
    let baseline = PerformanceBaseline::from_json(A).unwrap();
    let [benchmark] = &baseline.benchmarks[..] else {
        panic!("one benchmark");
    };
    assert_eq!(
        (benchmark.measured.name.as_str(), benchmark.timestamp),
        ("benchmark_name", 1_737_220_800)
    );
    let hardware = &benchmark.hardware;
    assert_eq!(hardware.gpu_name.as_deref(), Some("RX 7900 XT"));
    assert_eq!(hardware.rustc_version.as_deref(), Some("1.82.0"));
    assert_eq!((hardware.n_threads, &hardware.cpu_model), (None, &None));
    assert_eq!(benchmark.measured.metrics["p95_ms"], 10.9);
    assert_eq!(benchmark.measured.metadata["format"], "Q4_K_M");
    assert_eq!(baseline.metadata["baseline_date"], "2026-01-18");

    // Writing keeps all of it under the same names, and adds only our fields.
    let written: Json = serde_json::from_str(&baseline.to_json()).unwrap();
    let mut given: Json = serde_json::from_str(A).unwrap();
    fn contains(written: &Json, given: &Json) -> bool {
        match (written, given) {
            (Json::Object(written), Json::Object(given)) => given.iter().all(|(name, value)| {
                written
                    .get(name)
                    .is_some_and(|found| contains(found, value))
            }),
            (written, given) => written == given,
        }
    }
    assert!(contains(&written, &given), "{written:#}");
    // Written as an integer, for readers with an integer type.
    assert!(written["baselines"]["benchmark_name"]["metrics"]["iterations"].is_u64());
    given["baselines"]["benchmark_name"]["timestamp"] = 1.into();
    assert!(!contains(&written, &given));
    let again = PerformanceBaseline::from_json(&baseline.to_json()).unwrap();
    assert_eq!(again.benchmarks, baseline.benchmarks);
}

#[test]
fn reads_schema_b() {
    let baseline = PerformanceBaseline::from_json(B).unwrap();
    assert_eq!(baseline.benchmarks.len(), 2);
    let inference = baseline.get("inference_7b_q4_k_m").unwrap();
    assert_eq!(inference.timestamp, 1_768_694_400);
    assert_eq!(
        inference.hardware.gpu_architecture.as_deref(),
        Some("gfx1100")
    );
    for (metric, expected) in [
        ("ttft_ms", 145.2),
        ("generation_tps", 42.5),
        ("peak_memory_gb", 5.2),
    ] {
        assert_eq!(inference.measured.metrics[metric], expected);
    }
    let matmul = &baseline.get("matmul_4096x4096").unwrap().measured.metrics;
    assert_eq!(
        (matmul["avg_ms"], matmul["p95_ms"], matmul["tokens_s"]),
        (5.2, 5.5, 192.3)
    );
}

#[test]
fn keeps_and_thins_samples() {
    let many: Vec<f64> = (0..2000).map(f64::from).map(|i| 1.0 + i).collect();
    let measured = Measurement::of_times("a", &many).unwrap();
    let baseline = PerformanceBaseline::of(&some_cpu(), [measured]);
    let again = PerformanceBaseline::from_json(&baseline.to_json()).unwrap();
    let [benchmark] = &again.benchmarks[..] else {
        panic!("one benchmark");
    };
    let samples = &benchmark.measured.samples["ms"];
    assert_eq!((samples.len(), samples[0]), (512, 1.0));
    assert!(samples[511] > 1990.0);
    assert_eq!(benchmark.measured.metrics["p50_ms"], 1000.5);
    assert_eq!(benchmark.hardware, some_cpu());
}

#[test]
fn rejects_damaged_files() {
    for end in (0..A.len()).filter(|end| A.is_char_boundary(*end)) {
        let error = PerformanceBaseline::from_json(&A[..end]).unwrap_err();
        assert!(matches!(error, SchemaError::NotJson(_)), "{end}: {error}");
    }
    for text in [
        "\u{feff}{}",
        "nan",
        "\u{0}",
        &"[".repeat(100_000),
        &"{\"a\":".repeat(100_000),
    ] {
        let error = PerformanceBaseline::from_json(text).unwrap_err();
        assert!(matches!(error, SchemaError::NotJson(_)), "{error}");
    }
    for text in ["[]", "1", "\"x\"", "null", "{}", "{\"benchmarks\": {}}"] {
        let error = PerformanceBaseline::from_json(text).unwrap_err();
        assert!(
            matches!(error, SchemaError::UnknownForm(_)),
            "{text}: {error}"
        );
        assert!(error.to_string().contains("--save-baseline"), "{error}");
    }
    let newer = r#"{"baselines": {}, "metadata": {"form": "2"}}"#;
    assert_eq!(
        PerformanceBaseline::from_json(newer),
        Err(SchemaError::Newer(2, 1))
    );
}

#[test]
fn errors_name_the_place_of_wrong_types() {
    for (from, to, at) in [
        (
            "\"metrics\": {",
            "\"metric\": {",
            "benchmark_name.metrics should be an object, but is missing",
        ),
        (
            "10.5",
            "\"10.5\"",
            "metrics.avg_ms should be a number of 0 or more, but is the text \"10.5\"",
        ),
        ("10.5", "-1", "metrics.avg_ms"),
        ("10.5", "null", "metrics.avg_ms"),
        ("1737220800", "-5", "timestamp should be seconds since 1970"),
        ("1737220800", "1e30", "timestamp"),
        ("1737220800", "\"soon\"", "timestamp"),
        (
            "\"RX 7900 XT\"",
            "[1]",
            "hardware.gpu_name should be a text, but is a list",
        ),
        ("\"linux\"", "7", "hardware.os"),
        (
            "\"linux\"",
            "\"linux\", \"n_threads\": -2",
            "hardware.n_threads should be a whole number",
        ),
        ("\"gpu\"", "{}", "metadata.backend"),
        (
            "\"metadata\": { \"b",
            "\"samples\": {\"ms\": 3}, \"metadata\": { \"b",
            "samples.ms should be a list",
        ),
        (
            "\"metadata\": { \"b",
            "\"samples\": {\"ms\": [\"x\"]}, \"metadata\": { \"b",
            "samples.ms",
        ),
        (
            "\"benchmark_name\": {",
            "\"other\": 3, \"benchmark_name\": {",
            "baselines.other should be an object",
        ),
    ] {
        let text = A.replacen(from, to, 1);
        assert_ne!(text, A, "{from}");
        let error = PerformanceBaseline::from_json(&text).unwrap_err();
        assert!(error.to_string().contains(at), "{to}: {error}");
    }
    for (from, to, at) in [
        ("5.5", "true", "baselines.matmul_4096x4096.p95_ms"),
        ("\"2026-01-18T00:00:00Z\"", "\"18 Jan\"", "timestamp"),
        (
            "\"hardware\"",
            "\"machine\"",
            "hardware should be an object, but is missing",
        ),
        ("\"timestamp\"", "\"time\"", "timestamp"),
    ] {
        let error = PerformanceBaseline::from_json(&B.replacen(from, to, 1)).unwrap_err();
        assert!(error.to_string().contains(at), "{to}: {error}");
    }
    // Names are shown without control characters.
    let text = B
        .replacen("5.5", "true", 1)
        .replace("matmul_4096x4096", "\\u001b[2J");
    let error = PerformanceBaseline::from_json(&text)
        .unwrap_err()
        .to_string();
    assert!(
        !error.contains('\u{1b}') && error.contains("[2J"),
        "{error}"
    );
}

#[test]
fn rejects_absurd_sizes() {
    let long = "x".repeat(1001);
    let many: String = (0..10_001).map(|i| format!("\"{i}\": {{}},")).collect();
    let metrics: String = (0..1001).map(|i| format!("\"{i}_ms\": 1,")).collect();
    let samples = "1,".repeat(100_001);
    for (from, to) in [
        (
            "\"benchmark_name\": {",
            format!("{many} \"benchmark_name\": {{"),
        ),
        ("benchmark_name", long.clone()),
        ("RX 7900 XT", long.clone()),
        ("Q4_K_M", long.clone()),
        ("\"avg_ms\"", format!("{metrics} \"avg_ms\"")),
        (
            "\"metadata\": { \"b",
            format!("\"samples\": {{\"ms\": [{samples} 1]}}, \"metadata\": {{ \"b"),
        ),
    ] {
        let error = PerformanceBaseline::from_json(&A.replacen(from, &to, 1)).unwrap_err();
        assert!(
            matches!(error, SchemaError::TooMany { .. }),
            "{from}: {error}"
        );
        assert!(error.to_string().len() < 2000);
    }
}
