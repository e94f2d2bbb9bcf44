//! Special tokens: which ids begin and end text, which end generation, and where their texts occur in a prompt.
//!
//! Files name only a few of them, so others are recognized by their texts, as in llama.cpp `llama_vocab::impl::load`.
//! llama.cpp marks some tokens (those of gpt-oss) as user-defined only so that they are shown. Here they stay control
//! tokens: shown, but never parsed from user text.

use rocmforge_gguf::{Metadata, Value};

use super::edges::Edges;
use super::longest::{LongestFinder, LongestMatches, Match};
use super::vocab::{TokenKind, Vocab, limit};
use super::{TokenId, TokenizerError};

/// Released vocabularies have up to 1 MB of special token text.
const MAX_SPECIAL_BYTES: usize = 4 << 20;

/// A role that a special token can have.
struct Role {
    /// Metadata keys that may hold its id.
    keys: &'static [&'static str],
    /// Texts that identify it if no key does, the most likely first.
    texts: &'static [&'static str],
    ends_generation: bool,
}

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// Spelt so in files.
const SEPARATOR: &str = "tokenizer.ggml.seperator_token_id";

const ROLES: &[Role] = &[
    // End of turn.
    Role {
        keys: &["tokenizer.ggml.eot_token_id"],
        texts: &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
        ends_generation: true,
    },
    // End of message.
    Role {
        keys: &["tokenizer.ggml.eom_token_id"],
        texts: &["<|eom_id|>"],
        ends_generation: true,
    },
    // Fill-in-the-middle: prefix, suffix, middle, padding, repository, file.
    Role {
        keys: &[
            "tokenizer.ggml.fim_pre_token_id",
            "tokenizer.ggml.prefix_token_id",
        ],
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends_generation: false,
    },
    Role {
        keys: &[
            "tokenizer.ggml.fim_suf_token_id",
            "tokenizer.ggml.suffix_token_id",
        ],
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends_generation: false,
    },
    Role {
        keys: &[
            "tokenizer.ggml.fim_mid_token_id",
            "tokenizer.ggml.middle_token_id",
        ],
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends_generation: false,
    },
    Role {
        keys: &["tokenizer.ggml.fim_pad_token_id"],
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends_generation: true,
    },
    Role {
        keys: &["tokenizer.ggml.fim_rep_token_id"],
        texts: &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
        ends_generation: true,
    },
    Role {
        keys: &["tokenizer.ggml.fim_sep_token_id"],
        texts: &["<|file_sep|>"],
        ends_generation: true,
    },
];

/// Texts of tokens that end generation in every vocabulary.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Control tokens that structure an answer and are shown (gpt-oss).
const SHOWN_TEXTS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The ids that a kind of vocabulary has unless a file says otherwise.
#[derive(Default)]
pub(super) struct DefaultIds {
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) unknown: Option<TokenId>,
    pub(super) separator: Option<TokenId>,
}

/// The tokens that mark a gap to fill (fill-in-the-middle).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapMarks {
    /// Before the text before the gap.
    pub prefix: TokenId,
    /// Before the text after it.
    pub suffix: TokenId,
    /// Before the text in it.
    pub middle: TokenId,
    /// Before the name of a project.
    pub repository: Option<TokenId>,
    /// Before the name of a file.
    pub file: Option<TokenId>,
}

/// The ids of tokens with a role.
pub(super) struct SpecialIds {
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) eot: Option<TokenId>,
    pub(super) unknown: Option<TokenId>,
    pub(super) separator: Option<TokenId>,
    /// The marks of a gap, if there are all that a prompt needs.
    pub(super) gap: Option<GapMarks>,
    /// Tokens that end generation, in ascending order.
    pub(super) ends: Vec<TokenId>,
    /// Control tokens that are shown nevertheless.
    pub(super) shown: Vec<TokenId>,
}

