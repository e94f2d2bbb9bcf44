//! Tokenizers against llama.cpp's results on the vocabularies of released models.

use std::path::{Path, PathBuf};

use rocmforge_gguf::TokenId;
use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_text::tokenizer::{Detokenizer, EncodeOptions, LeadingSpace, SpecialText, Tokenizer};
use serde_json::Value;

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};
const PARSED: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};
const ADDED: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: false,
};
const PROMPT: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};

const VOCABULARIES: [&str; 6] = [
    "llama-spm",
    "phi-3",
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "deepseek-llm",
];

/// The conformance data, if this machine has them.
fn data(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("ROCMFORGE_CONFORMANCE_DATA");
    if root.is_none() {
        println!("skipped: ROCMFORGE_CONFORMANCE_DATA is not set, so there is no {path}");
    }
    Some(Path::new(&root?).join("data").join(path))
}

fn open(path: &Path) -> Tokenizer {
    let gguf = Gguf::open(path, LoadMode::Mmap).unwrap();
    Tokenizer::from_gguf(&gguf, None).unwrap()
}

fn vocabulary(name: &str) -> Option<(Tokenizer, PathBuf)> {
    let path = data(&format!("vocab/ggml-vocab-{name}.gguf"))?;
    Some((open(&path), path))
}

fn forge_mini() -> Tokenizer {
    open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf"))
}

fn decode(tokenizer: &Tokenizer, ids: &[TokenId]) -> String {
    tokenizer.decode(ids, SpecialText::Hide, LeadingSpace::Strip)
}

/// A small generator of test text; the same text on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % n
    }

    fn text(&mut self) -> String {
        let any = |r: &mut Self| loop {
            if let Some(c) = char::from_u32(r.below(0x11_0000) as u32) {
                return c;
            }
        };
        let n = self.below(40);
        (0..n)
            .map(|_| match self.below(6) {
                0 => ' ',
                1 => ['\n', '\r', '\t', '\u{a0}', '\'', '▁', '<', '|'][self.below(8)],
                2 | 3 => char::from(b'0' + self.below(75) as u8),
                4 => char::from_u32(0xA0 + self.below(0x3000) as u32).unwrap(),
                _ => any(self),
            })
            .collect()
    }
}

#[test]
fn vectors_of_llama_cpp() {
    for name in VOCABULARIES {
        let Some((tokenizer, path)) = vocabulary(name) else {
            return;
        };
        let read =
            |suffix: &str| std::fs::read_to_string(format!("{}{suffix}", path.display())).unwrap();
        let inputs = read(".inp");
        let inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
        let outputs = read(".out");
        let outputs: Vec<Vec<TokenId>> = outputs
            .split('\n')
            .map(|line| {
                line.split_whitespace()
                    .map(|id| id.parse().unwrap())
                    .collect()
            })
            .collect();
        assert_eq!((inputs.len(), outputs.len()), (47, 47), "{name}");
        for (input, expected) in inputs.iter().zip(&outputs) {
            assert_eq!(
                &tokenizer.encode(input, PLAIN),
                expected,
                "{name}: {input:?}"
            );
            assert_eq!(decode(&tokenizer, expected), *input, "{name}");
        }
    }
}

#[test]
fn long_text_comes_back() {
    let Some(path) = data("text/wiki.test.raw") else {
        return;
    };
    let text = std::fs::read_to_string(path).unwrap();
    let mut tokenizers = vec![("forge-mini", forge_mini())];
    tokenizers.extend(
        VOCABULARIES
            .iter()
            .filter_map(|name| Some((*name, vocabulary(name)?.0))),
    );
    for (name, tokenizer) in tokenizers {
        let ids = tokenizer.encode(&text, PLAIN);
        assert!(decode(&tokenizer, &ids) == text, "{name}");
    }
}

#[test]
fn prompts_of_forge_mini() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/golden.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokenizer = forge_mini();
    let prompts = golden["variants"]["Q4_K_M"]["prompts"].as_object().unwrap();
    assert_eq!(prompts.len(), 6);
    for (name, prompt) in prompts {
        let ids: Vec<TokenId> = serde_json::from_value(prompt["prompt_ids"].clone()).unwrap();
        assert_eq!(
            tokenizer.encode(prompt["prompt"].as_str().unwrap(), PROMPT),
            ids,
            "{name}"
        );
    }
    assert_eq!(tokenizer.eog_ids(), [0, 2]);
    assert_eq!(
        (tokenizer.kind_name(), tokenizer.pre_name()),
        ("BPE", "qwen2")
    );
}

