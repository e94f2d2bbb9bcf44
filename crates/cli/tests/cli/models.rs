//! `rocmforge models` and models by name.

use std::fs;

use crate::program::{Run, repository, run};

/// Creates a folder with a good model, two broken ones and an unfinished download.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let repo = dir.path().join("o/r-GGUF");
    fs::create_dir_all(&repo).unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    let mini = repository("models/forge-mini-Q4_K_M.gguf");
    fs::copy(mini, repo.join("mini-Q4_K_M.gguf")).unwrap();
    fs::write(repo.join("mini-Q8_0.gguf"), "GGUF").unwrap();
    fs::write(repo.join("mmproj-F16.gguf"), "GGUF").unwrap();
    fs::write(repo.join("mini-F16.gguf.0123456789ab.part"), [0; 1000]).unwrap();
    fs::write(repo.join(".pull.lock"), "").unwrap();
    fs::write(repo.join("README.md"), "hello").unwrap();
    fs::write(dir.path().join("loose.gguf"), "no model").unwrap();
    dir
}

fn models(dir: &tempfile::TempDir, more: &[&str]) -> Run {
    let mut args = vec!["models"];
    args.extend(more);
    args.extend(["--models-dir", dir.path().to_str().unwrap()]);
    run(&args)
}

#[test]
fn lists_the_models_folder() {
    let dir = folder();
    let report = models(&dir, &["--json"]).json();
    let rows = report["models"].as_array().unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["loose.gguf", "o/r-GGUF:Q4_K_M", "o/r-GGUF:Q8_0"]);
    let mini = &rows[1];
    let bytes = fs::metadata(repository("models/forge-mini-Q4_K_M.gguf"))
        .unwrap()
        .len();
    assert_eq!(mini["bytes"], bytes);
    assert_eq!(mini["architecture"], "llama");
    assert_eq!(mini["quantization"], "Q4_K");
    assert!(mini["problem"].is_null() && mini["modified"].as_u64().unwrap() > 1_600_000_000);
    assert!(rows[0]["problem"].as_str().unwrap().contains("not a GGUF"));
    assert!(rows[2]["problem"].as_str().unwrap().contains("truncated"));
    assert_eq!(report["incomplete"][0]["bytes"], 1000);

    let text = models(&dir, &[]).ok();
    for part in ["o/r-GGUF:Q4_K_M", "llama", "broken: ", "incomplete"] {
        assert!(text.text().contains(part), "{part:?} in {}", text.text());
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(models(&empty, &[]).ok().stderr.contains("no models"));
    let none = models(&empty, &["--json"]).json();
    assert_eq!(none["models"], serde_json::json!([]));
}

#[test]
fn runs_models_by_name() {
    let dir = folder();
    let path = dir.path().to_str().unwrap();
    let args = [
        "generate",
        "-m",
        "o/r-GGUF:Q4_K_M",
        "-p",
        "Once",
        "-n",
        "1",
        "--models-dir",
        path,
    ];
    run(&args).ok();
    // A broken model does not affect others of its repository.
    run(&["inspect", "o/r-GGUF", "--models-dir", path]).ok();
    run(&["inspect", "o/r-GGUF:Q8_0", "--models-dir", path]).fails(1, "truncated");
    run(&["inspect", "o/r-GGUF:Q5_K_M", "--models-dir", path])
        .fails(1, "rocmforge pull hf:o/r-GGUF:Q5_K_M");
}

#[test]
fn removes_models_after_confirmation() {
    let dir = folder();
    let repo = dir.path().join("o/r-GGUF");
    models(&dir, &["rm", "o/r-GGUF:Q8_0"]).fails(2, "--yes");
    assert!(repo.join("mini-Q8_0.gguf").exists());
    models(&dir, &["rm", "nothing", "--yes"]).fails(1, "no model 'nothing'");
    models(&dir, &["rm", "../etc", "--yes"]).fails(1, "no model");
    models(&dir, &["rm", "o/r-GGUF:Q8_0", "--yes"]).ok();
    assert!(!repo.join("mini-Q8_0.gguf").exists() && repo.join("mini-Q4_K_M.gguf").exists());
    models(
        &dir,
        &["rm", "o/r-GGUF/mini-F16.gguf.0123456789ab.part", "--yes"],
    )
    .ok();
    for other in ["README.md", "mmproj-F16.gguf"] {
        fs::remove_file(repo.join(other)).unwrap();
    }
    // The repository's folder is removed with its last model.
    models(&dir, &["rm", "mini-Q4_K_M", "--yes"]).ok();
    assert!(!dir.path().join("o").exists() && dir.path().exists());
}

/// The names are those of the tables, so a name that another crate accepts is in the list.
#[test]
fn lists_what_is_supported() {
    let report = run(&["models", "--supported", "--json"]).json();
    let keys: Vec<_> = report.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["architectures", "formats", "pre_tokenizers", "tool_formats"]
    );
    for (key, names) in [
        ("architectures", &["llama", "qwen3moe"][..]),
        ("formats", &["F32", "Q4_K", "MXFP4"]),
        ("pre_tokenizers", &["default", "llama-bpe", "whitespace"]),
        ("tool_formats", &["gpt-oss", "hermes", "qwen-xml", "llama3"]),
    ] {
        let found = report[key].as_array().unwrap();
        assert!(
            names.iter().all(|name| found.iter().any(|it| it == name)),
            "{report}"
        );
        let text = run(&["models", "--supported"]).ok();
        let last = found.last().unwrap().as_str().unwrap();
        assert!(text.text().contains(last), "{last}");
    }
}
