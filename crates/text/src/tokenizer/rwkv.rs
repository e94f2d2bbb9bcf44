//! RWKV's vocabulary (`rwkv`): the longest token at each place, from left to right.
//!
//! Token texts are written with escapes (`\n`, `\x80`), since many are parts of characters. Method: llama.cpp
//! `llm_tokenizer_rwkv_session`.

use rocmforge_gguf::TokenId;

use super::error::TokenizerError;
use super::prefixes::Prefixes;
use super::vocab::Vocab;

pub(super) struct Rwkv {
    prefixes: Prefixes,
    unknown: Option<TokenId>,
}

impl Rwkv {
    pub(super) fn new(vocab: &Vocab, unknown: Option<TokenId>) -> Result<Self, TokenizerError> {
        let unescaped: Vec<_> = vocab
            .iter()
            .filter(|&(id, _)| vocab.is_plain(id))
            .map(|(id, text)| {
                let mut bytes = Vec::with_capacity(text.len());
                unescape(text, &mut bytes);
                (id, bytes)
            })
            .collect();
        let tokens = unescaped.iter().map(|(id, bytes)| (*id, &bytes[..]));
        Ok(Rwkv {
            prefixes: Prefixes::new(tokens)?,
            unknown,
        })
    }

    /// Returns the bytes of valid UTF-8 that may have no token; encoding drops them if there is no unknown token.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        (0..=0xF4u8)
            .filter(|b| self.unknown.is_none() && !matches!(b, 0xC0 | 0xC1))
            .filter(|&b| self.prefixes.longest(&[b]).is_none())
            .collect()
    }

    /// Appends the tokens of `text`.
    pub(super) fn encode(&self, text: &[u8], ids: &mut Vec<TokenId>) {
        let mut rest = text;
        while !rest.is_empty() {
            let len = match self.prefixes.longest(rest) {
                Some((len, id)) => {
                    ids.push(id);
                    len
                }
                None => {
                    ids.extend(self.unknown);
                    1
                }
            };
            rest = &rest[len..];
        }
    }
}

/// Appends the bytes that a text with escapes stands for. An incomplete `\xHH` gives nothing.
pub(super) fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut bytes = text.iter().copied();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        match bytes.next() {
            Some(b't') => out.push(b'\t'),
            Some(b'n') => out.push(b'\n'),
            Some(b'r') => out.push(b'\r'),
            Some(b'x') => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                if let (Some(high), Some(low)) = (digit(), digit()) {
                    out.push((high << 4 | low) as u8);
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unescapes_as_python_wrote_it() {
        // Python's repr of bytes, without b and quotes.
        for (text, expected) in [
            (r"\n\n", &b"\n\n"[..]),
            (r"\xe4\xbd\xa0", "你".as_bytes()),
            (r"\\t\t", b"\\t\t"),
            (r"it\'s", b"it's"),
            (r"\x00\r", b"\0\r"),
            (r"\xff\xfe", b"\xff\xfe"),
            (r"\x4", b""),
            ("\\", b""),
        ] {
            let mut bytes = Vec::new();
            unescape(text.as_bytes(), &mut bytes);
            assert_eq!(bytes, expected, "{text}");
        }
    }
}