impl SpecialIds {
    /// Reads the roles, and makes tokens that are recognized by text control tokens.
    ///
    /// `defaults` are used where no key gives an id.
    pub(super) fn from_metadata(
        metadata: &Metadata,
        vocab: &mut Vocab,
        defaults: DefaultIds,
    ) -> Result<Self, TokenizerError> {
        let n_vocab = vocab.len();
        let in_vocab = |id: Option<TokenId>| id.filter(|&id| (id as usize) < n_vocab);
        let mut ids = SpecialIds {
            bos: id(metadata, BOS, n_vocab)?.or(in_vocab(defaults.bos)),
            eos: id(metadata, EOS, n_vocab)?.or(in_vocab(defaults.eos)),
            eot: None,
            gap: None,
            unknown: id(metadata, UNKNOWN, n_vocab)?.or(in_vocab(defaults.unknown)),
            separator: id(metadata, SEPARATOR, n_vocab)?.or(in_vocab(defaults.separator)),
            ends: Vec::new(),
            shown: Vec::new(),
        };
        let mut by_role = Vec::with_capacity(ROLES.len());
        for role in ROLES {
            let mut found = None;
            for key in role.keys {
                found = found.or(id(metadata, key, n_vocab)?);
            }
            let found = found.or_else(|| role.texts.iter().find_map(|text| control(vocab, text)));
            if role.ends_generation {
                ids.ends.extend(found);
            }
            by_role.push(found);
        }
        let [eot, _, prefix, suffix, middle, _, repository, file] = by_role[..] else {
            unreachable!("these are the roles");
        };
        ids.eot = eot;
        if let (Some(prefix), Some(suffix), Some(middle)) = (prefix, suffix, middle) {
            ids.gap = Some(GapMarks {
                prefix,
                suffix,
                middle,
                repository,
                file,
            });
        }
        ids.ends
            .extend(END_TEXTS.iter().filter_map(|text| control(vocab, text)));
        ids.ends.extend(ids.eos);
        ids.shown
            .extend(SHOWN_TEXTS.iter().filter_map(|text| control(vocab, text)));
        ids.apply_exceptions(vocab);
        ids.ends.sort_unstable();
        ids.ends.dedup();
        Ok(ids)
    }

    /// Handles families in which a text of [`END_TEXTS`] does not end the answer.
    fn apply_exceptions(&mut self, vocab: &mut Vocab) {
        let has = |text: &str| {
            vocab
                .id(text.as_bytes())
                .filter(|id| self.ends.contains(id))
        };
        // gpt-oss and solar-open: <|end|> ends one message of several.
        let ends_calls = has("<|return|>").or(has("<|flush|>")).is_some()
            && has("<|call|>").or(has("<|calls|>")).is_some();
        let inner = has("<|end|>").filter(|_| ends_calls);
        // gemma4 and plamo: </s> is ordinary text.
        let ordinary_s = has("<|tool_response>").or(has("<|plamo:eos|>")).is_some();
        let ordinary = has("</s>").filter(|_| ordinary_s);
        self.ends
            .retain(|&id| Some(id) != inner && Some(id) != ordinary);
        self.shown.extend(inner);
        if let Some(id) = ordinary {
            vocab.kinds[id as usize] = TokenKind::Normal;
        }
    }
}

/// Returns the id at `key`; a 32-bit -1 means none.
fn id(
    metadata: &Metadata,
    key: &'static str,
    n_vocab: usize,
) -> Result<Option<TokenId>, TokenizerError> {
    let Some(id) = metadata.get(key).as_ref().and_then(Value::as_int) else {
        // The key is absent, or its value is not an integer and the getter's error says so.
        return Ok(metadata.opt_u32(key)?);
    };
    if id == -1 || id == i128::from(u32::MAX) {
        return Ok(None);
    }
    match TokenId::try_from(id) {
        Ok(id) if (id as usize) < n_vocab => Ok(Some(id)),
        _ => Err(TokenizerError::BadSpecialId { key, id, n_vocab }),
    }
}

