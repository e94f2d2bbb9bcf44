//! Free text before a grammar: each bit of its masks against a search in the text, and the grammar after its end.

use std::sync::Arc;

use rocmforge_gguf::{Gguf, LoadMode, TokenId};
use rocmforge_grammar::{Grammar, Marks, Preamble, Source, Vocabulary};
use rocmforge_plan::{Constraint, Progress};
use rocmforge_testkit::data::forge_mini_path;
use rocmforge_text::tokenizer::Tokenizer;

use crate::common::{Mask, Random};

fn forge_mini() -> Arc<Tokenizer> {
    let gguf = Gguf::open(&forge_mini_path(), LoadMode::Mmap).unwrap();
    Arc::new(Tokenizer::from_gguf(&gguf, None).unwrap())
}

fn mask(tokenizer: &Tokenizer, constraint: &mut Box<dyn Constraint>) -> Mask {
    let mut words = vec![u32::MAX; tokenizer.n_vocab().div_ceil(32) + 1];
    constraint.mask(&mut words).unwrap();
    Mask(words)
}

fn start(tokenizer: &Arc<Tokenizer>, ends: &[&str], never: &[&str]) -> Box<dyn Constraint> {
    let open = None;
    start_with(tokenizer, Marks { open, ends, never }, "[0-9]{2}")
}

fn start_with(tokenizer: &Arc<Tokenizer>, marks: Marks<'_>, regex: &str) -> Box<dyn Constraint> {
    let vocabulary = Vocabulary::new(tokenizer).unwrap();
    let grammar = Grammar::compile(&vocabulary, &Source::Regex(regex.into())).unwrap();
    Preamble::new(tokenizer, marks).before(Box::new(grammar.start()))
}

/// Whether a text has no mark before its end.
fn is_free(text: &[u8], marks: &[&str]) -> bool {
    let has = |mark: &&str| {
        let mark = mark.as_bytes();
        (text.windows(mark.len()).rev()).any(|part| part == mark)
    };
    !marks.iter().any(has)
}

/// Random free text of 40 tokens at a time, for marks of one token, of several, and with common beginnings.
#[test]
fn masks_say_which_tokens_end_the_free_text() {
    let tokenizer = forge_mini();
    let n_vocab = tokenizer.n_vocab() as TokenId;
    let cases: [(&[&str], &[&str]); 4] = [
        (&["</think>"], &[]),
        (&["[/THINK]"], &["[TOOL_CALLS]"]),
        (&["aab", "aaa"], &["ba"]),
        (&["."], &[" the"]),
    ];
    let mut random = Random(7);
    for (ends, never) in cases {
        let marks = [ends, never].concat();
        let mut constraint = start(&tokenizer, ends, never);
        let mut text: Vec<u8> = Vec::new();
        for _ in 0..40 {
            let allowed = mask(&tokenizer, &mut constraint);
            let mut free = Vec::new();
            for id in 0..n_vocab {
                let bytes = tokenizer.token_bytes(id);
                let whole = [&text[..], bytes].concat();
                // No mark is longer than this.
                let near = &whole[whole.len().saturating_sub(bytes.len() + 16)..];
                let goes_on = is_free(near, &marks);
                let ends_here = ends.iter().any(|end| near.ends_with(end.as_bytes()))
                    && is_free(&near[..near.len() - 1], &marks);
                let expected = !tokenizer.is_eog(id) && (goes_on || ends_here);
                assert_eq!(allowed.allows(id), expected, "{text:?} {bytes:?}");
                if expected && goes_on {
                    free.push(id);
                }
            }
            assert_eq!(allowed.0.last(), Some(&0));
            // Tokens that begin a mark come often.
            let begins = |id: &&TokenId| {
                let bytes = tokenizer.token_bytes(**id);
                marks.iter().any(|mark| mark.as_bytes().starts_with(bytes))
            };
            let near: Vec<&TokenId> = free.iter().filter(begins).collect();
            let id = match random.below(2) {
                0 if !near.is_empty() => *near[random.below(near.len())],
                _ => free[random.below(free.len())],
            };
            assert_eq!(constraint.accept(id).unwrap(), Progress::Open);
            text.extend(tokenizer.token_bytes(id));
        }
    }
}

