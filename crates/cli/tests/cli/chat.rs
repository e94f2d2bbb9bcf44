//! `chat`, scripted through a pipe.

use std::fs;

use serde_json::Value;

use crate::program::{golden, ids, run, run_with_stdin};

#[test]
fn remembers_earlier_turns() {
    // The conversation of the last answer in golden.json, from llama.cpp.
    let golden = golden("recall");
    let dir = tempfile::tempdir().unwrap();
    let saved = dir.path().join("chat.json");
    let script = format!(
        "My name is Zorina.\n/stats\nWhat is the capital of Italy?\nWhat is 12 + 7?\n\nWhat is my name?\n/stats\n/save {}\n/quit\nnever read\n",
        saved.display()
    );
    let run = run_with_stdin(&["chat", "--temp", "0"], script.as_bytes()).ok();
    let answers: Vec<&str> = run.text().lines().collect();
    let expected = golden["text"].as_str().unwrap().split("<|im_end|>").next();
    assert_eq!(answers.len(), 4, "{}", run.text());
    assert_eq!(answers.last().copied(), expected);
    assert!(answers[3].contains("Zorina"));

    // The last turn reused the full KV-cache pages of the earlier ones.
    let stats: Vec<&str> = run
        .stderr
        .lines()
        .filter(|line| line.contains("from the cache"))
        .collect();
    assert!(stats[0].contains(" 0 from the cache"), "{}", run.stderr);
    assert!(stats[1].contains(" 64 from the cache"), "{}", run.stderr);

    let messages: Value = serde_json::from_str(&fs::read_to_string(saved).unwrap()).unwrap();
    let roles: Vec<&str> = messages
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant"].repeat(4));
    assert_eq!(messages[7]["content"], answers[3]);
}

#[test]
fn commands_change_the_conversation() {
    let script = "My name is Zorina.\n/clear\nWhat is my name?\n/system You are a pirate.\nWhat is the opposite of big?\n/help\n";
    let run = run_with_stdin(&["chat", "--temp", "0", "-n", "40"], script.as_bytes()).ok();
    let answers: Vec<&str> = run.text().lines().collect();
    assert!(!answers[1].contains("Zorina"), "{}", run.text());
    assert!(run.stderr.contains("/save FILE"), "{}", run.stderr);
}

#[test]
fn reports_a_full_context() {
    let script = "Tell me a story about a dog.\n".repeat(8);
    let run = run_with_stdin(&["chat", "--temp", "0", "--ctx", "96"], script.as_bytes());
    run.fails(1, "exceeds the context of 96");
}

#[test]
fn continues_with_context_shifting() {
    let script = "Tell me a story about a dog.\n".repeat(8) + "/stats\n";
    let args = [
        "chat",
        "--temp",
        "0",
        "--ctx",
        "96",
        "-n",
        "60",
        "--context-policy",
        "shift",
    ];
    let run = run_with_stdin(&args, script.as_bytes()).ok();
    assert!(
        run.stderr
            .contains("no longer fit in the context and were dropped"),
        "{}",
        run.stderr
    );
    assert!(run.stderr.contains("context shifted"), "{}", run.stderr);
}

/// By default, shifting keeps the tokens up to and including the system prompt.
#[test]
fn context_shifts_keep_the_system_prompt() {
    let system = "You are an old sailor who answers in short sentences.";
    let generate = |flags: &[&str]| {
        let args = [
            "generate",
            "--chat",
            "-p",
            "Tell me a story about a dog.",
            "--system",
            system,
            "--ctx",
            "96",
            "-n",
            "120",
            "--ignore-eos",
            "--temp",
            "0",
            "--json",
            "--context-policy",
            "shift",
        ];
        run(&[&args[..], flags].concat()).json()
    };
    // In the model's template, ChatML.
    let begin = format!("<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n");
    let begin = run(&["tokenize", "-p", &begin, "--parse-special", "--ids"]).json();
    let n_sinks = ids(&begin).len().to_string();
    let kept = generate(&[]);
    assert_eq!(ids(&kept["prompt_ids"])[..ids(&begin).len()], ids(&begin));
    assert_ne!(kept["context_shifts"]["n_shifts"], 0);
    assert_eq!(kept["ids"], generate(&["--context-sinks", &n_sinks])["ids"]);
    assert_ne!(kept["ids"], generate(&["--context-sinks", "4"])["ids"]);
}

#[test]
fn reports_a_system_prompt_too_long_to_keep() {
    let long = "Answer in short sentences. ".repeat(12);
    let chat = |flags: &[&str]| {
        let script = format!("/system Be brief.\n/system {long}\n");
        let args = [&["chat", "--ctx", "96", "--context-policy", "shift"], flags].concat();
        run_with_stdin(&args, script.as_bytes()).ok().stderr
    };
    let told = chat(&[]);
    let notices = told
        .lines()
        .filter(|line| line.contains("forgotten when the context shifts"));
    assert_eq!(notices.count(), 1, "{told}");
    assert!(told.contains("keep it with --context-sinks"), "{told}");
    let asked = chat(&["--context-sinks", "4"]);
    assert!(!asked.contains("forgotten"), "{asked}");
}
