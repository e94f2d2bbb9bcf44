//! Tokenizers from vocabularies written here: small ones with ids computed by hand, and damaged ones.

use rocmforge_gguf::{Gguf, TokenId, Writer};
use rocmforge_text::tokenizer::{
    Detokenizer, LeadingSpace, SpecialText, TokenKind, Tokenizer, TokenizerError,
};

use crate::options::{PARSED, PLAIN, PROMPT};
use crate::token_kinds::{BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};

/// Creates a file that has only a vocabulary, of the given tokenizer model.
fn file(model: &str, tokens: &[(&str, i32)]) -> Writer<'static> {
    let mut writer = Writer::new("llama");
    writer.set("tokenizer.ggml.model", model);
    set_tokens(&mut writer, tokens);
    writer
}

fn set_tokens(writer: &mut Writer<'_>, tokens: &[(&str, i32)]) {
    writer.set(
        "tokenizer.ggml.tokens",
        tokens.iter().map(|t| t.0).collect::<Vec<_>>(),
    );
    writer.set(
        "tokenizer.ggml.token_type",
        tokens.iter().map(|t| t.1).collect::<Vec<_>>(),
    );
    writer.set(
        "tokenizer.ggml.scores",
        (0..tokens.len()).map(|i| -(i as f32)).collect::<Vec<_>>(),
    );
}

fn load(writer: &Writer<'_>, pre: Option<&str>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::from_vec(writer.to_vec().unwrap()).unwrap(), pre)
}

fn refused(writer: &Writer<'_>) -> String {
    load(writer, None).err().expect("a refusal").to_string()
}

/// Byte level: ids 0.. are h e l o Ġ w Ċ he ll hell Ġw wo, then special tokens.
fn byte_level() -> Writer<'static> {
    let texts = [
        "h", "e", "l", "o", "Ġ", "w", "Ċ", "he", "ll", "hell", "Ġw", "wo",
    ];
    let mut tokens: Vec<_> = texts.iter().map(|t| (*t, NORMAL)).collect();
    tokens.extend([
        ("<s>", CONTROL),
        ("<think>", USER_DEFINED),
        ("  ", USER_DEFINED),
        ("[X]", UNUSED),
    ]);
    let mut writer = file("gpt2", &tokens);
    writer.set(
        "tokenizer.ggml.merges",
        vec!["h e", "l l", "he ll", "Ġ w", "w o"],
    );
    writer.set("tokenizer.ggml.pre", "gpt-2");
    writer.set("tokenizer.ggml.bos_token_id", 12u32);
    writer
}

#[test]
fn encodes_bytes_with_merges() {
    let tokenizer = load(&byte_level(), None).unwrap();
    for (text, ids) in [
        ("hello", &[9, 3][..]),
        ("hell", &[9]),
        ("helo", &[7, 2, 3]),
        ("hello wo", &[9, 3, 10, 3]),
        ("o\nwo", &[3, 6, 11]),
        // User-defined tokens are always parsed, the longest first; control tokens not with these options.
        ("he<think>  wo", &[7, 13, 14, 11]),
        ("", &[]),
        // A character without byte tokens is dropped.
        ("hé", &[0]),
    ] {
        assert_eq!(tokenizer.encode(text, PLAIN), ids, "{text:?}");
    }
    assert_eq!(tokenizer.encode("<s>w", PARSED), [12, 5]);
    // `<`, `s` and `>` have no tokens either, and text is not parsed as the control token.
    assert_eq!(tokenizer.encode("<s>w", PLAIN), [5]);
    assert_eq!(tokenizer.notices().len(), 1, "{:?}", tokenizer.notices());
    assert!(tokenizer.notices()[0].contains("byte values"));
    assert_eq!(tokenizer.token_bytes(10), b" w");
    assert_eq!(tokenizer.token_text(10), "Ġw");
    assert_eq!(tokenizer.token_bytes(15), b"");
    assert_eq!(tokenizer.token_kind(15), Some(TokenKind::Unused));
    assert_eq!(tokenizer.token_id("he"), Some(7));
    assert_eq!(tokenizer.bos(), Some(12));
}