/// Returns the token with this text, after making it a control token.
fn control(vocab: &mut Vocab, text: &str) -> Option<TokenId> {
    let id = vocab.id(text.as_bytes())?;
    vocab.kinds[id as usize] = TokenKind::Control;
    Some(id)
}

/// An occurrence of a special token in a prompt.
pub(super) struct Found {
    /// The token.
    pub(super) id: TokenId,
    /// End of the text before it.
    pub(super) before: usize,
    /// Start of the text after it.
    pub(super) after: usize,
}

/// Searches for the texts of special tokens.
pub(super) struct SpecialTexts {
    /// User-defined tokens first, then control and unknown tokens.
    tokens: Vec<SpecialText>,
    /// Finds user-defined tokens; patterns are indices of `tokens`.
    user_defined: Option<LongestFinder>,
    /// Finds all tokens.
    all: Option<LongestFinder>,
    n_user_defined: usize,
    pub(super) edges: Edges,
}

/// Which special tokens are recognized.
#[derive(Clone, Copy)]
pub(super) enum Recognize<'f> {
    /// User-defined tokens.
    UserDefined,
    /// Also control and unknown tokens, except those whose first or last character begins at one of these positions,
    /// which ascend.
    AllBut(&'f [usize]),
}

struct SpecialText {
    id: TokenId,
    /// Whether white space before (or after) the token belongs to it.
    strip_left: bool,
    strip_right: bool,
}

impl SpecialTexts {
    pub(super) fn new(metadata: &Metadata, vocab: &Vocab) -> Result<Self, TokenizerError> {
        let mut texts: Vec<_> = vocab
            .iter()
            .filter(|&(id, _)| is_special(vocab.kind(id)))
            .collect();
        texts.sort_by_key(|&(id, _)| vocab.kind(id) != Some(TokenKind::UserDefined));
        let n_user_defined =
            texts.partition_point(|&(id, _)| vocab.kind(id) == Some(TokenKind::UserDefined));
        let total = texts.iter().map(|(_, text)| text.len()).sum();
        limit("the text of special tokens", total, MAX_SPECIAL_BYTES)?;
        let strip = Strip::of(metadata)?;
        let tokens = texts
            .iter()
            .map(|&(id, text)| strip.apply(id, text))
            .collect();
        Ok(SpecialTexts {
            tokens,
            user_defined: finder(&texts[..n_user_defined]),
            all: finder(&texts),
            n_user_defined,
            edges: Edges::new(texts[n_user_defined..].iter().map(|&(_, text)| text)),
        })
    }

    /// Searches `text`.
    pub(super) fn search<'a>(&'a self, text: &'a [u8], recognize: Recognize<'a>) -> Search<'a> {
        let matches = |finder: &'a Option<LongestFinder>| finder.as_ref().map(|f| f.matches(text));
        let (found, user_defined, foreign) = match recognize {
            Recognize::UserDefined => (matches(&self.user_defined), None, &[][..]),
            Recognize::AllBut(foreign) => {
                (matches(&self.all), matches(&self.user_defined), foreign)
            }
        };
        Search {
            texts: self,
            text,
            matches: found,
            foreign,
            user_defined,
            next_user_defined: None,
        }
    }
}

/// A search through one text.
pub(super) struct Search<'a> {
    texts: &'a SpecialTexts,
    text: &'a [u8],
    matches: Option<LongestMatches<'a>>,
    /// Where no control token begins or ends.
    foreign: &'a [usize],
    user_defined: Option<LongestMatches<'a>>,
    /// The next match of `user_defined`.
    next_user_defined: Option<Match>,
}

