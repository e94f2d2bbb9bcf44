//! `generate` on the built-in model: llama.cpp's ids, the JSON fields, prompt sources, stopping.

use std::fs::{self, File};
use std::io::Read as _;
use std::process::{Command, Stdio};

use rocmforge_gguf::{GgmlType, Writer};
use rocmforge_testkit::models::dflash::{Dflash, dflash};
use rocmforge_testkit::models::eagle3::{Eagle3, eagle3};
use rocmforge_testkit::models::{self, families};
use serde_json::{Value, json};

use crate::program::{
    Run, command, decided_ids, finish, golden, ids, repository, run, run_with_stdin,
};

const GREEDY: [&str; 5] = ["generate", "--temp", "0", "-n", "16"];

fn greedy(more: &[&str]) -> Run {
    run(&[&GREEDY, more].concat())
}

#[test]
fn greedy_ids_match_llama_cpp() {
    for (name, raw) in [("story", true), ("chat", false), ("json", false)] {
        let golden = golden(name);
        let prompt = golden["prompt"].as_str().unwrap();
        let report = if raw {
            run(&[
                "generate",
                "-p",
                prompt,
                "-n",
                "48",
                "--temp",
                "0",
                "--ignore-eos",
                "--json",
            ])
            .json()
        } else {
            let more = [
                "-n",
                "48",
                "--temp",
                "0",
                "--ignore-eos",
                "--json",
                "--parse-special",
            ];
            run(&[&["generate", "-p", prompt], &more[..]].concat()).json()
        };
        assert_eq!(report["prompt_ids"], golden["prompt_ids"], "{name}");
        let expected = decided_ids(&golden);
        assert!(expected.len() > 1, "{name}: nothing is decided");
        assert_eq!(ids(&report["ids"])[..expected.len()], expected, "{name}");
        assert_eq!(ids(&report["ids"]).len(), 48);
        assert_eq!(report["finish_reason"], "length");
    }
}

#[test]
fn first_readme_command_tells_a_story() {
    let run = run(&["generate", "-p", "Once upon a time", "--seed", "1"]).ok();
    let text = run.text();
    // The model's stories have a few hundred letters, common words and full sentences.
    assert!(text.len() > 200, "{text}");
    assert!(text.trim_end().ends_with(['.', '!', '?', '"']), "{text}");
    assert!(!text.contains("<|"), "{text}");
    assert!(
        run.stderr.contains("tok/s") && run.stderr.contains("seed 1 "),
        "{}",
        run.stderr
    );
}

#[test]
fn same_seed_gives_the_same_text() {
    let text = |seed: &str| {
        run(&[
            "generate",
            "-p",
            "Once upon a time",
            "-n",
            "40",
            "--seed",
            seed,
        ])
        .ok()
        .stdout
    };
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8"));
}

