//! SentencePiece's normalization (`tokenizer.ggml.precompiled_charsmap`): which bytes replace which.
//!
//! The rules are a double array whose entries are 32 bits wide (base in bits 10 to 30, shifted by 8 more if bit 9 is
//! set; bit 8 says that a rule ends here; bits 0 to 7 are the byte that leads here), then the replacements, each ended by
//! a zero byte. Formats: SentencePiece `normalizer.cc`, darts-clone, llama.cpp `xcda_array_view`.

use rocmforge_gguf::{Metadata, Value};

use super::error::TokenizerError;
use super::vocab::limit;

const KEY: &str = "tokenizer.ggml.precompiled_charsmap";

/// Released ones have up to 320 KB.
const MAX_BYTES: usize = 1 << 24;
/// NFKC needs 33 bytes (U+FDFA).
const MAX_REPLACEMENT_BYTES: usize = 64;
/// NFKC's longest sequence has 12 bytes.
const MAX_RULE_BYTES: usize = 64;

/// The rules; none if the file has none.
#[derive(Default)]
pub(super) struct Charsmap {
    nodes: Vec<u32>,
    /// Each ends with a zero byte.
    replacements: Vec<u8>,
}

impl Charsmap {
    pub(super) fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let bytes = match metadata.get(KEY) {
            None => return Ok(Charsmap::default()),
            Some(value) => bytes(&value)?,
        };
        if bytes.is_empty() {
            return Ok(Charsmap::default());
        }
        let split = || {
            let (len, rest) = bytes.split_first_chunk::<4>()?;
            let len = u32::from_le_bytes(*len) as usize;
            rest.split_at_checked(len).filter(|(nodes, replacements)| {
                nodes.len().is_multiple_of(4) && replacements.last() == Some(&0)
            })
        };
        let (nodes, replacements) = split().ok_or(TokenizerError::BadCharsmap)?;
        let longest = replacements.split(|&b| b == 0).map(<[u8]>::len).max();
        limit(
            "the longest replacement of tokenizer.ggml.precompiled_charsmap",
            longest.unwrap_or(0),
            MAX_REPLACEMENT_BYTES,
        )?;
        Ok(Charsmap {
            nodes: nodes
                .as_chunks()
                .0
                .iter()
                .map(|&node| u32::from_le_bytes(node))
                .collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// Returns the length of the longest rule that `text` begins with, and its replacement.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let node = |index: u32| self.nodes.get(index as usize).copied();
        let base = |node: u32| (node >> 10) << ((node & 1 << 9) >> 6);
        let mut index = base(node(0)?);
        let mut longest = None;
        for (at, &b) in text.iter().enumerate().take(MAX_RULE_BYTES) {
            index ^= u32::from(b);
            let Some(here) = node(index).filter(|&node| node & (1 << 31 | 0xFF) == u32::from(b))
            else {
                break;
            };
            if b == 0 {
                break;
            }
            index ^= base(here);
            if here >> 8 & 1 == 1
                && let Some(value) = node(index)
            {
                longest = Some((at + 1, value & !(1 << 31)));
            }
        }
        let (len, start) = longest?;
        let replacement = self.replacements.get(start as usize..)?;
        let end = replacement.iter().position(|&b| b == 0)?;
        Some((len, &replacement[..end]))
    }
}

/// Returns the bytes of an array of 8-bit integers.
fn bytes(value: &Value<'_>) -> Result<Vec<u8>, TokenizerError> {
    let Value::Array(array) = value else {
        return Err(TokenizerError::BadCharsmap);
    };
    let byte = |value: Value<'_>| match value {
        Value::U8(byte) => Some(byte),
        Value::I8(byte) => Some(byte as u8),
        _ => None,
    };
    limit(KEY, array.len(), MAX_BYTES)?;
    let bytes: Option<Vec<u8>> = array.iter().map(byte).collect();
    bytes.ok_or(TokenizerError::BadCharsmap)
}
