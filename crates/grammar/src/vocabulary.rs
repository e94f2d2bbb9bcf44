//! The bytes of a model's tokens, as a trie.

use std::sync::Arc;

use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};
use llguidance::{ParserFactory, panic_utils};
use rocmforge_gguf::TokenId;
use rocmforge_text::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

use crate::error::{GrammarError, told};
use crate::limits::{self, MAX_FORCED_BYTES, MAX_TOKEN_BYTES};

/// The tokens of a model, prepared for grammars. Takes about a second for 128,000 tokens; do it once for each model and
/// share it.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    /// The tokens that are text, bit `id % 32` of word `id / 32`.
    pub(crate) text: Vec<u32>,
    /// The tokens that end the generation.
    pub(crate) ends: Vec<TokenId>,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

impl Vocabulary {
    /// Prepares the tokens of `tokenizer`.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if there are too many bytes.
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Result<Arc<Vocabulary>, GrammarError> {
        let n_vocab = tokenizer.n_vocab();
        let mut text = vec![0; n_vocab.div_ceil(32)];
        let mut words = Vec::with_capacity(n_vocab);
        for id in 0..n_vocab as TokenId {
            let bytes = match tokenizer.token_kind(id) {
                Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte)
                    if !tokenizer.is_eog(id) =>
                {
                    tokenizer.token_bytes(id)
                }
                _ => &[],
            };
            let is_text = (1..=MAX_TOKEN_BYTES).contains(&bytes.len());
            text[id as usize / 32] |= u32::from(is_text) << (id % 32);
            // llguidance skips tokens without bytes.
            words.push(if is_text { bytes.to_vec() } else { Vec::new() });
        }
        let ends = tokenizer.eog_ids().to_vec();
        let prepared = panic_utils::catch_unwind(|| {
            let first_end = ends.first().copied().unwrap_or(INVALID_TOKEN);
            let trie = TokTrie::from(&TokRxInfo::new(n_vocab as u32, first_end), &words);
            let trie = match ends.is_empty() {
                true => trie,
                false => trie.with_eos_tokens(&ends),
            };
            // Tokens that it forces would be those of a greedy tokenizer, so it forces none.
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = llguidance::earley::SlicedBiasComputer::json_slices();
            let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)?;
            factory.quiet();
            *factory.limits_mut() = limits::parser();
            Ok(factory)
        });
        let factory = prepared.map_err(|error| GrammarError::Vocabulary {
            message: told(&error),
        })?;
        Ok(Arc::new(Vocabulary {
            factory,
            text,
            ends,
            tokenizer: Arc::clone(tokenizer),
        }))
    }

    /// Returns the tokens of a text within another one, of its beginning if it is long. The last one is left out, as it may
    /// go on after the text; without others, or where the text does not begin with a whole character, there are none.
    pub(crate) fn tokens_within(&self, text: &[u8]) -> Vec<TokenId> {
        // What comes first in a text may be written in another way.
        const BEFORE: &str = "\n";
        let text = &text[..text.len().min(MAX_FORCED_BYTES)];
        let text = text.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let ids = self
            .tokenizer
            .encode(&format!("{BEFORE}{text}"), EncodeOptions::default());
        let bytes = |ids: &[TokenId]| -> Vec<u8> {
            let bytes = ids.iter().flat_map(|&id| self.tokenizer.token_bytes(id));
            bytes.copied().collect()
        };
        let is_text = |at: &usize| bytes(&ids[*at..]) == text.as_bytes();
        // A grammar takes no other tokens.
        let is_allowed = |id: &TokenId| self.text[*id as usize / 32] >> (id % 32) & 1 == 1;
        match (1..ids.len()).find(is_text) {
            Some(first) if ids[first..].iter().all(is_allowed) => {
                ids[first..ids.len() - 1].to_vec()
            }
            _ => Vec::new(),
        }
    }
}