#[test]
fn json_has_the_documented_fields() {
    let report = greedy(&[
        "-p",
        "Once upon a time",
        "--json",
        "--logprobs",
        "3",
        "--prompt-logprobs",
        "2",
    ])
    .json();
    assert_eq!(ids(&report["prompt_ids"]).len(), 4);
    assert_eq!(ids(&report["ids"]).len(), 16);
    assert_eq!(report["finish_reason"], "length");

    let steps = report["logprobs"].as_array().unwrap();
    assert_eq!(steps.len(), 16);
    for (step, id) in steps.iter().zip(ids(&report["ids"])) {
        let step = step.as_array().unwrap();
        assert_eq!(step.len(), 3);
        // Greedy takes the top token.
        assert_eq!(step[0]["id"], id);
        check_logprobs(step);
    }

    let prompt = report["prompt_logprobs"].as_array().unwrap();
    let own = report["prompt_token_logprobs"].as_array().unwrap();
    assert_eq!((prompt.len(), own.len()), (4, 4));
    assert_eq!((&prompt[0], &own[0]), (&Value::Null, &Value::Null));
    for (best, own) in prompt.iter().zip(own).skip(1) {
        check_logprobs(best.as_array().unwrap());
        assert!(own.as_f64().unwrap() <= best[0]["logprob"].as_f64().unwrap());
    }

    for name in [
        "load_ms",
        "tokenize_ms",
        "prefill_ms",
        "ttft_ms",
        "decode_ms",
    ] {
        assert!(report["timings"][name].as_f64().unwrap() >= 0.0, "{name}");
    }
    for name in ["prompt_per_second", "predicted_per_second"] {
        assert!(report["timings"][name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert!(report["slow_ops"].is_object());
}

fn check_logprobs(best: &[Value]) {
    let logprobs: Vec<f64> = best
        .iter()
        .map(|token| token["logprob"].as_f64().unwrap())
        .collect();
    assert!(
        logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0,
        "{logprobs:?}"
    );
    assert!(logprobs.iter().map(|logprob| logprob.exp()).sum::<f64>() <= 1.0 + 1e-5);
}

#[test]
fn logprobs_match_llama_cpp() {
    // Logits and log-probabilities have the same differences.
    let golden = golden("story");
    let report = greedy(&["-p", "Once upon a time", "--json", "--logprobs", "5"]).json();
    for (step, expected) in decided_ids(&golden).iter().enumerate() {
        let (ours, theirs) = (&report["logprobs"][step], &golden["top5"][step]);
        assert_eq!(ours[0]["id"], *expected);
        for rank in 1..3 {
            let gap =
                ours[0]["logprob"].as_f64().unwrap() - ours[rank]["logprob"].as_f64().unwrap();
            let expected = theirs[0][1].as_f64().unwrap() - theirs[rank][1].as_f64().unwrap();
            if expected < 6.0 {
                assert!(
                    (gap - expected).abs() < 0.35,
                    "step {step}, rank {rank}: {gap} {expected}"
                );
            }
        }
    }
}

#[test]
fn accepts_prompts_from_flag_file_and_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    fs::write(&file, "Once upon a time").unwrap();
    let file = file.to_str().unwrap();
    let from_flag = greedy(&["-p", "Once upon a time", "--json"]).json();
    let from_file = greedy(&["-f", file, "--json"]).json();
    let from_stdin =
        run_with_stdin(&[&GREEDY[..], &["--json"]].concat(), b"Once upon a time\n").json();
    let prompt: Vec<String> = ids(&from_flag["prompt_ids"])
        .iter()
        .map(u64::to_string)
        .collect();
    let from_ids = greedy(&["--ids", &prompt.join(","), "--json"]).json();
    for other in [from_file, from_stdin, from_ids] {
        for field in ["prompt_ids", "ids", "text"] {
            assert_eq!(other[field], from_flag[field], "{field}");
        }
    }
}

#[test]
fn prints_only_the_answer_on_stdout() {
    let args = ["-p", "Once upon a time"];
    let text = greedy(&args).ok();
    let report = greedy(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(text.text(), report["text"].as_str().unwrap());
}

#[test]
fn settings_do_not_change_greedy_text() {
    // Threads and page size change no bit; the KV cache type and the kernels change less than the margins of this
    // answer.
    let args = ["--chat", "-p", "Who are you?", "-n", "8"];
    let expected = greedy(&args).ok().stdout;
    for more in [
        &["--threads", "1"][..],
        &["--threads", "3"],
        &["--page", "16"],
        &["--ctx", "64"],
        &["--page", "64"],
        &["--device", "cpu", "--kv-type", "f32"],
        &["--kv-type", "q8_0"],
        &["--isa", "scalar"],
    ] {
        assert_eq!(
            greedy(&[&args[..], more].concat()).ok().stdout,
            expected,
            "{more:?}"
        );
    }
}

#[test]
fn reports_and_counts_slow_products() {
    let args = ["-p", "Once", "-n", "1", "--json"];
    let run = greedy(&[&args[..], &["--isa", "scalar"]].concat());
    // 10 layers with 7 products each, and the output.
    let counts = run.json()["slow_ops"].clone();
    assert_eq!(
        counts["Q4_K"].as_u64().unwrap() + counts["Q6_K"].as_u64().unwrap(),
        71
    );
    assert!(run.stderr.contains("no fast kernel for"), "{}", run.stderr);
    let fast = greedy(&[&args[..], &["--isa", "auto"]].concat());
    if fast.json()["device"].as_str().unwrap().contains("avx2") {
        assert_eq!(fast.json()["slow_ops"], json!({}));
        assert!(!fast.stderr.contains("notice"), "{}", fast.stderr);
    }
}

#[test]
fn chat_applies_the_template() {
    let golden = golden("chat");
    let report = run(&[
        "generate",
        "--chat",
        "-p",
        "Who are you?",
        "--temp",
        "0",
        "--json",
    ])
    .json();
    assert_eq!(report["prompt_ids"], golden["prompt_ids"]);
    assert_eq!(report["finish_reason"], "stop");
    let text = report["text"].as_str().unwrap();
    assert!(
        golden["text"].as_str().unwrap().starts_with(text) && text.contains("forge-mini"),
        "{text}"
    );

    let pirate = [
        "--chat",
        "-p",
        "What is the opposite of big?",
        "--system",
        "You are a pirate.",
        "-n",
        "40",
    ];
    let answer = greedy(&pirate).ok();
    assert!(answer.text().contains("small"), "{}", answer.text());
}

#[test]
fn special_shows_control_tokens() {
    let args = ["--chat", "-p", "Who are you?", "-n", "48", "--ignore-eos"];
    assert!(!greedy(&args).ok().text().contains("<|im_end|>"));
    assert!(
        greedy(&[&args[..], &["--special"]].concat())
            .ok()
            .text()
            .contains("<|im_end|>")
    );
}

#[test]
fn stops_before_stop_strings() {
    let args = ["-p", "Once upon a time", "-n", "100"];
    let whole = greedy(&args).ok();
    // In the middle of a word, so across a token boundary.
    let stop = &whole.text()[40..45];
    let cut = &whole.text()[..whole.text().find(stop).unwrap()];
    let report = greedy(
        &[
            &args[..],
            &["--json", "--stop", "never there", "--stop", stop],
        ]
        .concat(),
    )
    .json();
    assert_eq!(report["text"], cut);
    assert_eq!(report["finish_reason"], "stop");
}

#[test]
fn accepts_zero_max_tokens() {
    let report = run(&[
        "generate",
        "-p",
        "Once upon a time",
        "-n",
        "0",
        "--json",
        "--prompt-logprobs",
        "1",
    ])
    .json();
    assert_eq!((&report["ids"], &report["text"]), (&json!([]), &json!("")));
    assert_eq!(report["prompt_logprobs"].as_array().unwrap().len(), 4);
    assert_eq!(report["timings"]["ttft_ms"], Value::Null);
}

#[test]
fn reports_a_full_context_as_finish_reason() {
    let args = [
        "generate",
        "-p",
        "Once upon a time",
        "--ctx",
        "32",
        "--ignore-eos",
        "--temp",
        "0",
    ];
    let report = run(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(report["finish_reason"], "context");
    assert_eq!(ids(&report["ids"]).len(), 32 - 4);
    assert!(run(&args).ok().stderr.contains("--ctx"));
}

#[test]
fn context_shifting_continues_past_the_context() {
    let args = |policy: &[&'static str]| {
        let mut args = vec!["generate", "-p", "Once upon a time", "--ctx", "32"];
        args.extend(["--ignore-eos", "--temp", "0", "--json", "-n", "70"]);
        // With smaller pages, a shift may drop a whole one.
        args.extend(["--page", "32"]);
        args.extend(policy);
        args
    };
    let stopped = run(&args(&[])).json();
    let report = run(&args(&["--context-policy", "shift"])).json();
    assert_eq!(report["finish_reason"], "length");
    let (all, first) = (ids(&report["ids"]), ids(&stopped["ids"]));
    assert_eq!((all.len(), &all[..28]), (70, &first[..]));
    assert_eq!(stopped.get("context_shifts"), None);
    // 73 tokens were computed: 32, then 14 after each shift, which drops half of 28.
    let shifts = &report["context_shifts"];
    assert_eq!(
        (&shifts["n_shifts"], &shifts["n_forgotten"]),
        (&json!(3), &json!(42))
    );
    let other = run(&args(&[
        "--context-policy",
        "shift",
        "--context-sinks",
        "20",
    ]))
    .json();
    assert_eq!(other["context_shifts"]["n_shifts"], 7);
    assert_ne!(other["ids"], report["ids"]);
    run(&args(&[
        "--context-policy",
        "shift",
        "--context-sinks",
        "31",
    ]))
    .fails(1, "a context of 32 tokens with 31 attention sinks");
    // Sinks need shifting.
    for flags in [&[][..], &["--context-policy", "stop"]] {
        let refused = run(&args(&[&["--context-sinks", "4"], flags].concat()));
        refused.fails(2, "add --context-policy shift");
    }
    let prompt = [
        "--ids",
        "1,2,3,4,5,6,7",
        "--ctx",
        "7",
        "--context-policy",
        "shift",
    ];
    run(&[&["generate", "-n", "1"], &prompt[..]].concat()).fails(1, "--ctx");
}

#[test]
fn ends_quietly_when_stdout_is_closed() {
    let mut command = command(&[
        "generate",
        "-p",
        "Once upon a time",
        "--ignore-eos",
        "--ctx",
        "600",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 8]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "");
}

#[test]
fn ignores_a_closed_stderr() {
    let mut command = command(&["generate", "-p", "Once upon a time", "-n", "4"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(!output.stdout.is_empty());
}

#[test]
fn reports_unwritable_output() {
    for args in [
        &["generate", "-p", "Once upon a time", "-n", "4"][..],
        &["generate", "-p", "Once upon a time", "-n", "4", "--json"],
        &["devices"],
        &["--help"],
    ] {
        let mut command = command(args);
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        finish(command).fails(1, "cannot write the output");
    }
}

#[test]
fn ctrl_c_stops_the_answer() {
    let args = [
        "generate",
        "-p",
        "Once upon a time",
        "--ignore-eos",
        "--ctx",
        "16384",
    ];
    let mut child = command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Waits for the answer to start.
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0; 8])
        .unwrap();
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    if !kill.is_ok_and(|status| status.success()) {
        println!("skipped: there is no kill command");
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(code) => assert_eq!(code, 130, "{stderr}"),
        None => return,
    }
    assert!(stderr.contains("tok/s"), "{stderr}");
}

/// From the text itself and from a model, which here is the same one. How much is drafted depends on the times of steps.
#[test]
fn drafts_change_no_text() {
    let prompt = "One two three four. One two three four. One two three four. One two";
    let args = ["-p", prompt, "-n", "60", "--ignore-eos", "--json"];
    let answer = |how: &[&str]| greedy(&[&args[..], how].concat()).json();
    let plain = answer(&[]);
    assert_eq!(plain.get("speculation"), None);
    let model = repository("models/forge-mini-Q4_K_M.gguf");
    let by_model = format!("draft:{},n=4", model.display());
    for (how, drafter) in [
        ("ngram", "ngram"),
        ("ngram,n=3", "ngram"),
        (&by_model, "draft"),
    ] {
        let drafted = answer(&["--speculate", how]);
        assert_eq!(drafted["ids"], plain["ids"], "{how}");
        let speculation = &drafted["speculation"];
        assert_eq!(speculation["drafter"], drafter);
        let n = |field: &str| speculation[field].as_u64().unwrap();
        assert!(n("n_accepted") <= n("n_drafted"), "{speculation}");
        assert!(speculation["switched_off"].is_boolean());
    }
    let text = greedy(&["-p", prompt, "--speculate", "ngram"]).ok();
    assert!(text.stderr.contains("(ngram: "), "{}", text.stderr);
    let lacks = "no layers that predict further tokens";
    greedy(&["-p", "a", "--speculate", "mtp"]).fails(1, lacks);
    greedy(&["-p", "a", "--speculate", "draft:absent.gguf"]).fails(1, "absent.gguf");
}

/// A file with a layer that predicts further tokens ahead drafts with it unless it is told not to.
#[test]
fn drafts_of_the_own_file_change_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.gguf");
    let writer = families::model("qwen35", GgmlType::Q4_0).unwrap().unwrap();
    fs::write(&file, writer.to_vec().unwrap()).unwrap();
    let args = ["generate", "-m", file.to_str().unwrap(), "--device", "cpu"];
    let rest = [
        "--ids",
        "5,9,17,33,65,3",
        "-n",
        "12",
        "--temp",
        "0",
        "--json",
    ];
    let answer = |how: &[&str]| run(&[&args[..], &rest, how].concat()).json();
    let plain = answer(&["--speculate", "off"]);
    assert_eq!(plain.get("speculation"), None);
    for how in [
        &[][..],
        &["--speculate", "mtp"],
        &["--speculate", "mtp,n=1"],
    ] {
        let drafted = answer(how);
        assert_eq!(drafted["ids"], plain["ids"], "{how:?}");
        assert_eq!(drafted["speculation"]["drafter"], "mtp", "{how:?}");
    }
}

/// A drafter in a file of its own reads the model's cache; one made for another model is refused.
#[test]
fn drafts_from_the_cache_of_the_model_change_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let ty = GgmlType::Q4_0;
    let write = |name: &str, writer: Writer<'_>| {
        let path = folder.path().join(name);
        fs::write(&path, writer.to_vec().unwrap()).unwrap();
        path.to_str().unwrap().to_string()
    };
    let file = write("model.gguf", models::model("gemma4", ty).unwrap().unwrap());
    let of = |name: &str| models::assistant(name, ty).unwrap().unwrap();
    let own = write("mtp-model.gguf", of("gemma4"));
    let other = write("mtp-other.gguf", of("gemma4_wide"));
    let answer = |how: &str| {
        run(&[
            "generate",
            "-m",
            &file,
            "--device",
            "cpu",
            "--ids",
            "5,9,17,33,65,3",
            "-n",
            "40",
            "--temp",
            "0",
            "--json",
            "--speculate",
            how,
        ])
    };
    let plain = answer("off").json();
    for how in [format!("draft:{own}"), format!("draft:{own},n=2")] {
        let drafted = answer(&how).json();
        assert_eq!(drafted["ids"], plain["ids"], "{how}");
        let speculation = &drafted["speculation"];
        assert_eq!(speculation["drafter"], "assistant", "{speculation}");
        assert!(
            speculation["n_drafted"].as_u64().unwrap() > 0,
            "{speculation}"
        );
    }
    // The drafter beside the model is found by its name, among those of other models.
    fs::write(folder.path().join("mtp-broken.gguf"), "no model").unwrap();
    let drafted = answer("auto").json();
    assert_eq!(drafted["ids"], plain["ids"]);
    assert_eq!(drafted["speculation"]["drafter"], "assistant");
    fs::rename(&own, folder.path().join("drafter.gguf")).unwrap();
    assert_eq!(answer("auto").json().get("speculation"), None);
    fs::rename(folder.path().join("drafter.gguf"), &own).unwrap();
    answer(&format!("draft:{other}")).fails(1, "draft with the file made for it");
    run(&["generate", "-m", &own, "--ids", "5", "-n", "1"]).fails(1, "--speculate draft:FILE");
    let bench = [
        "bench",
        "-m",
        &file,
        "--device",
        "cpu",
        "-p",
        "0",
        "-n",
        "64",
        "-r",
        "1",
        // Drafts that do not pay in a warm-up would not be made after it.
        "--no-warmup",
        "-o",
        "json",
        "--speculate",
        &format!("draft:{own}"),
    ];
    let rows = run(&bench).json();
    assert!(rows[0]["n_drafted"].as_u64().unwrap() > 0, "{rows}");
}

/// A drafter of blocks is given, or found beside its model.
#[test]
fn drafts_of_blocks_change_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let ty = GgmlType::Q4_0;
    let write = |name: &str, writer: Writer<'_>| {
        let path = folder.path().join(name);
        fs::write(&path, writer.to_vec().unwrap()).unwrap();
        path.to_str().unwrap().to_string()
    };
    let file = write("model.gguf", models::model("llama", ty).unwrap().unwrap());
    let own = write("model-DFlash-q4.gguf", dflash(Dflash::Own, ty).unwrap());
    let answer = |how: &str| {
        let fixed = "--device cpu --ids 5,9,17,33,65,3 -n 40 --temp 0 --json --speculate";
        let fixed: Vec<&str> = fixed.split(' ').collect();
        run(&[&["generate", "-m", &file], &fixed[..], &[how]].concat()).json()
    };
    let plain = answer("off");
    for how in ["auto", &format!("draft:{own}"), &format!("draft:{own},n=2")] {
        let drafted = answer(how);
        assert_eq!(drafted["ids"], plain["ids"], "{how}");
        let speculation = &drafted["speculation"];
        assert_eq!(speculation["drafter"], "dflash", "{speculation}");
        let n_drafted = speculation["n_drafted"].as_u64().unwrap();
        assert!(n_drafted > 0, "{speculation}");
    }
    run(&["generate", "-m", &own, "--ids", "5", "-n", "1"]).fails(1, "--speculate draft:FILE");
}

