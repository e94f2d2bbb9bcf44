//! Baselines: saved by `bench`, compared, listed and charted; the exit code of each error. Regressions are made by
//! editing saved samples, so nothing depends on the machine's speed.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Run, command, finish, repository, run};

const SMALL: [&str; 11] = [
    "bench", "-p", "16", "-n", "0", "-t", "1", "-r", "6", "-o", "json",
];

/// Runs the program with a baselines folder.
fn in_folder(dir: &Path, args: &[&str]) -> Run {
    let mut command = command(args);
    command.env("ROCMFORGE_BASELINE_DIR", dir);
    finish(command)
}

fn bench(dir: &Path, args: &[&str]) -> Run {
    in_folder(dir, &[&SMALL[..], args].concat())
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the baseline `from` with its times multiplied by `factor`.
fn scaled(from: &Value, factor: f64) -> Value {
    let mut baseline = from.clone();
    for entry in baseline["baselines"].as_object_mut().unwrap().values_mut() {
        let times = |value: &mut Value| *value = json!(value.as_f64().unwrap() * factor);
        for (name, value) in entry["metrics"].as_object_mut().unwrap() {
            if name.ends_with("_ms") {
                times(value);
            }
        }
        for sample in entry["samples"]["ms"].as_array_mut().unwrap() {
            times(sample);
        }
    }
    baseline
}

fn write(dir: &Path, name: &str, value: &Value) {
    fs::write(dir.join(name), serde_json::to_string(value).unwrap()).unwrap();
}

#[test]
fn bench_saves_and_compares_baselines() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let saved = bench(dir, &["--save-baseline", "main"]);
    // Machine-readable stdout contains only the rows.
    assert_eq!(saved.json().as_array().unwrap().len(), 1);
    assert!(
        saved.stderr.contains("saved 1 benchmarks as 'main'"),
        "{}",
        saved.stderr
    );
    let baseline = read(&dir.join("main.json"));
    let [(name, entry)] = &baseline["baselines"]
        .as_object()
        .unwrap()
        .iter()
        .collect::<Vec<_>>()[..]
    else {
        panic!("{baseline}");
    };
    // The model's name, so that no other of its size is taken for it.
    let model = "forge-mini-Q4_K_M (embedded) llama 11M Q4_K - Medium pp16";
    assert!(name.starts_with(model), "{name}");
    let load = &entry["metrics"]["other_load"];
    assert!(
        load.as_f64()
            .is_none_or(|share| (0.0..=1.0).contains(&share)),
        "{load}"
    );
    let row = &saved.json()[0];
    let samples = |list: &Value| -> Vec<f64> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|n| n.as_f64().unwrap())
            .collect()
    };
    let ms: Vec<f64> = samples(&row["samples_ns"])
        .iter()
        .map(|ns| ns / 1e6)
        .collect();
    assert_eq!(samples(&entry["samples"]["ms"]), ms);
    assert_eq!(entry["metrics"]["iterations"], 6);
    for (metric, expected) in [
        ("avg_ms", ms.iter().sum::<f64>() / 6.0),
        ("min_ms", ms.iter().copied().fold(f64::INFINITY, f64::min)),
        (
            "tokens_s",
            16e3 / entry["metrics"]["p50_ms"].as_f64().unwrap(),
        ),
    ] {
        let found = entry["metrics"][metric].as_f64().unwrap();
        assert!(
            (found / expected - 1.0).abs() < 1e-9,
            "{metric}: {found} {expected}"
        );
    }
    let hardware = &entry["hardware"];
    assert_eq!(
        (&hardware["n_threads"], &hardware["gpu_name"]),
        (&json!(1), &Value::Null)
    );
    for fact in ["cpu_arch", "os", "rustc_version", "program_version"] {
        assert!(
            hardware[fact].as_str().is_some_and(|text| !text.is_empty()),
            "{fact} in {hardware}"
        );
    }

    // Compared with times divided by 10,000, more than any load explains, this is a regression, with longer ones an improvement.
    write(dir, "fast.json", &scaled(&baseline, 1e-4));
    write(dir, "slow.json", &scaled(&baseline, 1e4));
    let worse = bench(
        dir,
        &["--compare-baseline", "fast", "--save-baseline", "second"],
    );
    worse.fails(3, "1 of 1 benchmarks are worse than in 'fast'");
    for part in ["REGRESSION", "measured 3 times, best result used"] {
        assert!(worse.stderr.contains(part), "{}", worse.stderr);
    }
    assert!(dir.join("second.json").exists(), "saved all the same");
    let report = dir.join("reports/junit.xml");
    let better = bench(
        dir,
        &[
            "--compare-baseline",
            "slow",
            "--report",
            "junit",
            "--report-file",
            report.to_str().unwrap(),
        ],
    );
    better.ok();
    let report = fs::read_to_string(report).unwrap();
    assert!(
        report.starts_with("<?xml") && report.contains("improved"),
        "{report}"
    );
    // A file instead of a name.
    bench(
        dir,
        &[
            "--compare-baseline",
            dir.join("fast.json").to_str().unwrap(),
        ],
    )
    .fails(3, "are worse");
    // With a table, the report goes to stdout.
    let table = in_folder(
        dir,
        &[
            "bench",
            "-p",
            "16",
            "-n",
            "0",
            "-t",
            "1",
            "-r",
            "6",
            "--compare-baseline",
            "slow",
        ],
    );
    assert!(table.ok().text().contains("this run against slow"));
}

