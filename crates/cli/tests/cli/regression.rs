//! `.ci/bench`, which a machine of your own runs after each change: a dry run on the CPU with the built-in model. Losses
//! are made by editing the reference, so nothing depends on the machine's speed.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::program::{Run, finish, repository};

/// Runs the script with a small benchmark.
fn measure(baselines: &Path, out: &Path) -> Run {
    let mut command = Command::new("bash");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROCMFORGE_")) {
        command.env_remove(name);
    }
    command.arg(repository(".ci/bench"));
    command.arg(env!("CARGO_BIN_EXE_rocmforge"));
    command.args([baselines, out]);
    command.args([
        "--device", "cpu", "-p", "4", "-n", "0", "-t", "1", "-r", "5",
    ]);
    finish(command)
}

/// Changes each benchmark of the reference.
fn change(baselines: &Path, reference: &Value, change: impl Fn(&mut Value)) {
    let mut changed = reference.clone();
    let all = changed["baselines"].as_object_mut().unwrap();
    all.values_mut().for_each(change);
    let file = baselines.join("reference.json");
    fs::write(file, changed.to_string()).unwrap();
}

/// Multiplies the times of a benchmark.
fn scaled(entry: &mut Value, factor: f64) {
    let scale = |value: &mut Value| *value = json!(value.as_f64().unwrap() * factor);
    for (name, value) in entry["metrics"].as_object_mut().unwrap() {
        if name.ends_with("_ms") {
            scale(value);
        }
    }
    let samples = entry["samples"]["ms"].as_array_mut().unwrap();
    samples.iter_mut().for_each(scale);
}

#[test]
fn the_script_compares_with_the_reference_and_writes_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let (baselines, out) = (dir.path().join("baselines"), dir.path().join("out"));
    let written = |file: &str| fs::read_to_string(out.join(file)).unwrap();
    let n_saved = || {
        let files = fs::read_dir(&baselines).unwrap();
        let names = files.map(|file| file.unwrap().file_name());
        let names = names.filter(|name| name.to_string_lossy().ends_with(".json"));
        names.count()
    };
    measure(&baselines, &out).ok();
    assert!(written("comparison.md").contains("first measurement"));
    assert!(written("index.html").contains("<html"));
    let reference = fs::read_to_string(baselines.join("reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&reference).unwrap();

    // More than any load explains.
    change(&baselines, &reference, |entry| scaled(entry, 1e4));
    measure(&baselines, &out).ok();
    assert!(written("comparison.md").contains("improved"));
    assert_eq!(n_saved(), 2);
    fs::remove_file(out.join("index.html")).unwrap();
    change(&baselines, &reference, |entry| scaled(entry, 1e-4));
    let worse = measure(&baselines, &out);
    assert_eq!(worse.code, Some(3), "{}", worse.stderr);
    let error = "1 of 1 benchmarks are worse than in 'reference'";
    assert!(worse.stderr.contains(error), "{}", worse.stderr);
    assert!(
        written("comparison.md")
            .to_lowercase()
            .contains("regression")
    );
    assert!(written("index.html").contains("<html"));

    let n_before = n_saved();
    change(&baselines, &reference, |entry| {
        entry["hardware"]["cpu_model"] = "Another CPU".into();
    });
    let foreign = measure(&baselines, &out);
    assert_eq!(foreign.code, Some(4), "{}", foreign.stderr);
    assert!(foreign.stderr.contains("baseline rm reference"));
    assert_eq!(n_saved(), n_before);
}

/// What the workflow runs is what is tested above.
#[test]
fn the_workflow_runs_the_script() {
    let workflow = fs::read_to_string(repository(".github/workflows/bench.yml")).unwrap();
    let run = ".ci/bench target/release/rocmforge \"$BASELINES\" target/bench $FLAGS";
    assert!(workflow.contains(&format!("run: {run}\n")));
    for file in ["comparison.md", "path: target/bench"] {
        assert!(workflow.contains(file), "{file}");
    }
    // Code of strangers must not run on the machine.
    assert!(!workflow.contains("pull_request"));
}