#[test]
fn adds_start_and_end_tokens() {
    let mut writer = byte_level();
    writer
        .set("tokenizer.ggml.add_bos_token", true)
        .set("tokenizer.ggml.add_eos_token", true);
    let tokenizer = load(&writer, None).unwrap();
    // The file asks for an end token but does not define one.
    assert_eq!(tokenizer.encode("w", PROMPT), [12, 5]);
    assert!(tokenizer.notices().iter().any(|n| n.contains("end token")));
    writer.set("tokenizer.ggml.eos_token_id", 6u32);
    let tokenizer = load(&writer, None).unwrap();
    assert_eq!(tokenizer.encode("w", PROMPT), [12, 5, 6]);
    assert_eq!(
        tokenizer.encode("<s>w\n", PROMPT),
        [12, 5, 6],
        "neither is doubled"
    );
    assert_eq!(tokenizer.encode("", PROMPT), [12, 6]);
    assert!(tokenizer.is_eog(6));
}

#[test]
fn chooses_pre_tokenizers_by_name() {
    let mut writer = byte_level();
    assert_eq!(load(&writer, Some("llama3")).unwrap().pre_name(), "llama3");
    for name in Tokenizer::pre_names() {
        assert_eq!(load(&writer, Some(name)).unwrap().pre_name(), name);
    }
    let error = load(&writer, Some("nonesuch")).err().unwrap().to_string();
    assert!(
        error.contains("'nonesuch'")
            && error.contains("choose the closest")
            && error.contains("qwen2"),
        "{error}"
    );
    writer.set("tokenizer.ggml.pre", "\u{1b}[31mnew");
    let error = refused(&writer);
    assert!(
        error.contains("[31mnew") && !error.contains('\u{1b}'),
        "{error}"
    );

    let tokens = [("h", NORMAL), ("e", NORMAL)];
    let mut unnamed = file("gpt2", &tokens);
    unnamed.set("tokenizer.ggml.merges", vec!["h e"]);
    let tokenizer = load(&unnamed, None).unwrap();
    assert_eq!(tokenizer.pre_name(), "default");
    assert!(
        tokenizer
            .notices()
            .iter()
            .any(|n| n.contains("names no pre-tokenizer"))
    );
    assert!(
        load(&unnamed, Some("gpt-2"))
            .unwrap()
            .notices()
            .iter()
            .all(|n| !n.contains("pre-tokenizer"))
    );

    let error = load(&sentencepiece(), Some("gpt-2"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("pre-tokenizer 'gpt-2' does not apply"),
        "{error}"
    );
}

#[test]
fn rejects_other_models_by_name() {
    for model in ["hybriddna", "new"] {
        let error = refused(&file(model, &[("a", NORMAL)]));
        assert!(error.contains(&format!("'{model}'")), "{error}");
    }
    assert!(matches!(
        load(&file("none", &[]), None),
        Err(TokenizerError::NoVocab)
    ));
    assert!(refused(&Writer::new("llama")).contains("tokenizer.ggml.model"));
}

/// A SentencePiece vocabulary: unknown, <s>, </s>, 256 bytes, then words. Scores descend.
fn sentencepiece() -> Writer<'static> {
    let bytes: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
    let mut tokens = vec![("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)];
    tokens.extend(bytes.iter().map(|b| (b.as_str(), BYTE)));
    tokens.extend(["▁a", "b", "ab", "▁", "a", "▁ab", "é"].map(|t| (t, NORMAL)));
    file("llama", &tokens)
}

#[test]
fn encodes_with_sentencepiece() {
    let mut writer = sentencepiece();
    let byte = |b: u8| TokenId::from(b) + 3;
    // 259 ▁a, 260 b, 261 ab, 262 ▁, 263 a, 264 ▁ab, 265 é; the lower id merges first.
    let cases: [(&str, Vec<TokenId>); 8] = [
        ("ab", vec![264]),
        ("a ab", vec![259, 264]),
        ("aab", vec![259, 261]),
        ("  a", vec![262, 262, 259]),
        ("é", vec![262, 265]),
        (
            "x\u{20AC}",
            vec![262, byte(b'x'), byte(0xE2), byte(0x82), byte(0xAC)],
        ),
        ("", vec![]),
        (
            "a</s>b",
            vec![259, byte(b'<'), byte(b'/'), byte(b's'), byte(b'>'), 260],
        ),
    ];
    let tokenizer = load(&writer, None).unwrap();
    for (text, ids) in &cases {
        assert_eq!(&tokenizer.encode(text, PLAIN), ids, "{text:?}");
        assert_eq!(
            tokenizer.decode(ids, SpecialText::Hide, LeadingSpace::Strip),
            *text
        );
    }
    assert_eq!(tokenizer.encode("a</s>b", PROMPT), [1, 259, 2, 262, 260]);
    assert_eq!(tokenizer.encode_bytes(b"a\xFF", PLAIN), [259, byte(0xFF)]);
    assert!(tokenizer.adds_bos() && tokenizer.adds_space_prefix());
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.unknown()),
        (Some(1), Some(2), Some(0))
    );

    writer
        .set("tokenizer.ggml.add_space_prefix", false)
        .set("tokenizer.ggml.add_bos_token", false);
    let tokenizer = load(&writer, None).unwrap();
    assert_eq!(tokenizer.encode("ab a</s>b", PROMPT), [261, 259, 2, 260]);
}

