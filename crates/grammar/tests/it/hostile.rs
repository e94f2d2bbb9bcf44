//! Sources that ask for too much time, memory or states end with an error or are served within the limits.

use std::time::Instant;

use rocmforge_grammar::{Grammar, Source};
use rocmforge_plan::Constraint as _;
use serde_json::{Value, json};

use crate::common::{Model, Random};

fn sources() -> Vec<(&'static str, Source)> {
    let schema = |schema: Value| Source::JsonSchema(schema.to_string());
    let nested = |open: &str, close: &str, n: usize| open.repeat(n) + &close.repeat(n);
    let names = |n: usize| {
        (0..n)
            .map(|i| json!(format!("value {i}")))
            .collect::<Value>()
    };
    let properties = |n: usize| {
        let properties = (0..n).map(|i| (format!("p{i}"), json!({ "type": "integer" })));
        Value::Object(properties.collect())
    };
    let mut doubling = json!({ "d0": { "type": "string" } });
    for i in 1..60 {
        let before = json!({ "$ref": format!("#/$defs/d{}", i - 1) });
        doubling[format!("d{i}")] = json!({ "allOf": [before, { "anyOf": [before, before] }] });
    }
    vec![
        (
            "deep schema",
            Source::JsonSchema(nested("{\"items\":", "}", 5000)),
        ),
        (
            "deep array",
            Source::JsonSchema(nested("{\"const\":", "}", 100)),
        ),
        (
            "deep properties",
            Source::JsonSchema(format!(
                "{}{}{}",
                "{\"properties\":{\"a\":".repeat(60),
                "{}",
                "}}".repeat(60)
            )),
        ),
        ("large enum", schema(json!({ "enum": names(4_500) }))),
        (
            "many optional properties",
            schema(json!({ "properties": properties(2_300) })),
        ),
        (
            "long string",
            schema(
                json!({ "type": "string", "minLength": 1_000_000_000u64, "maxLength": 1_000_000_000u64 }),
            ),
        ),
        (
            "longer string",
            schema(json!({ "type": "string", "maxLength": u64::MAX })),
        ),
        (
            "long array",
            schema(json!({ "type": "array", "minItems": 1_000_000_000u64 })),
        ),
        (
            "huge array",
            schema(json!({ "type": "array", "minItems": u64::MAX, "maxItems": u64::MAX })),
        ),
        (
            "many properties",
            schema(json!({ "type": "object", "minProperties": 1_000_000_000u64 })),
        ),
        ("reference to itself", schema(json!({ "$ref": "#" }))),
        (
            "references in a circle",
            schema(
                json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
            ),
        ),
        (
            "circle with siblings",
            schema(
                json!({ "$defs": { "a": { "$ref": "#/$defs/b", "type": "object" }, "b": { "$ref": "#/$defs/a", "type": "object" } }, "$ref": "#/$defs/a" }),
            ),
        ),
        (
            "all of itself",
            schema(json!({ "allOf": [{ "$ref": "#" }, { "$ref": "#" }] })),
        ),
        (
            "doubling references",
            schema(json!({ "$defs": doubling, "$ref": "#/$defs/d59" })),
        ),
        (
            "large multiple",
            schema(json!({ "type": "integer", "multipleOf": 982_451_653 })),
        ),
        (
            "many digits",
            schema(
                json!({ "type": "number", "minimum": 1e-300, "maximum": 1e300, "multipleOf": 1e-17 }),
            ),
        ),
        (
            "pattern of states",
            schema(json!({ "type": "string", "pattern": "(a|b)*a(a|b){200}$" })),
        ),
        (
            "patterns that overlap",
            schema(
                json!({ "patternProperties": { "(a|b)*a(a|b){30}": {}, "(b|a)*b(a|b){30}": {} } }),
            ),
        ),
        ("states", Source::Regex("(a|b)*a(a|b){200}".into())),
        (
            "nested repetitions",
            Source::Regex("((((a{1,100}){1,100}){1,100}){1,100}){1,100}".into()),
        ),
        (
            "classes",
            Source::Regex("\\w{1,500}\\d{1,500}\\s{0,500}x".repeat(20)),
        ),
        ("nested groups", Source::Regex(nested("(", ")", 3000))),
        (
            "nested groups within the limit",
            Source::Regex(format!("{}a{}", "(".repeat(200), ")*".repeat(200))),
        ),
        ("long regex", Source::Regex("a?".repeat(32_000))),
        ("long literal", Source::Regex("ab".repeat(32_000))),
        (
            "alternatives",
            Source::Regex(vec!["abc[a-z]*d"; 5_900].join("|")),
        ),
        (
            "many choices",
            Source::Choice((0..4_500).map(|i| format!("choice {i}")).collect()),
        ),
        ("long choice", Source::Choice(vec!["x".repeat(65_000)])),
        ("too long", Source::Choice(vec!["x".repeat(2_000_000)])),
        (
            "ambiguous",
            Source::Lark("start: start start | \"a\" | \"\"".into()),
        ),
        (
            "empty loop",
            Source::Lark("start: a\na: a | b\nb: a".into()),
        ),
        (
            "repetitions of rules",
            Source::Lark(
                "start: a{1,1000000}\na: b{1,1000000}\nb: c{1,1000000}\nc: \"a\" c? \"b\"".into(),
            ),
        ),
        (
            "nested lark",
            Source::Lark(format!(
                "start: {}\"a\"{}",
                "(".repeat(5000),
                ")".repeat(5000)
            )),
        ),
        (
            "negations",
            Source::Lark(format!(
                "start: X\nX: {}",
                "~/(a|b)*a(a|b){18}/ & ".repeat(30) + "/x*/"
            )),
        ),
        (
            "substrings",
            Source::Lark(format!(
                "start: X\nX: %regex {{ \"substring_chars\": {:?} }}",
                "abcdefgh ".repeat(2_000)
            )),
        ),
        (
            "doubling terminals",
            Source::Lark(
                (0..60)
                    .map(|i| format!("T{i}: T{} T{}\n", i + 1, i + 1))
                    .collect::<String>()
                    + "T60: \"a\"\nstart: T0",
            ),
        ),
        (
            "ambiguous GBNF",
            Source::Gbnf("root ::= root root | \"a\" | \"\"".into()),
        ),
        (
            "left recursion",
            Source::Gbnf("root ::= root \"a\" | \"b\"".into()),
        ),
        (
            "deep GBNF",
            Source::Gbnf(format!(
                "root ::= {}\"a\"{}",
                "(".repeat(20),
                ")*".repeat(20)
            )),
        ),
        (
            "deeper GBNF",
            Source::Gbnf(format!(
                "root ::= {}\"a\"{}",
                "(".repeat(20_000),
                ")".repeat(20_000)
            )),
        ),
        ("endless text", chain_of_rules(400)),
        ("chain of rules", chain_of_rules(2_100)),
        (
            "repetitions of GBNF",
            Source::Gbnf("root ::= ((([a-z]{100000}){100000}){100000}){100000}".into()),
        ),
    ]
}

