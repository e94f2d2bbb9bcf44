//! How long answers become, learned from those that ended: a sequence begins where the answers under way will probably have
//! room beside it, so that it need not be preempted and computed again.

/// The number of answers over which their mean is taken, and how many say enough.
const N_ANSWERS: u32 = 32;
const ENOUGH: u32 = 8;

/// The mean length of the last answers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    n: u32,
    mean: f64,
}

impl Answers {
    /// Learns from an answer that has ended.
    pub(super) fn record(&mut self, n_tokens: usize) {
        self.n = (self.n + 1).min(N_ANSWERS);
        self.mean += (n_tokens as f64 - self.mean) / f64::from(self.n);
    }

    /// Returns how many tokens will probably follow `n_generated` ones of an answer of up to `max_tokens`. 0 for an answer
    /// longer than most, and as long as too few have ended.
    pub(super) fn to_come(&self, n_generated: usize, max_tokens: usize) -> usize {
        match self.n < ENOUGH {
            true => 0,
            false => max_tokens
                .min(self.mean.ceil() as usize)
                .saturating_sub(n_generated),
        }
    }
}