#[test]
fn encodes_sentencepiece_token_across_a_space() {
    let mut tokens: Vec<_> = vec![("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)];
    tokens.extend([
        ("b▁", NORMAL),
        ("b▁c", NORMAL),
        ("▁", NORMAL),
        ("b", NORMAL),
        ("c", NORMAL),
        ("▁b", NORMAL),
    ]);
    let tokenizer = load(&file("llama", &tokens), None).unwrap();
    // Bytes without a token become the unknown token.
    assert_eq!(tokenizer.encode("b cé", PLAIN), [5, 4, 0, 0]);
}

#[test]
fn encodes_characters_with_merges() {
    let mut tokens = vec![
        ("<bos>", CONTROL),
        ("▁", NORMAL),
        ("a", NORMAL),
        ("▁a", NORMAL),
        ("\n", NORMAL),
        ("\n\n", NORMAL),
    ];
    tokens.extend([("<0xC3>", BYTE), ("<0xA9>", BYTE)]);
    let mut writer = file("gemma4", &tokens);
    writer
        .set("tokenizer.ggml.merges", vec!["▁ a"])
        .set("tokenizer.ggml.bos_token_id", 0u32);
    let tokenizer = load(&writer, None).unwrap();
    assert_eq!(tokenizer.encode("a a\n\né", PROMPT), [0, 2, 3, 5, 6, 7]);
    assert_eq!(
        tokenizer.decode(&[2, 3, 5, 6, 7], SpecialText::Hide, LeadingSpace::Keep),
        "a a\n\né"
    );
    assert_eq!(tokenizer.pre_name(), "gemma4");
}

#[test]
fn handles_families_with_exceptions() {
    let mut harmony = file(
        "gpt2",
        &[
            ("z", NORMAL),
            ("<|return|>", CONTROL),
            ("<|call|>", CONTROL),
            ("<|end|>", CONTROL),
            ("<|channel|>", CONTROL),
            ("<|x|>", CONTROL),
        ],
    );
    harmony
        .set("tokenizer.ggml.merges", Vec::<&str>::new())
        .set("tokenizer.ggml.pre", "gpt-4o");
    let tokenizer = load(&harmony, None).unwrap();
    assert_eq!(tokenizer.eog_ids(), [1, 2]);
    assert_eq!(
        tokenizer.decode(&[4, 0, 5, 3], SpecialText::Hide, LeadingSpace::Keep),
        "<|channel|>z<|end|>"
    );
    assert_eq!(
        tokenizer.encode("<|channel|>z", PLAIN),
        [0],
        "shown, but not parsed from text"
    );

    let mut gemma = file(
        "gemma4",
        &[
            ("</s>", NORMAL),
            ("<|tool_response>", CONTROL),
            ("<bos>", CONTROL),
        ],
    );
    gemma
        .set("tokenizer.ggml.merges", Vec::<&str>::new())
        .set("tokenizer.ggml.bos_token_id", 2u32);
    let tokenizer = load(&gemma, None).unwrap();
    assert_eq!(tokenizer.eog_ids(), [1]);
    assert_eq!(tokenizer.token_kind(0), Some(TokenKind::Normal));
}

#[test]
fn streams_whole_characters() {
    let tokenizer = load(&sentencepiece(), None).unwrap();
    let byte = |b: u8| TokenId::from(b) + 3;
    let push = |ids: &[TokenId]| {
        let mut stream = Detokenizer::new(SpecialText::Hide, LeadingSpace::Keep);
        let parts: Vec<String> = ids.iter().map(|&id| stream.push(&tokenizer, id)).collect();
        (parts.join("|"), stream.finish())
    };
    let rocket = [0xF0, 0x9F, 0x9A, 0x80].map(byte);
    assert_eq!(push(&rocket), ("|||🚀".into(), String::new()));
    assert_eq!(push(&rocket[..3]), ("||".into(), "\u{FFFD}".into()));
    assert_eq!(
        push(&[rocket[0], 260]),
        ("|\u{FFFD}b".into(), String::new())
    );
    assert_eq!(
        push(&[byte(0xFF), byte(b'x')]),
        ("\u{FFFD}|x".into(), String::new())
    );
    assert_eq!(
        push(&[rocket[0], 2, rocket[1], 99_999, rocket[2], rocket[3]]),
        ("|||||🚀".into(), String::new())
    );
    assert_eq!(push(&[259, 259]), (" a| a".into(), String::new()));
    let mut shown = Detokenizer::new(SpecialText::Show, LeadingSpace::Strip);
    let parts = [1, 259, 2].map(|id| shown.push(&tokenizer, id));
    assert_eq!(parts, ["<s>", " a", "</s>"]);
    let mut hidden = Detokenizer::new(SpecialText::Hide, LeadingSpace::Strip);
    let parts = [1, 259, 259].map(|id| hidden.push(&tokenizer, id));
    assert_eq!(parts, ["", "a", " a"]);
}

#[test]
fn rejects_damaged_tables() {
    let check = |change: &dyn Fn(&mut Writer<'static>), wanted: &str| {
        let mut writer = byte_level();
        change(&mut writer);
        let error = refused(&writer);
        assert!(error.contains(wanted), "{wanted:?} is not in {error:?}");
    };
    let types = "tokenizer.ggml.token_type";
    check(
        &|w| {
            w.set("tokenizer.ggml.tokens", Vec::<&str>::new());
        },
        "tokens is empty",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.tokens", vec![1u32]);
        },
        "array of strings",
    );
    check(
        &|w| {
            w.set(types, vec![1i32]);
        },
        "1 entries for 16 tokens",
    );
    check(
        &|w| {
            w.set(types, vec![7i32; 16]);
        },
        "token 0 has type 7",
    );
    check(
        &|w| {
            w.set(types, vec![6i32; 16]);
        },
        "byte token with the text 'h'",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.merges", vec!["h e", "he"]);
        },
        "merge 1 is 'he'",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.merges", vec!["he "]);
        },
        "merge 0",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.merges", vec![" "]);
        },
        "merge 0",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.merges", vec![""]);
        },
        "merge 0",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.bos_token_id", 16u32);
        },
        "bos_token_id is 16",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.eot_token_id", -5i32);
        },
        "eot_token_id is -5",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.eos_token_id", "2");
        },
        "tokenizer.ggml.eos_token_id",
    );
    check(
        &|w| {
            w.set("tokenizer.ggml.add_bos_token", 1u32);
        },
        "bool",
    );
    check(
        &|w| set_tokens(w, &[("a", NORMAL), ("b", NORMAL), ("a", NORMAL)]),
        "tokens 0 and 2",
    );
    let long = "x".repeat(1 << 14);
    check(
        &|w| set_tokens(w, &[(&long, NORMAL)]),
        "the length of a token is 16384",
    );

    let check = |change: &dyn Fn(&mut Writer<'static>), wanted: &str| {
        let mut writer = sentencepiece();
        change(&mut writer);
        let error = refused(&writer);
        assert!(error.contains(wanted), "{wanted:?} is not in {error:?}");
    };
    let scores = "tokenizer.ggml.scores";
    check(
        &|w| {
            w.set(scores, vec![0f32]);
        },
        "tokenizer.ggml.scores has 1 entries",
    );
    check(
        &|w| {
            w.set(scores, vec![f32::NAN; 266]);
        },
        "score of token 0",
    );
    check(
        &|w| set_tokens(w, &[("a", NORMAL), ("b", NORMAL), ("</s>", CONTROL)]),
        "no token for byte 0x00",
    );
}