/// Text, its ids as plain text, and its ids with special tokens parsed, from
/// llama.cpp (llama-cpp-python 0.3.36).
#[rustfmt::skip]
const SPECIAL: &[(&str, &str, &[TokenId], &[TokenId])] = &[
    ("llama-spm", "</s>", &[1533, 29879, 29958], &[2]),
    ("llama-spm", "a </s> b", &[263, 1533, 29879, 29958, 289], &[263, 29871, 2, 29871, 289]),
    ("llama-spm", "<s>hi", &[529, 29879, 29958, 2918], &[1, 7251]),
    ("llama-spm", "<0x0A>", &[529, 29900, 29916, 29900, 29909, 29958], &[529, 29900, 29916, 29900, 29909, 29958]),
    ("llama-spm", "▁a", &[29871, 263], &[29871, 263]),
    ("phi-3", "<|user|> \n hi<|end|>\n<|assistant|>", &[529, 29989, 1792, 29989, 29958, 29871, 13, 7251, 29966, 29989, 355, 29989, 29958, 13, 29966, 29989, 465, 22137, 29989, 29958], &[32010, 7251, 32007, 32001]),
    ("phi-3", "<s>  x", &[529, 29879, 29958, 29871, 921], &[1, 259, 921]),
    ("phi-3", "a</s>  b", &[263, 829, 29879, 29958, 29871, 289], &[263, 2, 289]),
    ("phi-3", "<|endoftext|> z", &[529, 29989, 355, 974, 726, 29989, 29958, 503], &[32000, 29871, 503]),
    ("gpt-2", "x<|endoftext|> y", &[87, 27, 91, 437, 1659, 5239, 91, 29, 331], &[87, 50256, 331]),
    ("llama-bpe", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", &[27, 91, 7413, 3659, 4424, 91, 1822, 91, 2527, 8932, 851, 91, 29, 882, 27, 91, 408, 8932, 851, 91, 1363, 13347, 27, 91, 68, 354, 851, 91, 29], &[128000, 128006, 882, 128007, 271, 13347, 128009]),
    ("llama-bpe", "<|eot_id", &[27, 91, 68, 354, 851], &[27, 91, 68, 354, 851]),
    ("qwen2", "<|im_start|>user\nA<|im_end|>\n", &[27, 91, 318, 4906, 91, 29, 872, 198, 32, 27, 91, 318, 6213, 91, 397], &[151644, 872, 198, 32, 151645, 198]),
    ("qwen2", "</s>", &[522, 82, 29], &[128247]),
    ("deepseek-llm", "<｜begin▁of▁sentence｜>User: ö", &[27, 68940, 237, 951, 11009, 210, 994, 11009, 210, 53582, 68940, 237, 29, 5726, 25, 207, 100003], &[100000, 5726, 25, 207, 100003]),
    ("deepseek-llm", "x[PAD100015]y", &[87, 100015, 88], &[87, 100015, 88]),
];

#[test]
fn special_tokens_are_parsed_only_where_asked() {
    for name in VOCABULARIES {
        let Some((tokenizer, _)) = vocabulary(name) else {
            return;
        };
        for (_, text, plain, parsed) in SPECIAL.iter().filter(|row| row.0 == name) {
            assert_eq!(tokenizer.encode(text, PLAIN), *plain, "{name}: {text:?}");
            assert_eq!(tokenizer.encode(text, PARSED), *parsed, "{name}: {text:?}");
        }
    }
}

/// Start token added, and tokens that end generation, from llama.cpp.
const ENDS: &[(&str, Option<TokenId>, &[TokenId])] = &[
    ("llama-spm", Some(1), &[2]),
    ("phi-3", Some(1), &[2, 32000, 32007]),
    ("gpt-2", None, &[50256]),
    ("llama-bpe", Some(128000), &[128001, 128009]),
    ("qwen2", None, &[128247, 151643, 151645]),
    ("deepseek-llm", Some(100000), &[100001]),
];

#[test]
fn start_token_is_added_once_and_ends_are_a_set() {
    for &(name, bos, ends) in ENDS {
        let Some((tokenizer, _)) = vocabulary(name) else {
            return;
        };
        assert_eq!(tokenizer.eog_ids(), ends, "{name}");
        assert!(
            ends.iter()
                .all(|&id| tokenizer.is_eog(id) && tokenizer.is_control(id))
        );
        let plain = tokenizer.encode("Hello", PLAIN);
        let added = tokenizer.encode("Hello", ADDED);
        let expected: Vec<TokenId> = bos.into_iter().chain(plain.iter().copied()).collect();
        assert_eq!(added, expected, "{name}");
        assert_eq!(tokenizer.encode("", ADDED), Vec::from_iter(bos), "{name}");
        if let Some(bos) = bos {
            let text = format!("{}Hello", tokenizer.token_text(bos));
            assert_eq!(tokenizer.encode(&text, PROMPT), expected, "{name}");
        }
    }
}

#[test]
fn any_text_comes_back_whole_and_in_stream() {
    let mut tokenizers = vec![("forge-mini", forge_mini())];
    tokenizers.extend(
        VOCABULARIES
            .iter()
            .filter_map(|name| Some((*name, vocabulary(name)?.0))),
    );
    let mut random = Random(0x5DEE_CE66_D1CE_4E5B);
    for (name, tokenizer) in tokenizers {
        for _ in 0..400 {
            let text = random.text();
            // A SentencePiece vocabulary spells a space and this character alike.
            let text = if name == "llama-spm" || name == "phi-3" {
                text.replace('▁', "_")
            } else {
                text
            };
            let ids = tokenizer.encode(&text, PLAIN);
            assert!(
                ids.iter().all(|&id| !tokenizer.is_control(id)),
                "{name}: {text:?}"
            );
            assert_eq!(decode(&tokenizer, &ids), text, "{name}");
            let mut stream = Detokenizer::new(SpecialText::Hide, LeadingSpace::Strip);
            let mut streamed = String::new();
            for id in ids {
                let part = stream.push(&tokenizer, id);
                assert!(
                    !part.contains('\u{FFFD}') || text.contains('\u{FFFD}'),
                    "{name}: {text:?}"
                );
                streamed += &part;
            }
            assert_eq!(streamed, text, "{name}");
            assert_eq!(stream.finish(), "", "{name}");
        }
    }
}

#[test]
fn any_bytes_and_any_ids_are_accepted() {
    let mut tokenizers = vec![forge_mini()];
    tokenizers.extend(
        VOCABULARIES
            .iter()
            .filter_map(|name| Some(vocabulary(name)?.0)),
    );
    let mut random = Random(0xB529_7A4D_3F84_D5B5);
    for tokenizer in tokenizers {
        for _ in 0..300 {
            let bytes: Vec<u8> = (0..random.below(30))
                .map(|_| random.below(256) as u8)
                .collect();
            let ids = tokenizer.encode_bytes(&bytes, PROMPT);
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()));
            let any: Vec<TokenId> = (0..20)
                .map(|_| random.below(tokenizer.n_vocab() + 9) as TokenId)
                .collect();
            let shown = tokenizer.decode(&any, SpecialText::Show, LeadingSpace::Keep);
            let hidden = tokenizer.decode(&any, SpecialText::Hide, LeadingSpace::Keep);
            assert!(hidden.len() <= shown.len());
        }
        // Neither method lets a byte of another text become a replacement.
        let spelt = tokenizer.encode_bytes(b"ab\xE2\x82 c\xFF", PLAIN);
        let back = tokenizer.decode(&spelt, SpecialText::Hide, LeadingSpace::Strip);
        assert!(
            back.starts_with("ab\u{FFFD}") && back.ends_with(" c\u{FFFD}"),
            "{back:?}"
        );
        assert_eq!(tokenizer.token_bytes(TokenId::MAX), b"");
        assert_eq!(tokenizer.token_kind(TokenId::MAX), None);
    }
}

/// Text that makes a quadratic merge loop or a backtracking matcher run for
/// minutes.
#[test]
fn long_runs_of_anything_are_quick() {
    let mut tokenizers = vec![("forge-mini", forge_mini())];
    tokenizers.extend(
        VOCABULARIES
            .iter()
            .filter_map(|name| Some((*name, vocabulary(name)?.0))),
    );
    let units = [
        "a",
        " ",
        "\n",
        "A",
        "1",
        "!",
        " \n",
        " a",
        "é",
        "한",
        "e\u{301}",
        "\0",
        "'",
        "<|",
        "<|im_end|>",
        "▂",
    ];
    for (name, tokenizer) in tokenizers {
        for unit in units {
            let text = unit.repeat((1 << 17) / unit.len());
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, PLAIN);
            // 0.1 s at most where this was written; quadratic is many minutes.
            assert!(start.elapsed().as_secs() < 10, "{name}: {unit:?}");
            assert!(decode(&tokenizer, &ids) == text, "{name}: {unit:?}");
        }
    }
}
