//! Finds the token sequences that contain a text. A text may lie inside a token, or begin in one token and end in
//! others. The method is llama.cpp's (`get_overlapping_token_sequences`).

use std::collections::HashMap;

use super::{EncodeOptions, TokenId, Tokenizer};

/// Tokens after the first one of a sequence, at most.
const MAX_TAIL_TOKENS: usize = 20;

impl Tokenizer {
    /// Returns every token that contains one of `texts`, or begins one at its end. Each token maps to the tokens
    /// that have to follow; an empty sequence means that the token holds the whole text.
    pub fn overlapping_sequences(&self, texts: &[String]) -> HashMap<TokenId, Vec<Vec<TokenId>>> {
        let mut sequences: HashMap<TokenId, Vec<Vec<TokenId>>> = HashMap::new();
        let mut add = |id: TokenId, tail: Vec<TokenId>| {
            let tails = sequences.entry(id).or_default();
            if !tails.contains(&tail) {
                tails.push(tail);
            }
        };
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        for text in texts.iter().map(String::as_bytes).filter(|t| !t.is_empty()) {
            let mut rest_tokens: Vec<Vec<TokenId>> = (1..text.len())
                .map(|at| self.encode_bytes(&text[at..], options))
                .collect();
            for tail in &mut rest_tokens {
                tail.truncate(MAX_TAIL_TOKENS);
            }
            for id in 0..self.n_vocab() as TokenId {
                let word = self.token_bytes(id);
                if word.windows(text.len()).any(|part| part == text) {
                    add(id, Vec::new());
                    continue;
                }
                for at in 0..word.len() {
                    let end = &word[at..];
                    if end.len() < text.len() && text.starts_with(end) {
                        add(id, rest_tokens[end.len() - 1].clone());
                    }
                }
            }
        }
        sequences
    }
}