/// Some converters write the 32-bit id -1 for "none".
#[test]
fn reads_id_minus_one_as_none() {
    let mut writer = byte_level();
    writer
        .set("tokenizer.ggml.eos_token_id", u32::MAX)
        .set("tokenizer.ggml.eot_token_id", -1i32);
    let tokenizer = load(&writer, None).unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.eot()), (None, None));
}

/// Merges of strings that are not tokens are kept, as in llama.cpp, and the results are encoded byte by byte.
#[test]
fn keeps_merges_of_strings_that_are_not_tokens() {
    let mut writer = byte_level();
    writer.set("tokenizer.ggml.merges", vec!["e l", "h el", "é ß", "l o"]);
    let tokenizer = load(&writer, None).unwrap();
    assert_eq!(tokenizer.encode("helo", PLAIN), [0, 1, 2, 3]);
}

#[test]
fn large_tables_take_linear_time() {
    // Hard cases for a slow table: texts that differ only in their last bytes, special tokens with a common prefix,
    // and merges without tokens.
    let normal: Vec<String> = (0..100_000)
        .map(|i| format!("{}{i:06}", "x".repeat(40)))
        .collect();
    let special: Vec<String> = (0..60_000)
        .map(|i| format!("<|custom_token_{i}|>"))
        .collect();
    let mut tokens: Vec<_> = normal.iter().map(|t| (t.as_str(), NORMAL)).collect();
    tokens.extend(special.iter().map(|t| (t.as_str(), USER_DEFINED)));
    let merges: Vec<String> = (0..100_000).map(|i| format!("y{i} z{i}")).collect();
    let mut writer = file("gpt2", &tokens);
    writer
        .set("tokenizer.ggml.merges", merges)
        .set("tokenizer.ggml.pre", "qwen2");
    let start = std::time::Instant::now();
    let tokenizer = load(&writer, None).unwrap();
    let text = "<|custom_token_59999|><|custom_token_".repeat(1000);
    assert_eq!(tokenizer.encode(&text, PLAIN), [159_999; 1000]);
    // 0.3 s when this was written.
    assert!(start.elapsed().as_secs() < 20);
}

