//! Drafts from the sequence itself: what came after the last place with the same tokens as now. It costs next to nothing, and
//! is right where text repeats: code that is edited, quotes of the prompt, lists, JSON.

use std::collections::HashMap;

use rocmforge_gguf::TokenId;
use rocmforge_runtime::RuntimeError;

use super::{Drafter, Trust, Wanted};
use crate::request::RequestId;

/// The fewest tokens that must be the same.
const MIN_MATCH: usize = 3;
/// Longer matches count as this long.
const MAX_MATCH: usize = 32;
/// At most so many places are compared, the latest first.
const MAX_PLACES: usize = 16;
/// Matches of at least so many tokens have each level of [`Trust`].
const LEVELS: [usize; Trust::N_LEVELS] = [MIN_MATCH, 6, 12];
/// Marks the end of a chain.
const NONE: u32 = u32::MAX;

/// A drafter that looks for repetitions.
#[derive(Debug, Default)]
pub struct NgramDrafter {
    histories: HashMap<RequestId, History>,
}

/// The places of all runs of [`MIN_MATCH`] tokens of a sequence.
#[derive(Debug, Default)]
struct History {
    /// The last place by hash, as the index after the run. A power of two of them.
    heads: Vec<u32>,
    /// The place before with the same hash, by the index of the run's last token.
    before: Vec<u32>,
}

impl History {
    /// Adds the places of tokens that are new.
    fn extend(&mut self, tokens: &[TokenId]) {
        if self.heads.len() < tokens.len() {
            // All places again: each twice on average.
            self.heads = vec![NONE; (2 * tokens.len()).next_power_of_two()];
            self.before.clear();
        }
        for end in self.before.len()..tokens.len() {
            let mut before = NONE;
            // The run of all tokens has nothing after it yet; it is found once another follows.
            if let Some(first) = (end + 1).checked_sub(MIN_MATCH) {
                let head = self.head(&tokens[first..=end]);
                before = std::mem::replace(&mut self.heads[head], end as u32 + 1);
            }
            self.before.push(before);
        }
    }

    fn head(&self, run: &[TokenId]) -> usize {
        let hash = run.iter().fold(0_u64, |hash, &id| {
            (hash ^ u64::from(id))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(23)
        });
        hash as usize & (self.heads.len() - 1)
    }

    /// Returns the index after the earlier tokens that are the same as the last ones, and how many are. The most; of as
    /// many, the latest.
    fn longest_match(&self, tokens: &[TokenId]) -> Option<(usize, usize)> {
        let mut best = None;
        let mut place = *self.before.last()?;
        for _ in 0..MAX_PLACES {
            if place == NONE {
                break;
            }
            let at = place as usize;
            let earlier = tokens[..at].iter().rev();
            let same = earlier.zip(tokens.iter().rev()).take(MAX_MATCH);
            let n_same = same.take_while(|(a, b)| a == b).count();
            // Runs with another hash are in the same chain.
            if n_same >= MIN_MATCH && best.is_none_or(|(_, most)| n_same > most) {
                best = Some((at, n_same));
            }
            place = self.before[at - 1];
        }
        best
    }
}

impl Drafter for NgramDrafter {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn draft(&mut self, wanted: &mut [Wanted<'_>]) -> Result<(), RuntimeError> {
        for one in wanted {
            let history = self.histories.entry(one.request).or_default();
            history.extend(one.tokens);
            if let Some((at, n_same)) = history.longest_match(one.tokens) {
                let level = LEVELS.partition_point(|&least| least <= n_same) - 1;
                one.trust = Trust(level);
                // Where the text repeats itself at once, the draft goes on within itself.
                let after = one.tokens[at..].iter().cycle();
                one.draft.extend(after.take(one.n_most));
            }
        }
        Ok(())
    }

    fn end(&mut self, request: RequestId) {
        self.histories.remove(&request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(drafter: &mut NgramDrafter, tokens: &[TokenId], n_most: usize) -> Vec<TokenId> {
        let mut wanted = [Wanted::new(RequestId(0), tokens, n_most)];
        drafter.draft(&mut wanted).unwrap();
        wanted[0].draft.clone()
    }

    #[test]
    fn goes_on_as_after_the_longest_match() {
        let mut drafter = NgramDrafter::default();
        assert!(draft(&mut drafter, &[1, 2, 3, 4], 4).is_empty());
        // The last place with 2, 3, 4 is followed by 8, one with 1, 2, 3, 4 by 5.
        let tokens = [1, 2, 3, 4, 5, 6, 2, 3, 4, 8, 1, 2, 3, 4];
        assert_eq!(draft(&mut drafter, &tokens, 3), [5, 6, 2]);
        let tokens = [&tokens[..], &[9, 2, 3, 4]].concat();
        assert_eq!(
            draft(&mut drafter, &tokens, 2),
            [9, 2],
            "of as many, the latest"
        );
        drafter.end(RequestId(0));
        assert!(drafter.histories.is_empty());
    }

    #[test]
    fn a_run_of_one_token_goes_on() {
        let mut drafter = NgramDrafter::default();
        assert_eq!(draft(&mut drafter, &[7, 1, 1, 1, 1], 5), [1; 5]);
        assert!(draft(&mut NgramDrafter::default(), &[1, 1, 1], 5).is_empty());
    }

    /// Compares with a search over all places, whatever the order in which tokens come.
    #[test]
    fn finds_what_a_plain_search_finds() {
        let mut state = 1_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for n_kinds in [2, 3, 6, 40] {
            let mut drafter = NgramDrafter::default();
            let mut tokens: Vec<TokenId> = Vec::new();
            while tokens.len() < 400 {
                tokens.extend((0..=random(4)).map(|_| random(n_kinds)));
                let found = draft(&mut drafter, &tokens, 6);
                let history = &drafter.histories[&RequestId(0)];
                let best = history.longest_match(&tokens);
                let n_same = |at: usize| {
                    let pairs = tokens[..at].iter().rev().zip(tokens.iter().rev());
                    pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count()
                };
                let places = (1..tokens.len())
                    .rev()
                    .filter(|&at| n_same(at) >= MIN_MATCH);
                let places: Vec<usize> = places.take(MAX_PLACES).collect();
                let most = places.iter().map(|&at| n_same(at)).max();
                let latest = places.iter().find(|&&at| Some(n_same(at)) == most);
                // With few kinds of tokens no two runs share a chain by chance.
                assert_eq!(best.map(|(at, _)| at), latest.copied(), "{tokens:?}");
                assert_eq!(found.is_empty(), best.is_none());
            }
        }
    }
}
