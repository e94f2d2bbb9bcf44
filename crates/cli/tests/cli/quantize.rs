//! `quantize` and `imatrix`: valid files, and nothing left after errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rocmforge_gguf::{GgmlType, Gguf, LoadMode, Writer};
use rocmforge_quantize::imatrix::Imatrix;
use serde_json::Value;

use crate::program::{command, finish, repository, run};

/// A test's folder.
struct Folder(tempfile::TempDir);

impl Folder {
    /// Creates a folder with `model.gguf`, the built-in model in F16.
    fn with_model() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        let source = repository("models/forge-mini-Q4_K_M.gguf");
        let args = ["F16", "--allow-requantize"];
        folder.run_from(&source, "model.gguf", &args).ok();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn run_from(&self, input: &Path, output: &str, args: &[&str]) -> crate::program::Run {
        let mut command = command(&["quantize"]);
        command.arg(input).arg(self.path(output)).args(args);
        finish(command)
    }

    fn quantize(&self, output: &str, args: &[&str]) -> crate::program::Run {
        self.run_from(&self.path("model.gguf"), output, args)
    }
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path, LoadMode::Mmap).unwrap()
}

fn bytes_of(tensors: &Value, field: &str) -> u64 {
    let tensors = tensors.as_array().unwrap().iter();
    tensors.map(|tensor| tensor[field].as_u64().unwrap()).sum()
}

