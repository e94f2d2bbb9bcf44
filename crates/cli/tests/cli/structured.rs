//! `generate` with a JSON schema, a grammar, a regular expression or choices, and what it refuses.

use serde_json::{Value, json};

use crate::program::{Run, changed_model, run};

fn generate(more: &[&str]) -> Run {
    let first = [
        "generate",
        "-p",
        "An answer:",
        "-n",
        "120",
        "--temp",
        "1.2",
        "--seed",
        "3",
    ];
    run(&[&first, more].concat())
}

/// Writes `text` to a file of this name; returns the folder, which deletes it, and the path.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_string();
    (folder, path)
}

#[test]
fn answers_follow_what_is_asked() {
    let schema = json!({
        "type": "object",
        "properties": {
            "color": { "enum": ["red", "green"] },
            "n": { "type": "integer", "minimum": 1, "maximum": 99 }
        },
        "required": ["color", "n"],
        "additionalProperties": false
    });
    let (_schema, schema) = file("answer.json", &schema.to_string());
    let report = generate(&["--json-schema", &schema, "--json"]).json();
    assert_eq!(report["finish_reason"], "stop", "{report}");
    let answer: Value = serde_json::from_str(report["text"].as_str().unwrap()).unwrap();
    assert!(["red", "green"].contains(&answer["color"].as_str().unwrap()));
    assert!((1..=99).contains(&answer["n"].as_i64().unwrap()));

    let regex = generate(&["--regex", "-?[0-9]{2,4}"]).ok();
    let digits = regex.text().trim().trim_start_matches('-');
    assert!(
        (2..=4).contains(&digits.len()) && digits.parse::<u32>().is_ok(),
        "{digits}"
    );

    let choice = generate(&["--choice", "tea", "--choice", "coffee"]).ok();
    assert!(
        ["tea", "coffee"].contains(&choice.text().trim()),
        "{}",
        choice.text()
    );

    for (name, text) in [
        ("x.gbnf", "root ::= [ab]{3} \"!\""),
        ("x.lark", "start: /[ab]{3}/ \"!\""),
        ("x.txt", "root ::= [ab]{3} \"!\""),
    ] {
        let (_grammar, path) = file(name, text);
        let text = generate(&["--grammar", &path]).ok();
        let text = text.text().trim();
        let letters = text.strip_suffix('!').unwrap();
        assert!(
            letters.len() == 3 && letters.chars().all(|c| "ab".contains(c)),
            "{text}"
        );
    }

    let object = generate(&["--json-object", "--json"]).json();
    if object["finish_reason"] == "stop" {
        let value: Value = serde_json::from_str(object["text"].as_str().unwrap()).unwrap();
        assert!(value.is_object());
    }
}

/// A template that opens reasoning: it goes to stderr, and the text follows the schema.
#[test]
fn a_model_may_think_before_a_structured_answer() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{# </think> #}{{ messages[0].content }}<think>\n";
    let model = changed_model(
        folder.path(),
        &[("tokenizer.chat_template", Some(template))],
    );
    let ids = |text: &str| run(&["tokenize", "--ids", "-p", text, "--parse-special"]).json();
    let (the, end) = (&ids(" the")[0], &ids("</think>")[0]);
    let (_schema, schema) = file("s.json", "{\"enum\": [\"red\", \"green\"]}");
    let biases = [format!("{the}+100"), format!("{end}+80")];
    let ask = |more: &[&str]| {
        let first = [
            "generate",
            "-m",
            model.to_str().unwrap(),
            "--chat",
            "-p",
            "A color?",
        ];
        let samplers = ["--temp", "0", "--frequency-penalty", "2", "-n", "200"];
        let biases = ["-l", &biases[0], "-l", &biases[1], "--json-schema", &schema];
        run(&[&first[..], &samplers, &biases, more].concat())
    };
    let report = ask(&["--json"]).json();
    let text = report["text"].as_str().unwrap();
    assert!(["\"red\"", "\"green\""].contains(&text), "{report}");
    let reasoning = report["reasoning"].as_str().unwrap();
    assert!(reasoning.starts_with("the the"), "{report}");
    let plain = ask(&[]).ok();
    assert_eq!(plain.text(), text);
    assert!(plain.stderr.contains(reasoning), "{}", plain.stderr);
}

#[test]
fn refuses_what_cannot_be_followed() {
    let (_schema, schema) = file("s.json", "{\"type\": \"array\", \"uniqueItems\": true}");
    generate(&["--json-schema", &schema]).fails(1, "uniqueItems");
    let (_remote, remote) = file("r.json", "{\"$ref\": \"https://example.com/x\"}");
    generate(&["--json-schema", &remote]).fails(1, "https://example.com/x");
    let (_grammar, grammar) = file("g.gbnf", "root ::= \"a\"\n\nb ::= (");
    generate(&["--grammar", &grammar]).fails(1, "line 3");
    generate(&["--grammar", "/nowhere/g.gbnf"]).fails(1, "/nowhere/g.gbnf");
    generate(&["--regex", "(a"]).fails(1, "regular expression");
    let (_bytes, bytes) = file("b.lark", "start: \"a\"");
    std::fs::write(&bytes, b"\xFF\xFE").unwrap();
    generate(&["--grammar", &bytes]).fails(1, "UTF-8");
    generate(&["--regex", "a", "--json-object"]).fails(2, "cannot be used with");
}
