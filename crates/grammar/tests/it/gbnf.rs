//! GBNF, with llama.cpp's verdicts on texts (`tests/fixtures/gbnf.py`).

use rocmforge_grammar::{Grammar, GrammarError, Source};
use serde_json::Value;

use crate::common::Model;

#[test]
fn texts_are_accepted_as_by_llama_cpp() {
    let cases: Value = serde_json::from_str(include_str!("../fixtures/gbnf.json")).unwrap();
    let model = Model::forge_mini();
    let (mut n_accepted, mut n_refused) = (0, 0);
    for (name, case) in cases.as_object().unwrap() {
        let source = Source::Gbnf(case["grammar"].as_str().unwrap().into());
        let grammar = Grammar::compile(&model.vocabulary, &source);
        assert_eq!(
            grammar.is_ok(),
            case["is_grammar"],
            "{name}: {:?}",
            grammar.err()
        );
        let Ok(grammar) = grammar else { continue };
        for (text, is_accepted) in case["texts"].as_object().unwrap() {
            // Token by token, and character by character.
            let whole = model.encode(text);
            let single = text
                .chars()
                .flat_map(|c| model.encode(&c.to_string()))
                .collect();
            for ids in [whole, single] {
                assert_eq!(
                    model.accepts(&grammar, &ids),
                    *is_accepted,
                    "{name}: {text:?}"
                );
            }
            match is_accepted.as_bool().unwrap() {
                true => n_accepted += 1,
                false => n_refused += 1,
            }
        }
    }
    assert!(
        n_accepted > 30 && n_refused > 30,
        "{n_accepted} {n_refused}"
    );
}

#[test]
fn errors_name_the_line() {
    let model = Model::forge_mini();
    for (text, line, part) in [
        ("root ::= a\na ::= [z-a]", 2, "range"),
        ("root ::= \"a\n", 2, "the grammar ends"),
        ("root ::= \"\\q\"", 1, "unknown escape"),
        ("root ::= \"\\uD800\"", 1, "U+D800"),
        ("root ::= [\\x4]", 1, "2 hexadecimal digits"),
        ("\n\nroot ::= (\"a\"\n", 4, "`)`"),
        ("root ::= \"a\"{3,2}", 1, "fewer"),
        ("root ::= \"a\"{9999999999}", 1, "repetitions"),
        ("root ::= \"a\"{}", 1, "a number"),
        ("root ::= <think>", 1, "tokens"),
        ("root ::= b\n\n", 1, "`b` is not defined"),
        ("root ::= \"a\"\nroot ::= \"b\"", 2, "twice"),
        ("root = \"a\"", 1, "`:`"),
        ("a ::= \"a\"\n", 2, "no rule `root`"),
        ("root ::= []", 1, "empty"),
        ("", 1, "no rule `root`"),
    ] {
        let error = Grammar::compile(&model.vocabulary, &Source::Gbnf(text.into()));
        let error = error.err().unwrap();
        let message = error.to_string();
        let GrammarError::Gbnf { line: found, .. } = error else {
            panic!("{text:?}: {message}");
        };
        assert_eq!(found, line, "{text:?}: {message}");
        assert!(message.contains(part), "{text:?}: {message}");
    }
}

/// A user's file may be in either notation.
#[test]
fn files_are_told_apart() {
    let gbnf = "root ::= \"a\"".to_string();
    let lark = "start: \"a\"".to_string();
    let file = |name: &str, text: &String| Source::from_grammar_file(name, text.clone());
    for name in ["x.gbnf", "x.GBNF", "x.txt", "x"] {
        assert_eq!(file(name, &gbnf), Source::Gbnf(gbnf.clone()), "{name}");
    }
    assert_eq!(file("x.lark", &gbnf), Source::Lark(gbnf.clone()));
    for name in ["x.lark", "x.txt", "x"] {
        assert_eq!(file(name, &lark), Source::Lark(lark.clone()), "{name}");
    }
    assert_eq!(file("x.gbnf", &lark), Source::Gbnf(lark.clone()));
}
