//! WordPiece vocabularies (`bert`): words are cut at white space, punctuation and Chinese characters, then each into the
//! longest tokens from left to right; a word that cannot be cut so is one unknown token.
//!
//! Texts in the file begin with `▁` where a word begins. Method: `BertNormalizer` and `BertPreTokenizer` of Hugging Face
//! tokenizers, llama.cpp `llm_tokenizer_wpm_session`. Where the two differ, the former counts, with which the models
//! were trained: Hangul is decomposed, of the marks only those without width are removed, and so are form feeds, which
//! separate no words. As in llama.cpp, words have no greatest length.

use rocmforge_gguf::{Metadata, TokenId};
use unicode_normalization::UnicodeNormalization as _;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory as _};

use super::error::TokenizerError;
use super::prefixes::Prefixes;
use super::vocab::Vocab;

pub(super) const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

pub(super) struct WordPiece {
    prefixes: Prefixes,
    unknown: Option<TokenId>,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPiece {
    pub(super) fn new(
        metadata: &Metadata,
        vocab: &Vocab,
        unknown: Option<TokenId>,
    ) -> Result<Self, TokenizerError> {
        let lowercase = metadata.opt_bool(LOWERCASE)?.unwrap_or(true);
        Ok(WordPiece {
            prefixes: Prefixes::new(vocab.iter().filter(|&(id, _)| vocab.is_plain(id)))?,
            unknown,
            lowercase,
            strip_accents: metadata.opt_bool(STRIP_ACCENTS)?.unwrap_or(lowercase),
        })
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<TokenId>) {
        let mut words = Words {
            pieces: self,
            word: String::new(),
            ids,
        };
        let kept = text.chars().filter(|&c| !is_removed(c));
        match self.strip_accents {
            true => kept
                .nfd()
                .filter(|c| c.general_category() != GeneralCategory::NonspacingMark)
                .for_each(|c| words.add(c)),
            false => kept.for_each(|c| words.add(c)),
        }
        words.end_word();
    }
}

/// The word being read, and the tokens of those before it.
struct Words<'a> {
    pieces: &'a WordPiece,
    /// Empty, or begins with `▁`.
    word: String,
    ids: &'a mut Vec<TokenId>,
}

impl Words<'_> {
    fn add(&mut self, c: char) {
        if c.is_whitespace() {
            return self.end_word();
        }
        let is_word = is_punctuation(c) || is_chinese(c);
        if is_word {
            self.end_word();
        }
        if self.word.is_empty() {
            self.word.push('▁');
        }
        match self.pieces.lowercase {
            true => self.word.extend(c.to_lowercase()),
            false => self.word.push(c),
        }
        if is_word {
            self.end_word();
        }
    }

    fn end_word(&mut self) {
        let begin = self.ids.len();
        let mut rest = self.word.as_bytes();
        while !rest.is_empty() {
            let Some((len, id)) = self.pieces.prefixes.longest(rest) else {
                self.ids.truncate(begin);
                self.ids.extend(self.pieces.unknown);
                break;
            };
            self.ids.push(id);
            rest = &rest[len..];
        }
        self.word.clear();
    }
}

/// Returns whether a character is dropped: U+FFFD, and control characters except a tab and the ends of lines.
fn is_removed(c: char) -> bool {
    let category = match c {
        '\t' | '\n' | '\r' => return false,
        '\u{FFFD}' => return true,
        c => c.general_category(),
    };
    matches!(
        category,
        GeneralCategory::Control | GeneralCategory::Format | GeneralCategory::PrivateUse
    )
}

/// Returns whether a character is a word of its own: punctuation, or a symbol of ASCII.
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
        || (!c.is_ascii() && c.general_category_group() == GeneralCategoryGroup::Punctuation)
}

/// Returns whether `BertNormalizer` puts spaces around a character.
fn is_chinese(c: char) -> bool {
    matches!(
        u32::from(c),
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x2_0000..=0x2_A6DF
            | 0x2_A700..=0x2_B73F
            | 0x2_B740..=0x2_B81F
            | 0x2_B920..=0x2_CEAF
            | 0xF900..=0xFAFF
            | 0x2_F800..=0x2_FA1F
    )
}
