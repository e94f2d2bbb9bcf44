//! Target `text`: encodes and decodes text with fixed vocabularies.
//!
//! Input: a byte that chooses the vocabulary, then the text. Vocabularies with tokens for every byte must decode to the
//! text they encoded.

use std::sync::OnceLock;

use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_text::tokenizer::{EncodeOptions, LeadingSpace, SpecialText, Tokenizer};

use crate::{root, seeds, tokenizer};

struct Vocabulary {
    tokenizer: Tokenizer,
    /// Whether tokens decode to the encoded text, for every text. Not so if the pre-tokenizer's alphabet is characters
    /// rather than bytes: this vocabulary lacks tokens for them, and has a notice. Nor if it drops white space.
    spells_all: bool,
    /// Whether spaces are encoded as `▁`, so that a `▁` of the text decodes to a space.
    blocks: bool,
}

pub(crate) fn run(data: &[u8]) {
    let Some((&choice, text)) = data.split_first() else {
        return;
    };
    let vocabulary = vocabulary(choice);
    for parse_special in [false, true] {
        tokenizer::check(&vocabulary.tokenizer, text, parse_special);
    }
    if vocabulary.spells_all
        && let Ok(text) = std::str::from_utf8(text)
    {
        round_trip(vocabulary, text);
    }
}

fn round_trip(vocabulary: &Vocabulary, text: &str) {
    let tokenizer = &vocabulary.tokenizer;
    let ids = tokenizer.encode(text, EncodeOptions::default());
    let decoded = tokenizer.decode(&ids, SpecialText::Show, LeadingSpace::Strip);
    match vocabulary.blocks {
        false => assert_eq!(decoded, text),
        true => assert_eq!(decoded, text.replace('\u{2581}', " ")),
    }
}

/// Returns the embedded model's vocabulary, a SentencePiece one, or a byte-level one with any pre-tokenizer. Each is
/// built on first use, since compiling all regular expressions takes seconds.
fn vocabulary(choice: u8) -> &'static Vocabulary {
    static ALL: [OnceLock<Vocabulary>; 256] = [const { OnceLock::new() }; 256];
    let choice = usize::from(choice) % (2 + Tokenizer::pre_names().count());
    ALL[choice].get_or_init(|| match choice {
        0 => {
            let path = root().join("models/forge-mini-Q4_K_M.gguf");
            let file = Gguf::open(&path, LoadMode::Mmap);
            let embedded = of(&file.expect("the repository has forge-mini"), None);
            assert!(embedded.spells_all);
            embedded
        }
        1 => of(&file(&seeds::spm()), None),
        n => of(&file(&seeds::bpe()), Tokenizer::pre_names().nth(n - 2)),
    })
}

fn file(description: &[u8]) -> Gguf {
    Gguf::from_vec(tokenizer::build(description)).expect("our own files are valid")
}

fn of(file: &Gguf, pre: Option<&str>) -> Vocabulary {
    let tokenizer = Tokenizer::from_gguf(file, pre).expect("our own vocabularies are valid");
    Vocabulary {
        spells_all: tokenizer.notices().is_empty() && tokenizer.pre_name() != "whitespace",
        blocks: tokenizer.kind_name() == "SPM",
        tokenizer,
    }
}
