//! Random models of PLaMo with its vocabulary, so that whole programs can run them from text to text.

use rocmforge_gguf::{Error, GgmlType, OwnedArray, Writer};

use super::{N_VOCAB, families};

/// The models: PLaMo 2, most of whose layers keep states, and PLaMo 3.
pub const NAMES: [&str; 2] = ["plamo2_words", "plamo3_words"];

const SPECIAL: [&str; 5] = ["unk", "bos", "eos", "pad", "op"];

/// Words and parts of words in the order of their tokens, those of each line with spaces before them or none.
const WORDS: [(&str, &str); 4] = [
    (
        "",
        "a b c d e f g h i j k l m n o p q r s t u v w x y z . , ! ? ' - T W",
    ),
    (
        " ",
        "the of and to in is it that was for on with as at by from one two three small river runs sea moon",
    ),
    (
        "",
        "th he in er an re on at en nd ti es or te ing ed ly the and The river night light",
    ),
    (
        "",
        "日 本 語 の は を に 日本 日本語 です 。 、 東京 東 京 川 海 流れる",
    ),
];

/// Creates the model `name` with matrices of type `ty`; `None` if the name is unknown.
pub fn model(name: &str, ty: GgmlType) -> Option<Result<Writer<'static>, Error>> {
    let family = name.strip_suffix("_words")?;
    NAMES.contains(&name).then_some(())?;
    let model = families::model(family, ty)?;
    Some(model.map(with_vocabulary))
}

/// Replaces the vocabulary: special tokens, a token for each byte, words, and numbered words up to the model's size.
fn with_vocabulary(mut writer: Writer<'static>) -> Writer<'static> {
    const UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    const NORMAL: i32 = 1;
    let special = SPECIAL
        .iter()
        .zip([UNKNOWN, CONTROL, CONTROL, CONTROL, CONTROL]);
    let special = special.map(|(name, kind)| (format!("<|plamo:{name}|>"), 0.0, kind));
    let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), -100.0, BYTE));
    let words = WORDS.iter().flat_map(|(before, words)| {
        let words = words.split(' ');
        words.map(move |word| format!("{before}{word}"))
    });
    let words = words.chain([" ", "\n", "\n\n"].map(String::from));
    // Long tokens are better than their parts, early ones better than later ones.
    let score = |id: usize, word: &str| -6.0 / word.chars().count() as f32 - id as f32 / 1000.0;
    let words = words.enumerate().map(|(id, word)| {
        let score = score(id, &word);
        (word, score, NORMAL)
    });
    let mut tokens: Vec<(String, f32, i32)> = special.chain(bytes).chain(words).collect();
    for id in tokens.len()..N_VOCAB {
        let word = format!(" w{id}");
        tokens.push((word, -9.0, NORMAL));
    }
    let texts = tokens.iter().map(|token| token.0.clone().into_bytes());
    let scores: Vec<f32> = tokens.iter().map(|token| token.1).collect();
    let kinds: Vec<i32> = tokens.iter().map(|token| token.2).collect();
    writer
        .set("tokenizer.ggml.model", "plamo2")
        .set("tokenizer.ggml.pre", "default")
        .set("tokenizer.ggml.tokens", OwnedArray::String(texts.collect()))
        .set("tokenizer.ggml.scores", scores)
        .set("tokenizer.ggml.token_type", kinds)
        .set("tokenizer.ggml.bos_token_id", 1u32)
        .set("tokenizer.ggml.eos_token_id", 2u32)
        .set("tokenizer.ggml.unknown_token_id", 0u32)
        .set("tokenizer.ggml.padding_token_id", 3u32)
        .set("tokenizer.ggml.add_space_prefix", false);
    writer
}
