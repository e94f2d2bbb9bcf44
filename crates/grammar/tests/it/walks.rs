//! Random texts that grammars allow, judged by the crates `jsonschema` and `regex`.

use regex::Regex;
use rocmforge_gguf::TokenId;
use rocmforge_grammar::{Grammar, Source};
use rocmforge_plan::{Constraint as _, Progress};
use rocmforge_testkit::schemas::schemas;
use serde_json::{Value, json};

use crate::common::{Model, Random};
use crate::json::{compile, validator};

/// Takes random allowed tokens; after `n` of them, short ones and the end as soon as it may come. Returns the text, or
/// `None` if it does not end.
fn walk(model: &Model, grammar: &Grammar, n: usize, random: &mut Random) -> Option<String> {
    let mut state = grammar.start();
    let mut bytes = Vec::new();
    for step in 0..n + 400 {
        let allowed = model.mask(&mut state).ids();
        let is_late = step >= n;
        let end = allowed.iter().find(|&&id| model.tokenizer.is_eog(id));
        let closing = |id: &&u32| {
            let bytes = model.tokenizer.token_bytes(**id);
            bytes.len() == 1 && b"\"}]0n@.".contains(&bytes[0])
        };
        let closing: Vec<&u32> = allowed.iter().filter(closing).collect();
        let id = match (end, is_late) {
            (Some(&end), true) => end,
            (None, true) if !closing.is_empty() => *closing[random.below(closing.len())],
            _ => allowed[random.below(allowed.len())],
        };
        if !model.tokenizer.is_eog(id) {
            bytes.extend(model.tokenizer.token_bytes(id));
        }
        if state.accept(id).unwrap() == Progress::Complete {
            return Some(String::from_utf8(bytes).unwrap());
        }
    }
    None
}

#[test]
fn random_texts_are_valid_under_their_schema() {
    let model = Model::forge_mini();
    let mut random = Random(6);
    let mut n_texts = 0;
    for (schema, _) in schemas() {
        let (grammar, validator) = (compile(&model, &schema), validator(&schema));
        for n in 0..25 {
            let Some(text) = walk(&model, &grammar, n, &mut random) else {
                continue;
            };
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON has it, f64 does not.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("{error}: {text}"),
            };
            assert!(validator.is_valid(&value), "{schema} {text}");
            n_texts += 1;
        }
    }
    assert!(n_texts > 200, "{n_texts}");
}

/// No allowed token leads to another text than the forced tokens, and asking for them changes no mask.
#[test]
fn forced_tokens_have_the_only_text() {
    let model = Model::forge_mini();
    let mut random = Random(8);
    let (mut n_forced, mut n_tokens) = (0, 0);
    let long_names = json!({
        "type": "object",
        "properties": {"family_name": {"enum": ["Smith", "Baker"]}, "place_of_residence": {"type": "string"}},
        "required": ["family_name", "place_of_residence"],
    });
    let schemas = schemas().into_iter().map(|(schema, _)| schema);
    for schema in schemas.chain([long_names]) {
        let grammar = compile(&model, &schema);
        let (mut plain, mut asked) = (grammar.start(), grammar.start());
        for _ in 0..20 {
            let allowed = model.mask(&mut plain).ids();
            assert_eq!(model.mask(&mut asked).ids(), allowed, "{schema}");
            let forced = asked.forced();
            n_forced += usize::from(!forced.is_empty());
            n_tokens += forced.len();
            let bytes = |ids: &[TokenId]| -> Vec<u8> {
                let bytes = ids.iter().flat_map(|&id| model.tokenizer.token_bytes(id));
                bytes.copied().collect()
            };
            let mut way = plain.clone();
            for at in 0..forced.len() {
                let rest = bytes(&forced[at..]);
                for id in model.mask(&mut way).ids() {
                    let next = model.tokenizer.token_bytes(id);
                    let fits = next.starts_with(&rest) || rest.starts_with(next);
                    assert!(
                        fits && !model.tokenizer.is_eog(id),
                        "{schema} {next:?} {rest:?}"
                    );
                }
                way.accept(forced[at]).unwrap();
            }
            let id = allowed[random.below(allowed.len())];
            let progress = plain.accept(id).unwrap();
            assert_eq!(asked.accept(id).unwrap(), progress);
            // What is left of them after the first one is forced, too.
            let is_first = forced.first() == Some(&id);
            let rest: &[TokenId] = if is_first { &forced[1..] } else { &[] };
            assert_eq!(asked.forced(), rest);
            if progress == Progress::Complete {
                break;
            }
        }
    }
    println!("{n_tokens} tokens at {n_forced} places");
    assert!(n_tokens > 12, "{n_tokens}");
    // Of a long text, the beginning.
    let long = model.compile(&Source::Choice(vec!["ab ".repeat(1000)]));
    let mut long = long.start();
    model.mask(&mut long);
    let forced = long.forced();
    let bytes = forced
        .iter()
        .map(|&id| model.tokenizer.token_bytes(id).len());
    assert!((900..=1024).contains(&bytes.sum::<usize>()), "{forced:?}");
}

