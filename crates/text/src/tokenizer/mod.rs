//! Tokenizers from the vocabulary of a GGUF file: text to ids and back.
//!
//! [`Tokenizer::encode`] finds special tokens (`special`) and passes the text between them to a method. Two share a merge
//! loop (`merge`): SentencePiece (`spm`), and byte-pair encoding (`bpe`) of the pieces that a pre-tokenizer cuts
//! (`pretokenize`, `pre_table`). Four look for the tokens that begin at a place (`prefixes`): WordPiece (`word_piece`),
//! unigram (`unigram`), RWKV's (`rwkv`) and PLaMo's (`plamo`). [`Detokenizer`] turns generated ids into a stream of text.
//!
//! Time and memory are nearly linear for any text and any file, and nothing here panics on either. The reference is
//! llama.cpp's `llama-vocab.cpp`.

mod bpe;
mod charsmap;
mod detokenize;
mod edges;
mod error;
mod hash;
mod longest;
mod merge;
mod overlaps;
mod plamo;
mod pre_table;
mod prefixes;
mod pretokenize;
mod rwkv;
mod special;
mod spm;
mod unigram;
mod vocab;
mod word_piece;

use std::borrow::Cow;

use rocmforge_gguf::{Gguf, Metadata};

pub(crate) use edges::Edges;

pub use detokenize::{Detokenizer, LeadingSpace, SpecialText};
pub use error::TokenizerError;
pub use rocmforge_gguf::TokenId;
pub use vocab::TokenKind;

use bpe::Bpe;
use detokenize::{Spelling, pieces};
use merge::Merger;
use plamo::Plamo;
use pre_table::Alphabet;
use rwkv::Rwkv;
pub use special::GapMarks;
use special::{DefaultIds, Recognize, SpecialIds, SpecialTexts};
use spm::Spm;
use unigram::Unigram;
use vocab::{MODELS, Texts, Vocab};
use word_piece::WordPiece;

/// How [`Tokenizer::encode`] treats special tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add the start and end tokens that the file asks for. A token that the text already has is not doubled.
    pub add_special: bool,
    /// Parse the texts of control tokens as those tokens. Only for trusted text. A rendered chat template contains
    /// text of others: see [`crate::chat_template::Rendered::encode`].
    pub parse_special: bool,
}

/// A vocabulary and its encoding method. Immutable and shared between threads.
pub struct Tokenizer {
    vocab: Vocab,
    pieces: Texts,
    method: Method,
    pre: &'static str,
    ids: SpecialIds,
    special_texts: SpecialTexts,
    add_bos: bool,
    add_eos: bool,
    pair: PairMarks,
    add_space_prefix: bool,
    notices: Vec<String>,
}

/// What ends the texts of a pair.
#[derive(Clone, Copy)]
struct PairMarks {
    /// The end token follows each text.
    end: bool,
    /// The separator stands between them.
    separator: bool,
}

enum Method {
    Spm(Box<Spm>),
    Bpe(Box<Bpe>),
    WordPiece(Box<WordPiece>),
    Unigram(Box<Unigram>),
    Rwkv(Box<Rwkv>),
    Plamo(Box<Plamo>),
}

impl Tokenizer {
    /// Creates the tokenizer that the metadata describes. The file need not contain a model.
    ///
    /// `pre` replaces the name of the pre-tokenizer in the file.
    ///
    /// # Errors
    /// The error names the key, token or merge that is missing, damaged or not supported.
    pub fn from_gguf(gguf: &Gguf, pre: Option<&str>) -> Result<Self, TokenizerError> {
        let metadata = gguf.metadata();
        let model = metadata.str("tokenizer.ggml.model")?;
        let without_pre = MODELS.into_iter().find(|&name| name == model);
        if let (Some(name), Some(model @ ("llama" | "bert" | "t5" | "rwkv" | "plamo2"))) =
            (pre, without_pre)
        {
            return Err(TokenizerError::PreNotUsed {
                name: name.into(),
                model,
            });
        }
        match model {
            "llama" => Self::spm(metadata),
            "gpt2" => Self::bpe(metadata, pre.or(metadata.opt_str("tokenizer.ggml.pre")?)),
            "gemma4" => Self::bpe(metadata, pre.or(Some(pre_table::GEMMA4))),
            "whitespace" => Self::bpe(metadata, pre.or(Some(pre_table::WHITESPACE))),
            "bert" => Self::word_piece(metadata),
            "t5" => Self::unigram(metadata),
            "rwkv" => Self::rwkv(metadata),
            "plamo2" => Self::plamo(metadata),
            "none" | "no_vocab" => Err(TokenizerError::NoVocab),
            model => Err(TokenizerError::UnknownModel {
                model: model.into(),
            }),
        }
    }

