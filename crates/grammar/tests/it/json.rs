//! JSON and JSON schemas, with the crate `jsonschema` as the judge.

use jsonschema::Validator;
use rocmforge_grammar::{Grammar, GrammarError, Source};
use rocmforge_testkit::schemas::schemas;
use rocmforge_testkit::sweep::every_nth;
use serde_json::{Value, json};

use crate::common::{Model, Random};

pub(crate) fn validator(schema: &Value) -> Validator {
    jsonschema::options()
        .should_validate_formats(true)
        .build(schema)
        .unwrap()
}

pub(crate) fn compile(model: &Model, schema: &Value) -> Grammar {
    model.compile(&Source::JsonSchema(schema.to_string()))
}

/// Values as texts: compact, and with the whitespace that people use.
fn texts(value: &Value) -> [String; 2] {
    [
        value.to_string(),
        serde_json::to_string_pretty(value).unwrap(),
    ]
}

/// Cuts a text at random characters, so that its tokens are not those of the whole.
fn cut(model: &Model, text: &str, random: &mut Random) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut piece = String::new();
    for c in text.chars() {
        piece.push(c);
        if random.below(3) == 0 {
            ids.extend(model.encode(&piece));
            piece.clear();
        }
    }
    ids.extend(model.encode(&piece));
    ids
}

fn allows_valid_texts(model: &Model, schemas: impl Iterator<Item = (Value, Vec<Value>)>) {
    let mut random = Random(1);
    for (schema, values) in schemas {
        let (grammar, validator) = (compile(model, &schema), validator(&schema));
        for value in &values {
            assert!(validator.is_valid(value), "{schema} {value}");
            for text in texts(value) {
                let whole = model.encode(&text);
                assert!(model.accepts(&grammar, &whole), "{schema} {text}");
                for _ in 0..3 {
                    let ids = cut(model, &text, &mut random);
                    assert!(model.accepts(&grammar, &ids), "{schema} {text} {ids:?}");
                }
            }
        }
    }
}

#[test]
fn allows_each_token_of_valid_texts() {
    allows_valid_texts(&Model::forge_mini(), schemas().into_iter());
}

#[test]
fn allows_each_token_of_valid_texts_with_released_vocabularies() {
    for (turn, name) in ["llama-bpe", "qwen2", "llama-spm"].into_iter().enumerate() {
        let Some(model) = Model::released(name) else {
            return;
        };
        allows_valid_texts(&model, every_nth(3, turn, schemas()));
    }
}

#[test]
fn refuses_what_is_not_valid() {
    let model = Model::forge_mini();
    let mut random = Random(2);
    let alphabet: Vec<char> = "{}[]\",:0189.-eE+ \n\\ntrufalsé".chars().collect();
    let mut n_refused = 0;
    for (schema, values) in schemas() {
        let (grammar, validator) = (compile(&model, &schema), validator(&schema));
        for _ in 0..60 {
            let value = &values[random.below(values.len())];
            let mut text: Vec<char> = texts(value)[random.below(2)].chars().collect();
            for _ in 0..1 + random.below(2) {
                let at = random.below(text.len());
                let c = alphabet[random.below(alphabet.len())];
                match random.below(3) {
                    0 => text[at] = c,
                    1 => text.insert(at, c),
                    _ => drop(text.remove(at)),
                }
                if text.is_empty() {
                    text.push(c);
                }
            }
            let text: String = text.into_iter().collect();
            let is_valid =
                serde_json::from_str(&text).is_ok_and(|value| validator.is_valid(&value));
            if !is_valid {
                assert!(
                    !model.accepts(&grammar, &model.encode(&text)),
                    "{schema} {text}"
                );
                n_refused += 1;
            }
        }
    }
    assert!(n_refused > 300, "{n_refused}");
}

#[test]
fn the_object_mode_takes_objects_only() {
    let model = Model::forge_mini();
    let grammar = model.compile(&Source::JsonObject);
    for (text, is_object) in [
        ("{}", true),
        ("{\"a\": {\"b\": [1, 2, {}]}}", true),
        ("[]", false),
        ("1", false),
        ("{\"a\": }", false),
        ("{\"a\": 1", false),
        ("{'a': 1}", false),
    ] {
        assert_eq!(
            model.accepts(&grammar, &model.encode(text)),
            is_object,
            "{text}"
        );
    }
}

#[test]
fn names_keywords_that_are_not_supported() {
    let model = Model::forge_mini();
    let refuse = |schema: Value| {
        let source = Source::JsonSchema(schema.to_string());
        Grammar::compile(&model.vocabulary, &source).err().unwrap()
    };
    let array = json!({ "type": "array" });
    for (keyword, value) in [
        ("uniqueItems", json!(true)),
        ("contains", json!({})),
        ("propertyNames", json!({ "maxLength": 3 })),
        ("not", json!({})),
        ("if", json!({})),
        ("dependentRequired", json!({})),
        ("unevaluatedProperties", json!(false)),
        ("$dynamicRef", json!("#a")),
    ] {
        let mut schema = array.clone();
        schema[keyword] = value;
        for schema in [schema.clone(), json!({ "properties": { "a": schema } })] {
            let error = refuse(schema);
            let GrammarError::Keyword { keywords } = &error else {
                panic!("{error}");
            };
            assert_eq!(keywords, keyword);
            assert!(error.to_string().contains(keyword));
        }
    }
    let lenient = json!({ "x-guidance": { "lenient": true }, "uniqueItems": true });
    assert!(refuse(lenient).to_string().contains("x-guidance"));
    let format = refuse(json!({ "type": "string", "format": "phone" })).to_string();
    assert!(format.contains("phone"), "{format}");
    // Texts cannot be checked against exactly one of two schemas that overlap.
    let overlap = json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] });
    assert!(refuse(overlap).to_string().contains("oneOf"));
}

#[test]
fn refuses_references_to_elsewhere() {
    let model = Model::forge_mini();
    for reference in [
        "https://example.com/schema.json",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "other.json#/a",
        "#name",
    ] {
        let source = Source::JsonSchema(json!({ "$ref": reference }).to_string());
        let error = Grammar::compile(&model.vocabulary, &source).err().unwrap();
        assert!(error.to_string().contains(reference), "{error}");
        assert!(matches!(error, GrammarError::Reference { .. }), "{error}");
    }
}

#[test]
fn says_what_is_no_schema() {
    let model = Model::forge_mini();
    for (text, part) in [
        ("{", "not JSON"),
        ("[]", "an array"),
        ("3", "a number"),
        ("{\"type\": \"text\"}", "text"),
        ("{\"type\": 3}", "type"),
        ("false", "schema"),
        (
            "{\"minimum\": 3, \"maximum\": 2, \"type\": \"number\"}",
            "minimum",
        ),
    ] {
        let source = Source::JsonSchema(text.into());
        let error = Grammar::compile(&model.vocabulary, &source).err().unwrap();
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}
