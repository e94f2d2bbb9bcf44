//! `bench`: rows and fields compatible with llama-bench. No speed is asserted.

use serde_json::Value;

use crate::gpu_faults::{VENDORS, image, in_time, stub};
use crate::program::{command, run};

/// The fields of a row of `llama-bench -o json`, in order.
const LLAMA_BENCH: [&str; 44] = [
    "build_commit",
    "build_number",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "cpu_mask",
    "cpu_strict",
    "poll",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "n_cpu_moe",
    "split_mode",
    "main_gpu",
    "no_kv_offload",
    "flash_attn",
    "devices",
    "tensor_split",
    "tensor_buft_overrides",
    "load_mode",
    "lazy_mode",
    "embeddings",
    "no_op_offload",
    "no_host",
    "repack",
    "fit_target",
    "fit_min_ctx",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
    "samples_ns",
    "samples_ts",
];
const OURS: [&str; 16] = [
    "n_sequences",
    "n_drafted",
    "n_accepted",
    "isa",
    "kernel_variant",
    "n_tuned",
    "roofline_share",
    "other_load",
    "read_gb_s",
    "peak_gflop_s",
    "peak_int8_gop_s",
    "power_watts",
    "temperature",
    "clock_mhz",
    "joules_per_token",
    "throttled_by",
];
const SMALL: [&str; 9] = ["bench", "-p", "40", "-n", "3", "-t", "1", "-r", "3"];

fn bench(args: &[&str]) -> crate::program::Run {
    run(&[&SMALL[..], args].concat())
}

fn number(row: &Value, field: &str) -> f64 {
    row[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {row}"))
}

fn numbers(row: &Value, field: &str) -> Vec<f64> {
    let list = row[field].as_array().unwrap();
    list.iter().map(|n| n.as_f64().unwrap()).collect()
}

#[test]
fn json_matches_llama_bench() {
    let report = bench(&["-d", "0,64", "-b", "1,2", "--pg", "40,3", "-o", "json"]).json();
    let rows = report.as_array().unwrap();
    let kinds: Vec<[u64; 4]> = rows
        .iter()
        .map(|row| ["n_prompt", "n_gen", "n_depth", "n_batch"].map(|f| row[f].as_u64().unwrap()))
        .collect();
    let mut expected = Vec::new();
    for n_batch in [1, 2] {
        for n_depth in [0, 64] {
            for (n_prompt, n_gen) in [(40, 0), (0, 3), (40, 3)] {
                expected.push([n_prompt, n_gen, n_depth, n_batch]);
            }
        }
    }
    assert_eq!(kinds, expected);
    for row in rows {
        let fields: Vec<&String> = row.as_object().unwrap().keys().collect();
        let known: Vec<&str> = LLAMA_BENCH.into_iter().chain(OURS).collect();
        assert_eq!(fields, known);
        assert_eq!(row["n_threads"], 1);
        assert_eq!(row["n_sequences"], row["n_batch"]);
        assert_eq!([&row["n_drafted"], &row["n_accepted"]], [0, 0]);
        assert_eq!(row["model_type"], "llama 11M Q4_K - Medium");
        // From llama-bench on the same model.
        assert_eq!(row["model_size"], 6_791_424);
        assert_eq!(row["model_n_params"], 10_884_352);
        let (ns, ts) = (numbers(row, "samples_ns"), numbers(row, "samples_ts"));
        assert_eq!((ns.len(), ts.len()), (3, 3));
        let n_tokens = (number(row, "n_prompt") + number(row, "n_gen")) * number(row, "n_batch");
        for (ns, ts) in ns.iter().zip(&ts) {
            assert!((ts * ns / 1e9 / n_tokens - 1.0).abs() < 1e-6, "{row}");
        }
        assert!((ts.iter().sum::<f64>() / 3.0 / number(row, "avg_ts") - 1.0).abs() < 1e-9);
        assert!((ns.iter().sum::<f64>() / 3.0 - number(row, "avg_ns")).abs() < 1.0);
        for field in [
            "roofline_share",
            "read_gb_s",
            "peak_gflop_s",
            "peak_int8_gop_s",
        ] {
            assert!(number(row, field) > 0.0, "{field} in {row}");
        }
    }
}

#[test]
fn prints_every_output_format() {
    let csv = bench(&["-o", "csv"]).ok();
    let lines: Vec<&str> = csv.text().lines().collect();
    let columns = LLAMA_BENCH[..42].iter().chain(&OURS);
    let columns: Vec<&str> = columns.copied().collect();
    assert_eq!(lines[0], columns.join(","));
    assert_eq!(lines.len(), 3);
    for line in &lines[1..] {
        assert_eq!(line.split("\",\"").count(), columns.len(), "{line}");
        assert!(!line.starts_with("\"\"") && line.ends_with('"'), "{line}");
    }

    let jsonl = bench(&["-o", "jsonl", "--no-warmup"]).ok();
    let rows: Vec<Value> = jsonl
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1]["n_gen"], 3);

    // Every pair once; values have a column of their own then.
    let types = ["--kv-type", "f16,q8_0", "--kv-type-v", "q4_0,q8_0"];
    let rows = bench(&[&types[..], &["-o", "jsonl"]].concat()).ok();
    let pairs = rows.text().lines().map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        ["type_k", "type_v"].map(|name| row[name].as_str().unwrap().to_string())
    });
    let mut pairs: Vec<[String; 2]> = pairs.collect();
    // The tests of prompts and of generated tokens.
    pairs.dedup();
    let wanted = [
        ["f16", "q4_0"],
        ["f16", "q8_0"],
        ["q8_0", "q4_0"],
        ["q8_0", "q8_0"],
    ];
    assert_eq!(pairs, wanted);
    let table = bench(&types).ok();
    let header = table.text().lines().next().unwrap();
    assert!(header.contains("| type_k | type_v |"), "{header}");

    let table = bench(&["-d", "32", "-b", "2", "--kv-type", "f32"]).ok();
    let lines: Vec<&str> = table.text().lines().collect();
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|').map(str::trim);
        cells.map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        cells(lines[0]),
        [
            "model", "size", "params", "backend", "threads", "type_k", "test", "t/s", "roofline"
        ]
    );
    assert!(lines[1].starts_with("| ---"), "{}", lines[1]);
    let row = cells(lines[2]);
    assert_eq!(
        row[..7],
        [
            "llama 11M Q4_K - Medium",
            "6.48 MiB",
            "10.88 M",
            "CPU",
            "1",
            "f32",
            "pp40 @ d32 B2"
        ]
    );
    assert!(row[7].contains(" ± ") && row[8].ends_with(" %"), "{row:?}");
    assert_eq!(cells(lines[3])[6], "tg3 @ d32 B2");
    assert!(table.text().ends_with("(0)\n"));
}