#[test]
fn the_grammar_begins_after_the_end() {
    let tokenizer = forge_mini();
    let id_of = |text: &str| {
        let mut ids = 0..tokenizer.n_vocab() as TokenId;
        ids.find(|&id| tokenizer.token_bytes(id) == text.as_bytes())
            .unwrap()
    };
    // In one token, and in pieces.
    for end in [&["</think>"][..], &["<", "/", "t", "h", "i", "n", "k", ">"]] {
        let mut constraint = start(&tokenizer, &["</think>"], &[]);
        for word in ["1", "x"].iter().chain(end) {
            let copy = constraint.clone();
            assert!(mask(&tokenizer, &mut constraint).allows(id_of(word)));
            assert_eq!(constraint.accept(id_of(word)).unwrap(), Progress::Open);
            // A copy stays where it was.
            drop(copy);
        }
        let allowed = mask(&tokenizer, &mut constraint).ids();
        assert!(allowed.iter().all(|&id| {
            let bytes = tokenizer.token_bytes(id);
            !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit)
        }));
        constraint.accept(id_of("1")).unwrap();
        assert!(constraint.clone().accept(id_of("x")).is_err());
        assert_eq!(constraint.accept(id_of("2")).unwrap(), Progress::Complete);
    }
    let mut constraint = start(&tokenizer, &["</think>"], &["<tool_call>"]);
    assert!(constraint.accept(id_of("<tool_call>")).is_err());
    assert!(constraint.accept(tokenizer.eog_ids()[0]).is_err());
    assert!(constraint.accept(u32::MAX).is_err());
}

/// The mark in one token or in pieces, then free text; or the grammar at once.
#[test]
fn a_mark_may_open_the_free_text() {
    let tokenizer = forge_mini();
    let ids = |text: &str| -> Vec<TokenId> {
        let mut ids = 0..tokenizer.n_vocab() as TokenId;
        let found = ids.find(|&id| tokenizer.token_bytes(id) == text.as_bytes());
        let byte = |byte: u8| {
            let mut ids = 0..tokenizer.n_vocab() as TokenId;
            ids.find(|&id| tokenizer.token_bytes(id) == [byte]).unwrap()
        };
        found.map_or_else(|| text.bytes().map(byte).collect(), |id| vec![id])
    };
    let marks = Marks {
        open: Some("<think>"),
        ends: &["</think>"],
        never: &[],
    };
    let first = start_with(&tokenizer, marks, "[0-9]{2}|<th[0-9]");
    let allowed = mask(&tokenizer, &mut first.clone());
    for id in 0..tokenizer.n_vocab() as TokenId {
        let bytes = tokenizer.token_bytes(id);
        let is_number = bytes.len() <= 2 && bytes.iter().all(u8::is_ascii_digit);
        let is_begun = ["<think>", "<th0"]
            .iter()
            .any(|text| text.as_bytes().starts_with(bytes));
        let expected = !bytes.is_empty() && (is_number || is_begun);
        assert_eq!(
            allowed.allows(id),
            expected && !tokenizer.is_eog(id),
            "{bytes:?}"
        );
    }
    let accepts = |texts: &[&str]| -> Option<Progress> {
        let mut constraint = first.clone();
        let mut progress = Progress::Open;
        for id in texts.iter().flat_map(|text| ids(text)) {
            let may_come = mask(&tokenizer, &mut constraint).allows(id);
            let accepted = constraint.accept(id);
            assert_eq!(accepted.is_ok(), may_come, "{texts:?}");
            progress = accepted.ok()?;
        }
        Some(progress)
    };
    let pieces = ["<", "t", "h", "i", "n", "k", ">"];
    for open in [&["<think>"][..], &pieces] {
        assert_eq!(
            accepts(&[open, &["x", "1", "<", "</think>", "1"]].concat()),
            Some(Progress::Open)
        );
        assert_eq!(
            accepts(&[open, &["</think>", "1", "2"]].concat()),
            Some(Progress::Complete)
        );
        assert_eq!(accepts(&[open, &["</think>", "x"]].concat()), None);
    }
    assert_eq!(accepts(&["1", "2"]), Some(Progress::Complete));
    assert_eq!(accepts(&["1", "<think>"]), None);
    // A text that begins as the mark does.
    assert_eq!(accepts(&["<", "t", "h", "1"]), Some(Progress::Complete));
    assert_eq!(accepts(&["<", "t", "x"]), None);
}