/// As in llama.cpp's reranking: the start token, the query, the end token and the separator, the document, the end token;
/// each if the file asks for it.
#[test]
fn pairs_have_the_tokens_that_the_file_asks_for() {
    let mut bert = file(
        "bert",
        &[
            ("[UNK]", UNKNOWN),
            ("[CLS]", CONTROL),
            ("[SEP]", CONTROL),
            ("\u{2581}a", NORMAL),
            ("\u{2581}b", NORMAL),
        ],
    );
    bert.set("tokenizer.ggml.unknown_token_id", 0u32);
    bert.set("tokenizer.ggml.cls_token_id", 1u32);
    bert.set("tokenizer.ggml.bos_token_id", 1u32);
    bert.set("tokenizer.ggml.seperator_token_id", 2u32);
    let pair = |writer: &Writer<'_>| load(writer, None).unwrap().encode_pair("a", "b a");
    assert_eq!(pair(&bert), [1, 3, 2, 4, 3]);
    // Without an end token, the separator takes its place.
    bert.set("tokenizer.ggml.add_eos_token", true);
    assert_eq!(pair(&bert), [1, 3, 2, 2, 4, 3, 2]);
    bert.set("tokenizer.ggml.add_sep_token", false);
    assert_eq!(pair(&bert), [1, 3, 2, 4, 3, 2]);

    let mut unigram = file(
        "t5",
        &[
            ("<s>", CONTROL),
            ("</s>", CONTROL),
            ("<unk>", UNKNOWN),
            ("\u{2581}a", NORMAL),
            ("\u{2581}b", NORMAL),
        ],
    );
    unigram.set("tokenizer.ggml.add_space_prefix", true);
    assert_eq!(pair(&unigram), [3, 1, 4, 3, 1]);
    unigram.set("tokenizer.ggml.bos_token_id", 0u32);
    unigram.set("tokenizer.ggml.add_bos_token", true);
    assert_eq!(pair(&unigram), [0, 3, 1, 4, 3, 1]);
    // Control tokens in the texts are text.
    let ids = load(&unigram, None).unwrap().encode_pair("</s>", "a");
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 2, "{ids:?}");
}
