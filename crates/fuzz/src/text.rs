//! Text through fixed vocabularies: encode, decode, compare.
//!
//! Input: one byte that chooses the vocabulary, then the text. Vocabularies that can spell every byte must
//! give back the text they took.

use std::sync::OnceLock;

use rocmforge_engine::tokenizer::{EncodeOptions, LeadingSpace, SpecialText, Tokenizer};
use rocmforge_gguf::{Gguf, LoadMode};

use crate::{root, seeds, tokenizer};

struct Vocabulary {
    tokenizer: Tokenizer,
    /// A space of the text may be written `▁`, which reads as a space again.
    blocks: bool,
}

pub(crate) fn run(data: &[u8]) {
    let Some((&choice, text)) = data.split_first() else {
        return;
    };
    let all = vocabularies();
    let vocabulary = &all[usize::from(choice) % all.len()];
    for parse_special in [false, true] {
        tokenizer::check(&vocabulary.tokenizer, text, parse_special);
    }
    if let Ok(text) = std::str::from_utf8(text) {
        round_trip(vocabulary, text);
    }
}

fn round_trip(Vocabulary { tokenizer, blocks }: &Vocabulary, text: &str) {
    let ids = tokenizer.encode(text, EncodeOptions::default());
    let decoded = tokenizer.decode(&ids, SpecialText::Show, LeadingSpace::Strip);
    match blocks {
        false => assert_eq!(decoded, text),
        true => assert_eq!(decoded, text.replace('\u{2581}', " ")),
    }
}

/// The embedded model's, one of SentencePiece, and one for each way to cut text.
fn vocabularies() -> &'static [Vocabulary] {
    static ALL: OnceLock<Vec<Vocabulary>> = OnceLock::new();
    ALL.get_or_init(|| {
        let path = root().join("models/forge-mini-Q4_K_M.gguf");
        let embedded = Gguf::open(&path, LoadMode::Mmap).expect("the repository has forge-mini");
        let mut all = vec![of(&embedded, None)];
        let file = |description: Vec<u8>| {
            Gguf::from_vec(tokenizer::build(&description)).expect("our own files are valid")
        };
        all.push(of(&file(seeds::spm()), None));
        let bpe = file(seeds::bpe());
        // Characters, not bytes, are the alphabet of `gemma4`; the vocabulary cannot spell text then.
        let names = Tokenizer::pre_names().filter(|name| *name != "gemma4");
        all.extend(names.map(|name| of(&bpe, Some(name))));
        all
    })
}

fn of(file: &Gguf, pre: Option<&str>) -> Vocabulary {
    let tokenizer = Tokenizer::from_gguf(file, pre).expect("our own vocabularies are valid");
    Vocabulary {
        blocks: tokenizer.kind_name() == "SPM",
        tokenizer,
    }
}
