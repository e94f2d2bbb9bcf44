//! Tokenizers from the vocabulary in a GGUF file: text to ids and back.
//!
//! [`Tokenizer::encode`] finds special tokens ([`special`]) and gives the text
//! between them to one of two methods that share a merge loop ([`merge`]):
//! SentencePiece ([`spm`]), or byte-pair encoding ([`bpe`]) over the pieces that
//! a pre-tokenizer cuts ([`pretokenize`], [`pre_table`]). [`Detokenizer`] turns
//! generated ids into a stream of text.
//!
//! Any text and any file cost near-linear time and memory; nothing here panics
//! on either. The reference is llama.cpp's `llama-vocab.cpp`.

mod bpe;
mod detokenize;
mod error;
mod hash;
mod merge;
mod overlaps;
mod pre_table;
mod pretokenize;
mod special;
mod spm;
mod vocab;

use std::borrow::Cow;

use rocmforge_gguf::{Gguf, Metadata};

pub use detokenize::{Detokenizer, LeadingSpace, SpecialText};
pub use error::TokenizerError;
pub use rocmforge_gguf::TokenId;
pub use vocab::TokenKind;

use bpe::Bpe;
use detokenize::{Spelling, pieces};
use merge::Merger;
use pre_table::Alphabet;
use special::{SpecialIds, SpecialTexts};
use spm::Spm;
use vocab::{Texts, Vocab};

/// What [`Tokenizer::encode`] makes of special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the start and end tokens around the text that the file asks for. One
    /// that the text has already is not doubled.
    pub add_special: bool,
    /// Take the texts of control tokens in `text` as those tokens. Only for text
    /// of our own making, such as a rendered chat template.
    pub parse_special: bool,
}

/// A vocabulary and the way to use it. Immutable and shared between threads.
pub struct Tokenizer {
    vocab: Vocab,
    pieces: Texts,
    method: Method,
    pre: &'static str,
    ids: SpecialIds,
    special_texts: SpecialTexts,
    add_bos: bool,
    add_eos: bool,
    add_space_prefix: bool,
    notices: Vec<String>,
}

enum Method {
    Spm(Box<Spm>),
    Bpe(Box<Bpe>),
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata describes; the file may hold a
    /// vocabulary only.
    ///
    /// `pre` replaces the name of the pre-tokenizer in the file.
    ///
    /// # Errors
    /// Names the key, token or merge that is missing, damaged or not supported.
    pub fn from_gguf(gguf: &Gguf, pre: Option<&str>) -> Result<Self, TokenizerError> {
        let metadata = gguf.metadata();
        match metadata.str("tokenizer.ggml.model")? {
            "llama" => match pre {
                Some(name) => Err(TokenizerError::PreNotUsed {
                    name: name.into(),
                    model: "llama",
                }),
                None => Self::spm(metadata),
            },
            "gpt2" => Self::bpe(metadata, pre.or(metadata.opt_str("tokenizer.ggml.pre")?)),
            "gemma4" => Self::bpe(metadata, pre.or(Some(pre_table::GEMMA4))),
            "none" | "no_vocab" => Err(TokenizerError::NoVocab),
            model => Err(TokenizerError::UnknownModel {
                model: model.into(),
            }),
        }
    }

