//! Bad files, prompts and flags: one line on stderr and the right exit code.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use crate::program::{changed_model, command, finish, repository, run, run_with_stdin};

/// Writes files that are not models.
fn bad_files(dir: &std::path::Path) -> Vec<(PathBuf, &'static str)> {
    let model = fs::read(repository("models/forge-mini-Q4_K_M.gguf")).unwrap();
    let mut damaged = model.clone();
    damaged[8..16].fill(0xff);
    let mut other_version = model.clone();
    other_version[4] = 9;
    let files: [(&str, &[u8], &str); 6] = [
        ("empty.gguf", b"", "truncated"),
        ("text.gguf", b"this is not a model", "not a GGUF file"),
        ("header.gguf", &model[..3000], "truncated"),
        ("half.gguf", &model[..model.len() / 2], "truncated"),
        ("damaged.gguf", &damaged, "damaged"),
        ("version.gguf", &other_version, "version 9"),
    ];
    let mut bad: Vec<_> = files
        .iter()
        .map(|(name, bytes, part)| {
            let path = dir.join(name);
            fs::write(&path, bytes).unwrap();
            (path, *part)
        })
        .collect();
    bad.push((dir.join("missing.gguf"), "No such file"));
    bad.push((dir.to_path_buf(), "directory"));
    bad.push((PathBuf::from("/dev/null"), "not a file"));
    bad
}

#[test]
fn every_command_rejects_bad_files() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    fs::write(&text, "some text").unwrap();
    let text = text.to_str().unwrap();
    for (path, part) in bad_files(dir.path()) {
        let path = path.to_str().unwrap();
        for args in [
            &["generate", "-m", path, "-p", "x"][..],
            &["generate", "-m", path, "-p", "x", "--no-mmap"],
            &["chat", "-m", path],
            &["inspect", path],
            &["tokenize", "-m", path, "-p", "x"],
            &["perplexity", "-m", path, "-f", text],
            &["bench", "-m", path],
            &["check", "-m", path],
        ] {
            run(args).fails(1, part);
        }
    }
}

#[test]
fn rejects_bad_prompts() {
    run(&["generate", "-p", ""]).fails(1, "the prompt is empty");
    run_with_stdin(&["generate"], b"").fails(1, "the prompt is empty");
    run(&["generate", "--ids", "4096"]).fails(1, "token id 4096");
    run(&["generate", "-p", "Once upon a time", "--ctx", "4"]).fails(1, "--ctx");
    run_with_stdin(
        &["generate", "--ctx", "256"],
        "word ".repeat(400).as_bytes(),
    )
    .fails(1, "the context holds 256");
    run_with_stdin(&["generate"], b"caf\xe9").fails(1, "not valid UTF-8 (byte 3)");
    run_with_stdin(&["chat"], b"caf\xe9\n").fails(1, "not valid UTF-8");
    run(&["generate", "-f", "/nonexistent/prompt"]).fails(1, "'/nonexistent/prompt'");
    run(&["generate", "-f", "/"]).fails(1, "directory");
    run(&["perplexity", "-f", "/nonexistent/text"]).fails(1, "'/nonexistent/text'");

    let mut command = command(&["generate", "-p"]);
    command.arg(OsString::from_vec(b"caf\xe9".to_vec()));
    finish(command).fails(1, "not valid UTF-8 (byte 3)");
}

#[test]
fn perplexity_needs_a_whole_window() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    fs::write(&text, "A short text.").unwrap();
    let text = text.to_str().unwrap();
    run(&["perplexity", "-f", text]).fails(1, "--ctx");
    let saved = dir.path().join("saved");
    let save = ["perplexity", "-f", text, "--save-logits"];
    run(&[&save[..], &[saved.to_str().unwrap()]].concat()).fails(1, "--ctx");
    assert!(!saved.exists());
    run(&[&save[..], &["/nonexistent/saved"]].concat()).fails(1, "'/nonexistent/saved'");
    run(&["perplexity", "--kl-base", text]).fails(1, "--save-logits");
    run(&["perplexity", "--kl-base", "/nonexistent/saved"]).fails(1, "'/nonexistent/saved'");
    run(&["perplexity", "-f", text, "--kl-base", text]).fails(2, "--kl-base");
}

