//! Help screens, and what wrong usage says.

use std::fs::File;
use std::process::Stdio;

use crate::program::{command, run, run_with_stdin};

/// All commands, with theirs.
const COMMANDS: [&str; 35] = [
    "",
    "generate",
    "chat",
    "serve",
    "embed",
    "rerank",
    "inspect",
    "tokenize",
    "perplexity",
    "quantize",
    "imatrix",
    "bench",
    "bench matmul",
    "bench attention",
    "bench dequant",
    "bench inference",
    "bench memory",
    "bench batch",
    "bench serve",
    "baseline",
    "baseline list",
    "baseline show",
    "baseline compare",
    "baseline trend",
    "baseline rm",
    "compare",
    "profile",
    "profile-with",
    "tune",
    "check",
    "devices",
    "doctor",
    "models",
    "completions",
    "man",
];

/// Returns a help screen of 80 columns.
fn help(name: &str, flag: &str) -> String {
    let words: Vec<&str> = name.split_whitespace().chain([flag]).collect();
    let mut command = command(&words);
    command.env("COLUMNS", "80");
    crate::program::finish(command).ok().text().to_string()
}

#[test]
fn help_fits_the_terminal() {
    for name in COMMANDS {
        for (flag, most_lines) in [("-h", 40), ("--help", 212)] {
            let text = help(name, flag);
            let n_lines = text.lines().count();
            assert!(n_lines <= most_lines, "{name} {flag}: {n_lines} lines");
            let too_long = text.lines().find(|line| line.chars().count() > 80);
            assert_eq!(too_long, None, "{name} {flag}");
        }
    }
}

#[test]
fn whole_help_has_all_options_and_examples() {
    let commands = COMMANDS
        .iter()
        .filter(|name| !name.is_empty() && !name.contains(' '));
    for name in commands {
        let (short, whole) = (help(name, "-h"), help(name, "--help"));
        assert!(whole.contains("Examples:"), "{name}");
        assert!(!short.contains("Examples:"), "{name}");
    }
    let (short, whole) = (help("chat", "-h"), help("chat", "--help"));
    assert!(whole.contains("--xtc-threshold") && !short.contains("--xtc-threshold"));
    // The sentences that only --help has, and notes broken at words.
    assert!(!short.contains("Without a limit"), "{short}");
    let words = whole.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("Without a limit, the answer ends when"),
        "{whole}"
    );
    assert!(
        words.contains("starts and ends a message of several lines."),
        "{whole}"
    );
}

#[test]
fn wrong_words_are_answered_with_the_right_ones() {
    for (args, message, tip) in [
        (
            &["bench", "foo"][..],
            "unrecognized subcommand 'foo'",
            "use one of: matmul, attention, dequant, inference, memory, batch, serve; see rocmforge bench -h",
        ),
        (&["frobnicate"], "'frobnicate'", "generate, chat"),
        (&["--bogus"], "'--bogus'", "see rocmforge -h"),
        (
            &["generate", "--bogus"],
            "'--bogus'",
            "see rocmforge generate -h",
        ),
        (
            &["-q", "generate", "--bogus"],
            "'--bogus'",
            "see rocmforge generate -h",
        ),
        (
            &["chat", "--modle", "x"],
            "'--modle'",
            "'--model'; see rocmforge chat -h",
        ),
        (
            &["generate", "-p"],
            "--prompt <TEXT>",
            "see rocmforge generate -h",
        ),
        (
            &["perplexity"],
            "--file <FILE>",
            "see rocmforge perplexity -h",
        ),
        (
            &["generate", "-p", "x", "-n", "many"],
            "'many'",
            "see rocmforge generate -h",
        ),
        (
            &["chat", "--kv-type", "f166"],
            "f16, f32",
            "'f16'; see rocmforge chat -h",
        ),
        (
            &["bench", "matmul", "-o", "yaml"],
            "table, md, csv, json, jsonl",
            "rocmforge bench matmul -h",
        ),
        (&["models", "rm"], "<NAME>", "see rocmforge models rm -h"),
    ] {
        let run = run(args);
        run.fails(2, message);
        let lines: Vec<&str> = run.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{args:?}: {}", run.stderr);
        assert!(lines[0].contains(message), "{args:?}: {}", run.stderr);
        assert!(lines[1].contains(tip), "{args:?}: {}", run.stderr);
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

/// Each of these commands prints notes or statistics otherwise.
#[test]
fn every_command_can_be_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (text, matrix, pages) = (path("text"), path("imatrix.gguf"), path("pages"));
    std::fs::write(
        &text,
        "Once upon a time there was a little dog. ".repeat(20),
    )
    .unwrap();
    let tiny = ["-p", "4", "-n", "0", "-r", "1", "-t", "1"];
    let baselines = ["--save-baseline", "x", "--baseline-dir", &pages];
    for args in [
        &["tokenize", "-p", "x"][..],
        &["perplexity", "-f", &text, "--ctx", "32", "--chunks", "1"],
        &[
            "imatrix", "-f", &text, "-o", &matrix, "--ctx", "32", "--chunks", "1",
        ],
        &["profile", "--prompt-tokens", "4", "-n", "2", "--runs", "1"],
        &[&["bench"][..], &tiny, &baselines].concat(),
        &[
            "baseline",
            "list",
            "--baseline-dir",
            &text[..text.len() - 4],
        ],
        &["models", "--models-dir", &pages],
        &["man", "--dir", &pages],
    ] {
        let told = run(args).ok();
        assert!(!told.stderr.is_empty(), "{args:?} has nothing to hide");
        let _ = std::fs::remove_file(&matrix);
        let quiet = run(&[args, &["-q"]].concat()).ok();
        assert_eq!(quiet.stderr, "", "{args:?}");
    }
}

/// In a chat whose stdout and stderr are one, answers and what is said about them take turns by lines.
#[test]
fn statistics_of_a_chat_begin_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let (both, script) = (dir.path().join("both"), dir.path().join("script"));
    std::fs::write(&script, "Hello\n/stats\n").unwrap();
    let file = File::create(&both).unwrap();
    let mut chat = command(&["chat", "--temp", "0", "-n", "3", "--no-history"]);
    chat.stdin(File::open(&script).unwrap());
    chat.stdout(Stdio::from(file.try_clone().unwrap()));
    chat.stderr(Stdio::from(file));
    assert!(chat.status().unwrap().success());
    let both = std::fs::read_to_string(&both).unwrap();
    for begin in ["(stopped at --max-tokens)", "(prompt "] {
        assert!(both.lines().any(|line| line.starts_with(begin)), "{both}");
    }
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
