//! Masks: control tokens, end tokens, and each bit against an attempt to take the token.

use rocmforge_grammar::{Grammar, Source};
use rocmforge_plan::{Constraint, Progress};
use rocmforge_testkit::schemas::schemas;
use rocmforge_text::tokenizer::TokenKind;

use crate::common::{Mask, Model, Random};
use crate::json::compile;

fn is_text(model: &Model, id: u32) -> bool {
    let kind = model.tokenizer.token_kind(id);
    let of_text = [TokenKind::Normal, TokenKind::UserDefined, TokenKind::Byte];
    of_text.map(Some).contains(&kind) && !model.tokenizer.is_eog(id)
}

/// `.*` allows every character, so every token whose bytes are characters.
#[test]
fn control_tokens_are_never_text() {
    for model in [Some(Model::forge_mini()), Model::released("llama-bpe")] {
        let Some(model) = model else { return };
        let grammar = model.compile(&Source::Regex("(?s:.*)".into()));
        let mask = model.mask(&mut grammar.start());
        let tokenizer = &model.tokenizer;
        let (mut n_control, mut n_text) = (0, 0);
        for id in 0..tokenizer.n_vocab() as u32 {
            if tokenizer.is_eog(id) {
                assert!(mask.allows(id), "{id}");
            } else if !is_text(&model, id) {
                assert!(!mask.allows(id), "{id} {:?}", tokenizer.token_text(id));
                n_control += 1;
            } else if std::str::from_utf8(tokenizer.token_bytes(id)).is_ok() {
                assert!(mask.allows(id), "{id} {:?}", tokenizer.token_text(id));
                n_text += 1;
            }
        }
        assert!(n_control > 0 && n_text > 200, "{n_control} {n_text}");
        // Nor if a grammar spells the text of one.
        let control = (0..tokenizer.n_vocab() as u32).find(|&id| tokenizer.is_control(id));
        let text = tokenizer.token_text(control.unwrap()).into_owned();
        let grammar = model.compile(&Source::Choice(vec![text.clone()]));
        let mask = model.mask(&mut grammar.start());
        assert!(mask.ids().iter().all(|&id| is_text(&model, id)), "{text}");
        // Nor if it names them by number or name.
        let all = format!("start: <[0-{}]> \"x\"", tokenizer.n_vocab() - 1);
        for source in [all, "start: <[*]> \"x\"".into()] {
            let grammar = model.compile(&Source::Lark(source));
            let allowed = model.mask(&mut grammar.start()).ids();
            assert!(allowed.iter().all(|&id| is_text(&model, id)));
        }
        let named = Source::Lark(format!("start: {text} \"x\""));
        assert!(
            Grammar::compile(&model.vocabulary, &named).is_err(),
            "{text}"
        );
        let numbered = Source::Lark(format!("start: <[{}]> \"x\"", control.unwrap()));
        if let Ok(grammar) = Grammar::compile(&model.vocabulary, &numbered) {
            let mut words = vec![0; tokenizer.n_vocab().div_ceil(32)];
            assert!(grammar.start().mask(&mut words).is_err());
        }
    }
}

#[test]
fn the_end_comes_exactly_after_complete_texts() {
    let model = Model::forge_mini();
    let grammar = model.compile(&Source::Regex("a(bc)*".into()));
    let mut state = grammar.start();
    let ends = |state: &mut rocmforge_grammar::State| {
        let mask = model.mask(state);
        let ends = model.tokenizer.eog_ids();
        assert!(!ends.is_empty());
        let n_allowed = ends.iter().filter(|&&id| mask.allows(id)).count();
        assert!(n_allowed == 0 || n_allowed == ends.len());
        n_allowed > 0
    };
    assert!(!ends(&mut state));
    for (text, is_complete) in [("a", true), ("b", false), ("c", true), ("b", false)] {
        for id in model.encode(text) {
            assert_eq!(state.accept(id).unwrap(), Progress::Open);
        }
        assert_eq!(ends(&mut state), is_complete);
        assert_eq!(state.is_accepting().unwrap(), is_complete);
    }
    // Not here, and what comes after an error is an error.
    let end = model.tokenizer.eog_ids()[0];
    assert!(state.clone().accept(end).is_err());
    let mut failed = state.clone();
    assert!(failed.accept(model.encode("z")[0]).is_err());
    assert!(failed.accept(model.encode("c")[0]).is_err());
    assert!(failed.mask(&mut [0; 100]).is_err());
    // The failure of a clone is its own.
    assert_eq!(state.accept(model.encode("c")[0]).unwrap(), Progress::Open);
    assert_eq!(state.accept(end).unwrap(), Progress::Complete);
}

#[test]
fn a_text_that_cannot_go_on_is_complete() {
    let model = Model::forge_mini();
    let grammar = model.compile(&Source::Choice(vec!["no".into(), "nobody".into()]));
    let mut state = grammar.start();
    let mut progress = Vec::new();
    for c in ["n", "o", "b", "o", "d", "y"] {
        progress.push(state.accept(model.encode(c)[0]).unwrap());
    }
    assert_eq!(progress[..5], [Progress::Open; 5]);
    assert_eq!(progress[5], Progress::Complete);
}

/// A bit is set exactly if a copy of the state takes the token.
#[test]
fn masks_have_the_tokens_that_can_be_taken() {
    let model = Model::forge_mini();
    let mut random = Random(5);
    let n_vocab = model.tokenizer.n_vocab();
    for (schema, values) in schemas() {
        let grammar = compile(&model, &schema);
        let mut state = grammar.start();
        for id in model.encode(&values[0].to_string()) {
            let mask = model.mask(&mut state);
            let allowed = mask.ids();
            let tried = (0..8).map(|_| random.below(n_vocab) as u32);
            let tried: Vec<u32> = tried.chain(allowed.iter().copied().take(8)).collect();
            for other in tried {
                let taken = state.clone().accept(other).is_ok();
                assert_eq!(taken, mask.allows(other), "{schema} {other}");
            }
            state.accept(id).unwrap();
        }
    }
}

/// Masks of any length are filled.
#[test]
fn masks_beyond_the_vocabulary_are_empty() {
    let model = Model::forge_mini();
    let grammar = model.compile(&Source::JsonObject);
    let n_words = model.tokenizer.n_vocab().div_ceil(32);
    let mut long = vec![u32::MAX; n_words + 9];
    let mut state: Box<dyn Constraint> = Box::new(grammar.start());
    state.mask(&mut long).unwrap();
    assert!(long[n_words..].iter().all(|&word| word == 0));
    assert_eq!(
        Mask(long[..n_words].to_vec()).ids(),
        model.mask(&mut grammar.start()).ids()
    );
}
