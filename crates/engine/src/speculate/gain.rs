//! Whether drafting pays, all together: the tokens that came in the time of steps with drafts, against those that would have
//! come without. It bounds what a drafter can cost, whatever the reason.

use std::time::Duration;

/// Steps with drafts after which the gain is judged: at first, and when drafting is tried again.
const FIRST_TRIAL: u32 = 12;
const TRIAL: u32 = 4;
/// Results until drafting is tried again, at first and at most.
const FIRST_PAUSE: u32 = 64;
const LONGEST_PAUSE: u32 = 4096;
/// Weight of earlier trials when another one was won.
const KEEP: f64 = 0.5;

/// What drafting has brought.
#[derive(Debug)]
pub(super) struct Gain {
    /// The time of steps with drafts, and the time in which as many tokens come without, in seconds.
    spent: f64,
    worth: f64,
    /// Steps with drafts since the last judgement, and how many are judged.
    n_steps: u32,
    n_trial: u32,
    /// Results until drafts are made again, and the length of the last pause.
    n_left: u32,
    pause: u32,
}

impl Default for Gain {
    fn default() -> Gain {
        Gain {
            spent: 0.0,
            worth: 0.0,
            n_steps: 0,
            n_trial: FIRST_TRIAL,
            n_left: 0,
            pause: 0,
        }
    }
}

impl Gain {
    /// Whether drafting has lost and pauses.
    pub(super) fn pauses(&self) -> bool {
        self.n_left > 0
    }

    /// Takes a step that was made without drafts.
    pub(super) fn record_plain(&mut self) {
        self.n_left = self.n_left.saturating_sub(1);
    }

    /// Takes a step with drafts, or one that waited for them: its time, its tokens, and the seconds of a token without.
    pub(super) fn record(&mut self, time: Duration, n_tokens: usize, each: f64) {
        self.spent += time.as_secs_f64();
        self.worth += each * n_tokens as f64;
        self.n_steps += 1;
        if self.n_steps < self.n_trial {
            return;
        }
        self.n_steps = 0;
        if self.worth > self.spent {
            (self.n_trial, self.pause) = (FIRST_TRIAL, 0);
            (self.spent, self.worth) = (KEEP * self.spent, KEEP * self.worth);
        } else {
            self.n_trial = TRIAL;
            self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            self.n_left = self.pause;
            (self.spent, self.worth) = (0.0, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps that take 10 ms without drafts, and returns the share of time that they would have needed without.
    fn share(n_results: usize, drafted: impl Fn(usize) -> (u64, usize)) -> (f64, Gain) {
        let mut gain = Gain::default();
        let (mut spent, mut worth) = (0.0, 0.0);
        for at in 0..n_results {
            if gain.pauses() {
                gain.record_plain();
                (spent, worth) = (spent + 0.010, worth + 0.010);
                continue;
            }
            let (ms, n_tokens) = drafted(at);
            gain.record(Duration::from_millis(ms), n_tokens, 0.010);
            (spent, worth) = (spent + ms as f64 / 1e3, worth + 0.010 * n_tokens as f64);
        }
        (worth / spent, gain)
    }

    #[test]
    fn drafts_that_lose_cost_little() {
        // Each of them costs as much as a token.
        let (of_losing, gain) = share(2000, |_| (20, 1));
        assert!(of_losing > 0.98, "{of_losing}");
        assert!(gain.pause > 500);
        // They are worth it: nothing pauses.
        let (of_winning, gain) = share(2000, |_| (15, 3));
        assert!((1.99..2.01).contains(&of_winning) && gain.pause == 0);
        // They become worth it.
        let (of_both, _) = share(6000, |at| if at < 300 { (20, 1) } else { (15, 3) });
        assert!(of_both > 1.7, "{of_both}");
    }
}
