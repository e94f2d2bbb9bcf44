//! `rocmforge tune` on an emulated GPU: its table, its file, and unchanged text.

use std::path::Path;

use serde_json::Value;

use crate::gpu::host_device;
use crate::program::run;

#[test]
fn uses_tuning_without_changing_text() {
    let Some(device) = host_device() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let on = ["--device", &device, "--ctx", "64"];
    let stored = ["--cache-dir", cache];
    let tune = |flags: &[&str]| run(&[&["tune"], &on[..], flags].concat());
    let n_tuned = |flags: &[&str]| {
        let small = [
            "bench",
            "-p",
            "0",
            "-n",
            "1",
            "-r",
            "1",
            "--no-warmup",
            "-o",
            "json",
        ];
        let row = run(&[&small[..], &["--device", &device], flags].concat()).json();
        row[0]["n_tuned"].as_u64().unwrap()
    };
    let generate = |flags: &[&str]| {
        let text = [
            "generate", "-p", "The ship", "--temp", "0", "-n", "3", "--json",
        ];
        run(&[&text[..], &on[..], flags].concat()).json()["text"].clone()
    };
    // Enough time for a few launches only.
    let dry = tune(&[&["--budget", "1", "--dry-run", "--json"], &stored[..]].concat()).json();
    let shapes = dry["shapes"].as_array().unwrap();
    assert!(dry["stored"].is_null() && !shapes.is_empty());
    let counts = ["n_shapes", "n_left", "n_known"].map(|name| dry[name].as_u64().unwrap());
    assert_eq!(counts[0], counts[1] + shapes.len() as u64);
    assert_eq!(counts[2], 0);
    for row in shapes {
        let ways = row["ways"].as_array().unwrap();
        assert!(
            ways.len() > 1 && row["differing"] == Value::Array(vec![]),
            "{row}"
        );
        let is_chosen = |way: &&Value| way["choice"] == row["chosen"];
        assert_eq!(ways[0]["choice"], row["usual"]);
        assert!(ways.iter().any(|way| is_chosen(&way)), "{row}");
        let samples = |way: &Value| way["n"] == 15 && way["median_us"].as_f64() > Some(0.0);
        assert!(ways.iter().all(samples), "{row}");
    }
    let usual = generate(&[]);
    // With a folder.
    let told = tune(&[&["--budget", "1", "--json"], &stored[..]].concat()).json();
    let path = told["stored"].as_str().unwrap();
    assert!(n_tuned(&stored) > 0);
    let without = ["--kernel-variant", "tuning=off"];
    assert_eq!(n_tuned(&[&without, &stored[..]].concat()), 0);
    assert_eq!(generate(&stored), usual);
    // An unusable file is reported and replaced.
    std::fs::write(path, "{").unwrap();
    let told = tune(&[&["--budget", "1"], &stored[..]].concat());
    assert!(told.text().contains("launches measured"), "{}", told.text());
    assert!(
        told.stderr.contains("is not used: it is damaged"),
        "{}",
        told.stderr
    );
    assert!(n_tuned(&stored) > 0);
    tune(&[&["--clear"], &stored[..]].concat()).ok();
    assert!(!Path::new(path).exists());
}

#[test]
fn reports_what_cannot_be_tuned() {
    run(&["tune", "--device", "cpu"]).fails(2, "only GPUs can be tuned");
    run(&["tune", "--budget", "0"]).fails(2, "--budget");
    if let Some(device) = host_device() {
        let asked = ["tune", "--device", &device, "--kernel-variant", "plain"];
        run(&asked).fails(2, "omit it");
        let split = ["tune", "--device", &device, "--gpu-layers", "0"];
        run(&split).fails(2, "only GPUs can be tuned");
    }
}
