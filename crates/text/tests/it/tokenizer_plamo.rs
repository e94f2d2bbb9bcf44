//! PLaMo's vocabulary: a small one with ids of llama.cpp's tokenizer for it, and damaged ones.

use rocmforge_gguf::{Gguf, OwnedArray, TokenId, Writer};
use rocmforge_text::tokenizer::{LeadingSpace, SpecialText, Tokenizer, TokenizerError};

use crate::options::{ADDED, PARSED, PLAIN, PROMPT};
use crate::token_kinds::{BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};

const SCORES: &str = "tokenizer.ggml.scores";

/// The tokens before the words: special ones and 256 bytes.
const N_FIRST: u32 = 5 + 256;

/// Text, score and kind of a token.
type Token<'t> = (&'t [u8], f32, i32);

fn normal(text: &str, score: f32) -> Token<'_> {
    (text.as_bytes(), score, NORMAL)
}

/// Writes a file as llama.cpp's converter does: special tokens, a token for each byte, words.
fn file(words: &[Token<'_>]) -> Writer<'static> {
    let special = ["unk", "bos", "eos", "pad", "op"].map(|name| format!("<|plamo:{name}|>"));
    let bytes = (0..256).map(|b| format!("<0x{b:02X}>"));
    let first: Vec<_> = special.into_iter().chain(bytes).collect();
    let mut tokens: Vec<_> = first
        .iter()
        .zip(0..)
        .map(|(text, id)| match id {
            0 => (text.as_bytes(), 0.0, UNKNOWN),
            1..5 => (text.as_bytes(), 0.0, CONTROL),
            _ => (text.as_bytes(), -100.0, BYTE),
        })
        .collect();
    tokens.extend(words);
    with_tokens(&tokens)
}

fn with_tokens(tokens: &[Token<'_>]) -> Writer<'static> {
    let texts = tokens.iter().map(|token| token.0.to_vec()).collect();
    let mut writer = Writer::new("plamo2");
    writer
        .set("tokenizer.ggml.model", "plamo2")
        .set("tokenizer.ggml.pre", "default")
        .set("tokenizer.ggml.tokens", OwnedArray::String(texts))
        .set(SCORES, tokens.iter().map(|t| t.1).collect::<Vec<_>>())
        .set(
            "tokenizer.ggml.token_type",
            tokens.iter().map(|t| t.2).collect::<Vec<_>>(),
        )
        .set("tokenizer.ggml.eot_token_id", 4u32)
        .set("tokenizer.ggml.add_space_prefix", false);
    writer
}

fn load(writer: &Writer<'_>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::from_vec(writer.to_vec().unwrap()).unwrap(), None)
}

fn refused(writer: &Writer<'_>) -> String {
    load(writer).err().expect("a refusal").to_string()
}

/// The tokens of the bytes of `text`.
fn spelled(text: &str) -> Vec<TokenId> {
    text.bytes().map(|b| TokenId::from(b) + 5).collect()
}

/// Ids from 261 on.
fn words() -> Vec<Token<'static>> {
    let mut words = Vec::from([
        normal("a", -3.0),
        normal("b", -3.0),
        // As good as both.
        normal("ab", -6.0),
        normal("abc", -2.0),
        normal("bc", -3.5),
        normal("c", -4.0),
        normal(" the", -1.5),
        normal("the", -2.5),
        normal(" ", -4.0),
        normal("日本", -2.0),
        normal("本語", -1.0),
        normal("日", -5.0),
        normal("aa", -0.5),
        // As good as two of these, because the fifth decimal does not count.
        normal("aaaa", -1.000_04),
        normal("\n\n", -1.0),
        // Never used, worse than bytes, and better than bytes.
        normal("é", -2000.0),
        normal("🙂", -1999.0),
        normal("語🙂", -999.0),
        normal("</s>", -8.0),
    ]);
    words.push((b"<u>", 0.0, USER_DEFINED));
    words.push((b"[PAD1]", -1000.0, UNUSED));
    words
}

/// The ids are those of llama.cpp's tokenizer for this vocabulary.
#[test]
fn encodes_with_the_best_sum_of_scores() {
    let tokenizer = load(&file(&words())).unwrap();
    let cases: [(&str, &[TokenId]); 19] = [
        ("", &[]),
        ("abc", &[264]),
        ("ab", &[263]),
        ("abab", &[263, 263]),
        ("aabc", &[273, 265]),
        ("aaaa", &[274]),
        ("aaaaa", &[274, 261]),
        (" the the", &[267, 267]),
        ("日本語", &[272, 271]),
        ("日本日", &[270, 272]),
        ("\n\n\n", &[275, 15]),
        ("é", &[200, 174]),
        ("🙂", &[245, 164, 158, 135]),
        ("日本語🙂", &[270, 278]),
        ("語🙂🙂", &[278, 245, 164, 158, 135]),
        // An ordinary token.
        ("a</s>b", &[261, 279, 262]),
        ("a<u>b", &[261, 280, 262]),
        ("a\0b", &[261, 5, 262]),
        ("a\u{fffd}", &[261, 244, 196, 194]),
    ];
    for (text, ids) in cases {
        for options in [PLAIN, PARSED, ADDED, PROMPT] {
            assert_eq!(tokenizer.encode(text, options), ids, "{text:?}");
        }
        let decoded = tokenizer.decode(ids, SpecialText::Hide, LeadingSpace::Strip);
        assert_eq!(decoded, text);
    }
    assert_eq!(
        tokenizer.encode_bytes(b"a\xff", PLAIN),
        [261, 244, 196, 194]
    );
    let marked = "<|plamo:op|>a<|plamo:eos|>";
    assert_eq!(tokenizer.encode(marked, PARSED), [4, 261, 2]);
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.unknown()),
        (Some(1), Some(2), Some(0))
    );
    assert_eq!(tokenizer.eog_ids(), [2, 4]);
    assert!(!tokenizer.adds_bos() && !tokenizer.adds_space_prefix());
    assert_eq!(tokenizer.kind_name(), "PLaMo2");
    assert_eq!(tokenizer.notices(), [""; 0]);
}

/// llama.cpp's tokenizer makes control and padding tokens of such text, and drops the mark.
#[test]
fn text_gives_no_control_or_unused_token() {
    let tokenizer = load(&file(&words())).unwrap();
    for text in ["<|plamo:op|>", "[PAD1]", "<0x41>", "\u{feff}"] {
        let ids = tokenizer.encode(text, PLAIN);
        assert_eq!(
            tokenizer.decode(&ids, SpecialText::Hide, LeadingSpace::Keep),
            text
        );
        assert!(ids.iter().all(|&id| (5..280).contains(&id)), "{ids:?}");
    }
}

#[test]
fn adds_the_tokens_that_the_file_asks_for() {
    let mut writer = file(&words());
    writer
        .set("tokenizer.ggml.add_bos_token", true)
        .set("tokenizer.ggml.add_eos_token", true);
    assert_eq!(load(&writer).unwrap().encode("a", ADDED), [1, 261, 2]);
}

#[test]
fn does_not_choose_a_pre_tokenizer() {
    let gguf = Gguf::from_vec(file(&words()).to_vec().unwrap()).unwrap();
    let error = Tokenizer::from_gguf(&gguf, Some("gpt-2")).err().unwrap();
    assert!(error.to_string().contains("'plamo2' does not split words"));
}

#[test]
fn damaged_vocabularies_are_refused() {
    assert!(matches!(
        load(&with_tokens(&[])),
        Err(TokenizerError::Empty)
    ));
    // Without bytes, with one of another kind, and without the last one.
    let words = words();
    assert!(refused(&with_tokens(&words)).contains("no byte token <0x00>"));
    let unused = with_kinds(|id, kind| if id == 5 + 0x41 { NORMAL } else { kind });
    assert!(refused(&unused).contains("no byte token <0x41>"));
    let last = with_kinds(|id, kind| if id == 5 + 0xff { UNUSED } else { kind });
    assert!(refused(&last).contains("no byte token <0xFF>"));
    let word = with_kinds(|id, kind| if id == N_FIRST { BYTE } else { kind });
    assert!(refused(&word).contains("token 261 is a byte token with the text 'a'"));
    let mut untyped = Writer::new("plamo2");
    untyped
        .set("tokenizer.ggml.model", "plamo2")
        .set("tokenizer.ggml.tokens", vec!["a", "b"]);
    assert!(refused(&untyped).contains(SCORES));
    untyped.set(SCORES, vec![0.0f32]);
    assert!(refused(&untyped).contains("has 1 entries for 2 tokens"));
    untyped.set(SCORES, vec![0.0, f32::NAN]);
    assert!(refused(&untyped).contains("score of token 1 is not a number"));
    let long = "x".repeat(513);
    let error = refused(&file(&[normal(&long, 0.0)]));
    assert!(error.contains("the length of a token is 513"), "{error}");
}

/// The vocabulary with other kinds.
fn with_kinds(kind: impl Fn(u32, i32) -> i32) -> Writer<'static> {
    let kinds = (0..N_FIRST).map(|id| match id {
        0 => UNKNOWN,
        1..5 => CONTROL,
        _ => BYTE,
    });
    let words = words();
    let kinds = kinds.chain(words.iter().map(|word| word.2));
    let kinds: Vec<_> = (0..).zip(kinds).map(|(id, k)| kind(id, k)).collect();
    let mut writer = file(&words);
    writer.set("tokenizer.ggml.token_type", kinds);
    writer
}

