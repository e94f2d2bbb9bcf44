//! The merge loop of SentencePiece and byte-pair encoding. It joins the best pair of neighbouring symbols that form a
//! larger one (the leftmost of equally good pairs), until none is left.
//!
//! A heap holds the candidates; those that an earlier merge made obsolete are recognized when they are popped. n
//! symbols take O(n log n) time for any text. Method: llama.cpp `llm_tokenizer_spm_session`,
//! `llm_tokenizer_bpe_session`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// No neighbour.
const END: u32 = u32::MAX;

/// The id of a symbol that is in no table.
pub(super) const NO_SYMBOL: u32 = u32::MAX;

/// A symbol and the bytes of the text that it covers.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    /// The number the vocabulary gave it, or [`NO_SYMBOL`].
    pub(super) id: u32,
    start: u32,
    /// Equal to `start` once the symbol was joined to its left neighbour.
    end: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    pub(super) fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The result of joining two neighbours.
#[derive(Clone, Copy)]
pub(super) struct Merge {
    /// Lower ranks are merged first.
    pub(super) rank: u32,
    /// Id of the joined symbol.
    pub(super) id: u32,
}

/// A possible merge; ordered by rank, then from left to right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    left_id: u32,
    right_id: u32,
    id: u32,
}

/// The loop's memory, reused for each piece.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Maximum bytes of a piece.
    pub(super) const MAX_PIECE_BYTES: usize = 1 << 30;

    /// Starts a new piece.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends a symbol of `len` bytes; `len` must not be 0.
    pub(super) fn push(&mut self, id: u32, len: usize) {
        let index = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |s| s.end);
        let end = start + u32::try_from(len).expect("a piece is at most MAX_PIECE_BYTES");
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let prev = index.checked_sub(1).unwrap_or(END);
        self.symbols.push(Symbol {
            id,
            start,
            end,
            prev,
            next: END,
        });
    }

    /// Appends a symbol per character, and one per byte of invalid UTF-8.
    pub(super) fn push_chars(&mut self, text: &[u8], mut id: impl FnMut(&[u8]) -> u32) {
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                self.push(id(c.encode_utf8(&mut [0; 4]).as_bytes()), c.len_utf8());
            }
            for _ in chunk.invalid() {
                self.push(NO_SYMBOL, 1);
            }
        }
    }

    /// Merges until no two neighbours form a symbol; returns the remaining symbols.
    pub(super) fn run(
        &mut self,
        mut pair: impl FnMut(&Symbol, &Symbol) -> Option<Merge>,
    ) -> impl Iterator<Item = &Symbol> {
        for left in 0..self.symbols.len().saturating_sub(1) {
            self.consider(left as u32, &mut pair);
        }
        while let Some(Reverse(best)) = self.heap.pop() {
            let (left, next) = {
                let left = &self.symbols[best.left as usize];
                (left, left.next)
            };
            // Symbols only grow, so equal ids mean that both symbols are unchanged.
            if left.range().is_empty()
                || left.id != best.left_id
                || next == END
                || self.symbols[next as usize].id != best.right_id
            {
                continue;
            }
            self.join(best.left, next, best.id);
            let prev = self.symbols[best.left as usize].prev;
            if prev != END {
                self.consider(prev, &mut pair);
            }
            self.consider(best.left, &mut pair);
        }
        self.symbols.iter().filter(|s| !s.range().is_empty())
    }

    fn consider(&mut self, left: u32, pair: &mut impl FnMut(&Symbol, &Symbol) -> Option<Merge>) {
        let l = &self.symbols[left as usize];
        let Some(r) = self.symbols.get(l.next as usize) else {
            return;
        };
        if let Some(Merge { rank, id }) = pair(l, r) {
            self.heap.push(Reverse(Candidate {
                rank,
                left,
                left_id: l.id,
                right_id: r.id,
                id,
            }));
        }
    }

    /// Joins `right` to its left neighbour `left`.
    fn join(&mut self, left: u32, right: u32, id: u32) {
        let r = &mut self.symbols[right as usize];
        let (end, next) = (r.end, r.next);
        r.end = r.start;
        let l = &mut self.symbols[left as usize];
        l.end = end;
        l.next = next;
        l.id = id;
        if let Some(after) = self.symbols.get_mut(next as usize) {
            after.prev = left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges `text` with pairs ranked by their place in `ranks`; ids are indices of texts.
    fn merged(text: &str, ranks: &[&str]) -> Vec<String> {
        let number = |s: &str| {
            s.bytes()
                .fold(1u32, |n, b| n.wrapping_mul(257).wrapping_add(b.into()))
        };
        let mut merger = Merger::default();
        for c in text.chars() {
            merger.push(number(&c.to_string()), c.len_utf8());
        }
        let left = merger.run(|l, r| {
            let joined = &text[l.range().start..r.range().end];
            let rank = ranks.iter().position(|&p| p == joined)? as u32;
            Some(Merge {
                rank,
                id: number(joined),
            })
        });
        left.map(|s| text[s.range()].to_owned()).collect()
    }

    #[test]
    fn joins_the_best_and_leftmost_pair_first() {
        assert_eq!(merged("abc", &["bc", "ab"]), ["a", "bc"]);
        assert_eq!(merged("abc", &["ab", "bc"]), ["ab", "c"]);
        assert_eq!(merged("aaa", &["aa"]), ["aa", "a"]);
        assert_eq!(merged("aaaa", &["aa", "aaaa"]), ["aaaa"]);
        assert_eq!(merged("abcd", &["cd", "bcd", "ab"]), ["a", "bcd"]);
        assert_eq!(merged("", &["ab"]), Vec::<String>::new());
        assert_eq!(merged("é", &["ab"]), ["é"]);
    }
}
