//! `embed` and `rerank`.

use std::path::PathBuf;

use rocmforge_gguf::GgmlType;
use rocmforge_testkit::models::embeddings;
use serde_json::Value;

use crate::program::run;

/// Writes a random model.
fn write(dir: &tempfile::TempDir, name: &str) -> PathBuf {
    let model = embeddings::model(name, GgmlType::F16).unwrap().unwrap();
    let path = dir.path().join(format!("{name}.gguf"));
    std::fs::write(&path, model.to_vec().unwrap()).unwrap();
    path
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().unwrap();
    list.iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn embeddings_have_length_one_and_the_documented_fields() {
    let dir = tempfile::tempdir().unwrap();
    let bert = write(&dir, "bert");
    let bert = bert.to_str().unwrap();
    let text = dir.path().join("lines.txt");
    std::fs::write(&text, "w300 w301\nw302\nx\nw300 w301\n").unwrap();
    let text = text.to_str().unwrap();
    for model in [&["-m", bert][..], &[]] {
        let args = |more: &[&'static str]| [&["embed"], model, more].concat();
        let alone = run(&args(&["-p", "w300 w301", "--json"])).json();
        assert_eq!(alone.as_object().unwrap().len(), 3);
        let values = numbers(&alone["embedding"]);
        let length: f64 = values.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
        let pooling = if model.is_empty() { "last" } else { "mean" };
        assert_eq!(alone["pooling"], pooling);
        assert!(alone["n_tokens"].as_u64().unwrap() > 1);

        let lines = run(&[&args(&["--lines", "--json", "-f"])[..], &[text]].concat()).ok();
        let lines: Vec<Value> = lines
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0], alone);
        assert_eq!(lines[3], alone);
        assert_ne!(lines[1], alone);

        let plain = run(&args(&["-p", "w300 w301"])).ok();
        let plain: Vec<f64> = plain
            .text()
            .split_whitespace()
            .map(|x| x.parse().unwrap())
            .collect();
        assert_eq!(plain.len(), values.len());
    }
}

#[test]
fn the_pooling_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let bert = write(&dir, "bert");
    let embed = |pooling: &str| {
        let args = [
            "embed",
            "-m",
            bert.to_str().unwrap(),
            "--json",
            "-p",
            "w300 w301",
        ];
        let result = run(&[&args[..], &["--pooling", pooling]].concat()).json();
        assert_eq!(result["pooling"], pooling);
        numbers(&result["embedding"])
    };
    let all = ["mean", "cls", "last"].map(embed);
    assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
    let args = [
        "embed",
        "-m",
        bert.to_str().unwrap(),
        "-p",
        "x",
        "--pooling",
        "rank",
    ];
    run(&args).fails(1, "cls.output.weight");
}

#[test]
fn documents_are_sorted_by_score() {
    let dir = tempfile::tempdir().unwrap();
    let model = write(&dir, "bert_scores");
    let model = model.to_str().unwrap();
    let text = dir.path().join("documents.txt");
    std::fs::write(&text, "w310\nw311 w312\nw313\n").unwrap();
    let args = [
        "rerank", "-m", model, "-q", "w300", "--json", "--lines", "-f",
    ];
    let from_file = run(&[&args[..], &[text.to_str().unwrap()]].concat()).json();
    let given = ["-p", "w310", "-p", "w311 w312", "-p", "w313"];
    let args = ["rerank", "-m", model, "-q", "w300", "--json"];
    assert_eq!(run(&[&args[..], &given].concat()).json(), from_file);
    assert_eq!(from_file["query"], "w300");
    let results = from_file["results"].as_array().unwrap();
    let scores: Vec<f64> = results
        .iter()
        .map(|result| result["score"].as_f64().unwrap())
        .collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    assert!(scores[0] != scores[2]);
    let mut indices: Vec<u64> = results
        .iter()
        .map(|result| result["index"].as_u64().unwrap())
        .collect();
    let texts = ["w310", "w311 w312", "w313"];
    for result in results {
        let index = result["index"].as_u64().unwrap() as usize;
        assert_eq!(result["text"], texts[index]);
    }
    indices.sort_unstable();
    assert_eq!(indices, [0, 1, 2]);

    let args = ["rerank", "-m", model, "-q", "w300"];
    let plain = run(&[&args[..], &given].concat()).ok();
    assert_eq!(plain.text().lines().count(), 3);
}

#[test]
fn refusals_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let bert = write(&dir, "bert");
    let bert = bert.to_str().unwrap();
    run(&["generate", "-m", bert, "-p", "x"]).fails(1, "rocmforge embed");
    run(&["rerank", "-q", "x", "-p", "y"]).fails(1, "cls.output.weight");
    let long = "w300 ".repeat(40);
    let args = ["embed", "-m", bert, "--batch-tokens", "16", "-p", &long];
    run(&args).fails(1, "--batch-tokens");
    run(&["rerank", "-m", bert, "-q", "x", "-p", "y", "--lines"]).fails(2, "--file");
}