#[test]
fn suites_save_their_rows() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let suite = [
        "bench", "dequant", "--quick", "--device", "cpu", "-t", "1", "--filter", "/Q4_", "-o",
        "json",
    ];
    let suite = |args: &[&str]| in_folder(dir, &[&suite[..], args].concat());
    let saved = suite(&["--save-baseline", "main"]);
    let rows = saved.json();
    let baseline = read(&dir.join("main.json"));
    let kept = baseline["baselines"].as_object().unwrap();
    assert!(rows.as_array().unwrap().len() > 1, "{rows}");
    assert_eq!(kept.len(), rows.as_array().unwrap().len());
    for row in rows.as_array().unwrap() {
        let entry = &kept[row["name"].as_str().unwrap()];
        for metric in ["p50_ms", "avg_ms", "gb_s", "iterations"] {
            assert_eq!(entry["metrics"][metric], row[metric], "{metric}");
        }
        assert_eq!(entry["samples"]["ms"], row["samples_ms"]);
        assert_eq!(entry["hardware"]["n_threads"], row["hardware"]["n_threads"]);
    }
    write(dir, "fast.json", &scaled(&baseline, 1e-4));
    let worse = suite(&["--compare-baseline", "fast", "--recheck", "1"]);
    worse.fails(3, "benchmarks are worse than in 'fast'");
    let rows: Vec<Value> = serde_json::from_slice(&worse.stdout).unwrap();
    assert_eq!(rows.len(), kept.len());
    for part in ["measuring again", "measured 2 times, best result used"] {
        assert!(worse.stderr.contains(part), "{}", worse.stderr);
    }
    // More benchmarks are added under the same name.
    bench(dir, &["--save-baseline", "main"]).ok();
    assert_eq!(
        read(&dir.join("main.json"))["baselines"]
            .as_object()
            .unwrap()
            .len(),
        kept.len() + 1
    );
    suite(&["--compare-baseline", "none"]).fails(1, "there is no baseline 'none'");
}

