//! The texts of control tokens, for prompts in which a template's text and foreign text are mixed.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use aho_corasick::AhoCorasick;

/// More occurrences than this need a hostile vocabulary.
const MAX_OCCURRENCES: usize = 1 << 20;

/// Control tokens by their first and last characters. Tokens that are not UTF-8 are left out.
pub(crate) struct Edges {
    /// In ascending order.
    texts: Vec<String>,
    /// The bytes of each text from last to first, in ascending order.
    reversed: Vec<Vec<u8>>,
    chars: BTreeSet<char>,
    finder: OnceLock<AhoCorasick>,
}

impl Edges {
    pub(super) fn new<'t>(texts: impl Iterator<Item = &'t [u8]>) -> Self {
        let mut texts: Vec<String> = texts
            .filter_map(|text| std::str::from_utf8(text).ok())
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .collect();
        texts.sort_unstable();
        let mut reversed: Vec<Vec<u8>> = texts
            .iter()
            .map(|text| text.bytes().rev().collect())
            .collect();
        reversed.sort_unstable();
        let edges = |text: &String| [text.chars().next(), text.chars().next_back()];
        Edges {
            chars: texts.iter().flat_map(edges).flatten().collect(),
            texts,
            reversed,
            finder: OnceLock::new(),
        }
    }

    /// Returns whether a control token begins or ends with `c`.
    pub(crate) fn contains(&self, c: char) -> bool {
        self.chars.contains(&c)
    }

    /// Returns whether a control token can begin where `text` begins, whatever follows.
    pub(crate) fn can_begin(&self, text: &[u8]) -> bool {
        agrees(&self.texts, text)
    }

    /// Returns whether a control token can end where `text` ends, whatever precedes.
    pub(crate) fn can_end(&self, text: &[u8]) -> bool {
        let reversed: Vec<u8> = text.iter().rev().copied().collect();
        agrees(&self.reversed, &reversed)
    }

    /// Calls `found` with start and text of each control token in `text`, also of those that overlap. Returns `false`
    /// if it stopped because there are too many.
    pub(crate) fn each_in(&self, text: &str, mut found: impl FnMut(usize, &str)) -> bool {
        let finder = self.finder.get_or_init(|| {
            AhoCorasick::new(&self.texts).expect("the vocabulary's limit fits the automaton")
        });
        for (n, m) in finder.find_overlapping_iter(text).enumerate() {
            if n == MAX_OCCURRENCES {
                return false;
            }
            found(m.start(), &text[m.range()]);
        }
        true
    }
}

/// Returns whether one of `sorted` begins with `text`, or `text` with one of them.
fn agrees<T: AsRef<[u8]>>(sorted: &[T], text: &[u8]) -> bool {
    let at = sorted.partition_point(|other| other.as_ref() < text);
    let is_longer = sorted
        .get(at)
        .is_some_and(|other| other.as_ref().starts_with(text));
    let has = |part: &[u8]| {
        sorted
            .binary_search_by(|other| other.as_ref().cmp(part))
            .is_ok()
    };
    is_longer || (1..text.len()).any(|len| has(&text[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_where_a_control_token_can_begin_and_end() {
        let edges = Edges::new([&b"<|a|>"[..], b"[INST]", b"<s>", b"\xff>"].into_iter());
        assert!(edges.contains('<') && edges.contains(']') && !edges.contains('|'));
        for (text, begins, ends) in [
            ("<", true, false),
            ("<|a|> and more", true, false),
            ("<|b", false, false),
            ("</s>", false, false),
            ("|>", false, true),
            ("x<s>", false, true),
            ("[INST]", true, true),
            ("ST]", false, true),
            ("</think>", false, false),
        ] {
            assert_eq!(edges.can_begin(text.as_bytes()), begins, "{text}");
            assert_eq!(edges.can_end(text.as_bytes()), ends, "{text}");
        }
        let mut found = Vec::new();
        assert!(edges.each_in("é<s><|a|>", |at, text| found.push((at, text.to_owned()))));
        assert_eq!(found, [(2, "<s>".to_owned()), (5, "<|a|>".to_owned())]);
    }
}