#[test]
fn rejects_bad_tests_before_measuring() {
    for (args, code, part) in [
        (&["-t", "0"][..], 2, "-t must be"),
        (&["-t", "5000"], 2, "threads"),
        (&["-b", "0"], 2, "-b must be"),
        (&["-r", "0"], 2, "--repetitions"),
        (&["-p", "0", "-n", "0"], 2, "nothing to measure"),
        (&["-p", "8-4"], 2, "8-4"),
        (&["-p", "1-9999999"], 2, "1000 numbers"),
        (&["--pg", "16"], 2, "512,128"),
        (&["-d", "33"], 2, "multiple of the KV-cache page, 32"),
        (&["-o", "xml"], 2, "'xml'"),
        (&["--kv-type", "q9"], 2, "'q9'"),
        (&["-d", "4096"], 1, "was trained for 2048"),
        (&["-n", "2049", "-p", "0"], 1, "was trained for 2048"),
        (&["-p", "18446744073709551615"], 1, "was trained for 2048"),
        (&["-b", "1000000"], 1, "-b"),
    ] {
        let run = run(&[&["bench"], args].concat());
        run.fails(code, part);
    }
    let models = ["bench", "-m", "models/none.gguf", "-o", "json"];
    let run = run(&models);
    run.fails(1, "models/none.gguf");
    assert_eq!(run.text(), "");
}

/// A benchmark of two tests that takes little time.
const SHORT_BENCH: [&str; 8] = ["bench", "-p", "8", "-n", "2", "-r", "1", "--no-warmup"];

/// Limits that any machine keeps or misses.
#[test]
fn missed_targets_have_an_exit_code() {
    let bench =
        |target: &str| run(&[&SHORT_BENCH[..], &["-o", "json", "--target", target]].concat());
    let met = bench("ttft_ms=1000000000,tokens_s=0.000001").ok();
    assert_eq!(met.json().as_array().unwrap().len(), 2);
    assert!(
        met.stderr.contains("target met: pp8: ttft_ms is"),
        "{}",
        met.stderr
    );
    let missed = bench("ttft_ms=0.000001,tokens_s=0.000001");
    missed.fails(7, "a target was missed: pp8: ttft_ms is");
    // All rows are printed.
    let rows: Value = serde_json::from_slice(&missed.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    bench("tokens_s=1000000000").fails(7, "tg2: tokens_s is");
    for (target, part) in [
        (
            "speed=1",
            "'speed' is no target; there are ttft_ms, tokens_s, vram_gb",
        ),
        (
            "tokens_s=fast",
            "'fast' of tokens_s is not a number above 0",
        ),
        ("vram_gb=6", "vram_gb is the memory of a GPU"),
    ] {
        bench(target).fails(2, part);
    }
    run(&["bench", "-n", "0", "--target", "tokens_s=1"]).fails(2, "no test measures tokens_s");
}

/// The memory of a GPU is judged, too: a stub has all kernels, which do nothing.
#[test]
fn missed_memory_has_an_exit_code() {
    let Some(image) = image() else { return };
    let faults = ["-DANY_KERNEL", "-DFREE_BYTES=1<<30"];
    let Some(library) = stub(&VENDORS[0], "bench-memory", &faults) else {
        return;
    };
    let bench = |target: &str| {
        let flags = [
            "--device",
            "hip:0",
            "--gpu-check",
            "never",
            "--target",
            target,
        ];
        let mut command = command(&[&SHORT_BENCH[..], &flags].concat());
        command.env(VENDORS[0].library(), &library);
        command.env("ROCMFORGE_GPU_IMAGE", &image);
        in_time(command)
    };
    let met = bench("vram_gb=4").ok();
    assert!(met.stderr.contains("vram_gb is"), "{}", met.stderr);
    bench("vram_gb=0.000001").fails(7, "vram_gb is");
}
