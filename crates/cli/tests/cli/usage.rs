//! Help screens, and what wrong usage says.

use std::fs::File;
use std::process::Stdio;

use crate::program::{command, run, run_with_stdin};

#[test]
fn short_help_fits_a_screen() {
    for name in [
        "generate",
        "chat",
        "inspect",
        "tokenize",
        "perplexity",
        "quantize",
        "imatrix",
        "bench",
        "baseline",
        "compare",
        "profile",
        "profile-with",
        "tune",
        "check",
        "devices",
        "models",
        "completions",
        "man",
    ] {
        let mut short = command(&[name, "-h"]);
        short.env("COLUMNS", "80");
        let short = crate::program::finish(short).ok();
        let long = run(&[name, "--help"]).ok();
        let n_lines = short.text().lines().count();
        assert!(n_lines <= 40, "{name} -h has {n_lines} lines");
        assert!(long.text().contains("Examples:"), "{name}");
        assert!(!short.text().contains("Examples:"), "{name}");
    }
    let chat = run(&["chat", "--help"]).ok();
    assert!(chat.text().contains("--xtc-threshold"));
}

#[test]
fn wrong_words_are_answered_with_the_right_ones() {
    let suites = run(&["bench", "foo"]);
    suites.fails(
        2,
        "use one of: matmul, attention, dequant, inference, memory, batch",
    );
    run(&["frobnicate"]).fails(2, "generate, chat");
    let flag = run(&["chat", "--modle", "x"]);
    flag.fails(2, "'--model'");
    for run in [suites, flag, run(&["generate", "--bogus"])] {
        assert!(!run.stderr.contains("Usage:"), "{}", run.stderr);
        assert!(
            run.stderr.lines().filter(|line| !line.is_empty()).count() <= 3,
            "{}",
            run.stderr
        );
    }
}

#[test]
fn words_that_are_no_text_are_refused() {
    use std::os::unix::ffi::OsStrExt as _;
    for before in [&[][..], &["bench"]] {
        let mut command = command(before);
        command.arg(std::ffi::OsStr::from_bytes(b"\xff"));
        crate::program::finish(command).fails(2, "use one of");
    }
}

#[test]
fn a_build_without_kernels_says_so_first() {
    let targets = rocmforge_gpu::image_targets();
    if targets.iter().any(|target| !target.starts_with("host-")) {
        println!("skipped: this build has kernels");
        return;
    }
    for args in [
        &["generate", "-p", "x"][..],
        &["bench", "matmul", "--quick"],
        &["bench"],
    ] {
        let refused = run(&[args, &["--device", "gpu"]].concat());
        refused.fails(1, "error: this build has no ");
        assert!(
            refused.stderr.contains("ROCMFORGE_GPU_TARGETS"),
            "{}",
            refused.stderr
        );
    }
}

#[test]
fn numbers_without_a_meaning_are_refused() {
    run(&["generate", "-p", "x", "-n", "-5"]).fails(2, "-5");
}

#[test]
fn stop_texts_take_escapes() {
    let whole = run(&[
        "generate",
        "-p",
        "Once upon a time",
        "--temp",
        "0",
        "-n",
        "200",
        "-q",
    ])
    .ok();
    let first = whole
        .text()
        .split_once('\n')
        .expect("the story has lines")
        .0;
    let args = [
        "generate",
        "-p",
        "Once upon a time",
        "--temp",
        "0",
        "-n",
        "200",
        "--stop",
        r"\n",
    ];
    assert_eq!(run(&args).ok().text(), first);
}

#[test]
fn quiet_prints_only_the_answer() {
    let args = ["generate", "-p", "Once", "--temp", "0", "-n", "5"];
    let told = run(&args).ok();
    let quiet = run(&[&args[..], &["--quiet"]].concat()).ok();
    assert!(told.stderr.contains("tok/s"), "{}", told.stderr);
    assert_eq!(quiet.stderr, "");
    assert_eq!(quiet.stdout, told.stdout);
    run(&["generate", "-p", "x", "-m", "/nonexistent", "-q"]).fails(1, "/nonexistent");
}

#[test]
fn reads_a_prompt_from_stdin_by_its_dash() {
    let args = ["tokenize", "--ids"];
    let piped = run_with_stdin(&[&args[..], &["-f", "-"]].concat(), b"Hello, world").ok();
    let given = run(&[&args[..], &["-p", "Hello, world"]].concat()).ok();
    assert_eq!(piped.stdout, given.stdout);
}

#[test]
fn statistics_begin_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("both");
    let file = File::create(&path).unwrap();
    let mut generate = command(&["generate", "-p", "Once", "--temp", "0", "-n", "5"]);
    generate.stdout(Stdio::from(file.try_clone().unwrap()));
    generate.stderr(Stdio::from(file));
    assert!(generate.status().unwrap().success());
    let both = std::fs::read_to_string(&path).unwrap();
    assert!(
        both.lines()
            .any(|line| line.starts_with('[') && line.contains("tok/s")),
        "{both}"
    );
}

#[test]
fn chat_undoes_regenerates_and_keeps_saved_files() {
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("chat.json");
    let script = "What is 12 + 7?\n/regen\nTell me a story.\n/undo\n/save ~/chat.json\n";
    let chat = |script: &str| {
        let mut command = command(&["chat", "--temp", "0", "-n", "30", "--no-history"]);
        command.env("HOME", dir.path());
        let path = dir.path().join("script");
        std::fs::write(&path, script).unwrap();
        command.stdin(File::open(path).unwrap());
        crate::program::finish(command)
    };
    let first = chat(script).ok();
    let answers: Vec<&str> = first.text().lines().collect();
    assert_eq!(answers[0], answers[1], "greedy answers are equal");
    let text = std::fs::read_to_string(&saved).unwrap();
    let messages: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(messages.as_array().unwrap().len(), 2, "{messages}");
    assert_eq!(messages[1]["content"], answers[0]);
    chat("/save ~/chat.json\n").fails(2, "it exists");
    assert_eq!(std::fs::read_to_string(&saved).unwrap(), text);
    for command in ["/undo", "/regen"] {
        chat(&format!("{command}\n")).fails(2, "no message yet");
    }
    // What was saved is the beginning of another chat, and the prompt of an answer.
    let next = "What is my name?";
    let whole = chat(&format!("What is 12 + 7?\n{next}\n")).ok();
    let loaded = chat(&format!("/load ~/chat.json\n{next}\n")).ok();
    assert_eq!(whole.text().lines().last(), loaded.text().lines().last());
    let mut messages = messages;
    let asked = serde_json::json!({"role": "user", "content": next});
    messages.as_array_mut().unwrap().push(asked);
    let path = dir.path().join("messages.json");
    std::fs::write(&path, messages.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let args = [
        "generate",
        "--chat",
        "--temp",
        "0",
        "-n",
        "30",
        "--messages",
        path,
    ];
    assert_eq!(run(&args).ok().text(), whole.text().lines().last().unwrap());
    run(&["generate", "--messages", path]).fails(2, "--chat");
    std::fs::write(path, "{}").unwrap();
    run(&args).fails(1, "JSON array");
    // A limit of one token ends the answer early.
    let short = chat("/set max-tokens 1\nWhat is 12 + 7?\n").ok();
    assert!(short.stderr.contains("--max-tokens"), "{}", short.stderr);
    for wrong in ["/set", "/set device gpu", "/set temp hot", "/load", "/save"] {
        chat(&format!("{wrong}\n")).fails(2, wrong.split(' ').next().unwrap());
    }
    chat("/nonsense\nHello\n").fails(2, "unknown command /nonsense");
}
