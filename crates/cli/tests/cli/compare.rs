//! `compare` with a fake llama-bench that prints recorded output.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::program::{Run, repository, run};

/// Writes a program that runs `script`.
fn program(dir: &Path, script: &str) -> PathBuf {
    let path = dir.join("llama-bench");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Output of llama-bench for a prompt of 16 tokens and 4 generated ones.
fn recorded() -> PathBuf {
    repository("crates/cli/tests/cli/llama-bench.json")
}

fn compare(program: &Path, args: &[&str]) -> Run {
    let model = repository("models/forge-mini-Q4_K_M.gguf");
    let fixed = [
        "compare",
        "--with",
        "llama-bench",
        program.to_str().unwrap(),
        "-m",
        model.to_str().unwrap(),
    ];
    run(&[
        &fixed[..],
        &["-p", "16", "-n", "4", "-t", "1", "-r", "2"],
        args,
    ]
    .concat())
}

#[test]
fn alternates_pairs_and_computes_ratios() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let script = format!(
        "echo \"$@\" >> {}; cat {}",
        log.display(),
        recorded().display()
    );
    let program = program(dir.path(), &script);
    let json = compare(
        &program,
        &["--fixed", "--pairs", "3", "--json", "--", "-ngl", "0"],
    )
    .json();
    assert_eq!(
        (&json["pairs"], &json["model"]),
        (&3.into(), &"llama 11M Q4_K - Medium".into())
    );
    let calls = fs::read_to_string(&log).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(calls.len(), 3);
    for call in calls {
        assert!(
            call.ends_with("-p 16 -n 4 -d 0 -t 1 -r 2 -o json -ngl 0"),
            "{call}"
        );
    }
    let theirs: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(recorded()).unwrap()).unwrap();
    for (test, name) in json["tests"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["pp16", "tg4"])
    {
        assert_eq!(test["test"], name);
        let of = |field: &str| {
            theirs
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row[field].as_u64().unwrap() > 0)
                .unwrap()
        };
        let row = of(if name == "pp16" { "n_prompt" } else { "n_gen" });
        let samples = row["samples_ts"].as_array().unwrap();
        let sum: f64 = samples.iter().map(|sample| sample.as_f64().unwrap()).sum();
        // Median of two.
        assert_eq!(samples.len(), 2);
        let speed = test["theirs"]["median"].as_f64().unwrap();
        assert!((speed / (sum / 2.0) - 1.0).abs() < 1e-9);
        let ours = test["ours"]["runs"].as_array().unwrap();
        let ratios = test["ratio"]["pairs"].as_array().unwrap();
        assert_eq!((ours.len(), ratios.len()), (3, 3));
        for (ours, ratio) in ours.iter().zip(ratios) {
            assert!((ours.as_f64().unwrap() / speed / ratio.as_f64().unwrap() - 1.0).abs() < 1e-9);
        }
        // Three pairs are too few for an interval.
        let of_ratios = |pick: fn(f64, f64) -> f64| {
            let ratios = ratios.iter().map(|ratio| ratio.as_f64().unwrap());
            ratios.reduce(pick).unwrap()
        };
        assert_eq!(test["ratio"]["interval"], "min and max");
        assert_eq!(test["ratio"]["low"].as_f64(), Some(of_ratios(f64::min)));
        assert_eq!(test["ratio"]["high"].as_f64(), Some(of_ratios(f64::max)));
        assert!(test["verdict"].is_null());
        let [low, median, high] =
            ["low", "median", "high"].map(|part| test["ratio"][part].as_f64().unwrap());
        assert!(low <= median && median <= high && low > 0.0);
    }

    assert!(json["search"].is_null());
    assert_eq!(
        json["tests"][0]["theirs"]["flags"],
        serde_json::json!(["-t", "1", "-ngl", "0"])
    );

    let table = compare(&program, &["--fixed", "--pairs", "1"]).ok();
    assert!(
        table.text().contains("| pp16 ") && table.text().contains("1 pairs"),
        "{}",
        table.text()
    );
    assert!(
        table.text().contains("ratio [min, max] |"),
        "{}",
        table.text()
    );
    let table = compare(&program, &["--fixed", "--pairs", "6"]).ok();
    assert!(table.text().contains("ratio [95 %] |"), "{}", table.text());
}

