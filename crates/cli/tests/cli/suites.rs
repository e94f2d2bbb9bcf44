//! `bench SUITE`: rows in every format, skipped cases, wrong usage. No speed is asserted.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{Run, command, run};

fn quick(suite: &str, args: &[&str]) -> Run {
    run(&[&["bench", suite, "--quick", "-t", "1"], args].concat())
}

fn rows(suite: &str, args: &[&str]) -> Vec<Value> {
    let report = quick(suite, &[&["-o", "json"], args].concat()).json();
    report.as_array().unwrap().clone()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {row}"))
}

/// Returns an emulated GPU, if this build has one.
fn host_device() -> Option<String> {
    let report = run(&["devices", "--json"]).json();
    let images = report["images"].as_array().unwrap();
    let host = images
        .iter()
        .find_map(|image| image.as_str()?.strip_prefix("host-"));
    if host.is_none() {
        println!("skipped: built without the target host");
    }
    host.map(|persona| format!("host:{persona}"))
}

#[test]
fn every_suite_prints_rows_with_baseline_fields() {
    for (suite, filter, n_rows, rates) in [
        ("matmul", "Q4_K", 4, &["gflop_s", "gb_s", "tokens_s"][..]),
        ("attention", "/64x1x64/", 3, &["gflop_s", "tokens_s"]),
        ("dequant", "MXFP", 3, &["gb_s", "elements_s"]),
        (
            "inference",
            "pp8/B[12]/",
            4,
            &["gflop_s", "gb_s", "tokens_s"],
        ),
        ("memory", "page-16", 9, &[]),
        ("batch", "(Q6_K/8x|decode)", 6, &["gflop_s", "tokens_s"]),
    ] {
        let rows = rows(suite, &["--filter", filter]);
        assert_eq!(rows.len(), n_rows, "{suite} {filter}");
        for row in &rows {
            assert_eq!(
                (&row["suite"], &row["device"]),
                (&suite.into(), &"cpu".into())
            );
            let name = row["name"].as_str().unwrap();
            assert!(
                name.starts_with(&format!("{suite}/")) && name.ends_with("/cpu"),
                "{name}"
            );
            let times = ["min_ms", "p50_ms", "p95_ms", "p99_ms", "max_ms"].map(|t| number(row, t));
            assert!(times[0] > 0.0 && times.is_sorted(), "{row}");
            let avg = number(row, "avg_ms");
            assert!((times[0]..=times[4]).contains(&avg), "{row}");
            let samples = row["samples_ms"].as_array().unwrap();
            let per_sample = number(row, "runs_per_sample");
            assert_eq!(number(row, "iterations"), samples.len() as f64 * per_sample);
            for rate in rates {
                assert!(number(row, rate) > 0.0, "{rate} in {row}");
            }
            assert_eq!(row["hardware"]["n_threads"], 1);
            assert_eq!(row["metadata"]["backend"], "cpu");
            assert!(row["metadata"]["version"].is_string() && row["timestamp"].is_u64());
        }
    }
}

/// Rates are computed from the median, shares from the peaks of the run; their ratio is that of bytes to operations.
#[test]
fn computes_rates_from_the_median() {
    for row in rows("matmul", &["--filter", "quantized/Q8_0/4x"]) {
        // 4 tokens, 64 outputs, 256 inputs; 34 bytes of 32 weights, activations of a byte, results of four.
        let (ops, bytes) = (
            2.0 * 4.0 * 64.0 * 256.0,
            64.0 * 8.0 * 34.0 + 4.0 * (256.0 + 4.0 * 64.0),
        );
        let seconds = number(&row, "p50_ms") / 1e3;
        for (field, expected) in [
            ("gflop_s", ops / seconds / 1e9),
            ("gb_s", bytes / seconds / 1e9),
            ("tokens_s", 4.0 / seconds),
        ] {
            assert!(
                (number(&row, field) / expected - 1.0).abs() < 1e-9,
                "{field} in {row}"
            );
        }
        assert!(number(&row, "bandwidth_roofline_share") > 0.0);
        assert!(number(&row, "compute_roofline_share") > 0.0);
        assert_eq!(row["metrics"]["weight_bytes"], 64.0 * 8.0 * 34.0);
    }
}

#[test]
fn memory_suite_reports_kv_cache_bytes() {
    let rows = rows("memory", &["--filter", "kv-growth"]);
    let bytes: Vec<f64> = rows
        .iter()
        .map(|row| row["metrics"]["kv_bytes_per_token"].as_f64().unwrap())
        .collect();
    assert_eq!(bytes, [22_528.0, 524_288.0, 819_200.0, 327_680.0]);
}

#[test]
fn prints_every_output_format() {
    let filter = ["--filter", "quantized/Q4_[01]/1x"];
    let table = quick("matmul", &[&filter[..], &["--verbose"]].concat()).ok();
    let lines: Vec<&str> = table.text().lines().collect();
    assert!(
        lines[0].starts_with("case ") && lines[0].contains("p50 ms"),
        "{}",
        lines[0]
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("matmul/quantized/Q4_1/1x64x256/cpu "))
    );
    assert!(
        lines.iter().any(|line| line.trim() == "weight_bytes 9216"),
        "{}",
        table.text()
    );

    let csv = quick("matmul", &[&filter[..], &["-o", "csv"]].concat()).ok();
    assert_eq!(csv.text().lines().count(), 3);
    let markdown = quick("matmul", &[&filter[..], &["-o", "markdown"]].concat()).ok();
    let pipes: Vec<usize> = markdown
        .text()
        .lines()
        .map(|line| line.matches('|').count())
        .collect();
    assert!(
        pipes.len() == 4 && pipes.iter().all(|n| *n == pipes[0]),
        "{}",
        markdown.text()
    );
}

