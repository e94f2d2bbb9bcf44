use std::path::Path;
use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode, TokenId};
use rocmforge_grammar::{Grammar, Source, State, Vocabulary};
use rocmforge_plan::{Constraint as _, Progress};
use rocmforge_testkit::data::{conformance, forge_mini_path};
use rocmforge_text::tokenizer::{EncodeOptions, Tokenizer};

/// A vocabulary, ready for grammars.
pub(crate) struct Model {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) vocabulary: Arc<Vocabulary>,
}

impl Model {
    pub(crate) fn open(path: &Path) -> Model {
        let gguf = Gguf::open(path, LoadMode::Mmap).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf, None).unwrap());
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        Model {
            tokenizer,
            vocabulary,
        }
    }

    pub(crate) fn forge_mini() -> Model {
        Model::open(&forge_mini_path())
    }

    /// The vocabulary of a released model, from the conformance data.
    pub(crate) fn released(name: &str) -> Option<Model> {
        let path = conformance(&format!("data/vocab/ggml-vocab-{name}.gguf"))?;
        Some(Model::open(&path))
    }

    pub(crate) fn compile(&self, source: &Source) -> Grammar {
        Grammar::compile(&self.vocabulary, source).unwrap()
    }

    pub(crate) fn encode(&self, text: &str) -> Vec<TokenId> {
        // A space prefix would be part of the text.
        let ids = self.tokenizer.encode(text, EncodeOptions::default());
        match self.tokenizer.adds_space_prefix() {
            false => ids,
            true => text
                .bytes()
                .map(|byte| {
                    let is_it = |id: &TokenId| self.tokenizer.token_bytes(*id) == [byte];
                    let plain = (0..self.tokenizer.n_vocab() as TokenId).rev();
                    plain.into_iter().find(is_it).unwrap()
                })
                .collect(),
        }
    }

    pub(crate) fn mask(&self, state: &mut State) -> Mask {
        let mut words = vec![u32::MAX; self.tokenizer.n_vocab().div_ceil(32)];
        state.mask(&mut words).unwrap();
        Mask(words)
    }

    /// Returns whether a grammar allows `ids` and then the end.
    pub(crate) fn accepts(&self, grammar: &Grammar, ids: &[TokenId]) -> bool {
        let mut state = grammar.start();
        let mut progress = Progress::Open;
        for &id in ids {
            if progress == Progress::Complete || !self.mask(&mut state).allows(id) {
                return false;
            }
            progress = state.accept(id).unwrap();
        }
        let is_complete = state.is_accepting().unwrap();
        if progress == Progress::Open {
            let end = self.tokenizer.eog_ids()[0];
            assert_eq!(self.mask(&mut state).allows(end), is_complete);
        } else {
            assert!(is_complete);
        }
        is_complete
    }
}

pub(crate) struct Mask(pub(crate) Vec<u32>);

impl Mask {
    pub(crate) fn allows(&self, id: TokenId) -> bool {
        self.0[id as usize / 32] >> (id % 32) & 1 == 1
    }

    pub(crate) fn ids(&self) -> Vec<TokenId> {
        let n = 32 * self.0.len() as TokenId;
        (0..n).filter(|&id| self.allows(id)).collect()
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}
