//! The time of a mask over a vocabulary of 128,000 tokens, along JSON texts.
//!
//! Needs the conformance data (`ROCMFORGE_CONFORMANCE_DATA`) for the vocabulary of Llama 3.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_grammar::{Grammar, Source, Vocabulary};
use rocmforge_plan::Constraint as _;
use rocmforge_testkit::data::conformance;
use rocmforge_testkit::schemas::schemas;
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::json;

const GBNF: &str = r#"root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

/// A document of some 500 tokens.
fn document() -> String {
    let person = |i: usize| {
        json!({
            "name": format!("Person number {i} of the list"),
            "age": 20 + i,
            "address": { "street": "12 Long Street", "city": "Überlingen", "zip": "88662" },
            "tags": ["reader", "writer", "maker of things"],
            "score": 0.25 * i as f64,
            "active": i.is_multiple_of(2),
        })
    };
    let people: Vec<_> = (0..8).map(person).collect();
    serde_json::to_string_pretty(&json!({ "people": people })).unwrap()
}

fn person_schema() -> String {
    let string = json!({ "type": "string" });
    let person = json!({
        "type": "object",
        "properties": {
            "name": string,
            "age": { "type": "integer" },
            "address": {
                "type": "object",
                "properties": { "street": string, "city": string, "zip": { "type": "string", "pattern": "^[0-9]{5}$" } },
                "required": ["street", "city", "zip"],
                "additionalProperties": false
            },
            "tags": { "type": "array", "items": string },
            "score": { "type": "number" },
            "active": { "type": "boolean" }
        },
        "required": ["name", "age", "address", "tags", "score", "active"],
        "additionalProperties": false
    });
    let list = json!({ "type": "array", "items": person });
    json!({ "type": "object", "properties": { "people": list }, "required": ["people"] })
        .to_string()
}

/// Prints the quantiles of times.
fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{name}: p50 {:.0?}, p99 {:.0?}, longest {:.0?}, n = {}",
        at(0.5),
        at(0.99),
        at(1.0),
        times.len()
    );
}

fn masks(c: &mut Criterion) {
    let Some(path) = conformance("data/vocab/ggml-vocab-llama-bpe.gguf") else {
        return;
    };
    let gguf = Gguf::open(&path, LoadMode::Mmap).unwrap();
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None).unwrap());
    let started = Instant::now();
    let vocabulary = Vocabulary::new(&tokenizer).unwrap();
    println!(
        "vocabulary of {} tokens: {:.0?}",
        tokenizer.n_vocab(),
        started.elapsed()
    );
    let mut words = vec![0; tokenizer.n_vocab().div_ceil(32)];
    let text = document();
    let ids = tokenizer.encode(&text, EncodeOptions::default());
    let cases = [
        ("JSON object", Source::JsonObject),
        ("JSON schema", Source::JsonSchema(person_schema())),
        ("GBNF of JSON", Source::Gbnf(GBNF.into())),
        ("regex (?s:.*)", Source::Regex("(?s:.*)".into())),
    ];
    for (name, source) in cases {
        let started = Instant::now();
        let grammar = Grammar::compile(&vocabulary, &source).unwrap();
        println!("{name}: compiled in {:.0?}", started.elapsed());
        let (mut of_mask, mut of_accept) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let mut state = grammar.start();
            for &id in &ids {
                let started = Instant::now();
                state.mask(&mut words).unwrap();
                of_mask.push(started.elapsed());
                let started = Instant::now();
                state.accept(id).unwrap();
                of_accept.push(started.elapsed());
            }
        }
        report(&format!("{name}, mask"), of_mask);
        report(&format!("{name}, accept"), of_accept);
    }
    let grammar = Grammar::compile(&vocabulary, &Source::JsonObject).unwrap();
    c.bench_function("state of a new sequence", |b| b.iter(|| grammar.start()));
    let (schema, _) = &schemas()[1];
    let source = Source::JsonSchema(schema.to_string());
    c.bench_function("compile a schema", |b| {
        b.iter(|| Grammar::compile(&vocabulary, &source).unwrap());
    });
}

criterion_group!(benches, masks);
criterion_main!(benches);