/// `bench` and its suites take the same formats.
#[test]
fn formats_are_the_same_everywhere() {
    for command in [
        &["bench", "-p", "4", "-n", "1", "-r", "1", "-t", "1", "-o"][..],
        &[
            "bench",
            "matmul",
            "--quick",
            "-t",
            "1",
            "--device",
            "cpu",
            "--filter",
            "quantized/Q4_[01]/1x",
            "-o",
        ],
    ] {
        let output = |form: &str| run(&[command, &[form]].concat()).ok().text().to_string();
        let table = output("table");
        assert!(
            table.lines().count() >= 3 && !table.contains('|'),
            "{table}"
        );
        for form in ["md", "markdown"] {
            let md = output(form);
            assert_eq!(
                md.lines().filter(|line| line.starts_with('|')).count(),
                4,
                "{md}"
            );
        }
        assert_eq!(output("csv").lines().count(), 3);
        let rows: Vec<Value> = serde_json::from_str(&output("json")).unwrap();
        let text = output("jsonl");
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!((rows.len(), lines.len()), (2, 2));
        for (row, line) in rows.iter().zip(&lines) {
            let names = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(row), names(line));
        }
    }
}

#[test]
fn rejects_wrong_usage_before_measuring() {
    for (args, part) in [
        (&["bench", "matmuls"][..], "matmuls"),
        (
            &["bench", "matmul", "--filter", "Q9_K"],
            "no case of matmul matches 'Q9_K'",
        ),
        (&["bench", "matmul", "-o", "xml"], "'xml'"),
        (&["bench", "matmul", "-t", "0"], "0 is not in 1..=1024"),
        (&["bench", "matmul", "--device", "tpu"], "tpu"),
        (&["bench", "matmul", "-p", "4"], "-p"),
        (&["bench", "--synthetic", "llama-9-1b:Q4_0"], "llama-3.1-8b"),
        (
            &["bench", "inference", "--synthetic", "llama-3.1-8b:Q9"],
            "Q4_K_M",
        ),
        (
            &["bench", "batch", "--synthetic", "llama-3.1-8b"],
            "SHAPE:TYPE",
        ),
    ] {
        let run = run(args);
        run.fails(2, part);
        assert_eq!(run.text(), "", "{args:?}");
    }
    run(&["bench", "matmul", "--device", "cuda:4095"]).fails(1, "CUDA");
}

#[test]
fn synthetic_models_need_no_file() {
    let name = "qwen2.5-0.5b:Q4_0";
    let args = [
        "-p",
        "4",
        "-n",
        "1",
        "-r",
        "1",
        "--no-warmup",
        "-t",
        "2",
        "-o",
        "json",
    ];
    let report = run(&[&["bench", "--synthetic", name], &args[..]].concat()).json();
    let rows = report.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["model_filename"], "synthetic qwen2.5-0.5b:Q4_0");
    // 494 million weights; the embedding is also the output.
    let n_params = number(&rows[0], "model_n_params");
    assert!((4.93e8..4.95e8).contains(&n_params), "{n_params}");
}

/// A stopped run prints its finished rows and closes the array.
#[test]
#[cfg(unix)]
fn stopped_run_prints_its_rows() {
    let mut command = command(&[
        "bench",
        "matmul",
        "-t",
        "1",
        "-o",
        "json",
        "--filter",
        "dense.*32x",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    // End of the first row.
    while !text.ends_with("\n  }\n") {
        assert!(lines.read_line(&mut text).unwrap() > 0, "{text}");
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    lines.read_to_string(&mut text).unwrap();
    let mut told = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut told)
        .unwrap();
    let status = child.wait().unwrap();
    let rows: Value = serde_json::from_str(&text).unwrap();
    let n_rows = rows.as_array().unwrap().len();
    // It may have ended before the signal.
    match status.code() {
        Some(130) => {
            assert!(n_rows >= 1);
            assert!(
                told.contains("notice: stopped in matmul/dense/F32/"),
                "{told}"
            );
        }
        code => assert_eq!((code, n_rows), (Some(0), 2)),
    }
}

#[test]
fn emulated_gpus_are_marked_and_have_no_shares() {
    let Some(device) = host_device() else { return };
    for (suite, filter, n_rows) in [
        ("matmul", "quantized/(Q4_K|F16)/(1|16)x", 4),
        ("attention", "32x", 4),
        ("dequant", "(Q6_K|E2M3)", 2),
        ("inference", "ttft/pp8/B1", 1),
        ("memory", "(kv-growth/1B|page-table/128/page-32)", 3),
        ("batch", "Q4_K.*/1x", 8),
    ] {
        let rows = rows(suite, &["--device", &device, "--filter", filter]);
        assert_eq!(rows.len(), n_rows, "{suite}: {rows:?}");
        for row in &rows {
            assert_eq!(
                (&row["device"], &row["emulated"]),
                (&device.as_str().into(), &true.into())
            );
            assert!(number(row, "p50_ms") > 0.0);
            if suite == "inference" {
                let metric = |name: &str| row["metrics"][name].as_f64().unwrap();
                assert!(metric("peak_memory_bytes") > metric("kv_bytes"), "{row}");
            }
            for share in ["bandwidth_roofline_share", "compute_roofline_share"] {
                assert!(row[share].is_null(), "{share} in {row}");
            }
            let has_slow_path = row["notes"].to_string().contains("slow path");
            let is_slow = suite == "attention" && row["shape"].as_str().unwrap().ends_with("x32");
            assert_eq!(has_slow_path, is_slow, "{row}");
        }
    }
    let table = quick("matmul", &["--device", &device, "--filter", "Q4_0/1x"]).ok();
    assert!(table.text().contains("emulated"), "{}", table.text());
}