/// Another build runs in turn with this one and gets a verdict. Its speeds are made up, so that they do not depend on the
/// machine.
#[test]
fn judges_another_build() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let other = |speed: &str| {
        let row = |n_prompt: u32, n_gen: u32| {
            format!(
                "{{\"n_prompt\": {n_prompt}, \"n_gen\": {n_gen}, \"n_depth\": 0, \"build_commit\": \"v0\", \
                 \"build_number\": 0, \"backends\": \"CPU\", \"model_type\": \"x\", \"samples_ts\": [{speed}]}}"
            )
        };
        let script = format!(
            "echo \"$@\" >> {}; echo '[{}, {}]'",
            log.display(),
            row(16, 0),
            row(0, 4)
        );
        program(dir.path(), &script)
    };
    let judged = |speed: &str, args: &[&str]| {
        let path = other(speed);
        let model = repository("models/forge-mini-Q4_K_M.gguf");
        let fixed = [
            "compare",
            "--with",
            "rocmforge",
            path.to_str().unwrap(),
            "-m",
        ];
        let tests = [
            "-p", "16", "-n", "4", "-t", "1", "-r", "1", "--device", "cpu",
        ];
        run(&[&fixed[..], &[model.to_str().unwrap()], &tests, args].concat())
    };
    let worse = judged("1e9", &["--pairs", "6"]);
    worse.fails(3, "2 of 2 tests are slower than with the other build");
    assert!(
        worse
            .text()
            .contains("\npp16: REGRESSION\ntg4: REGRESSION\n"),
        "{}",
        worse.text()
    );
    let calls = fs::read_to_string(&log).unwrap();
    assert_eq!(calls.lines().count(), 6);
    // The same command as ours.
    assert!(
        calls.lines().all(|call| call.starts_with("bench -m ")
            && call.ends_with("-p 16 -n 4 -d 0 -t 1 -r 1 -o json --device cpu")),
        "{calls}"
    );
    let better = judged("1e-3", &["--pairs", "6", "--json"]).json();
    assert_eq!(better["tests"][0]["verdict"], "improved");
    assert_eq!(better["tests"][0]["ratio"]["interval"], "95 %");
    let few = judged("1e9", &["--pairs", "2", "--fail-inconclusive"]);
    few.fails(5, "2 of 2 tests could not be judged");
    let text = few.text();
    assert!(
        text.contains("pp16: not judged: fewer than 6 pairs"),
        "{text}"
    );
}

/// A llama-bench that logs its arguments and runs the shell commands `speeds`, which set `pp` and `tg` to its speeds with
/// `$fa`, `$ub`, `$t` and at depth `$d`.
fn llama_bench(dir: &Path, speeds: &str) -> PathBuf {
    let script = r#"echo "$@" >> DIR/log
t=none fa=none ub=none
while [ $# -gt 0 ]; do
    case $1 in
    -p) p=$2 ;; -n) n=$2 ;; -d) depths=$2 ;; -t) t=$2 ;; -fa) fa=$2 ;; -ub) ub=$2 ;;
    esac
    shift
done
row() {
    printf '%s{"n_prompt": %s, "n_gen": %s, "n_depth": %s, "build_commit": "DIR", "build_number": 1, ' "$comma" $1 $2 $d
    printf '"backends": "CPU", "model_type": "x", "samples_ts": [%s]}' $3
    comma=,
}
comma=
printf '['
for d in $(echo $depths | tr , ' '); do
    SPEEDS
    for i in $(echo $p | tr , ' '); do [ $i = 0 ] || row $i 0 $pp; done
    for i in $(echo $n | tr , ' '); do [ $i = 0 ] || row 0 $i $tg; done
done
printf ']'"#;
    let script = script.replace("SPEEDS", speeds);
    program(dir, &script.replace("DIR", dir.to_str().unwrap()))
}

/// The flags of a run in the log, after `-o json`.
fn flags_of(call: &str) -> &str {
    call.split_once("-o json").unwrap().1.trim()
}