/// A stopped run saves the rows measured so far.
#[test]
#[cfg(unix)]
fn stopped_bench_saves_its_rows() {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    let dir = tempfile::tempdir().unwrap();
    let mut command = command(&[
        "bench", "-p", "16,1024", "-n", "0", "-t", "1", "-r", "60", "-o", "jsonl",
    ]);
    let dir_flag = [
        "--save-baseline",
        "cut",
        "--baseline-dir",
        dir.path().to_str().unwrap(),
    ];
    let mut child = command
        .args(dir_flag)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("\"n_prompt\":16,"));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let baseline = read(&dir.path().join("cut.json"));
    let names: Vec<&String> = baseline["baselines"].as_object().unwrap().keys().collect();
    assert!(names.len() == 1 && names[0].contains(" pp16"), "{names:?}");
}

#[test]
fn rejects_incomparable_baselines_before_measuring() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    bench(dir, &["--save-baseline"]).ok();
    let baseline = read(&dir.join("default.json"));
    let mut foreign = baseline.clone();
    for entry in foreign["baselines"].as_object_mut().unwrap().values_mut() {
        entry["hardware"]["cpu_model"] = "Another CPU".into();
    }
    write(dir, "foreign.json", &scaled(&foreign, 1e4));
    write(
        dir,
        "typed.json",
        &json!({"baselines": {"a": {"metrics": 3}}}),
    );
    write(dir, "rows.json", &json!([1]));
    fs::write(
        dir.join("cut.json"),
        &fs::read(dir.join("default.json")).unwrap()[..200],
    )
    .unwrap();
    fs::create_dir(dir.join("folder.json")).unwrap();
    for (name, code, part) in [
        ("defualt", 1, "existing baselines: default"),
        ("foreign", 4, "cpu_model: was Another CPU"),
        ("typed", 1, "baselines.a.metrics should be an object"),
        ("rows", 1, "it is a list"),
        ("cut", 1, "truncated or damaged"),
        ("folder", 1, "it is not a file"),
        ("../default", 1, "../default"),
        ("a b", 2, "is not a baseline name"),
    ] {
        let run = bench(dir, &["--compare-baseline", name]);
        run.fails(code, part);
        assert_eq!(run.text(), "", "{name}");
    }
    for (args, part) in [
        (&["--save-baseline", "../x"][..], "is not a baseline name"),
        (
            &["--compare-baseline", "default", "--threshold", "x"],
            "percentage",
        ),
        (&["--report", "json"], "--compare-baseline"),
    ] {
        let run = bench(dir, args);
        assert!(
            matches!(run.code, Some(1 | 2)) && run.stderr.contains(part),
            "{}",
            run.stderr
        );
        assert_eq!(run.text(), "");
    }
    bench(
        dir,
        &["--compare-baseline", "foreign", "--allow-other-hardware"],
    )
    .ok();
    // An unreadable baseline is not overwritten, and found before the first row.
    let suite = ["bench", "dequant", "--quick", "--device", "cpu", "-t", "1"];
    for command in [&SMALL[..], &suite] {
        let run = in_folder(dir, &[command, &["--save-baseline", "cut"]].concat());
        run.fails(1, "cut.json");
        assert_eq!(run.text(), "");
        let report = [
            "--compare-baseline",
            "default",
            "--report-file",
            "/dev/null/x/y",
        ];
        let run = in_folder(
            dir,
            &[command, &report[..], &["--allow-other-hardware"]].concat(),
        );
        run.fails(1, "cannot write /dev/null/x/y");
        assert_eq!(run.text(), "");
    }
    assert_eq!(fs::read(dir.join("cut.json")).unwrap().len(), 200);
    let nowhere = bench(Path::new("/dev/null/x"), &["--save-baseline"]);
    nowhere.fails(1, "--baseline-dir");
    assert_eq!(nowhere.text(), "");
}

