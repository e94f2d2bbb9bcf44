//! The merge loop that SentencePiece and byte-pair vocabularies share: of all
//! neighbouring symbols that form a larger one, the best pair is joined, the
//! leftmost of equals first, until none is left.
//!
//! A heap holds the candidates; those that an earlier merge has overtaken are
//! recognised when they come up. n symbols cost O(n log n) whatever the text is.
//! Method: llama.cpp `llm_tokenizer_spm_session`, `llm_tokenizer_bpe_session`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// No neighbour.
const END: u32 = u32::MAX;

/// Stands for a symbol that no table knows.
pub(super) const NO_SYMBOL: u32 = u32::MAX;

/// A symbol and the bytes of the text that it covers.
#[derive(Clone, Debug)]
pub(super) struct Symbol {
    /// A number that the vocabulary gave it, [`NO_SYMBOL`] if none.
    pub(super) id: u32,
    start: u32,
    /// Equal to `start` once the symbol to its left has taken it in.
    end: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    pub(super) fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// What two neighbours become.
#[derive(Clone, Copy)]
pub(super) struct Merge {
    /// Lower goes first.
    pub(super) rank: u32,
    /// The number of the joined symbol.
    pub(super) id: u32,
}

/// Ordered by rank, then from left to right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    left_id: u32,
    right_id: u32,
    id: u32,
}

/// The loop's memory, kept between pieces.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Bytes of text that one loop can take.
    pub(super) const MAX_PIECE_BYTES: usize = 1 << 30;

    /// Begins a new piece.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.heap.clear();
    }

    /// Appends a symbol of `len` bytes, not 0.
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

    /// Appends a symbol per character, and one per byte that is part of none.
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

    /// Merges until no two neighbours form a symbol and returns what is left.
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
            // Symbols only grow, so the same two numbers are the same two symbols.
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

    /// Lets `left` take in `right`, its neighbour.
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

    /// Ranks of pairs of letters; a joined symbol is numbered by its text.
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
    fn joins_the_best_pair_first_and_the_leftmost_of_equals() {
        assert_eq!(merged("abc", &["bc", "ab"]), ["a", "bc"]);
        assert_eq!(merged("abc", &["ab", "bc"]), ["ab", "c"]);
        assert_eq!(merged("aaa", &["aa"]), ["aa", "a"]);
        assert_eq!(merged("aaaa", &["aa", "aaaa"]), ["aaaa"]);
        assert_eq!(merged("abcd", &["cd", "bcd", "ab"]), ["a", "bcd"]);
        assert_eq!(merged("", &["ab"]), Vec::<String>::new());
        assert_eq!(merged("é", &["ab"]), ["é"]);
    }
}