#[test]
fn rejects_endless_input() {
    run(&["generate", "-f", "/dev/zero"]).fails(1, "longer than 256 MiB");
    run(&["perplexity", "-f", "/dev/zero"]).fails(1, "longer than 256 MiB");
}

#[test]
fn wrong_usage_has_exit_code_2() {
    for (args, part) in [
        (&["generate", "-p", "x", "--temp", "-1"][..], "temperature"),
        (&["generate", "-p", "x", "--top-p", "2"], "top-p"),
        (
            &["generate", "-p", "x", "--xtc-threshold", "nan"],
            "xtc-threshold",
        ),
        (&["generate", "-p", "x", "--dry-base", "0.5"], "dry-base"),
        (&["generate", "-p", "x", "--mirostat", "1"], "mirostat is 1"),
        (
            &["generate", "-p", "x", "--samplers", "top_k;what"],
            "no sampler 'what'",
        ),
        (
            &["generate", "-p", "x", "--samplers", "xtc;xtc"],
            "xtc and xtc",
        ),
        (&["generate", "-p", "x", "--logit-bias", "5"], "15043+1"),
        (
            &["generate", "-p", "x", "--dry-sequence-breaker", ""],
            "sequence breaker",
        ),
        (&["generate", "-p", "x", "--think", "on"], "--chat"),
        (&["generate", "-p", "x", "--system", "y"], "--chat"),
        (
            &["generate", "--chat", "-p", "x", "--think", "on"],
            "no switch for thinking",
        ),
        (&["chat", "--think", "off"], "no switch for thinking"),
        (&["generate", "-p", "x", "-f", "y"], "cannot be used with"),
        (
            &["generate", "-p", "x", "--ids", "1"],
            "cannot be used with",
        ),
        (&["generate", "-p", "x", "--logprobs", "3"], "--json"),
        (&["generate", "--ids", "1,two"], "'two'"),
        (&["generate", "-p", "x", "--device", "abacus"], "'abacus'"),
        (&["perplexity", "-f", "x", "--chunks", "0"], "--chunks"),
        (&["generate", "--frobnicate"], "--frobnicate"),
        (&["frobnicate"], "frobnicate"),
    ] {
        run(args).fails(2, part);
    }
    assert_eq!(run(&[]).code, Some(2));
}

#[test]
fn out_of_range_settings_report_the_limits() {
    run(&["generate", "-p", "x", "--threads", "0"]).fails(2, "threads");
    run(&["generate", "-p", "x", "--threads", "100000"]).fails(2, "threads");
    run(&["generate", "-p", "x", "--page", "7"]).fails(2, "16, 32 or 64");
    run(&["inspect", "--page", "0"]).fails(2, "16, 32 or 64");
    run(&["generate", "-p", "x", "--ctx", "2000000000"]).fails(1, "--ctx");
    run(&["tokenize", "-p", "x", "--pre", "abacus"]).fails(1, "abacus");
}

/// The limits of a shell that is poorer than most.
#[test]
fn runs_with_a_small_stack_and_little_memory() {
    let program = env!("CARGO_BIN_EXE_rocmforge");
    let under = |limits: &str, args: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("{limits} && exec {program} {args}")]);
        shell.env("ROCMFORGE_DEVICE", "cpu");
        finish(shell)
    };
    under("ulimit -s 100", "inspect").ok();
    under("ulimit -s 100", "--help").ok();
    // Less than a template's own limit of 512 MiB.
    let run = under("ulimit -v 500000", "generate --chat --threads 1 -n 1 -p hi");
    run.ok();
}

#[test]
fn cuts_names_of_megabytes() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(2 << 20);
    for key in [
        "general.architecture",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
    ] {
        let path = changed_model(dir.path(), &[(key, Some(&long))]);
        let path = path.to_str().unwrap();
        for args in [
            &["generate", "-p", "hi", "-n", "1", "-m", path][..],
            &["tokenize", "hi", "-m", path],
            &["inspect", "-m", path],
            &["models", "rm", "--yes", "--models-dir", path, "x"],
        ] {
            let run = run(args);
            let n_bytes = run.stderr.len() + run.stdout.len();
            assert!(n_bytes < 100_000, "{key} {args:?}: {n_bytes} bytes");
        }
    }
}
