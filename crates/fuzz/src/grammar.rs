//! Target `grammar`: compiles a schema, an expression or a grammar over the embedded model's vocabulary, and takes tokens that it
//! allows.
//!
//! Input: a byte that chooses the kind of source, one that chooses the tokens, then the source.

use std::sync::{Arc, OnceLock};

use rocmforge_gguf::{Gguf, LoadMode};
use rocmforge_grammar::{Grammar, Source, Vocabulary};
use rocmforge_plan::{Constraint as _, Progress};
use rocmforge_text::tokenizer::Tokenizer;

use crate::root;

pub(crate) fn run(data: &[u8]) {
    let Some((&[kind, choice], text)) = data.split_first_chunk() else {
        return;
    };
    let text = String::from_utf8_lossy(text).into_owned();
    let source = match kind % 5 {
        0 => Source::JsonSchema(text),
        1 => Source::Regex(text),
        2 => Source::Choice(text.split('\n').map(String::from).collect()),
        3 => Source::Lark(text),
        _ => Source::Gbnf(text),
    };
    let vocabulary = vocabulary();
    let grammar = match Grammar::compile(vocabulary, &source) {
        Ok(grammar) => grammar,
        Err(error) => {
            // Messages may quote the source, but must be bounded.
            assert!(error.to_string().len() < 1 << 16);
            return;
        }
    };
    let mut state = grammar.start();
    let mut mask = vec![0; 256];
    for step in 0..20 {
        if state.mask(&mut mask).is_err() {
            return;
        }
        let is_allowed = |id: &u32| mask[*id as usize / 32] >> (id % 32) & 1 == 1;
        let allowed: Vec<u32> = (0..32 * mask.len() as u32).filter(is_allowed).collect();
        // A mask is never empty.
        let id = allowed[(usize::from(choice) + step) % allowed.len()];
        match state.accept(id) {
            Ok(Progress::Open) => {}
            Ok(Progress::Complete) | Err(_) => return,
        }
    }
}

fn vocabulary() -> &'static Arc<Vocabulary> {
    static VOCABULARY: OnceLock<Arc<Vocabulary>> = OnceLock::new();
    VOCABULARY.get_or_init(|| {
        let path = root().join("models/forge-mini-Q4_K_M.gguf");
        let file = Gguf::open(&path, LoadMode::Mmap).expect("the repository has forge-mini");
        let tokenizer = Tokenizer::from_gguf(&file, None).expect("it has a vocabulary");
        Vocabulary::new(&Arc::new(tokenizer)).expect("it is small")
    })
}
