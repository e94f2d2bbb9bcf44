//! Special tokens: which ids begin and end text, which end generation, and where
//! their texts stand in a prompt.
//!
//! Files name few of them, so that others are known by their texts, as in
//! llama.cpp `llama_vocab::impl::load`. Where that marks a token as user-defined
//! only to have it shown (those of gpt-oss), it stays a control token here:
//! shown, but never made from the text of a user.

use aho_corasick::{AhoCorasick, Input, MatchKind};
use rocmforge_gguf::{Metadata, Value};

use super::vocab::{TokenKind, Vocab, limit};
use super::{TokenId, TokenizerError};

/// Released vocabularies have up to 1 MB of special tokens' text.
const MAX_SPECIAL_BYTES: usize = 4 << 20;

/// A role that a special token can have.
struct Role {
    /// Keys that may hold its id.
    keys: &'static [&'static str],
    /// Texts by which it is known if no key does, the likeliest first.
    texts: &'static [&'static str],
    ends_generation: bool,
}

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

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
    // Filling in the middle: prefix, suffix, middle, padding, repository, file.
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

/// Texts that end generation in any vocabulary that has them.
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

/// Control tokens that carry an answer's structure and are shown (gpt-oss).
const SHOWN_TEXTS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The ids with a role.
pub(super) struct SpecialIds {
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) eot: Option<TokenId>,
    pub(super) unknown: Option<TokenId>,
    /// Tokens that end generation, ascending.
    pub(super) ends: Vec<TokenId>,
    /// Control tokens that are shown all the same.
    pub(super) shown: Vec<TokenId>,
}

impl SpecialIds {
    /// Reads the roles and makes tokens known by their text control tokens.
    ///
    /// `defaults` are the ids of bos, eos and unknown where no key gives them.
    pub(super) fn from_metadata(
        metadata: &Metadata,
        vocab: &mut Vocab,
        defaults: [Option<TokenId>; 3],
    ) -> Result<Self, TokenizerError> {
        let n_vocab = vocab.len();
        let in_vocab = |id: Option<TokenId>| id.filter(|&id| (id as usize) < n_vocab);
        let mut ids = SpecialIds {
            bos: id(metadata, BOS, n_vocab)?.or(in_vocab(defaults[0])),
            eos: id(metadata, EOS, n_vocab)?.or(in_vocab(defaults[1])),
            eot: None,
            unknown: id(metadata, UNKNOWN, n_vocab)?.or(in_vocab(defaults[2])),
            ends: Vec::new(),
            shown: Vec::new(),
        };
        for (n, role) in ROLES.iter().enumerate() {
            let mut found = None;
            for key in role.keys {
                found = found.or(id(metadata, key, n_vocab)?);
            }
            let found = found.or_else(|| role.texts.iter().find_map(|text| control(vocab, text)));
            if n == 0 {
                ids.eot = found;
            }
            if role.ends_generation {
                ids.ends.extend(found);
            }
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

    /// Families where a text of [`END_TEXTS`] ends something smaller.
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

/// The id at `key`; -1 in 32 bits means none.
fn id(
    metadata: &Metadata,
    key: &'static str,
    n_vocab: usize,
) -> Result<Option<TokenId>, TokenizerError> {
    let Some(id) = metadata.get(key).as_ref().and_then(Value::as_int) else {
        // Absent, or the getter's error for a value that is no integer.
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

/// The token with this text, made a control token.
fn control(vocab: &mut Vocab, text: &str) -> Option<TokenId> {
    let id = vocab.id(text.as_bytes())?;
    vocab.kinds[id as usize] = TokenKind::Control;
    Some(id)
}

/// A special token in the text of a prompt.
pub(super) struct Found {
    /// The token.
    pub(super) id: TokenId,
    /// Where the text before it ends.
    pub(super) before: usize,
    /// Where the text after it begins.
    pub(super) after: usize,
}

/// Finds the texts of special tokens.
pub(super) struct SpecialTexts {
    /// User-defined tokens first, then control and unknown tokens.
    tokens: Vec<SpecialText>,
    /// Finds the user-defined ones by their place in `tokens`.
    user_defined: Option<AhoCorasick>,
    /// Finds all.
    all: Option<AhoCorasick>,
}

struct SpecialText {
    id: TokenId,
    /// White space before or after belongs to the token.
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
        })
    }

    /// The first special token in `text` from `start` on, the longest of several
    /// that begin at one place.
    pub(super) fn find(&self, text: &[u8], start: usize, control: bool) -> Option<Found> {
        let finder = if control {
            &self.all
        } else {
            &self.user_defined
        };
        let found = finder.as_ref()?.find(Input::new(text).range(start..))?;
        let token = &self.tokens[found.pattern().as_usize()];
        let (mut before, mut after) = (found.start(), found.end());
        while token.strip_left && before > start && is_space(text[before - 1]) {
            before -= 1;
        }
        while token.strip_right && text.get(after).copied().is_some_and(is_space) {
            after += 1;
        }
        Some(Found {
            id: token.id,
            before,
            after,
        })
    }
}

/// Which tokens take in white space. Files do not say; llama.cpp knows it by
/// the names of models.
enum Strip {
    Nothing,
    /// Phi-3: the right of all special tokens but these.
    RightExcept(&'static [&'static str]),
    /// Masks: the left of this one.
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

fn finder(texts: &[(TokenId, &[u8])]) -> Option<AhoCorasick> {
    if texts.is_empty() {
        return None;
    }
    let texts = texts.iter().map(|&(_, text)| text);
    let finder = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(texts);
    Some(finder.expect("MAX_SPECIAL_BYTES states fit the automaton's 31 bits"))
}

/// White space as C's `isspace` has it.
fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t'..=b'\r')
}