    fn spm(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut vocab = Vocab::from_metadata(metadata)?;
        let defaults = DefaultIds {
            bos: Some(1),
            eos: Some(2),
            unknown: (vocab.kind(0) == Some(TokenKind::Unknown)).then_some(0),
            separator: None,
        };
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, defaults)?;
        let spm = Spm::new(metadata, &vocab, ids.unknown)?;
        let mut tokenizer = Self::assemble(
            metadata,
            vocab,
            ids,
            Method::Spm(Box::new(spm)),
            Spelling::Blocks,
        )?;
        tokenizer.add_bos = metadata.opt_bool(ADD_BOS)?.unwrap_or(true);
        tokenizer.add_space_prefix = metadata.opt_bool(ADD_SPACE_PREFIX)?.unwrap_or(true);
        Ok(tokenizer.checked())
    }

    fn bpe(metadata: &Metadata, pre: Option<&str>) -> Result<Self, TokenizerError> {
        let name = pre.unwrap_or(pre_table::DEFAULT);
        let row = pre_table::find(name)
            .ok_or_else(|| TokenizerError::UnknownPre { name: name.into() })?;
        let mut vocab = Vocab::from_metadata(metadata)?;
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, DefaultIds::default())?;
        let bpe = Bpe::new(metadata, &vocab, ids.unknown, row)?;
        let missing = match row.alphabet {
            Alphabet::Plain => Vec::new(),
            _ => bpe.missing_bytes(),
        };
        let spelling = match row.alphabet {
            Alphabet::Bytes => Spelling::Gpt2,
            Alphabet::Chars => Spelling::Blocks,
            Alphabet::Plain => Spelling::Plain,
        };
        let mut tokenizer =
            Self::assemble(metadata, vocab, ids, Method::Bpe(Box::new(bpe)), spelling)?;
        tokenizer.pre = row
            .names
            .iter()
            .find(|n| **n == name)
            .expect("found by this name");
        // As in llama.cpp.
        let separated = ["jina-v1-en", "jina-v2-code", "roberta-bpe"].contains(&name);
        tokenizer.pair.separator = metadata.opt_bool(ADD_SEPARATOR)?.unwrap_or(separated);
        // Early files of Gemma 4 say false, unlike the model's training.
        let forced = row.names.contains(&pre_table::GEMMA4);
        tokenizer.add_bos = forced || metadata.opt_bool(ADD_BOS)?.unwrap_or(row.add_bos);
        if pre.is_none() {
            tokenizer.notices.push(
                "the file names no pre-tokenizer (tokenizer.ggml.pre); the default one may cut words wrongly, so choose the right one"
                    .into(),
            );
        }
        tokenizer.note_missing(&missing);
        Ok(tokenizer.checked())
    }

    fn word_piece(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut vocab = Vocab::from_metadata(metadata)?;
        let defaults = DefaultIds {
            bos: Some(101),
            eos: None,
            unknown: Some(100),
            separator: Some(102),
        };
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, defaults)?;
        let pieces = WordPiece::new(metadata, &vocab, ids.unknown)?;
        let method = Method::WordPiece(Box::new(pieces));
        let mut tokenizer = Self::assemble(metadata, vocab, ids, method, Spelling::Blocks)?;
        // Whatever the file says, as in llama.cpp.
        tokenizer.add_bos = true;
        tokenizer.add_eos = true;
        tokenizer.pair.separator = metadata.opt_bool(ADD_SEPARATOR)?.unwrap_or(true);
        // Every word begins with one.
        tokenizer.add_space_prefix = true;
        Ok(tokenizer.checked())
    }

    fn unigram(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut vocab = Vocab::from_metadata(metadata)?;
        let defaults = DefaultIds {
            bos: None,
            eos: Some(1),
            unknown: Some(2),
            separator: None,
        };
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, defaults)?;
        let add_space_prefix = metadata.opt_bool(ADD_SPACE_PREFIX)?.unwrap_or(false);
        let unigram = Unigram::new(metadata, &vocab, ids.unknown, add_space_prefix)?;
        let method = Method::Unigram(Box::new(unigram));
        let mut tokenizer = Self::assemble(metadata, vocab, ids, method, Spelling::Blocks)?;
        tokenizer.add_bos = metadata.opt_bool(ADD_BOS)?.unwrap_or(false);
        tokenizer.add_eos = metadata.opt_bool(ADD_EOS)?.unwrap_or(true);
        tokenizer.pair.end = tokenizer.add_eos;
        tokenizer.add_space_prefix = add_space_prefix;
        Ok(tokenizer.checked())
    }

    fn rwkv(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut vocab = Vocab::from_metadata(metadata)?;
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, DefaultIds::default())?;
        let rwkv = Rwkv::new(&vocab, ids.unknown)?;
        let missing = rwkv.missing_bytes();
        let method = Method::Rwkv(Box::new(rwkv));
        let mut tokenizer = Self::assemble(metadata, vocab, ids, method, Spelling::Escaped)?;
        tokenizer.add_eos = false;
        tokenizer.note_missing(&missing);
        Ok(tokenizer)
    }

    fn plamo(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let mut vocab = Vocab::from_metadata(metadata)?;
        let defaults = DefaultIds {
            bos: Some(1),
            eos: Some(2),
            unknown: Some(0),
            separator: None,
        };
        let ids = SpecialIds::from_metadata(metadata, &mut vocab, defaults)?;
        let plamo = Plamo::new(metadata, &vocab)?;
        let method = Method::Plamo(Box::new(plamo));
        let mut tokenizer = Self::assemble(metadata, vocab, ids, method, Spelling::Plain)?;
        tokenizer.add_bos = metadata.opt_bool(ADD_BOS)?.unwrap_or(false);
        Ok(tokenizer.checked())
    }

    fn note_missing(&mut self, missing: &[u8]) {
        if !missing.is_empty() {
            self.notices.push(format!(
                "the vocabulary has no token for {} byte values, which are dropped from text",
                missing.len()
            ));
        }
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
            add_eos: metadata.opt_bool(ADD_EOS)?.unwrap_or(false),
            pair: PairMarks {
                end: metadata.opt_bool(ADD_EOS)?.unwrap_or(false),
                separator: metadata.opt_bool(ADD_SEPARATOR)?.unwrap_or(false),
            },
            add_space_prefix: false,
            notices: Vec::new(),
        })
    }

    /// Turns off start and end tokens that the file asks for but does not define.
    fn checked(mut self) -> Self {
        let end = self.end();
        for (add, id, name) in [
            (&mut self.add_bos, self.ids.bos, "start"),
            (&mut self.add_eos, end, "end"),
        ] {
            if *add && id.is_none() {
                *add = false;
                self.notices.push(format!(
                    "the file asks for a {name} token but does not define one; none is added"
                ));
            }
        }
        self
    }

    /// Returns the ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<TokenId> {
        self.encode_bytes(text.as_bytes(), options)
    }

    /// As [`Tokenizer::encode`] for text that may not be UTF-8. SentencePiece vocabularies can spell any byte; for
    /// others, each byte that is not part of a character becomes U+FFFD.
    pub fn encode_bytes(&self, text: &[u8], options: EncodeOptions) -> Vec<TokenId> {
        let recognize = match options.parse_special {
            true => Recognize::AllBut(&[]),
            false => Recognize::UserDefined,
        };
        let mut ids = self.encode_recognizing(text, recognize);
        if options.add_special {
            self.add_special(&mut ids);
        }
        ids
    }

    /// Returns the ids of two texts, such as a query and a document, with the tokens that the file puts before, between
    /// and after them. Control tokens in the texts are not parsed.
    pub fn encode_pair(&self, first: &str, second: &str) -> Vec<TokenId> {
        let end = self.ids.eos.or(self.ids.separator);
        let end = end.filter(|_| self.pair.end);
        let plain = |text: &str| self.encode(text, EncodeOptions::default());
        let start = self.ids.bos.filter(|_| self.add_bos);
        let separator = self.ids.separator.filter(|_| self.pair.separator);
        let mut ids: Vec<TokenId> = start.into_iter().collect();
        ids.extend(plain(first));
        ids.extend(end);
        ids.extend(separator);
        ids.extend(plain(second));
        ids.extend(end);
        ids
    }

    /// Returns the ids of `text` with control tokens parsed, except those whose first or last character begins at one
    /// of the `foreign` positions, which ascend. Nothing else depends on these positions.
    pub(crate) fn encode_mixed(&self, text: &str, foreign: &[usize]) -> Vec<TokenId> {
        self.encode_recognizing(text.as_bytes(), Recognize::AllBut(foreign))
    }

    fn encode_recognizing(&self, text: &[u8], recognize: Recognize<'_>) -> Vec<TokenId> {
        // English text has about 4 bytes per token.
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut merger = Merger::default();
        let mut after_special = true;
        let mut pos = 0;
        let mut special = self.special_texts.search(text, recognize);
        while let Some(found) = special.next(pos) {
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
            Method::WordPiece(pieces) => pieces.encode(&replace_invalid(text), ids),
            Method::Unigram(unigram) => unigram.encode(&replace_invalid(text), ids),
            Method::Rwkv(rwkv) => rwkv.encode(text, ids),
            Method::Plamo(plamo) => plamo.encode(&self.vocab, &replace_invalid(text), ids),
        }
    }

    fn add_special(&self, ids: &mut Vec<TokenId>) {
        if let Some(bos) = self.ids.bos.filter(|_| self.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        if let Some(end) = self.end().filter(|_| self.add_eos)
            && ids.last() != Some(&end)
        {
            ids.push(end);
        }
    }

    /// Returns the token that encoding adds at the end, if it adds one.
    fn end(&self) -> Option<TokenId> {
        match self.method {
            Method::WordPiece(_) => self.ids.separator,
            _ => self.ids.eos,
        }
    }

    /// Returns the text of `ids`. Bytes that form no character become U+FFFD.
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

    /// Returns the bytes of a token; for special tokens these are their text. Empty for unused tokens and ids outside
    /// the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.pieces.get(id as usize)
    }

    /// Returns a token's text as the file spells it, with invalid UTF-8 replaced.
    pub fn token_text(&self, id: TokenId) -> Cow<'_, str> {
        String::from_utf8_lossy(self.vocab.text(id))
    }

    /// Returns the token whose text in the file is exactly `text`.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.vocab.id(text.as_bytes())
    }

    /// Returns the kind of a token; `None` outside the vocabulary.
    pub fn token_kind(&self, id: TokenId) -> Option<TokenKind> {
        self.vocab.kind(id)
    }

    /// Returns the number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// Returns the start token.
    pub fn bos(&self) -> Option<TokenId> {
        self.ids.bos
    }

    /// Returns the end token.
    pub fn eos(&self) -> Option<TokenId> {
        self.ids.eos
    }

    /// Returns the end-of-turn token.
    pub fn eot(&self) -> Option<TokenId> {
        self.ids.eot
    }

    /// Returns the token between two texts of one input.
    pub fn separator(&self) -> Option<TokenId> {
        self.ids.separator
    }

    /// Returns the token for text that the vocabulary cannot spell.
    pub fn unknown(&self) -> Option<TokenId> {
        self.ids.unknown
    }

    /// Returns the tokens that mark a gap to fill; `None` if the vocabulary lacks one that is needed.
    pub fn gap_marks(&self) -> Option<&GapMarks> {
        self.ids.gap.as_ref()
    }

    /// Returns whether encoding with `add_special` adds the start token.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Returns whether encoding adds a space before the first word.
    pub fn adds_space_prefix(&self) -> bool {
        self.add_space_prefix
    }

    /// Returns whether a token ends generation.
    pub fn is_eog(&self, id: TokenId) -> bool {
        self.ids.ends.binary_search(&id).is_ok()
    }

    /// Returns the tokens that end generation, in ascending order.
    pub fn eog_ids(&self) -> &[TokenId] {
        &self.ids.ends
    }

    /// Returns whether a token is a control token, which marks structure.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.vocab.kind(id) == Some(TokenKind::Control)
    }

    /// Returns the texts of control tokens.
    pub(crate) fn control_edges(&self) -> &Edges {
        &self.special_texts.edges
    }

    /// Returns whether [`SpecialText::Hide`] drops a token.
    fn is_hidden(&self, id: TokenId) -> bool {
        let kind = self.vocab.kind(id);
        matches!(kind, Some(TokenKind::Control | TokenKind::Unknown))
            && !self.ids.shown.contains(&id)
    }

    /// Returns whether a word that is one of `.,?!` is shown without the space before it.
    fn joins_punctuation(&self) -> bool {
        matches!(self.method, Method::WordPiece(_))
    }

    /// Returns `SPM`, `BPE`, `WPM` (WordPiece), `UGM` (unigram), `RWKV` or `PLaMo2`, llama.cpp's names.
    pub fn kind_name(&self) -> &'static str {
        match self.method {
            Method::Spm(_) => "SPM",
            Method::Bpe(_) => "BPE",
            Method::WordPiece(_) => "WPM",
            Method::Unigram(_) => "UGM",
            Method::Rwkv(_) => "RWKV",
            Method::Plamo(_) => "PLaMo2",
        }
    }

    /// Returns the name of the pre-tokenizer in use, `default` for vocabularies that use none.
    pub fn pre_name(&self) -> &'static str {
        self.pre
    }

    /// Returns the names of all pre-tokenizers.
    pub fn pre_names() -> impl Iterator<Item = &'static str> {
        pre_table::names()
    }

    /// Returns what the user should know about this vocabulary, one sentence each.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
const ADD_SEPARATOR: &str = "tokenizer.ggml.add_sep_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// Returns the tokens `<0x00>` to `<0xFF>`, or those whose text is the byte itself.
fn byte_fallback(vocab: &Vocab) -> [Option<TokenId>; 256] {
    std::array::from_fn(|b| {
        let named = vocab.id(format!("<0x{b:02X}>").as_bytes());
        named.or_else(|| vocab.id(&[b as u8]))
    })
}

/// Replaces each byte that is not part of a character by U+FFFD, counted as llama.cpp `unicode_cpts_from_utf8` does.
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