impl Search<'_> {
    /// Returns the first special token from `start` on; the longest one of several at the same place. `start` must not
    /// decrease from call to call.
    pub(super) fn next(&mut self, start: usize) -> Option<Found> {
        let found = self.next_match(start)?;
        let token = &self.texts.tokens[found.pattern];
        let (mut before, mut after) = (found.start, found.end);
        while token.strip_left && before > start && is_space(self.text[before - 1]) {
            before -= 1;
        }
        while token.strip_right && self.text.get(after).copied().is_some_and(is_space) {
            after += 1;
        }
        Some(Found {
            id: token.id,
            before,
            after,
        })
    }

    fn next_match(&mut self, mut start: usize) -> Option<Match> {
        loop {
            let found = self.matches.as_mut()?.next(start)?;
            let is_control = found.pattern >= self.texts.n_user_defined;
            if !is_control || is_of_template(self.text, found, self.foreign) {
                return Some(found);
            }
            // A user-defined token may begin at the same place.
            let shorter = self.user_defined_at(found.start);
            if shorter.is_some() {
                return shorter;
            }
            start = found.start + 1;
        }
    }

    /// Returns the longest user-defined token that begins at `start`, which must not decrease from call to call.
    fn user_defined_at(&mut self, start: usize) -> Option<Match> {
        if self.next_user_defined.is_none_or(|next| next.start < start) {
            self.next_user_defined = self.user_defined.as_mut()?.next(start);
        }
        self.next_user_defined.filter(|next| next.start == start)
    }
}

/// Returns whether first and last character of a token do not begin at one of the `foreign` positions.
fn is_of_template(text: &[u8], found: Match, foreign: &[usize]) -> bool {
    if foreign.is_empty() {
        return true;
    }
    let Ok(token) = std::str::from_utf8(&text[found.start..found.end]) else {
        return false;
    };
    let last = token.char_indices().next_back().map_or(0, |(at, _)| at);
    let is_foreign = |at: usize| foreign.binary_search(&at).is_ok();
    !is_foreign(found.start) && !is_foreign(found.start + last)
}

/// Which tokens include surrounding white space. Files do not say; llama.cpp decides by model name.
enum Strip {
    Nothing,
    /// Phi-3: white space after all special tokens but these.
    RightExcept(&'static [&'static str]),
    /// Mask tokens: white space before this one.
    Left(&'static str),
}

impl Strip {
    fn of(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let text = |key| {
            metadata
                .opt_str(key)
                .map(|s| s.unwrap_or_default().to_lowercase())
        };
        let name = text("general.name")?;
        let architecture = text("general.architecture")?;
        let pre = text("tokenizer.ggml.pre")?;
        let is_any = |of: &str, parts: &[&str]| parts.iter().any(|part| of.contains(part));
        Ok(
            if is_any(&pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
                || is_any(&architecture, &["nomic-bert-moe", "jina-bert-v3"])
            {
                Strip::Left("<mask>")
            } else if is_any(&name, &["phi-3", "phi3"]) {
                Strip::RightExcept(&["<unk>", "<s>", "<|endoftext|>"])
            } else if name.contains("modern-bert") {
                Strip::Left("[MASK]")
            } else {
                Strip::Nothing
            },
        )
    }

    fn apply(&self, id: TokenId, text: &[u8]) -> SpecialText {
        let (strip_left, strip_right) = match self {
            Strip::Nothing => (false, false),
            Strip::RightExcept(not) => (false, !not.iter().any(|t| t.as_bytes() == text)),
            Strip::Left(only) => (only.as_bytes() == text, false),
        };
        SpecialText {
            id,
            strip_left,
            strip_right,
        }
    }
}

fn is_special(kind: Option<TokenKind>) -> bool {
    matches!(
        kind,
        Some(TokenKind::UserDefined | TokenKind::Control | TokenKind::Unknown)
    )
}

fn finder(texts: &[(TokenId, &[u8])]) -> Option<LongestFinder> {
    LongestFinder::new(texts.iter().map(|&(_, text)| text))
}

/// Returns whether C's `isspace` holds.
fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t'..=b'\r')
}