const REGEXES: [(&str, &[&str], &[&str]); 8] = [
    ("[a-z]+", &["abc"], &["", "aB", "a b"]),
    (r"^\d{3}-\d{4}$", &["555-1234"], &["555-123", "5555-1234"]),
    (r"(foo|bar)*baz?", &["ba", "foobarbaz"], &["foo", "bazz"]),
    (r"[^x/]{2,4}", &["ab", "日本語"], &["axb", "a/b", "a"]),
    (
        r"\w+@\w+\.(com|org)",
        &["ada@x.org"],
        &["ada@x.net", "@x.org"],
    ),
    (r"a|b/c|\$", &["a", "b/c", "$"], &["b", "c", ""]),
    ("(?i)yes|no", &["YES", "nO"], &["maybe"]),
    (
        r"(\+|-)?[0-9]+(\.[0-9]+)?\\?",
        &["+1.5", "-3", "7\\"],
        &["1.", "+", "7/"],
    ),
];

#[test]
fn regular_expressions_match_whole_texts() {
    let model = Model::forge_mini();
    let mut random = Random(7);
    for (pattern, right, wrong) in REGEXES {
        let oracle = Regex::new(&format!("^(?:{pattern})$")).unwrap();
        let grammar = model.compile(&Source::Regex(pattern.into()));
        for (texts, is_right) in [(right, true), (wrong, false)] {
            for text in texts {
                assert_eq!(oracle.is_match(text), is_right, "{pattern} {text}");
                let accepted = model.accepts(&grammar, &model.encode(text));
                assert_eq!(accepted, is_right, "{pattern} {text}");
            }
        }
        let mut n_texts = 0;
        for n in 0..20 {
            if let Some(text) = walk(&model, &grammar, n, &mut random) {
                assert!(oracle.is_match(&text), "{pattern} {text:?}");
                n_texts += 1;
            }
        }
        assert!(n_texts > 10, "{pattern}: {n_texts}");
    }
    let nothing = model.compile(&Source::Regex(String::new()));
    assert!(model.accepts(&nothing, &[]));
}

#[test]
fn choices_are_exact() {
    let model = Model::forge_mini();
    let texts = ["yes", "yes!", "a \"quote\"", "two\nlines", "\u{7f}\\", "é"];
    let grammar = model.compile(&Source::Choice(texts.map(String::from).to_vec()));
    for text in texts {
        assert!(model.accepts(&grammar, &model.encode(text)), "{text:?}");
    }
    for text in ["ye", "yes!!", "a", "two", "", "e"] {
        assert!(!model.accepts(&grammar, &model.encode(text)), "{text:?}");
    }
    let mut random = Random(8);
    for _ in 0..20 {
        let text = walk(&model, &grammar, 3, &mut random).unwrap();
        assert!(texts.contains(&text.as_str()), "{text:?}");
    }
}

#[test]
fn lark_grammars_have_rules_terminals_and_ignored_text() {
    let model = Model::forge_mini();
    let source = "start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n%ignore / /\n";
    let grammar = model.compile(&Source::Lark(source.into()));
    for (text, is_sum) in [
        ("1+2", true),
        ("10 + 2 +3", true),
        ("1+", false),
        ("a", false),
    ] {
        assert_eq!(
            model.accepts(&grammar, &model.encode(text)),
            is_sum,
            "{text}"
        );
    }
    let error = Grammar::compile(&model.vocabulary, &Source::Lark("start: sum".into()));
    assert!(error.err().unwrap().to_string().contains("sum"));
}