/// Scores without bounds, and tokens that are empty, cut characters, or end in the middle of one.
#[test]
fn strange_tokens_spoil_no_others() {
    let words: [Token<'_>; 9] = [
        normal("a", f32::INFINITY),
        normal("b", f32::NEG_INFINITY),
        normal("c", f32::MAX),
        normal("cc", f32::MIN),
        normal("", 5.0),
        (b"\xe6\x97", 9.0, NORMAL),
        (b"\xa5", 9.0, NORMAL),
        ("日\u{672c}".as_bytes().split_at(4).0, 9.0, NORMAL),
        normal("本", -1.0),
    ];
    let tokenizer = load(&file(&words)).unwrap();
    let cases = [
        ("ab", spelled("ab")),
        ("cc", vec![263, 263]),
        ("日本", [spelled("日"), vec![269]].concat()),
        ("", vec![]),
    ];
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text, PLAIN), ids, "{text:?}");
        let decoded = tokenizer.decode(&ids, SpecialText::Hide, LeadingSpace::Keep);
        assert_eq!(decoded, text);
    }
    // The largest score for every character.
    let n = 1 << 20;
    assert_eq!(tokenizer.encode(&"c".repeat(n), PLAIN), vec![263; n]);
}

/// Every place of a long run begins 500 tokens, or one that never ends.
#[test]
fn nested_tokens_take_linear_time() {
    let runs: Vec<_> = (1..500).map(|n| "q".repeat(n)).collect();
    let endless = "q".repeat(500) + "Z";
    let mut words: Vec<_> = runs.iter().map(|run| normal(run, -1.0)).collect();
    words.push(normal(&endless, 0.0));
    let tokenizer = load(&file(&words)).unwrap();
    let text = "q".repeat(1 << 17);
    let ids = tokenizer.encode(&text, PLAIN);
    // 131,072 characters in tokens of at most 499.
    assert_eq!(ids.len(), 263);
    assert!(tokenizer.decode(&ids, SpecialText::Hide, LeadingSpace::Keep) == text);
}

/// With a token of the longest kind and characters of every length.
#[test]
fn long_texts_are_cut_as_short_ones() {
    let longest = "日".repeat(170) + "é";
    assert_eq!(longest.len(), 512);
    let tokenizer = load(&file(&[normal(&longest, -1.0), normal("ab", -1.0)])).unwrap();
    let part = format!("ab{longest}🙂");
    let n = 1000;
    let expected = [vec![262, 261], spelled("🙂")].concat();
    assert_eq!(tokenizer.encode(&part, PLAIN), expected);
    assert!(tokenizer.encode(&part.repeat(n), PLAIN) == expected.repeat(n));
}