#[test]
fn lists_shows_compares_and_charts_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let empty = in_folder(dir, &["baseline", "list"]).ok();
    assert!(empty.text().is_empty() && empty.stderr.contains("--save-baseline"));
    in_folder(dir, &["baseline", "trend"]).fails(1, "no baselines");

    bench(dir, &["--save-baseline", "a"]).ok();
    // Times without noise.
    let mut a = read(&dir.join("a.json"));
    for entry in a["baselines"].as_object_mut().unwrap().values_mut() {
        entry["samples"]["ms"] = json!([10.0, 10.01, 10.02, 10.03, 10.04, 10.05]);
        entry["metrics"]["other_load"] = json!(0.0);
    }
    write(dir, "a.json", &a);
    let mut slower = scaled(&a, 1.5);
    for entry in slower["baselines"].as_object_mut().unwrap().values_mut() {
        entry["timestamp"] = json!(entry["timestamp"].as_u64().unwrap() + 1000);
    }
    write(dir, "b.json", &slower);
    fs::write(dir.join("broken.json"), "{").unwrap();

    let list = in_folder(dir, &["baseline", "list"]).ok();
    let names: Vec<&str> = list
        .text()
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert!(
        list.stderr.contains("warning: ") && list.stderr.contains("broken.json"),
        "{}",
        list.stderr
    );
    let list = in_folder(dir, &["baseline", "list", "--json"]).json();
    assert_eq!(list["baselines"][1]["benchmarks"], 1);
    assert!(
        list["baselines"][2]["problem"]
            .as_str()
            .unwrap()
            .contains("not valid JSON")
    );

    let shown = in_folder(dir, &["baseline", "show", "a"]).ok();
    assert!(
        shown.text().contains("pp16") && shown.text().contains("6 samples"),
        "{}",
        shown.text()
    );
    let shown = in_folder(dir, &["baseline", "show", "a", "--json"]).json();
    for (name, entry) in a["baselines"].as_object().unwrap() {
        // Other numbers may differ in the last digit, which JSON does not preserve.
        for field in ["name", "timestamp", "hardware", "metadata", "samples"] {
            assert_eq!(shown["baselines"][name][field], entry[field], "{field}");
        }
    }

    let path = dir.join("b.json");
    for other in ["b", path.to_str().unwrap()] {
        let worse = in_folder(dir, &["baseline", "compare", "a", other]);
        worse.fails(3, "are worse than in 'a'");
        assert!(
            worse.text().contains("+50.0 %") && worse.text().contains("REGRESSION"),
            "{}",
            worse.text()
        );
    }
    in_folder(dir, &["baseline", "compare", "b", "a"]).ok();
    in_folder(dir, &["baseline", "compare", "a", "b", "--threshold", "60"]).ok();
    in_folder(dir, &["baseline", "compare", "a", "c"]).fails(1, "there is no baseline 'c'");
    let json = in_folder(dir, &["baseline", "compare", "b", "a", "--format", "json"]).json();
    assert_eq!(
        (&json["result"], &json["baseline"]),
        (&json!("improved"), &json!("b"))
    );
    let out = dir.join("out.md");
    in_folder(
        dir,
        &[
            "baseline",
            "compare",
            "b",
            "a",
            "--format",
            "markdown",
            "-o",
            out.to_str().unwrap(),
        ],
    )
    .ok();
    assert!(fs::read_to_string(&out).unwrap().contains("| improved |"));
    write(dir, "none.json", &json!({"baselines": {}}));
    in_folder(dir, &["baseline", "compare", "a", "none"]).fails(1, "nothing to compare");
    fs::remove_file(dir.join("none.json")).unwrap();

    let trend = in_folder(dir, &["baseline", "trend"]).ok();
    assert!(
        trend.text().contains("! ") && trend.text().contains("+50.0 %"),
        "{}",
        trend.text()
    );
    let page = dir.join("pages/trend.html");
    let trend = in_folder(dir, &["baseline", "trend", "-o", page.to_str().unwrap()]).ok();
    assert!(
        trend.stderr.contains(" from 20") && trend.stderr.contains("1 with regressions"),
        "{}",
        trend.stderr
    );
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("class=\"worse\""));
}