/// Rules that double a text: all of it is forced, and too long to be written out.
fn chain_of_rules(n: usize) -> Source {
    let rules = (0..n).map(|i| format!("r{i} ::= r{} r{}\n", i + 1, i + 1));
    Source::Gbnf(rules.collect::<String>() + &format!("r{n} ::= \"a\"\nroot ::= r0"))
}

/// Each source is refused, or makes its masks within the limits. The test would not end otherwise.
#[test]
fn hostile_sources_end_within_limits() {
    let model = Model::forge_mini();
    let mut random = Random(3);
    for (name, source) in sources() {
        let started = Instant::now();
        let grammar = match Grammar::compile(&model.vocabulary, &source) {
            Ok(grammar) => grammar,
            Err(error) => {
                let message = error.to_string();
                assert!(message.len() < 2000, "{name}: {message}");
                println!("{name}: {:?}, {message}", started.elapsed());
                continue;
            }
        };
        let compiled = started.elapsed();
        let mut state = grammar.start();
        let mut words = vec![0; model.tokenizer.n_vocab().div_ceil(32)];
        let mut longest = std::time::Duration::ZERO;
        let mut end = "open".to_string();
        for _ in 0..60 {
            let started = Instant::now();
            if let Err(error) = state.mask(&mut words) {
                end = error.to_string();
                assert!(end.len() < 2000, "{name}: {end}");
                break;
            }
            longest = longest.max(started.elapsed());
            let allowed = crate::common::Mask(words.clone()).ids();
            let id = allowed[random.below(allowed.len())];
            let started = Instant::now();
            match state.accept(id) {
                Ok(rocmforge_plan::Progress::Open) => {}
                Ok(rocmforge_plan::Progress::Complete) => {
                    end = "complete".into();
                    break;
                }
                Err(error) => {
                    end = error.to_string();
                    break;
                }
            }
            longest = longest.max(started.elapsed());
        }
        println!("{name}: compiled in {compiled:?}, longest mask {longest:?}, {end}");
    }
}
