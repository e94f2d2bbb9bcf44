//! Whether a waiting sequence has room for its answer beside those of the running sequences, so that none of them will
//! probably be preempted and computed again. How long answers become is learned from those that ended.

use std::cmp::Reverse;

use super::Scheduler;
use crate::sequences::Slot;

/// The number of answers over which their mean is taken, and how many say enough.
const N_ANSWERS: u32 = 32;
const ENOUGH: u32 = 8;

/// The mean length of the last answers, in tokens.
#[derive(Debug, Default)]
pub(super) struct Answers {
    n: u32,
    mean: f64,
}

impl Answers {
    fn record(&mut self, n_tokens: usize) {
        self.n = (self.n + 1).min(N_ANSWERS);
        self.mean += (n_tokens as f64 - self.mean) / f64::from(self.n);
    }

    /// Returns how many tokens will probably follow `n_generated` ones of an answer of up to `max_tokens`. 0 if the answer
    /// is longer than most already, and as long as too few have ended.
    fn to_come(&self, n_generated: usize, max_tokens: usize) -> usize {
        match self.n < ENOUGH {
            true => 0,
            false => max_tokens
                .min(self.mean.ceil() as usize)
                .saturating_sub(n_generated),
        }
    }
}

/// A sequence and what it will probably take.
#[derive(Clone, Copy, Debug)]
struct Growth {
    n_tokens: usize,
    /// Tokens until it ends.
    n_to_come: usize,
    /// Blocks that it has, and those of them that become free when it ends.
    n_blocks: usize,
    n_own: usize,
}

impl Growth {
    /// Returns how many blocks of `page` tokens it takes until it ends.
    fn n_more(self, page: usize) -> usize {
        let n_blocks = (self.n_tokens + self.n_to_come).div_ceil(page);
        n_blocks.saturating_sub(self.n_blocks)
    }
}

/// Returns the most blocks of `page` tokens that sequences need at a time, beyond those that they have. They grow equally
/// fast.
fn most_needed(mut sequences: Vec<Growth>, page: usize) -> usize {
    // When one ends, those before it have grown as much as it, and those after it have ended.
    sequences.sort_unstable_by_key(|sequence| Reverse(sequence.n_to_come));
    let mut n_freed: usize = sequences.iter().map(|sequence| sequence.n_own).sum();
    let mut n_had = 0;
    // Of those before: their full blocks, and how many have so many tokens in the last one.
    let mut n_full = 0;
    let mut by_rest = vec![0; page];
    let mut most = 0;
    for sequence in sequences {
        n_freed -= sequence.n_own;
        n_had += sequence.n_blocks;
        n_full += sequence.n_tokens / page;
        by_rest[sequence.n_tokens % page] += 1;
        let with_rest = |(rest, n): (usize, &usize)| n * (rest + sequence.n_to_come).div_ceil(page);
        let n_then: usize = n_full + by_rest.iter().enumerate().map(with_rest).sum::<usize>();
        most = most.max(n_then.saturating_sub(n_had + n_freed));
    }
    most
}

impl Scheduler {
    /// Learns from an answer that is complete.
    pub(crate) fn record_answer(&mut self, n_tokens: usize) {
        self.answers.record(n_tokens);
    }

    /// Whether a waiting sequence, which shares blocks of the cache already, and its answer will probably fit beside the
    /// running sequences of its priority and of higher ones. Those of lower ones give their blocks back when these need
    /// them.
    pub(super) fn has_room(&self, slot: Slot) -> bool {
        let sequence = &self.sequences[slot];
        // The order of `running`.
        let priority = sequence.request.priority;
        let is_prior = |slot: &Slot| self.sequences[*slot].request.priority >= priority;
        let (prior, others) = (self.running).split_at(self.running.partition_point(is_prior));
        // A sequence of a trial was admitted before; the others stand still.
        if prior.is_empty() || sequence.trial.is_some() {
            return true;
        }
        let n_own = |slot: &Slot| self.sequences[*slot].table.n_own(&self.pool);
        let n_free = self.pool.n_free() + others.iter().map(n_own).sum::<usize>();
        let page = self.pool.page();
        let all = || prior.iter().chain([&slot]).map(|slot| self.growth(*slot));
        // Mostly, even all together would fit.
        let n_all: usize = all().map(|growth| growth.n_more(page)).sum();
        n_all <= n_free || most_needed(all().collect(), page) <= n_free
    }

    fn growth(&self, slot: Slot) -> Growth {
        let sequence = &self.sequences[slot];
        let max_tokens = sequence.request.max_tokens;
        let n_to_come = self.answers.to_come(sequence.n_generated(), max_tokens);
        let n_tokens = sequence.len().min(self.limits.n_ctx);
        Growth {
            n_tokens,
            n_to_come: n_to_come.min(self.limits.n_ctx - n_tokens),
            n_blocks: sequence.table.blocks().len(),
            n_own: sequence.table.n_own(&self.pool),
        }
    }

    /// Returns how many blocks the answer of a new request will probably take.
    pub(super) fn n_answer_blocks(&self) -> usize {
        let n_tokens = self.answers.to_come(0, usize::MAX);
        n_tokens.div_ceil(self.pool.page())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of sequences with the given numbers of tokens, tokens to come and own blocks, which have whole pages of 4 tokens.
    fn needed(sequences: &[[usize; 3]]) -> usize {
        let growth = |&[n_tokens, n_to_come, n_own]: &[usize; 3]| Growth {
            n_tokens,
            n_to_come,
            n_blocks: n_tokens.div_ceil(4),
            n_own,
        };
        most_needed(sequences.iter().map(growth).collect(), 4)
    }

    #[test]
    fn sequences_that_end_make_room_for_longer_ones() {
        assert_eq!(needed(&[]), 0);
        assert_eq!(needed(&[[12, 20, 3]]), 5);
        assert_eq!(needed(&[[12, 20, 3], [12, 20, 3]]), 10);
        // Both grow by 2 blocks; then one of 3 + 2 blocks ends, and the other takes 3 more.
        assert_eq!(needed(&[[12, 20, 3], [12, 8, 3]]), 4);
        assert_eq!(needed(&[[12, 8, 3], [12, 36, 3]]), 6);
        assert_eq!(needed(&[[0, 16, 0], [0, 16, 0], [400, 4, 100]]), 3);
        // A token more than fits takes a block.
        assert_eq!(needed(&[[11, 1, 3], [10, 2, 3]]), 0);
        assert_eq!(needed(&[[11, 2, 3], [10, 2, 3]]), 1);
    }

    #[test]
    fn the_first_answers_say_nothing() {
        let mut answers = Answers::default();
        for _ in 1..ENOUGH {
            answers.record(40);
            assert_eq!(answers.to_come(0, 100), 0);
        }
        answers.record(40);
        assert_eq!(answers.to_come(0, 100), 40);
        assert_eq!(answers.to_come(30, 100), 10);
        assert_eq!(answers.to_come(50, 100), 0);
        assert_eq!(answers.to_come(5, 20), 15);
    }
}