/// A file with the model's metadata and weights, but another name, is another model.
#[test]
fn other_models_are_not_compared() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let model = |name: &str| {
        let path = dir.join(name);
        fs::copy(repository("models/forge-mini-Q4_K_M.gguf"), &path).unwrap();
        path.to_str().unwrap().to_string()
    };
    let (one, two) = (model("one.gguf"), model("two.gguf"));
    bench(dir, &["-m", &one, "--save-baseline", "main"]).ok();
    let saved = read(&dir.join("main.json"));
    write(dir, "fast.json", &scaled(&saved, 1e-4));
    // 10,000 times slower than "one" was.
    bench(dir, &["-m", &two, "--compare-baseline", "fast"]).fails(1, "nothing to compare");
    bench(
        dir,
        &["-m", &one, "--compare-baseline", "fast", "--recheck", "0"],
    )
    .fails(3, "worse");
    // Suites name their cases without the model.
    let suite = |model: &str, args: &[&str]| {
        let suite = [
            "bench",
            "inference",
            "--quick",
            "--device",
            "cpu",
            "-t",
            "1",
            "--filter",
            "pp8/B1",
            "-o",
            "json",
            "-m",
            model,
        ];
        in_folder(dir, &[&suite[..], args].concat())
    };
    suite(&one, &["--save-baseline", "suite"]).ok();
    let saved = read(&dir.join("suite.json"));
    let names: Vec<&String> = saved["baselines"].as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "inference/ttft/pp8/B1/cpu of one.gguf",
            "inference/decode/pp8/B1/cpu of one.gguf"
        ]
    );
    write(dir, "fast.json", &scaled(&saved, 1e-4));
    suite(&two, &["--compare-baseline", "fast"]).fails(1, "nothing to compare");
    let worse = suite(&one, &["--compare-baseline", "fast", "--recheck", "1"]);
    worse.fails(3, "worse");
    assert!(
        worse.stderr.contains("measured 2 times"),
        "{}",
        worse.stderr
    );
    // Files of other programs may give the same names to other models.
    let mut renamed = saved.clone();
    for entry in renamed["baselines"].as_object_mut().unwrap().values_mut() {
        entry["metadata"]["model"] = "three.gguf".into();
    }
    write(dir, "renamed.json", &renamed);
    in_folder(dir, &["baseline", "compare", "suite", "renamed"]).fails(
        4,
        "was measured with another model (model: was one.gguf, is three.gguf)",
    );
}

#[test]
fn few_samples_and_open_results_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let few = [
        "bench", "-p", "16", "-n", "0", "-t", "1", "-r", "3", "-o", "json",
    ];
    let saved = in_folder(dir, &[&few[..], &["--save-baseline", "few"]].concat()).ok();
    assert!(
        saved
            .stderr
            .contains("1 of 1 benchmarks have fewer than 5 samples"),
        "{}",
        saved.stderr
    );
    let saved = bench(dir, &["--save-baseline", "main"]).ok();
    assert!(!saved.stderr.contains("fewer than"), "{}", saved.stderr);
    // Samples on both sides of a loss of 10 %.
    let mut noisy = read(&dir.join("main.json"));
    for entry in noisy["baselines"].as_object_mut().unwrap().values_mut() {
        entry["samples"]["ms"] = json!([10.0, 11.0, 12.0, 13.0, 14.0, 15.0]);
        entry["metrics"]["other_load"] = json!(0.0);
    }
    write(dir, "noisy.json", &noisy);
    let compare = |name: &str, args: &[&str]| {
        in_folder(
            dir,
            &[&["baseline", "compare", "noisy", name], args].concat(),
        )
    };
    let open = compare("noisy", &[]).ok();
    assert!(
        open.text().contains("not judged: too noisy"),
        "{}",
        open.text()
    );
    compare("noisy", &["--fail-inconclusive"]).fails(5, "1 metrics could not be judged");
    // The same on a busy machine.
    for entry in noisy["baselines"].as_object_mut().unwrap().values_mut() {
        entry["metrics"]["other_load"] = json!(0.4);
        entry["samples"]["ms"] = json!([15.0, 15.0, 15.0, 15.0, 15.0, 15.0]);
    }
    write(dir, "busy.json", &noisy);
    let busy = compare("busy", &[]).ok();
    for part in [
        "not judged: machine was busy",
        "other programs took 40 % of its cores",
    ] {
        assert!(busy.text().contains(part), "{part}: {}", busy.text());
    }
    compare("busy", &["--fail-inconclusive"]).fails(5, "could not be judged");
}