/// Each test meets the setting that is best for it, and one that fails is left out.
#[test]
fn finds_the_best_setting_for_each_test() {
    let dir = tempfile::tempdir().unwrap();
    let speeds = r#"case $fa-$ub-$d in
        0-512-0) pp=100 tg=10 ;;
        0-1024-0) pp=150 ;;
        1-512-0) pp=120 tg=14 ;;
        0-512-32) pp=90 tg=13.8 ;;
        0-1024-32) pp=80 ;;
        1-512-32) pp=95 tg=6.2 ;;
        *) echo "no memory for -ub $ub" >&2; exit 3 ;;
    esac"#;
    let program = llama_bench(dir.path(), speeds);
    let args = [
        "-p", "600", "-d", "0,32", "--pairs", "2", "--json", "--", "-ngl", "0",
    ];
    let model = repository("models/forge-mini-Q4_K_M.gguf");
    let with = ["compare", "--with", "llama-bench"];
    let files = [program.to_str().unwrap(), "-m", model.to_str().unwrap()];
    let fixed = ["-n", "4", "-t", "1", "-r", "1"];
    let args = [&with[..], &files, &fixed, &args].concat();
    let found = run(&args);
    let json = found.json();
    assert!(
        found.stderr.contains("first trying 4 settings"),
        "{}",
        found.stderr
    );
    let expected = [
        ("pp600", "-t 1 -fa 0 -ub 1024 -ngl 0", 150.0),
        ("tg4", "-t 1 -fa 1 -ub 512 -ngl 0", 14.0),
        ("pp600 @ d32", "-t 1 -fa 1 -ub 512 -ngl 0", 95.0),
        ("tg4 @ d32", "-t 1 -fa 0 -ub 512 -ngl 0", 13.8),
    ];
    let tests = json["tests"].as_array().unwrap();
    assert_eq!(tests.len(), expected.len());
    for (test, (name, flags, speed)) in tests.iter().zip(expected) {
        assert_eq!(test["test"], name);
        let theirs = &test["theirs"];
        assert_eq!(theirs["median"].as_f64(), Some(speed), "{name}");
        assert_eq!(theirs["runs"].as_array().unwrap().len(), 2);
        let words = theirs["flags"].as_array().unwrap().iter();
        let words: Vec<&str> = words.map(|word| word.as_str().unwrap()).collect();
        assert_eq!(words.join(" "), flags, "{name}");
    }
    let search = &json["search"];
    assert!(search["seconds"].as_f64().unwrap() > 0.0);
    let settings = search["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 4);
    let failed: Vec<&serde_json::Value> = { settings.iter() }
        .filter(|setting| !setting["failure"].is_null())
        .collect();
    assert_eq!(failed.len(), 1);
    assert!(
        failed[0]["failure"]
            .as_str()
            .unwrap()
            .contains("no memory for -ub 1024")
    );
    // Settings close to the best of a test ran twice in it, others once.
    let n_runs = |setting: usize, test: usize| {
        let test = &settings[setting]["tests"][test];
        test["runs"].as_array().unwrap().len()
    };
    assert_eq!((n_runs(0, 3), n_runs(2, 3)), (1, 1));
    assert_eq!((n_runs(0, 2), n_runs(2, 2)), (2, 2));
    let calls = fs::read_to_string(dir.path().join("log")).unwrap();
    // No prompt is long enough for a micro-batch of 2048, and generating needs none above 512.
    assert!(!calls.contains("-ub 2048"));
    let large = calls.lines().filter(|call| call.contains("-ub 1024"));
    assert!({ large }.all(|call| call.contains("-p 600 -n 0 ")));

    let args: Vec<&str> = { args.into_iter() }
        .filter(|arg| *arg != "--json")
        .collect();
    let table = run(&args).ok();
    let table = table.text();
    for part in [
        "4 settings of llama-bench tried in",
        "* 150.00 |",
        "failed |",
        "\nllama-bench for tg4 @ d32: -t 1 -fa 0 -ub 512 -ngl 0\n",
        "-t 1 -fa 1 -ub 1024 -ngl 0: llama-bench failed (exit status: 3): no memory for -ub 1024",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

/// One lucky run does not decide.
#[test]
fn tries_close_settings_again() {
    let dir = tempfile::tempdir().unwrap();
    let speeds = r#"pp=100 tg=10
    if [ $fa = 0 ]; then tg=8; [ -e DIR/mark ] || tg=12; touch DIR/mark; fi"#;
    let program = llama_bench(dir.path(), speeds);
    let taken = |program: &Path| {
        let json = compare(program, &["--pairs", "1", "--json"]).json();
        assert_eq!(json["tests"][1]["test"], "tg4");
        json["tests"][1]["theirs"]["flags"][3].clone()
    };
    // Luck and the second run have a mean of 10, as the steady setting has; a tie goes to the first.
    assert_eq!(taken(&program), "0");
    let speeds = speeds.replace("tg=8", "tg=7").replace("mark", "mark2");
    let program = llama_bench(dir.path(), &speeds);
    assert_eq!(taken(&program), "1");
}

/// Settings among the user's own arguments are not tried, and the better of two builds is taken.
#[test]
fn keeps_given_settings_and_chooses_a_build() {
    let [slow, fast] = [(), ()].map(|()| tempfile::tempdir().unwrap());
    let slow_program = llama_bench(slow.path(), "pp=1 tg=1");
    let program = llama_bench(fast.path(), "pp=2 tg=2");
    let fast_path = program.to_str().unwrap();
    let args = ["--with", "llama-bench", fast_path, "--pairs", "1", "--json"];
    let given = ["--", "-fa", "1", "--threads", "3", "-ub", "64"];
    let json = compare(&slow_program, &[&args[..], &given].concat()).json();
    for test in json["tests"].as_array().unwrap() {
        assert_eq!(test["theirs"]["program"], fast_path);
        assert_eq!(
            test["theirs"]["build"],
            format!("{} (1)", fast.path().display())
        );
    }
    assert_eq!(json["search"]["settings"].as_array().unwrap().len(), 2);
    for dir in [&slow, &fast] {
        let calls = fs::read_to_string(dir.path().join("log")).unwrap();
        for call in calls.lines() {
            assert_eq!(flags_of(call), "-fa 1 --threads 3 -ub 64");
            assert!(!call.contains(" -t "), "{call}");
        }
    }
    // All settings given: nothing to try.
    let json = compare(
        &program,
        &[&["--pairs", "1", "--json"][..], &given].concat(),
    )
    .json();
    assert!(json["search"].is_null());
}

#[test]
fn reports_errors() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("none");
    compare(&none, &[]).fails(1, "no llama-bench at");
    compare(dir.path(), &[]).fails(1, "no llama-bench at");
    let not_runnable = dir.path().join("text");
    fs::write(&not_runnable, "x").unwrap();
    compare(&not_runnable, &["--pairs", "1"]).fails(1, "cannot run llama-bench");
    for (script, part) in [
        (
            "echo 'error: no such model' >&2; exit 7",
            "llama-bench failed (exit status: 7): error: no such model",
        ),
        ("kill -9 $$", "llama-bench failed (signal: 9"),
        ("echo hello", "but: hello"),
        ("true", "but: nothing"),
        ("echo '[]'", "llama-bench printed no row for pp16"),
        ("echo '[{\"n_prompt\": 16}]'", "`samples_ts` is missing"),
        ("printf '\\377\\376'", "invalid UTF-8"),
    ] {
        let program = program(dir.path(), script);
        compare(&program, &["--pairs", "1"]).fails(1, part);
    }
    let fine = program(dir.path(), &format!("cat {}", recorded().display()));
    for (args, code, part) in [
        (&["-t", "0"][..], 2, "-t must be"),
        (&["--pairs", "0"], 2, "--pairs"),
        (
            &["--threshold", "p50_ms=5"],
            2,
            "only speeds are compared here",
        ),
        (&["--device", "xpu"], 2, "--device"),
        (
            &["-d", "33", "--fixed", "--pairs", "1"],
            1,
            "rocmforge failed",
        ),
        (
            &["-n", "8", "--pairs", "1"],
            1,
            "llama-bench printed no row for tg8",
        ),
    ] {
        compare(&fine, args).fails(code, part);
    }
    let twice = program(
        dir.path(),
        &format!(
            "sed 's/^\\]/,/' {0}; sed 's/^\\[//' {0}",
            recorded().display()
        ),
    );
    compare(&twice, &["--pairs", "1"]).fails(1, "several rows for pp16");
    let fine = program(dir.path(), &format!("cat {}", recorded().display()));
    let fine = fine.to_str().unwrap();
    let two = ["--with", "llama-bench", fine, "--with", "rocmforge", fine];
    run(&[&["compare", "-m", "x.gguf"], &two[..]].concat()).fails(2, "several --with");
    run(&["compare", "--with", "other-bench", fine, "-m", "x.gguf"]).fails(2, "--with other-bench");
    run(&["compare", "--with", "llama-bench", fine, "-m", "none.gguf"]).fails(1, "none.gguf");
    run(&["compare", "--with", "llama-bench", fine]).fails(2, "--model");
}

#[test]
fn prints_finished_pairs_after_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let script = format!(
        "test -e {mark} && exit 3; touch {mark}; cat {recorded}",
        mark = mark.display(),
        recorded = recorded().display()
    );
    let run = compare(
        &program(dir.path(), &script),
        &["--fixed", "--pairs", "4", "--json"],
    );
    run.fails(1, "llama-bench failed");
    let json: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(
        (&json["pairs"], &json["pairs_asked"]),
        (&1.into(), &4.into())
    );
    assert!(run.stderr.contains("only 1 of 4 pairs"), "{}", run.stderr);
}