    fn spm(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut vocab = Vocab::from_metadata(metadata)?;
        let unknown = (vocab.kind(0) == Some(TokenKind::Unknown)).then_some(0);
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, [Some(1), Some(2), unknown])?;
        let spm = Spm::new(metadata, &vocab, ids.unknown)?;
        let mut tokenizer = Self::assemble(
            metadata,
            vocab,
            ids,
            Method::Spm(Box::new(spm)),
            Spelling::Blocks,
        )?;
        tokenizer.add_bos = metadata.opt_bool(ADD_BOS)?.unwrap_or(true);
        tokenizer.add_space_prefix = metadata
            .opt_bool("tokenizer.ggml.add_space_prefix")?
            .unwrap_or(true);
        Ok(tokenizer.checked())
    }

    fn bpe(metadata: &Metadata, pre: Option<&str>) -> Result<Self, TokenizerError> {
        let name = pre.unwrap_or(pre_table::DEFAULT);
        let row = pre_table::find(name)
            .ok_or_else(|| TokenizerError::UnknownPre { name: name.into() })?;
        let mut vocab = Vocab::from_metadata(metadata)?;
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, [None; 3])?;
        let bpe = Bpe::new(metadata, &vocab, ids.unknown, row)?;
        let missing = bpe.missing_bytes();
        let spelling = match row.alphabet {
            Alphabet::Bytes => Spelling::Gpt2,
            Alphabet::Chars => Spelling::Blocks,
        };
        let mut tokenizer =
            Self::assemble(metadata, vocab, ids, Method::Bpe(Box::new(bpe)), spelling)?;
        tokenizer.pre = row
            .names
            .iter()
            .find(|n| **n == name)
            .expect("found by this name");
        // Early files of Gemma 4 say false, which the model was not trained with.
        let forced = row.names.contains(&pre_table::GEMMA4);
        tokenizer.add_bos = forced || metadata.opt_bool(ADD_BOS)?.unwrap_or(row.add_bos);
        if pre.is_none() {
            tokenizer.notices.push(
                "the file names no pre-tokenizer (tokenizer.ggml.pre); using the default, which may cut words wrongly: choose the right one with --pre NAME"
                    .into(),
            );
        }
        if !missing.is_empty() {
            tokenizer.notices.push(format!(
                "the vocabulary has no token for {} byte values; text with these bytes loses them",
                missing.len()
            ));
        }
        Ok(tokenizer.checked())
    }

    fn assemble(
        metadata: &Metadata,
        vocab: Vocab,
        ids: SpecialIds,
        method: Method,
        spelling: Spelling,
    ) -> Result<Self, TokenizerError> {
        Ok(Tokenizer {
            pieces: pieces(&vocab, spelling)?,
            special_texts: SpecialTexts::new(metadata, &vocab)?,
            vocab,
            method,
            pre: pre_table::DEFAULT,
            ids,
            add_bos: false,
            add_eos: metadata
                .opt_bool("tokenizer.ggml.add_eos_token")?
                .unwrap_or(false),
            add_space_prefix: false,
            notices: Vec::new(),
        })
    }

    /// Drops wishes of the file that it gives no token for.
    fn checked(mut self) -> Self {
        for (add, id, name) in [
            (&mut self.add_bos, self.ids.bos, "start"),
            (&mut self.add_eos, self.ids.eos, "end"),
        ] {
            if *add && id.is_none() {
                *add = false;
                self.notices.push(format!(
                    "the file asks for a {name} token and names none; none is added"
                ));
            }
        }
        self
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<TokenId> {
        self.encode_bytes(text.as_bytes(), options)
    }

    /// As [`Tokenizer::encode`] for text that may not be UTF-8. SentencePiece
    /// vocabularies spell any byte; for the others each byte that is not part of
    /// a character becomes U+FFFD.
    pub fn encode_bytes(&self, text: &[u8], options: EncodeOptions) -> Vec<TokenId> {
        // English text has about 4 bytes a token.
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut merger = Merger::default();
        let mut after_special = true;
        let mut pos = 0;
        while let Some(found) = self.special_texts.find(text, pos, options.parse_special) {
            if found.before > pos {
                self.encode_plain(
                    &text[pos..found.before],
                    after_special,
                    &mut merger,
                    &mut ids,
                );
            }
            ids.push(found.id);
            after_special = true;
            pos = found.after;
        }
        if pos < text.len() {
            self.encode_plain(&text[pos..], after_special, &mut merger, &mut ids);
        }
        if options.add_special {
            self.add_special(&mut ids);
        }
        ids
    }

    fn encode_plain(
        &self,
        text: &[u8],
        after_special: bool,
        merger: &mut Merger,
        ids: &mut Vec<TokenId>,
    ) {
        match &self.method {
            Method::Spm(spm) => {
                let space_first = self.add_space_prefix && after_special;
                spm.encode(&self.vocab, text, space_first, merger, ids);
            }
            Method::Bpe(bpe) => bpe.encode(&self.vocab, &replace_invalid(text), merger, ids),
        }
    }

    fn add_special(&self, ids: &mut Vec<TokenId>) {
        if let Some(bos) = self.ids.bos.filter(|_| self.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        if let Some(eos) = self.ids.eos.filter(|_| self.add_eos)
            && ids.last() != Some(&eos)
        {
            ids.push(eos);
        }
    }

    /// The text of `ids` as a whole. Bytes that form no character become U+FFFD.
    pub fn decode(
        &self,
        ids: &[TokenId],
        special: SpecialText,
        leading_space: LeadingSpace,
    ) -> String {
        let mut stream = Detokenizer::new(special, leading_space);
        let mut text = String::with_capacity(4 * ids.len());
        for &id in ids {
            text.push_str(&stream.push(self, id));
        }
        text.push_str(&stream.finish());
        text
    }

    /// The bytes that a token stands for, its text for special tokens. Empty for
    /// unused tokens and ids outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.pieces.get(id as usize)
    }

    /// A token's text as the file spells it, made printable where it is not UTF-8.
    pub fn token_text(&self, id: TokenId) -> Cow<'_, str> {
        String::from_utf8_lossy(self.vocab.text(id))
    }

    /// The token whose text in the file is exactly `text`.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.vocab.id(text.as_bytes())
    }

    /// What a token is for; `None` outside the vocabulary.
    pub fn token_kind(&self, id: TokenId) -> Option<TokenKind> {
        self.vocab.kind(id)
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// The start token.
    pub fn bos(&self) -> Option<TokenId> {
        self.ids.bos
    }

    /// The end token.
    pub fn eos(&self) -> Option<TokenId> {
        self.ids.eos
    }

    /// The end-of-turn token.
    pub fn eot(&self) -> Option<TokenId> {
        self.ids.eot
    }

    /// The token for what the vocabulary cannot spell.
    pub fn unknown(&self) -> Option<TokenId> {
        self.ids.unknown
    }

    /// Whether encoding adds the start token where asked to add special tokens.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether encoding adds the end token where asked to add special tokens.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether encoding puts a space before the first word.
    pub fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Whether a token ends generation.
    pub fn is_eog(&self, id: TokenId) -> bool {
        self.ids.ends.binary_search(&id).is_ok()
    }

    /// The tokens that end generation, ascending.
    pub fn eog_ids(&self) -> &[TokenId] {
        &self.ids.ends
    }

    /// Whether a token marks structure.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.vocab.kind(id) == Some(TokenKind::Control)
    }

    /// Whether [`SpecialText::Hide`] leaves a token out.
    fn is_hidden(&self, id: TokenId) -> bool {
        let kind = self.vocab.kind(id);
        matches!(kind, Some(TokenKind::Control | TokenKind::Unknown))
            && !self.ids.shown.contains(&id)
    }

    /// `SPM` or `BPE`.
    pub fn kind_name(&self) -> &'static str {
        match self.method {
            Method::Spm(_) => "SPM",
            Method::Bpe(_) => "BPE",
        }
    }

    /// The pre-tokenizer in use, `default` for SentencePiece.
    pub fn pre_name(&self) -> &'static str {
        self.pre
    }

    /// The names that `--pre` takes.
    pub fn pre_names() -> impl Iterator<Item = &'static str> {
        pre_table::names()
    }

    /// What the user should know about this vocabulary, one sentence each.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// The tokens `<0x00>` to `<0xFF>`, or those whose text is the byte itself.
fn byte_fallback(vocab: &Vocab) -> [Option<TokenId>; 256] {
    std::array::from_fn(|b| {
        let named = vocab.id(format!("<0x{b:02X}>").as_bytes());
        named.or_else(|| vocab.id(&[b as u8]))
    })
}

/// `text` with U+FFFD for each byte that is not part of a character, as
/// llama.cpp `unicode_cpts_from_utf8` counts them.
fn replace_invalid(text: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(out)
}
