//! Target `tokenizer`: loads vocabularies with hostile tokens, kinds, scores, merges and ids.
//!
//! An input that begins with `GGUF` is a file. Any other describes a file that [`build`] writes, so that a mutation
//! changes a table and not the file's framing:
//!
//! | bytes | |
//! |---|---|
//! | 1 | model: index into [`MODELS`] |
//! | 1 | pre-tokenizer: index into the known names; the last stands for an unknown one |
//! | 1 | bits: add a start token, add an end token, a space before text, no scores, no kinds |
//! | 4 | ids of the start, end, unknown and end-of-turn token; 255 for none |
//! | rest | records: length (low 5 bits) and whether it is a merge (high bit), kind, score (i8), text |

use std::sync::OnceLock;

use rocmforge_gguf::{Gguf, OwnedArray, Writer};
use rocmforge_text::tokenizer::{Detokenizer, EncodeOptions, LeadingSpace, SpecialText, Tokenizer};

const MODELS: [&str; 10] = [
    "llama",
    "gpt2",
    "gemma4",
    "none",
    "unknown",
    "bert",
    "t5",
    "rwkv",
    "whitespace",
    "plamo2",
];
const IDS: [&str; 4] = ["bos", "eos", "unknown", "eot"];

/// Texts encoded with every accepted vocabulary.
const TEXTS: [&str; 4] = [
    "",
    "Hello, world! 1234\n\n\tfoo  bar's",
    "<s>a</s><|x|>\u{2581}\u{0} é模型🙂\u{fffd}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

pub(crate) fn run(data: &[u8]) {
    let file = match data.starts_with(b"GGUF") {
        true => data.to_vec(),
        false => build(data),
    };
    let Ok(file) = Gguf::from_vec(file) else {
        return;
    };
    let tokenizer = match Tokenizer::from_gguf(&file, None) {
        Ok(tokenizer) => tokenizer,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text:?}");
            return;
        }
    };
    for parse_special in [false, true] {
        for text in TEXTS {
            check(&tokenizer, text.as_bytes(), parse_special);
        }
        check(&tokenizer, &data[..data.len().min(256)], parse_special);
    }
}

/// Encodes and decodes with all options; streamed and whole decoding must agree.
pub(crate) fn check(tokenizer: &Tokenizer, text: &[u8], parse_special: bool) {
    for add_special in [false, true] {
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        let ids = tokenizer.encode_bytes(text, options);
        for &id in &ids {
            assert!((id as usize) < tokenizer.n_vocab(), "id {id}");
            assert!(tokenizer.token_kind(id).is_some());
        }
        for special in [SpecialText::Hide, SpecialText::Show] {
            for leading in [LeadingSpace::Keep, LeadingSpace::Strip] {
                let whole = tokenizer.decode(&ids, special, leading);
                let mut stream = Detokenizer::new(special, leading);
                let mut streamed = String::new();
                for &id in &ids {
                    streamed.push_str(&stream.push(tokenizer, id));
                }
                streamed.push_str(&stream.finish());
                assert_eq!(whole, streamed);
            }
        }
    }
}

/// Returns the GGUF file that `data` describes.
pub(crate) fn build(data: &[u8]) -> Vec<u8> {
    static PRES: OnceLock<Vec<&'static str>> = OnceLock::new();
    let pres = PRES.get_or_init(|| Tokenizer::pre_names().collect());
    let byte = |at: usize| data.get(at).copied().unwrap_or(0);
    let mut writer = Writer::new("llama");
    writer.set(
        "tokenizer.ggml.model",
        MODELS[usize::from(byte(0)) % MODELS.len()],
    );
    let pre = usize::from(byte(1)) % (pres.len() + 1);
    writer.set(
        "tokenizer.ggml.pre",
        pres.get(pre).copied().unwrap_or("unknown"),
    );
    let bit = |n: u8| byte(2) >> n & 1 == 1;
    writer.set("tokenizer.ggml.add_bos_token", bit(0));
    writer.set("tokenizer.ggml.add_eos_token", bit(1));
    writer.set("tokenizer.ggml.add_space_prefix", bit(2));
    for (i, name) in IDS.iter().enumerate() {
        if byte(3 + i) != 255 {
            let key = match *name {
                "unknown" => "tokenizer.ggml.unknown_token_id".to_owned(),
                name => format!("tokenizer.ggml.{name}_token_id"),
            };
            writer.set(&key, u32::from(byte(3 + i)));
        }
    }
    let (mut tokens, mut kinds, mut scores, mut merges) = (vec![], vec![], vec![], vec![]);
    let mut rest = data.get(7..).unwrap_or(&[]);
    while let Some((&[head, kind, score], tail)) = rest.split_first_chunk() {
        let (text, tail) = tail.split_at(usize::from(head & 0x1f).min(tail.len()));
        rest = tail;
        if head & 0x80 == 0 {
            tokens.push(text.to_vec());
            kinds.push(i32::from(kind));
            scores.push(f32::from(score as i8));
        } else {
            merges.push(text.to_vec());
        }
    }
    writer.set("tokenizer.ggml.tokens", OwnedArray::String(tokens));
    if !bit(3) {
        writer.set("tokenizer.ggml.scores", scores);
    }
    if !bit(4) {
        writer.set("tokenizer.ggml.token_type", kinds);
    }
    writer.set("tokenizer.ggml.merges", OwnedArray::String(merges));
    writer
        .to_vec()
        .expect("keys of this file and no tensors can be written")
}

/// The description of a vocabulary; see the head of this file.
pub(crate) struct Description(Vec<u8>);

impl Description {
    pub(crate) fn new(model: &str, pre: &str, bits: u8, ids: [u8; 4]) -> Description {
        let index = |i: Option<usize>| i.map_or(u8::MAX, |i| i as u8);
        let model = index(MODELS.iter().position(|name| *name == model));
        let pre = index(Tokenizer::pre_names().position(|name| name == pre));
        let mut bytes = vec![model, pre, bits];
        bytes.extend(ids);
        Description(bytes)
    }

    pub(crate) fn token(&mut self, text: &str, kind: u8, score: i8) {
        self.0.extend([text.len() as u8 & 0x1f, kind, score as u8]);
        self.0.extend(text.as_bytes());
    }

    pub(crate) fn merge(&mut self, text: &str) {
        self.0.extend([text.len() as u8 & 0x1f | 0x80, 0, 0]);
        self.0.extend(text.as_bytes());
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}