/// A slow tail that the median does not show.
#[test]
fn tails_fail_if_asked() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    bench(dir, &["--save-baseline", "main"]).ok();
    let mut steady = read(&dir.join("main.json"));
    let mut slow = steady.clone();
    for (baseline, n_slow) in [(&mut steady, 0), (&mut slow, 10)] {
        for entry in baseline["baselines"].as_object_mut().unwrap().values_mut() {
            let ms = (0..50).map(|i| {
                if i < n_slow {
                    60.0
                } else {
                    10.0 + 0.001 * f64::from(i)
                }
            });
            let ms: Vec<f64> = ms.collect();
            entry["metrics"] = json!({
                "p50_ms": 10.03, "avg_ms": ms.iter().sum::<f64>() / 50.0, "p95_ms": ms[0],
            });
            entry["samples"]["ms"] = json!(ms);
        }
    }
    write(dir, "steady.json", &steady);
    write(dir, "slow.json", &slow);
    let compare = |args: &[&str]| {
        in_folder(
            dir,
            &[&["baseline", "compare", "steady", "slow"], args].concat(),
        )
    };
    let told = compare(&[]).ok();
    assert!(
        told.text().contains("note: avg_ms is +99"),
        "{}",
        told.text()
    );
    let judged = compare(&["--tails"]);
    judged.fails(3, "1 of 1 benchmarks are worse");
    assert!(judged.text().contains("p95_ms"), "{}", judged.text());
}

#[test]
fn rm_deletes_baselines() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write(dir, "a.json", &json!({"baselines": {}}));
    fs::write(dir.join("damaged.json"), "{").unwrap();
    let removed = in_folder(dir, &["baseline", "rm", "a", "damaged"]).ok();
    assert!(removed.stderr.contains("deleted ") && removed.stderr.contains("a.json"));
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    in_folder(dir, &["baseline", "rm", "a"]).fails(1, "there is no baseline 'a'");
    in_folder(dir, &["baseline", "rm", "../a"]).fails(2, "is not a baseline name");
    in_folder(dir, &["baseline", "rm"]).fails(2, "NAME");
}

#[test]
fn reads_schema_b() {
    // Schema B, as other tools write it: one timestamp, one machine, flat metrics.
    let dir = tempfile::tempdir().unwrap();
    let b = |tps: f64| {
        json!({
            "timestamp": "2026-01-18T00:00:00Z",
            "hardware": {"gpu": "Some GPU", "architecture": "gfx1100", "rocm_version": "7.1"},
            "baselines": {"inference": {"ttft_ms": 145.2, "generation_tps": tps, "peak_memory_gb": 5.2}}
        })
    };
    write(dir.path(), "then.json", &b(42.5));
    write(dir.path(), "now.json", &b(30.0));
    let worse = in_folder(dir.path(), &["baseline", "compare", "then", "now"]);
    worse.fails(3, "1 of 1");
    assert!(worse.text().contains("generation_tps"), "{}", worse.text());
}

#[test]
fn reads_the_committed_baselines() {
    let folder = repository("baselines");
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    for path in names.filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let shown = run(&["baseline", "show", path.to_str().unwrap(), "--json"]).json();
        assert!(
            !shown["baselines"].as_object().unwrap().is_empty(),
            "{}",
            path.display()
        );
    }
}
