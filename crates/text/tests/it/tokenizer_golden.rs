//! Tokenizers of every kind and pre-tokenizer against llama.cpp, and against the libraries that the models were trained
//! with, on nasty texts and small vocabularies (`cargo xtask tokenizer-golden`).

use std::collections::HashSet;

use rocmforge_gguf::{Gguf, TokenId, Writer};
use rocmforge_testkit::data::ids;
use rocmforge_text::tokenizer::{Detokenizer, LeadingSpace, SpecialText, Tokenizer};
use serde_json::{Map, Value};

use crate::chat_template::list;
use crate::options::{ADDED, PLAIN, PROMPT};

fn golden() -> Value {
    serde_json::from_str(include_str!("../fixtures/tokenizers.json")).unwrap()
}

/// Writes a vocabulary; the keys lack `tokenizer.ggml.`.
fn set(writer: &mut Writer<'_>, metadata: &Map<String, Value>) {
    for (key, value) in metadata {
        let name = format!("tokenizer.ggml.{key}");
        let numbers = || list(value).iter().map(|n| n.as_f64().unwrap());
        let texts = || list(value).iter().map(|text| text.as_str().unwrap());
        match (key.as_str(), value) {
            (_, Value::Bool(flag)) => writer.set(&name, *flag),
            (_, Value::Number(n)) => writer.set(&name, n.as_u64().unwrap() as u32),
            (_, Value::String(text)) => writer.set(&name, text.as_str()),
            ("scores", _) => writer.set(&name, numbers().map(|n| n as f32).collect::<Vec<_>>()),
            ("token_type", _) => writer.set(&name, numbers().map(|n| n as i32).collect::<Vec<_>>()),
            ("precompiled_charsmap", _) => {
                writer.set(&name, numbers().map(|n| n as u8).collect::<Vec<_>>())
            }
            _ => writer.set(&name, texts().collect::<Vec<_>>()),
        };
    }
}

fn load(writer: &Writer<'_>) -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::from_vec(writer.to_vec().unwrap()).unwrap(), None).unwrap()
}

#[test]
fn every_pre_tokenizer_gives_the_tokens_of_llama_cpp() {
    let golden = golden();
    let (mut n_equal, mut wrong) = (0, Vec::new());
    let mut names = HashSet::new();
    for row in list(&golden["pre"]["rows"]) {
        let vocabulary = &golden["pre"]["vocabularies"][row["vocabulary"].as_str().unwrap()];
        for name in list(&row["names"]) {
            let name = name.as_str().unwrap();
            names.insert(name);
            let mut writer = Writer::new("llama");
            set(&mut writer, vocabulary.as_object().unwrap());
            writer
                .set("tokenizer.ggml.model", row["model"].as_str().unwrap())
                .set("tokenizer.ggml.pre", name);
            let tokenizer = load(&writer);
            assert_eq!(tokenizer.pre_name(), name);
            assert_eq!(tokenizer.adds_bos(), row["add_bos"], "{name}");
            // llama.cpp approximates some expressions; then the row has the tokens of Hugging Face tokenizers, too.
            let expected = row.get("reference").unwrap_or(&row["ids"]);
            for (text, expected) in list(&golden["texts"]).iter().zip(list(expected)) {
                let text = text.as_str().unwrap();
                let found = tokenizer.encode(text, PLAIN);
                if found == ids(expected) {
                    n_equal += 1;
                } else {
                    let shown = |ids: &[TokenId]| {
                        let texts = ids.iter().map(|&id| tokenizer.token_text(id).into_owned());
                        texts.collect::<Vec<_>>().join("|")
                    };
                    let (found, expected) = (shown(&found), shown(&ids(expected)));
                    wrong.push(format!("{name} {text:?}\n  {found}\n  {expected}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n_equal > 13_000, "{n_equal}");
    let unknown: Vec<_> = Tokenizer::pre_names()
        .filter(|name| !names.contains(name))
        .collect();
    assert_eq!(unknown, [""; 0], "llama.cpp has no such name");
}

/// Returns the model of this kind in the fixture, and its cases.
fn models(kind: &str) -> Vec<(Tokenizer, Vec<Value>)> {
    let golden = golden();
    let of_kind = list(&golden["models"])
        .iter()
        .filter(|model| model["metadata"]["model"] == kind);
    let load = |model: &Value| {
        assert!(list(&model["cases"]).len() > 100);
        let mut writer = Writer::new("llama");
        set(&mut writer, model["metadata"].as_object().unwrap());
        (load(&writer), list(&model["cases"]).to_vec())
    };
    of_kind.map(load).collect()
}

/// Checks all cases of a kind: the tokens, the added tokens, and the text of the tokens, whole and streamed.
///
/// `oracle` is `ids` (llama.cpp) or `reference` (the library that the models were trained with); nine of ten texts have
/// the tokens of both. Texts with one of `other_text` decode to other text.
fn check(kind: &str, oracle: &str, leading: LeadingSpace, other_text: &[&str]) {
    let mut wrong = Vec::new();
    for (tokenizer, cases) in models(kind) {
        let (mut n_of_llama, mut n_of_reference) = (0, 0);
        for case in &cases {
            let text = case["text"].as_str().unwrap();
            let found = tokenizer.encode(text, PLAIN);
            if found != ids(&case[oracle]) {
                wrong.push(format!("{text:?}\n  {found:?}\n  {:?}", case[oracle]));
                continue;
            }
            n_of_reference += usize::from(case.get("reference").is_none_or(|it| ids(it) == found));
            if found != ids(&case["ids"]) {
                continue;
            }
            n_of_llama += 1;
            assert_eq!(
                tokenizer.encode(text, ADDED),
                ids(&case["added"]),
                "{text:?}"
            );
            assert_eq!(
                tokenizer.encode(text, PROMPT),
                ids(&case["added"]),
                "{text:?}"
            );
            let decoded = tokenizer.decode(&found, SpecialText::Hide, leading);
            let mut stream = Detokenizer::new(SpecialText::Hide, leading);
            let parts: String = found
                .iter()
                .map(|&id| stream.push(&tokenizer, id))
                .collect();
            assert_eq!(parts + &stream.finish(), decoded);
            let expected = case["decoded"].as_str().unwrap();
            let is_other = other_text.iter().any(|part| text.contains(part));
            if decoded != expected && !is_other {
                wrong.push(format!("{text:?}\n  {decoded:?}\n  {expected:?}"));
            }
        }
        assert!(n_of_llama >= cases.len() * 9 / 10, "{n_of_llama}");
        assert!(n_of_reference >= cases.len() * 9 / 10, "{n_of_reference}");
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn word_pieces_are_those_of_hugging_face_tokenizers() {
    // llama.cpp joins some contractions again; here they stay apart.
    check("bert", "reference", LeadingSpace::Keep, &["'"]);
}

#[test]
fn unigram_tokens_are_those_of_llama_cpp() {
    check("t5", "ids", LeadingSpace::Strip, &[]);
}

#[test]
fn rwkv_tokens_are_those_of_llama_cpp() {
    check("rwkv", "ids", LeadingSpace::Keep, &[]);
}

#[test]
fn plamo_tokens_are_those_of_llama_cpp() {
    check("plamo2", "ids", LeadingSpace::Keep, &[]);
}