#[test]
fn quantizes_runs_and_reports() {
    let folder = Folder::with_model();
    let report = folder.quantize("q8.gguf", &["q8_0", "--json"]).json();
    let path = folder.path("q8.gguf");
    let made = open(&path);
    assert_eq!(report["type"], "Q8_0");
    assert_eq!(report["file_bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(
        report["tensor_bytes"],
        bytes_of(&report["tensors"], "bytes")
    );
    assert_eq!(
        report["tensor_bytes_before"],
        bytes_of(&report["tensors"], "bytes_before")
    );
    for tensor in report["tensors"].as_array().unwrap() {
        let info = made.tensor(tensor["name"].as_str().unwrap()).unwrap();
        assert_eq!(tensor["to"], info.ty.name());
        assert_eq!(tensor["bytes"], info.n_bytes);
        let is_matrix = info.dims.len() > 1;
        assert_eq!(info.ty == GgmlType::Q8_0, is_matrix, "{}", info.name);
        let error = tensor["relative_error"].as_f64();
        match is_matrix {
            // 8 bits: the largest of 32 values has 127 steps.
            true => assert!((1e-4..2e-2).contains(&error.unwrap()), "{tensor}"),
            false => assert_eq!(error, None),
        }
    }
    let model = path.to_str().unwrap();
    let said = run(&[
        "generate",
        "-m",
        model,
        "-p",
        "Once upon a time",
        "-n",
        "12",
        "--temp",
        "0",
    ]);
    assert!(said.ok().text().contains("there"), "a story begins");
    assert_eq!(folder.names(), ["model.gguf", "q8.gguf"]);

    let table = folder
        .quantize("q4.gguf", &["Q4_0", "--pure", "-t", "1"])
        .ok();
    for part in [
        "blk.9.ffn_down.weight",
        "1024x256",
        "F16",
        "Q4_0",
        "bits per weight",
    ] {
        assert!(table.text().contains(part), "{part:?} in {}", table.text());
    }
}

#[test]
fn dry_run_reports_the_size_and_writes_nothing() {
    let folder = Folder::with_model();
    let model = folder.path("model.gguf");
    let model = model.to_str().unwrap();
    let planned = run(&["quantize", model, "Q8_0", "--dry-run", "--json"]).json();
    assert_eq!(planned["dry_run"], true);
    assert_eq!(folder.names(), ["model.gguf"]);
    let made = folder.quantize("q8.gguf", &["Q8_0", "--json"]).json();
    assert_eq!(planned["file_bytes"], made["file_bytes"]);
    assert_eq!(planned["tensors"][0]["relative_error"], Value::Null);
    // Also without the importance matrix that the conversion itself needs.
    let needs = run(&["quantize", model, "x.gguf", "Q2_K_S", "--dry-run"]).ok();
    assert!(needs.stderr.contains("--imatrix"), "{}", needs.stderr);
    assert!(needs.text().contains("Q2_K"), "{}", needs.text());
}

#[test]
fn errors_leave_nothing_behind() {
    let folder = Folder::with_model();
    let text = folder.path("a.txt");
    fs::write(&text, "taken").unwrap();
    let kept = ["a.txt", "model.gguf"];
    let folder_path = folder.0.path().to_str().unwrap();
    let embedded = repository("models/forge-mini-Q4_K_M.gguf");

    folder.quantize("a.txt", &["Q8_0"]).fails(1, "--force");
    assert_eq!(fs::read_to_string(&text).unwrap(), "taken");
    folder
        .quantize("model.gguf", &["Q8_0", "--force"])
        .fails(2, "OUT is the same file as IN");
    folder
        .quantize("../nowhere/x.gguf", &["Q8_0"])
        .fails(1, "nowhere");
    let to_folder = run(&[
        "quantize",
        folder.path("model.gguf").to_str().unwrap(),
        folder_path,
        "Q8_0",
    ]);
    to_folder.fails(1, "it is a directory; give a file name");
    assert!(!to_folder.stderr.contains("--force"), "it does not help");
    run(&[
        "quantize",
        folder.path("model.gguf").to_str().unwrap(),
        "/dev/null",
        "Q8_0",
        "--force",
    ])
    .fails(1, "device");
    folder
        .run_from(&embedded, "x.gguf", &["Q8_0"])
        .fails(1, "allow requantizing");
    folder
        .run_from(&text, "x.gguf", &["Q8_0"])
        .fails(1, "not a GGUF file");
    folder
        .quantize("x.gguf", &["Q2_K_S"])
        .fails(1, "without an importance matrix");
    for (imatrix, part) in [
        ("missing.gguf", "No such file"),
        ("a.txt", "llama-imatrix"),
        ("model.gguf", "without an importance matrix"),
    ] {
        let imatrix = folder.path(imatrix);
        let args = ["Q8_0", "--imatrix", imatrix.to_str().unwrap()];
        folder.quantize("x.gguf", &args).fails(1, part);
    }
    for (args, part) in [
        (&["Q9"][..], "Q4_K_M"),
        (&["Q8_0", "--tensor-type", "attn"], "REGEX=TYPE"),
        (&["Q8_0", "--tensor-type", "attn=Q8_K"], "Q8_0"),
        (&["Q8_0", "--tensor-type", "(=Q8_0"], "unclosed group"),
        (&["Q8_0", "--output-tensor-type", "what"], "Q8_0"),
        (&["Q8_0", "--token-embedding-type", "I32"], "Q8_0"),
        (&["Q8_0", "--threads", "0"], "threads"),
        (&[], "TYPE"),
    ] {
        folder.quantize("x.gguf", args).fails(2, part);
    }
    assert_eq!(folder.names(), kept);

    // Values that no format can represent are found when half of the file is written.
    let mut writer = Writer::new("llama");
    for (name, value) in [
        ("blk.0.attn_q.weight", 1.0),
        ("blk.1.attn_q.weight", f32::NAN),
    ] {
        writer
            .add_tensor_f32(name, &[64, 2], GgmlType::F32, &[value; 128])
            .unwrap();
    }
    let damaged = folder.path("damaged.gguf");
    fs::write(&damaged, writer.to_vec().unwrap()).unwrap();
    folder
        .run_from(&damaged, "x.gguf", &["Q8_0"])
        .fails(1, "blk.1.attn_q.weight");
    assert_eq!(folder.names(), ["a.txt", "damaged.gguf", "model.gguf"]);
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let folder = Folder(tempfile::tempdir().unwrap());
    // Large enough to be still running when the signal comes.
    let mut writer = Writer::new("llama");
    for layer in 0..12 {
        let name = format!("blk.{layer}.ffn_up.weight");
        let data = vec![0u8; 16 << 20];
        writer
            .add_tensor(&name, &[4096, 1024], GgmlType::F32, data)
            .unwrap();
    }
    fs::write(folder.path("model.gguf"), writer.to_vec().unwrap()).unwrap();
    let mut command = command(&["quantize"]);
    command
        .args([folder.path("model.gguf"), folder.path("x.gguf")])
        .args(["Q8_0", "-t", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let started = Instant::now();
    while folder.names().len() < 2 && started.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(folder.names().len(), 2, "the temporary file");
    let pid = child.id().to_string();
    let killed = std::process::Command::new("sh")
        .args(["-c", &format!("kill -INT {pid}; kill -INT {pid}")])
        .status();
    assert!(killed.unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(folder.names(), ["model.gguf"]);
}

#[test]
fn computes_and_uses_an_importance_matrix() {
    let folder = Folder::with_model();
    let model = folder.path("model.gguf");
    let text = folder.path("text.txt");
    // All windows are equal, yet none of their tokens may come from the KV cache.
    fs::write(&text, " la".repeat(400)).unwrap();
    let out = folder.path("imatrix.gguf");
    let imatrix = |more: &[&str]| {
        let mut command = command(&["imatrix", "--ctx", "64"]);
        command.arg("-m").arg(&model).arg("-f").arg(&text);
        command.arg("-o").arg(&out).args(more);
        finish(command)
    };
    let report = imatrix(&["--json", "--chunks", "5"]).json();
    assert_eq!(report["chunks"], 5);
    assert_eq!(report["entries"], 70);
    let made = Imatrix::open(&out).unwrap();
    assert_eq!((made.n_chunks, made.chunk_size), (5, 64));
    assert_eq!(made.datasets, [text.to_str().unwrap()]);
    for (name, entry) in &made.entries {
        let tensor = open(&model).tensor(name).unwrap().clone();
        assert_eq!(entry.sums.len() as u64, tensor.row_len(), "{name}");
        assert_eq!(entry.counts, [5 * 64], "{name}");
        assert!(entry.sums.iter().any(|&sum| sum > 0.0), "{name}");
    }
    imatrix(&[]).fails(1, "--force");
    imatrix(&["--force", "--chunks", "0"]).fails(2, "--chunks");
    let text_path = text.to_str().unwrap();
    let nowhere = folder.path("nowhere/i.gguf");
    for (file, ctx, output, part) in [
        ("/nonexistent/text", "64", "i.gguf", "/nonexistent/text"),
        (text_path, "100000", "i.gguf", "--ctx"),
        (text_path, "64", nowhere.to_str().unwrap(), "nowhere"),
    ] {
        let output = folder.path(output);
        let output = output.to_str().unwrap();
        run(&["imatrix", "-f", file, "--ctx", ctx, "-o", output]).fails(1, part);
    }

    let args = ["Q4_0", "--json", "--imatrix", out.to_str().unwrap()];
    let report = folder.quantize("q4.gguf", &args).json();
    let tensors = report["tensors"].as_array().unwrap();
    let weighted = tensors.iter().filter(|t| t["weighted_error"].is_f64());
    assert_eq!(weighted.count(), 70);
    let file = open(&folder.path("q4.gguf"));
    // With an importance matrix, the first layers' ffn_down gets a type with a minimum as well.
    assert_eq!(
        file.tensor("blk.0.ffn_down.weight").unwrap().ty,
        GgmlType::Q4_1
    );
    let metadata = file.metadata();
    assert_eq!(metadata.u32("quantize.imatrix.entries_count").unwrap(), 70);
    assert_eq!(metadata.u32("quantize.imatrix.chunks_count").unwrap(), 5);
    assert_eq!(
        folder.names(),
        ["imatrix.gguf", "model.gguf", "q4.gguf", "text.txt"]
    );
}
