//! Finds the longest pattern that begins at each position of a text, in time that is linear for any patterns.
//!
//! A leftmost-longest search reads as far as the longest pattern could reach, and reads the same bytes again when the
//! next search begins after a shorter one: with the patterns `q` and `q` x 8000 + `Z`, every `q` costs 8000 steps. So
//! the text is read backwards, once, by an Aho-Corasick automaton of the reversed patterns: the longest pattern that
//! ends there, in this direction, is the longest that begins there. It is read in windows, which bounds the memory for
//! matches.

use aho_corasick::automaton::Automaton;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{AhoCorasick, Anchored, MatchKind};

/// Fewest bytes of a window.
const MIN_WINDOW: usize = 1 << 18;

/// Searches texts for a set of patterns.
pub(super) struct LongestFinder {
    /// Of the reversed patterns.
    backwards: NFA,
    /// Finds the first match quickly: most texts have none.
    first: AhoCorasick,
    /// Bytes that the longest pattern reaches beyond its first.
    reach: usize,
}

/// A pattern found in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Its index.
    pub(super) pattern: usize,
}

impl LongestFinder {
    /// Returns `None` without patterns that are not empty.
    pub(super) fn new<'a>(patterns: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Self> {
        let longest = patterns.clone().map(<[u8]>::len).max().filter(|&n| n > 0)?;
        let reversed = patterns.clone().map(|pattern| {
            let reversed: Vec<u8> = pattern.iter().rev().copied().collect();
            reversed
        });
        const FIT: &str = "MAX_SPECIAL_BYTES states fit the automaton's 31 bits";
        Some(LongestFinder {
            backwards: NFA::builder().prefilter(false).build(reversed).expect(FIT),
            first: AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostFirst)
                .build(patterns)
                .expect(FIT),
            reach: longest - 1,
        })
    }

    /// Starts a search.
    pub(super) fn matches<'a>(&'a self, text: &'a [u8]) -> LongestMatches<'a> {
        LongestMatches {
            finder: self,
            text,
            read: 0,
            found: Vec::new(),
            #[cfg(test)]
            n_steps: 0,
        }
    }
}

/// A search through a text.
pub(super) struct LongestMatches<'a> {
    finder: &'a LongestFinder,
    text: &'a [u8],
    /// End of the last window.
    read: usize,
    /// Matches of the last window, the first one last.
    found: Vec<Match>,
    /// Steps of the automaton.
    #[cfg(test)]
    n_steps: usize,
}

impl LongestMatches<'_> {
    /// Returns the first match that begins at `start` or later, and of several there the longest. `start` must not
    /// decrease from call to call.
    pub(super) fn next(&mut self, start: usize) -> Option<Match> {
        loop {
            while let Some(found) = self.found.pop() {
                if found.start >= start {
                    return Some(found);
                }
            }
            let from = self.read.max(start);
            if from >= self.text.len() {
                return None;
            }
            let next = self.finder.first.find(&self.text[from..])?;
            self.read_window(from + next.start());
        }
    }

    /// Finds the matches that begin in the window at `from`.
    fn read_window(&mut self, from: usize) {
        let (nfa, reach) = (&self.finder.backwards, self.finder.reach);
        let end = self.text.len().min(from + MIN_WINDOW.max(reach));
        // Matches that begin in the window may end after it.
        let last = self.text.len().min(end + reach);
        let mut state = nfa
            .start_state(Anchored::No)
            .expect("the automaton is built for unanchored searches");
        for at in (from..last).rev() {
            state = nfa.next_state(Anchored::No, state, self.text[at]);
            #[cfg(test)]
            {
                self.n_steps += 1;
            }
            if at < end && nfa.is_match(state) {
                // The first pattern of a state is the state's own; the others are its ends.
                let pattern = nfa.match_pattern(state, 0);
                self.found.push(Match {
                    start: at,
                    end: at + nfa.pattern_len(pattern),
                    pattern: pattern.as_usize(),
                });
            }
        }
        self.read = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(patterns: &[&[u8]], text: &[u8]) -> (Vec<Match>, usize) {
        let finder = LongestFinder::new(patterns.iter().copied()).unwrap();
        let mut search = finder.matches(text);
        let (mut found, mut pos) = (Vec::new(), 0);
        while let Some(next) = search.next(pos) {
            pos = next.end;
            found.push(next);
        }
        (found, search.n_steps)
    }

    /// As the definition says, one position at a time.
    fn by_definition(patterns: &[&[u8]], text: &[u8]) -> Vec<Match> {
        let (mut found, mut start) = (Vec::new(), 0);
        while start < text.len() {
            let here = patterns.iter().enumerate();
            let here = here.filter(|(_, pattern)| text[start..].starts_with(pattern));
            let longest = here.max_by_key(|(_, pattern)| pattern.len());
            start += match longest {
                Some((pattern, bytes)) => {
                    let end = start + bytes.len();
                    found.push(Match {
                        start,
                        end,
                        pattern,
                    });
                    bytes.len()
                }
                None => 1,
            };
        }
        found
    }

    #[test]
    fn finds_what_the_definition_says() {
        let sets: [&[&[u8]]; 5] = [
            &[b"a"],
            &[b"a", b"aa", b"aaaab", b"ba"],
            &[b"ab", b"abcab", b"bc", b"cabb"],
            &[b"\n", b"\n\n", b"\n\n\n", b"  ", b" \n "],
            &[b"abc", b"b", b"bcc"],
        ];
        // All texts of eight letters.
        for n in 0..3u32.pow(8) {
            let letter = |i: u32, letters: &[u8; 3]| letters[(n / 3u32.pow(i) % 3) as usize];
            for patterns in sets {
                for letters in [b"abc", b"\n x"] {
                    let text: Vec<u8> = (0..8).map(|i| letter(i, letters)).collect();
                    assert_eq!(all(patterns, &text).0, by_definition(patterns, &text));
                }
            }
        }
    }

    #[test]
    fn finds_matches_across_windows() {
        let long = [b'x'; 1000];
        let patterns: [&[u8]; 3] = [b"ab", b"xy", &long];
        let mut text = vec![b'-'; 3 * MIN_WINDOW];
        text[5..7].copy_from_slice(b"ab");
        for at in [5 + MIN_WINDOW - 1, 2 * MIN_WINDOW - 500] {
            text[at..at + 1000].fill(b'x');
        }
        assert_eq!(all(&patterns, &text).0, by_definition(&patterns, &text));
    }

    #[test]
    fn reads_each_byte_at_most_twice() {
        let mut long = vec![b'q'; 8000];
        long.push(b'Z');
        let text = vec![b'q'; 1 << 20];
        let (found, n_steps) = all(&[b"q", &long], &text);
        assert_eq!(found.len(), text.len());
        assert!(n_steps <= 2 * text.len(), "{n_steps}");
    }
}
