//! Hostile vocabularies of the kinds that look for tokens from each place on.

use rocmforge_gguf::{Gguf, TokenId, Writer};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText, Tokenizer, TokenizerError};

use crate::options::PLAIN;

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

fn file(model: &str, tokens: &[String]) -> Writer<'static> {
    let mut writer = Writer::new("llama");
    writer
        .set("tokenizer.ggml.model", model)
        .set(
            "tokenizer.ggml.tokens",
            tokens.iter().map(String::as_str).collect::<Vec<_>>(),
        )
        .set("tokenizer.ggml.scores", vec![-1.0f32; tokens.len()])
        .set("tokenizer.ggml.unknown_token_id", 0u32);
    writer
}

fn load(writer: &Writer<'_>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::from_vec(writer.to_vec().unwrap()).unwrap(), None)
}

/// Every place of a long run begins 500 tokens, or one that never ends.
#[test]
fn nested_tokens_take_linear_time() {
    let mut tokens = vec!["?".to_owned()];
    tokens.extend((1..500).map(|n| "q".repeat(n)));
    tokens.push("q".repeat(500) + "Z");
    let text = "q".repeat(1 << 17);
    for (model, n_expected) in [("bert", None), ("t5", Some(263)), ("rwkv", Some(263))] {
        let tokenizer = load(&file(model, &tokens)).unwrap();
        let ids = tokenizer.encode(&text, PLAIN);
        // 131,072 characters in tokens of at most 499.
        match n_expected {
            Some(n) => {
                assert_eq!(ids.len(), n, "{model}");
                let back = tokenizer.decode(&ids, SpecialText::Show, LeadingSpace::Keep);
                assert!(back == text, "{model}");
            }
            // No token begins a word, so the word is unknown.
            None => assert_eq!(ids, [0]),
        }
    }
}

/// Text of 4 MiB is cut at spaces, with the tokens of its parts.
#[test]
fn long_texts_are_cut_at_spaces() {
    let tokens = ["?", "▁ab", "a", "b", "▁"].map(str::to_owned);
    let tokenizer = load(&file("t5", &tokens)).unwrap();
    let n = 1 << 20;
    let ids = tokenizer.encode(&" ab".repeat(n), PLAIN);
    assert!(ids.len() == n && ids.iter().all(|&id| id == 1 as TokenId));
}

#[test]
fn long_tokens_are_refused() {
    let tokens = ["?".to_owned(), "x".repeat(513)];
    for model in ["bert", "t5", "rwkv"] {
        let error = load(&file(model, &tokens)).err().unwrap().to_string();
        assert!(error.contains("the length of a token is 513"), "{error}");
    }
}

/// Rules of SentencePiece that are too short, not ended, too long, or lead in circles or out of the table.
#[test]
fn damaged_rules_are_refused_or_have_no_effect() {
    let tokens = ["?", "a", "b"].map(str::to_owned);
    let with = |nodes: &[u32], replacements: &[u8]| {
        let mut bytes = (4 * nodes.len() as u32).to_le_bytes().to_vec();
        bytes.extend(nodes.iter().flat_map(|node| node.to_le_bytes()));
        bytes.extend(replacements);
        let mut writer = file("t5", &tokens);
        writer.set(CHARSMAP, bytes);
        load(&writer)
    };
    let long = [&[b'x'; 65][..], b"\0"].concat();
    let damaged: [(&[u32], &[u8]); 3] = [(&[0], b""), (&[], b"x"), (&[1, 2], &long)];
    for (nodes, replacements) in damaged {
        let error = with(nodes, replacements).err().unwrap();
        assert!(
            error.to_string().contains("precompiled_charsmap"),
            "{error}"
        );
    }
    let mut writer = file("t5", &tokens);
    let short: [&[u8]; 3] = [b"\x01", b"\xff\xff\xff\xff\0", b"\x03\0\0\0abc\0"];
    for bytes in short {
        writer.set(CHARSMAP, bytes.to_vec());
        assert!(matches!(load(&writer), Err(TokenizerError::BadCharsmap)));
    }
    writer.set(CHARSMAP, "text");
    assert!(matches!(load(&writer), Err(TokenizerError::BadCharsmap)));
    // A node that every byte leads to, whose rule is far away; and one that leads to itself.
    for node in [
        u32::MAX,
        b'a'.into(),
        1 << 8 | u32::from(b'a'),
        0x3FF << 10 | u32::from(b'a'),
    ] {
        let tokenizer = with(&[node; 256], b"\0").unwrap();
        for text in ["a", "ab", &"a".repeat(10_000)] {
            let ids = tokenizer.encode(text, PLAIN);
            assert!(ids.len() <= text.len() && ids.iter().all(|&id| id < 3));
        }
    }
}
