//! inspect, tokenize, perplexity, devices and help, on the built-in model.

use std::fs;

use rocmforge_gguf::{GgmlType, Writer};
use rocmforge_testkit::models::families;
use serde_json::{Value, json};

use crate::program::{command, finish, golden, ids, repository, run, run_with_stdin};

/// A model with recurrent layers needs memory for a state of each sequence.
#[test]
fn inspect_shows_the_memory_of_states() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qwen35.gguf");
    let model = families::model("qwen35", GgmlType::F16).unwrap().unwrap();
    fs::write(&path, model.to_vec().unwrap()).unwrap();
    let path = path.to_str().unwrap();
    let report = run(&["inspect", "--json", path]).json();
    // Two layers: 4 states of 32 x 32, and 3 rows of 2 x 64 + 128 values.
    let state = 2 * 4 * (4 * 32 * 32 + 3 * 256);
    assert_eq!(report["memory"]["state_bytes"], state);
    let text = run(&["inspect", path]).ok();
    assert!(
        text.text().contains("a state: of each sequence"),
        "{}",
        text.text()
    );
    let other = run(&["inspect", "--json"]).json();
    assert_eq!(other["memory"]["state_bytes"], 0);
}

#[test]
fn inspect_describes_the_built_in_model() {
    let report = run(&["inspect", "--json"]).json();
    assert_eq!(report["architecture"], "llama");
    assert_eq!(report["runs"], true);
    assert_eq!(
        report["file_bytes"],
        fs::metadata(repository("models/forge-mini-Q4_K_M.gguf"))
            .unwrap()
            .len()
    );
    let tensors = report["tensors"].as_array().unwrap();
    let embedding = tensors
        .iter()
        .find(|tensor| tensor["name"] == "token_embd.weight")
        .unwrap();
    assert_eq!(embedding["dims"], json!([256, 4096]));
    let sum = |of: &Value| {
        of.as_array()
            .unwrap()
            .iter()
            .map(|item| item["bytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(sum(&report["types"]), sum(&report["tensors"]));
    assert_eq!(report["memory"]["weight_bytes"], sum(&report["tensors"]));
    // 10 layers, 2 heads of 64 values, keys and values, 2 bytes each, a context of 2048.
    assert_eq!(report["memory"]["ctx"], 2048);
    assert_eq!(report["memory"]["kv_bytes"], 10 * 2 * 64 * 2 * 2 * 2048);
    let doubled = run(&["inspect", "--json", "--ctx", "4096", "--kv-type", "f32"]).json();
    assert_eq!(
        doubled["memory"]["kv_bytes"],
        4 * 10 * 2 * 64 * 2 * 2 * 2048
    );
    for (name, block_bytes) in [("q8_0", 34), ("q5_1", 24), ("q4_0", 18)] {
        let coded = run(&["inspect", "--json", "--kv-type", name]).json();
        let kv_bytes = 10 * 2 * (64 / 32 * block_bytes) * 2 * 2048;
        assert_eq!(coded["memory"]["kv_bytes"], kv_bytes, "{name}");
    }
    // The flags of keys and of values come before that of both, and a variable is as its flag.
    for (flags, variables, [key_bytes, value_bytes]) in [
        (&["--kv-type-v", "q8_0"][..], &[][..], [128, 68]),
        (&["--kv-type", "q8_0", "--kv-type-v", "q4_0"], &[], [68, 36]),
        (
            &["--kv-type-v", "q5_1", "--kv-type-k", "f32"],
            &[],
            [256, 48],
        ),
        (
            &["--kv-type", "q4_0"],
            &[("ROCMFORGE_KV_TYPE_K", "q8_0")],
            [68, 36],
        ),
        (
            &["--kv-type-k", "q8_0"],
            &[
                ("ROCMFORGE_KV_TYPE_K", "f32"),
                ("ROCMFORGE_KV_TYPE_V", "q4_0"),
            ],
            [68, 36],
        ),
    ] {
        let mut inspect = command(&["inspect", "--json"]);
        inspect.args(flags).envs(variables.iter().copied());
        let split = finish(inspect).json();
        let kv_bytes = 10 * 2 * (key_bytes + value_bytes) * 2048;
        assert_eq!(
            split["memory"]["kv_bytes"], kv_bytes,
            "{flags:?} {variables:?}"
        );
    }
    for name in ["fp8", "f8_e4m3", "fp8_e4m3"] {
        let float = run(&["inspect", "--json", "--kv-type", name]).json();
        let kv_bytes = 10 * 2 * (64 + 2) * 2 * 2048;
        assert_eq!(float["memory"]["kv_bytes"], kv_bytes, "{name}");
    }
    // Long arrays are cut, strings are not.
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["len"], 4096);
    assert!(
        report["metadata"]["tokenizer.chat_template"]
            .as_str()
            .unwrap()
            .len()
            > 100
    );

    let text = run(&["inspect"]).ok();
    for part in ["architecture  llama", "Q4_K", "KV cache", "10.9 M"] {
        assert!(text.text().contains(part), "{part:?} in {}", text.text());
    }
}

/// The summary fits a screen; the long lists follow, that of the tensors only if it is asked for.
#[test]
fn inspect_begins_with_a_summary() {
    let at = |text: &str, part: &str| {
        text.find(part)
            .unwrap_or_else(|| panic!("{part} in {text}"))
    };
    let brief = run(&["inspect"]).ok();
    let n_tensors = run(&["inspect", "--json"]).json()["tensors"]
        .as_array()
        .unwrap()
        .len();
    assert!(at(brief.text(), "\nmemory") < at(brief.text(), "\nmetadata"));
    assert!(
        !brief.text().contains("token_embd.weight"),
        "{}",
        brief.text()
    );
    assert!(brief.text().ends_with(&format!(
        "tensors ({n_tensors}): list them with --tensors\n"
    )));
    let whole = run(&["inspect", "--tensors"]).ok();
    let list = &whole.text()[at(whole.text(), &format!("\ntensors ({n_tensors})\n"))..];
    assert_eq!(list.trim().lines().count(), n_tensors + 1);
    assert!(list.contains("token_embd.weight"));
}

#[test]
fn inspect_shows_unsupported_files() {
    let mut writer = Writer::new("fantasy");
    writer.set("general.name", "\x1b[31mred\u{202e}\u{9b}\n");
    writer.set("fantasy.expert_count", 8u32);
    writer.set("fantasy.expert_used_count", 2u32);
    writer
        .add_tensor("blk.0.\u{7f}odd", &[4], GgmlType::F32, vec![0; 16])
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fantasy.gguf");
    fs::write(&path, writer.to_vec().unwrap()).unwrap();
    let path = path.to_str().unwrap();

    let report = run(&["inspect", path, "--json"]).json();
    assert_eq!(report["runs"], false);
    assert!(report["problem"].as_str().unwrap().contains("fantasy"));
    assert_eq!(report["experts"]["count"], 8);
    assert_eq!(report["experts"]["used"], 2);
    let text = run(&["inspect", path]).ok();
    assert!(text.text().contains("8, 2 used per token"));
    for args in [&["inspect", path][..], &["inspect", path, "--json"]] {
        let run = run(args).ok();
        let odd = run.text().chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(odd, None, "{:?}", run.text());
    }
    run(&["generate", "-m", path, "-p", "x"]).fails(1, "architecture `fantasy` is not supported");
}

#[test]
fn inspect_shows_tensors_of_unknown_types() {
    let mut writer = Writer::new("llama");
    for name in ["plain", "strange"] {
        writer
            .add_tensor(name, &[4], GgmlType::F32, vec![0; 16])
            .unwrap();
    }
    let mut bytes = writer.to_vec().unwrap();
    // Behind the name: the number of dimensions, the dimension, the type.
    let name = bytes.windows(7).position(|at| at == b"strange").unwrap();
    bytes[name + 7 + 4 + 8..][..4].copy_from_slice(&1234u32.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("strange.gguf");
    fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap();

    let report = run(&["inspect", path, "--json"]).json();
    assert_eq!(report["runs"], false);
    assert!(report["problem"].as_str().unwrap().contains("type 1234"));
    let tensors = report["tensors"].as_array().unwrap();
    let types: Vec<&Value> = tensors.iter().map(|tensor| &tensor["type"]).collect();
    assert_eq!(types, ["F32", "type 1234"]);
    assert_eq!(tensors[1]["dims"], json!([4]));
    assert_eq!(report["memory"]["weight_bytes"], 16);
    let text = run(&["inspect", path]).ok();
    assert!(text.text().contains("type 1234"), "{}", text.text());
    for args in [
        &["generate", "-m", path, "-p", "x"][..],
        &["quantize", path, "out.gguf", "Q8_0"],
    ] {
        run(args).fails(1, "tensor 'strange' has type 1234");
    }
}

#[test]
fn tokenize_prints_ids() {
    for name in ["story", "chat", "utf8"] {
        let golden = golden(name);
        let text = golden["prompt"].as_str().unwrap();
        let args = ["tokenize", "-p", text, "--ids", "--parse-special"];
        assert_eq!(run(&args).json(), golden["prompt_ids"], "{name}");
        let from_stdin = run_with_stdin(
            &["tokenize", "--ids", "--parse-special"],
            format!("{text}\n").as_bytes(),
        );
        assert_eq!(from_stdin.json(), golden["prompt_ids"], "{name}");
    }
    // Without the flag, a control token is plain text.
    let plain = run(&["tokenize", "-p", "<|im_start|>", "--ids"]).json();
    assert!(ids(&plain).len() > 1);
    assert_eq!(
        ids(&run(&[
            "tokenize",
            "-p",
            "<|im_start|>",
            "--ids",
            "--parse-special",
            "--no-bos"
        ])
        .json())
        .len(),
        1
    );
    assert_eq!(run(&["tokenize", "-p", "", "--ids"]).json(), json!([]));
}

#[test]
fn tokenize_describes_tokens_in_json() {
    for name in ["story", "utf8"] {
        let golden = golden(name);
        let text = golden["prompt"].as_str().unwrap();
        let report = run(&["tokenize", "-p", text, "--parse-special", "--json"]).json();
        let tokens = report["tokens"].as_array().unwrap();
        let found: Vec<Value> = tokens.iter().map(|token| token["id"].clone()).collect();
        assert_eq!(Value::from(found), golden["prompt_ids"], "{name}");
        // Together the tokens are the text.
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| ids(&token["bytes"]))
            .map(|byte| byte as u8)
            .collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
        for token in tokens.iter().filter(|token| !token["text"].is_null()) {
            let bytes: Vec<u64> = token["text"]
                .as_str()
                .unwrap()
                .bytes()
                .map(u64::from)
                .collect();
            assert_eq!(ids(&token["bytes"]), bytes);
        }
        assert_eq!(report["n_bytes"], text.len());
    }
    let control = run(&[
        "tokenize",
        "-p",
        "<|im_start|>",
        "--parse-special",
        "--json",
    ])
    .json();
    assert_eq!(control["tokens"][0]["kind"], "control");
    run(&["tokenize", "-p", "x", "--ids", "--json"]).fails(2, "--json");
}

#[test]
fn every_instruction_set_of_this_processor_can_be_asked_for() {
    let available = run(&["devices", "--json"]).json()["devices"][0]["isa_available"].clone();
    let available: Vec<&str> = available
        .as_array()
        .unwrap()
        .iter()
        .map(|isa| isa.as_str().unwrap())
        .collect();
    for isa in ["scalar", "avx2", "avx512"] {
        let run = run(&["generate", "-p", "x", "-n", "1", "--isa", isa]);
        match available.contains(&isa) {
            true => assert!(run.ok().stderr.contains(&format!("({isa}")), "{isa}"),
            false => run.fails(1, &format!("this CPU does not have {isa}")),
        }
    }
}

#[test]
fn tokenize_reads_files_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    fs::write(&path, "a\r\n").unwrap();
    let from_file = run(&["tokenize", "-f", path.to_str().unwrap(), "--ids"]).json();
    assert_eq!(from_file, run(&["tokenize", "-p", "a\r\n", "--ids"]).json());
    // Invalid UTF-8 has tokens too.
    fs::write(&path, b"a\xff\xfe").unwrap();
    assert!(!ids(&run(&["tokenize", "-f", path.to_str().unwrap(), "--ids"]).json()).is_empty());
}

#[test]
fn tokenize_prints_a_table() {
    let run = run(&["tokenize", "-p", "Once upon a time\n"]).ok();
    let lines: Vec<&str> = run.text().lines().collect();
    assert_eq!(lines.len(), 5, "{}", run.text());
    assert!(
        lines[1].contains("\" upon\"") && lines[4].contains("\"\\n\""),
        "{}",
        run.text()
    );
}

#[test]
fn perplexity_prints_the_documented_fields() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    let story = run(&[
        "generate",
        "-p",
        "Once upon a time",
        "--temp",
        "0",
        "-n",
        "200",
        "--ignore-eos",
    ])
    .ok();
    fs::write(&path, format!("Once upon a time{}", story.text())).unwrap();
    let args = [
        "perplexity",
        "-f",
        path.to_str().unwrap(),
        "--ctx",
        "64",
        "--chunks",
        "2",
    ];
    let report = run(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(report["chunks"], 2);
    assert!(ids(&json!([report["tokens"]]))[0] > 128);
    // The model generated this text greedily, so its perplexity is low.
    let ppl = report["ppl"].as_f64().unwrap();
    assert!(ppl > 1.0 && ppl < 2.5, "{ppl}");
    assert!(report["stderr"].as_f64().unwrap() > 0.0);
    let text = run(&args).ok();
    assert!(
        text.text().starts_with(&format!("PPL = {ppl:.4} +- ")),
        "{}",
        text.text()
    );

    let saved = dir.path().join("saved");
    let saved = saved.to_str().unwrap();
    run(&[&args[..], &["--save-logits", saved]].concat()).ok();
    let compare = ["perplexity", "--kl-base", saved, "--kv-type", "q4_0"];
    let report = run(&[&compare[..], &["--json"]].concat()).json();
    let number = |name: &str| report.pointer(name).and_then(Value::as_f64).unwrap();
    assert_eq!([number("/ctx"), number("/chunks")], [64.0, 2.0]);
    assert!((number("/base_ppl") / ppl - 1.0).abs() < 1e-3);
    assert!(number("/kl/mean") > 1e-5 && number("/kl/stderr") > 0.0);
    assert!(number("/kl_median") <= number("/kl_99") && number("/kl_99") <= number("/kl_max"));
    assert!(number("/same_top/mean") > 0.8 && number("/probability_rms") > 0.0);
    let text = run(&compare).ok();
    assert!(
        text.text().contains("\nKL divergence = "),
        "{}",
        text.text()
    );
}

#[test]
fn devices_lists_the_cpu_and_gpus() {
    let report = run(&["devices", "--json"]).json();
    assert_eq!(report["devices"][0]["id"], "cpu");
    assert!(report["devices"][0]["threads"].as_u64().unwrap() >= 1);
    let available = report["devices"][0]["isa_available"].as_array().unwrap();
    assert!(available.contains(&report["devices"][0]["isa"]));
    let gpus = report["devices"].as_array().unwrap()[1..].iter();
    let usable = gpus.filter(|gpu| gpu["image"].is_string()).count();
    assert_eq!(report["gpu"]["supported"], usable > 0);
    let reasons = report["gpu"]["reasons"].as_array().unwrap();
    assert!(usable > 0 || !reasons.is_empty());
    assert!(report["images"].is_array());
    assert!(
        run(&["devices"])
            .ok()
            .text()
            .contains("GPU kernels in this build: ")
    );
}

#[test]
fn help_has_examples() {
    for command in [
        &[][..],
        &["generate"],
        &["chat"],
        &["inspect"],
        &["tokenize"],
        &["perplexity"],
        &["quantize"],
        &["imatrix"],
        &["bench"],
        &["profile"],
        &["tune"],
        &["check"],
        &["devices"],
        &["doctor"],
    ] {
        let run = run(&[command, &["--help"]].concat()).ok();
        assert!(
            run.text().contains("Examples:\n  rocmforge "),
            "{command:?}"
        );
        assert!(
            run.text().lines().all(|line| line.chars().count() <= 120),
            "{command:?}"
        );
    }
    assert!(run(&["--version"]).ok().text().starts_with("rocmforge 0."));
}

#[test]
fn environment_variables_set_defaults() {
    let mut with_variable = command(&["generate", "-p", "x", "-n", "1"]);
    with_variable.env("ROCMFORGE_MODEL", "/nonexistent/model.gguf");
    finish(with_variable).fails(1, "/nonexistent/model.gguf");
    let mut with_both = command(&["generate", "-p", "x", "-n", "1", "--isa", "scalar"]);
    with_both.env("ROCMFORGE_ISA", "avx2");
    assert!(finish(with_both).ok().stderr.contains("CPU (scalar"));
}