/// A drafter that takes values of the model's layers is given, or found among those of other models.
#[test]
fn drafts_from_the_layers_of_the_model_change_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let ty = GgmlType::Q4_0;
    let write = |name: &str, writer: Writer<'_>| {
        let path = folder.path().join(name);
        fs::write(&path, writer.to_vec().unwrap()).unwrap();
        path.to_str().unwrap().to_string()
    };
    let file = write("model.gguf", models::model("llama", ty).unwrap().unwrap());
    let other = write("other.gguf", models::model("granite", ty).unwrap().unwrap());
    let drafter = || eagle3(Eagle3::Short, ty).unwrap();
    let of_model = |file: &str, how: &str| {
        let fixed = "--device cpu --ids 5,9,17,33,65,3 -n 40 --temp 0 --json --speculate";
        let fixed: Vec<&str> = fixed.split(' ').collect();
        run(&[&["generate", "-m", file], &fixed[..], &[how]].concat())
    };
    let plain = of_model(&file, "off").json();
    assert_eq!(of_model(&file, "auto").json().get("speculation"), None);
    // Before the one that suits: a drafter of wider models, and one of another vocabulary.
    let mut wider = drafter();
    wider.set("eagle3.target_hidden_size", 512u32);
    let wider = write("a-EAGLE3-wider.gguf", wider);
    let mut foreign = drafter();
    foreign.set("tokenizer.ggml.tokens", vec!["a", "b"]);
    write("b-eagle3-foreign.gguf", foreign);
    let own = write("model-eagle3-f16.gguf", drafter());
    for how in ["auto", &format!("draft:{own}"), &format!("draft:{own},n=2")] {
        let drafted = of_model(&file, how).json();
        assert_eq!(drafted["ids"], plain["ids"], "{how}");
        let speculation = &drafted["speculation"];
        assert_eq!(speculation["drafter"], "eagle3", "{speculation}");
        let n_drafted = speculation["n_drafted"].as_u64().unwrap();
        assert!(n_drafted > 0, "{speculation}");
    }
    of_model(&file, &format!("draft:{wider}")).fails(1, "hidden width is 512");
    of_model(&other, &format!("draft:{own}")).fails(1, "not supported for granite");
    assert_eq!(of_model(&other, "auto").json().get("speculation"), None);
    run(&["generate", "-m", &own, "--ids", "5", "-n", "1"]).fails(1, "--speculate draft:FILE");
    let how = format!("draft:{own}");
    let bench = ["bench", "-m", &file, "--device", "cpu", "--speculate", &how];
    // Drafts that do not pay in a warm-up would not be made after it.
    let fixed = "-p 0 -n 64 -r 1 --no-warmup -o json";
    let fixed: Vec<&str> = fixed.split(' ').collect();
    let rows = run(&[&bench[..], &fixed].concat()).json();
    assert!(rows[0]["n_drafted"].as_u64().unwrap() > 0, "{rows}");
}
