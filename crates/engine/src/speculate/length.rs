//! How many tokens to draft: as many as make the most tokens of a second, by the acceptance of earlier drafts of the
//! sequence and by the times of earlier steps.

use super::Trust;
use crate::draft::Verified;

/// Weight of the newest step in the mean time of steps with as many rows.
const NEW: f64 = 0.25;
/// What a row more adds to the time of a step as long as nothing is known, as a share.
const GUESS: f64 = 0.02;
/// The most rows whose times are kept.
const MAX_ROWS: usize = 512;

/// The acceptance that is expected of each level of trust before anything is known, and how many drafted tokens that
/// counts as.
const EXPECTED: [f64; Trust::N_LEVELS] = [0.5, 0.7, 0.85];
const EXPECTED_WEIGHT: f64 = 4.0;
/// Weight of earlier drafts when another one is known.
const KEEP: f64 = 0.9;

/// What a draft must gain at least.
const LEAST_GAIN: f64 = 1.02;
/// How much longer a step may take for sequences that draft nothing.
const MOST_DELAY: f64 = 1.05;
/// Tokens until a sequence whose drafts lose tries again, at first and at most.
const FIRST_PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 512;

/// Seconds by a number of rows.
#[derive(Debug, Default)]
struct Times(Vec<Option<f64>>);

impl Times {
    fn record(&mut self, n_rows: usize, seconds: f64) {
        if n_rows >= MAX_ROWS {
            return;
        }
        if self.0.len() <= n_rows {
            self.0.resize(n_rows + 1, None);
        }
        add(&mut self.0[n_rows], seconds);
    }

    fn known(&self, n_rows: usize) -> Option<(usize, f64)> {
        Some((n_rows, (*self.0.get(n_rows)?)?))
    }

    /// Returns what is known of as many rows or fewer, and of as many or more.
    fn around(&self, n_rows: usize) -> [Option<(usize, f64)>; 2] {
        let below = (0..=n_rows).rev().find_map(|n| self.known(n));
        let above = (n_rows..self.0.len()).find_map(|n| self.known(n));
        [below, above]
    }
}

/// Returns the time of `n_rows` between known times of fewer and of more, or beyond them.
fn between(n_rows: usize, around: [Option<(usize, f64)>; 2]) -> Option<f64> {
    match around {
        [None, above] => above.map(|(_, time)| time),
        [Some((n, time)), None] => Some(time * (1.0 + GUESS * (n_rows - n) as f64)),
        [Some((n, low)), Some((m, high))] => {
            let part = (n_rows - n) as f64 / (m - n).max(1) as f64;
            Some(low + part * (high - low))
        }
    }
}

/// What steps and drafts take.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// Seconds of steps without drafts, by the number of sequences that generate.
    plain: Times,
    /// Seconds of steps that check drafts, by their rows.
    checks: Times,
    /// Seconds of the drafter for one token of each sequence, or for a draft of any length.
    draft: Option<f64>,
    drafts_at_once: bool,
}

impl Costs {
    /// Those of a drafter that drafts at once, or a token after the other.
    pub(super) fn of(drafts_at_once: bool) -> Costs {
        Costs {
            drafts_at_once,
            ..Costs::default()
        }
    }

    /// Takes the time of a step without drafts.
    pub(super) fn record_plain(&mut self, n_decoding: usize, seconds: f64) {
        self.plain.record(n_decoding, seconds);
    }

    /// Takes the time of a step that checks drafts.
    pub(super) fn record_check(&mut self, n_rows: usize, seconds: f64) {
        self.checks.record(n_rows, seconds);
    }

    /// Takes the time of drafts of up to `n` tokens.
    pub(super) fn record_draft(&mut self, n: usize, seconds: f64) {
        let n = if self.drafts_at_once { 1 } else { n };
        add(&mut self.draft, seconds / n as f64);
    }

    /// Returns the seconds of a draft of `n` tokens.
    fn draft(&self, n: usize) -> f64 {
        let n = if self.drafts_at_once { 1 } else { n };
        self.draft.unwrap_or(0.0) * n as f64
    }

    /// Returns the seconds of a step in which `n_decoding` sequences draft nothing; `None` if nothing is known of as many or
    /// fewer.
    pub(super) fn plain(&self, n_decoding: usize) -> Option<f64> {
        let around = self.plain.around(n_decoding);
        around[0].and_then(|_| between(n_decoding, around))
    }

    /// Returns the seconds of a step that checks `n_drafted` tokens beside `n_decoding` ones.
    fn check(&self, n_decoding: usize, n_drafted: usize, plain: f64) -> f64 {
        let n_rows = n_decoding + n_drafted;
        let [below, above] = self.checks.around(n_rows);
        // Steps with as few rows are those without drafts.
        let below = below.filter(|(n, _)| *n > n_decoding);
        between(n_rows, [below.or(Some((n_decoding, plain))), above]).unwrap_or(plain)
    }

    /// Forgets the times of checks: they may have become shorter.
    fn forget_checks(&mut self) {
        self.checks = Times::default();
    }
}

/// Adds a time to a mean. One that is much longer says little: something else took the time.
fn add(mean: &mut Option<f64>, seconds: f64) {
    *mean = Some(mean.map_or(seconds, |mean| {
        mean + NEW * (seconds.min(4.0 * mean) - mean)
    }));
}

/// A draft as it is expected to go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outlook {
    /// The probability that a token is right if those before it are.
    pub(super) share: f64,
    /// Its tokens at most.
    pub(super) n_most: usize,
}

impl Outlook {
    /// Returns how many tokens a step makes that checks up to `n` of the draft.
    fn n_expected(self, n: usize) -> f64 {
        let n = n.min(self.n_most) as i32;
        (0..=n).map(|i| self.share.powi(i)).sum()
    }
}

/// Returns the length of drafts with which `n_decoding` sequences make the most tokens of a second, if those of `outlooks`
/// draft up to as many; 0 if that is not more than without drafts, if others would have to wait for it, or if nothing is
/// known about steps without drafts.
pub(super) fn best_length(costs: &Costs, n_decoding: usize, outlooks: &[Outlook]) -> usize {
    let Some(plain) = costs.plain(n_decoding) else {
        return 0;
    };
    let rate = |n: usize| {
        let expected: f64 = outlooks.iter().map(|one| one.n_expected(n)).sum();
        let tokens = expected + n_decoding.saturating_sub(outlooks.len()) as f64;
        let n_drafted: usize = outlooks.iter().map(|one| one.n_most.min(n)).sum();
        let time = costs.check(n_decoding, n_drafted, plain) + costs.draft(n);
        match outlooks.len() < n_decoding && time > plain * MOST_DELAY {
            true => 0.0,
            false => tokens / time,
        }
    };
    let without = n_decoding as f64 / plain * LEAST_GAIN;
    let longest = outlooks.iter().map(|one| one.n_most).max().unwrap_or(0);
    let best = (1..=longest).max_by(|&a, &b| rate(a).total_cmp(&rate(b)));
    best.filter(|&n| rate(n) > without).unwrap_or(0)
}

/// Which drafts of a sequence were right, and whether it drafts.
#[derive(Debug, Clone)]
pub(crate) struct Acceptance {
    /// Drafted tokens by trust, later ones with more weight: how many were right, and how many were compared.
    right: [f64; Trust::N_LEVELS],
    compared: [f64; Trust::N_LEVELS],
    /// The number of generated tokens from which on it drafts again, and the length of the last pause.
    resumes_at: usize,
    pause: usize,
    is_off: bool,
}

impl Default for Acceptance {
    fn default() -> Acceptance {
        Acceptance {
            right: EXPECTED.map(|share| share * EXPECTED_WEIGHT),
            compared: [EXPECTED_WEIGHT; Trust::N_LEVELS],
            resumes_at: 0,
            pause: 0,
            is_off: false,
        }
    }
}

impl Acceptance {
    /// Whether drafts do not pay at present.
    pub(crate) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Learns from a draft.
    pub(crate) fn record(&mut self, draft: Verified) {
        let Verified {
            trust: Trust(level),
            n_drafted,
            n_right,
        } = draft;
        let n_compared = n_drafted.min(n_right + 1);
        self.right[level] = KEEP * self.right[level] + n_right as f64;
        self.compared[level] = KEEP * self.compared[level] + n_compared as f64;
    }

    /// Returns what to expect of a draft of up to `n_most` tokens.
    pub(super) fn outlook(&self, Trust(level): Trust, n_most: usize) -> Outlook {
        Outlook {
            share: self.right[level] / self.compared[level],
            n_most,
        }
    }

    /// Returns what to expect of a draft that is not made yet, at best.
    pub(super) fn best_outlook(&self, n_most: usize) -> Outlook {
        let outlooks = (0..Trust::N_LEVELS).map(|level| self.outlook(Trust(level), n_most));
        let best = outlooks.max_by(|a, b| a.share.total_cmp(&b.share));
        best.expect("there are levels")
    }

    /// Whether the sequence pauses after `n_generated` tokens.
    pub(super) fn pauses(&self, n_generated: usize) -> bool {
        n_generated < self.resumes_at
    }

    /// Returns up to how many tokens of a draft are worth checking if all of `n_decoding` sequences draft as this one does,
    /// after `n_generated` tokens. If none, the sequence pauses; after a pause, it tries with one token.
    pub(super) fn choose(
        &mut self,
        costs: &mut Costs,
        n_decoding: usize,
        outlook: Outlook,
        n_generated: usize,
    ) -> usize {
        if costs.plain(n_decoding).is_none() {
            return 0;
        }
        if self.is_off {
            costs.forget_checks();
        }
        if self.is_worth(costs, n_decoding, outlook) {
            (self.is_off, self.pause) = (false, 0);
            return outlook.n_most;
        }
        let tries = self.is_off;
        self.pause(n_generated);
        usize::from(tries).min(outlook.n_most)
    }

    /// Whether drafts are worth checking if all of `n_decoding` sequences draft as this one does.
    pub(super) fn is_worth(&self, costs: &Costs, n_decoding: usize, outlook: Outlook) -> bool {
        best_length(costs, n_decoding, &vec![outlook; n_decoding]) > 0
    }

    /// Lets the sequence draft nothing for some tokens, whatever its drafts were.
    pub(super) fn rest(&mut self, n_generated: usize) {
        self.resumes_at = n_generated + FIRST_PAUSE;
    }

    /// Lets the sequence pause after `n_generated` tokens.
    pub(super) fn pause(&mut self, n_generated: usize) {
        self.is_off = true;
        self.pause = (2 * self.pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.resumes_at = n_generated + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(share: f64) -> Outlook {
        Outlook { share, n_most: 16 }
    }

    /// A step takes 10 ms, and 1 ms more for each row after the first.
    fn costs() -> Costs {
        let mut costs = Costs::default();
        costs.record_plain(1, 0.010);
        for n in [2, 3, 5, 9, 17] {
            costs.record_check(n, 0.009 + 0.001 * n as f64);
        }
        costs
    }

    #[test]
    fn times_between_known_ones_are_interpolated() {
        let mut costs = costs();
        let check = |costs: &Costs, n_rows: usize| costs.check(1, n_rows - 1, 0.010);
        for (n, ms) in [(2, 11.0), (4, 13.0), (7, 16.0), (13, 22.0)] {
            assert!((check(&costs, n) * 1e3 - ms).abs() < 1e-9, "{n}");
        }
        assert!(check(&costs, 20) > check(&costs, 17));
        // One slow step says little, ten of them much.
        costs.record_check(5, 10.0);
        assert!(check(&costs, 5) < 0.03);
        (0..10).for_each(|_| costs.record_check(5, 0.1));
        assert!(check(&costs, 5) > 0.08);
        costs.record_check(MAX_ROWS, 1.0);
        assert!(costs.checks.0.len() <= MAX_ROWS);
        // Of more sequences than are known, plain steps take about as long; of fewer, nothing is known.
        costs.record_plain(4, 0.012);
        let plain = |n| costs.plain(n);
        assert_eq!([plain(0), plain(4)], [None, Some(0.012)]);
        assert!(plain(2) > plain(1) && plain(6) > plain(4));
        // Nothing is known of checks: a bit longer than plain steps.
        costs.forget_checks();
        let guess = check(&costs, 5);
        assert!(guess > 0.010 && guess < 0.012, "{guess}");
    }

    /// The best by the closed form of the expected tokens.
    #[test]
    fn drafts_are_as_long_as_acceptance_and_times_are_worth() {
        let costs = costs();
        let best = |share: f64| best_length(&costs, 1, &[outlook(share)]);
        for share in [0.05, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0] {
            let rate = |n: usize| {
                let tokens = match share < 1.0 {
                    true => (1.0 - f64::powi(share, n as i32 + 1)) / (1.0 - share),
                    false => n as f64 + 1.0,
                };
                tokens / (10.0 + n as f64)
            };
            let by_rate = (0..=16)
                .max_by(|&a, &b| rate(a).total_cmp(&rate(b)))
                .unwrap();
            let gain = rate(by_rate) / rate(0);
            assert_eq!(
                best(share),
                if gain > LEAST_GAIN { by_rate } else { 0 },
                "{share}"
            );
        }
        assert_eq!(best(1.0), 16);
        // Of 64 sequences, each row more costs more than a token brings; one of them gains too little for all.
        let mut dense = Costs::default();
        dense.record_plain(64, 0.064);
        dense.record_check(128, 0.128);
        assert_eq!(best_length(&dense, 64, &[outlook(0.9); 64]), 0);
        assert_eq!(best_length(&dense, 64, &[outlook(0.9)]), 0);
        // One of two would gain, but the other one would wait for it.
        let mut two = Costs::default();
        two.record_plain(2, 0.010);
        two.record_check(4, 0.013);
        assert!(best_length(&two, 2, &[outlook(0.9); 2]) > 8);
        assert_eq!(best_length(&two, 2, &[outlook(0.9)]), 0);
        // Nothing is known of steps without drafts.
        assert_eq!(best_length(&dense, 8, &[outlook(1.0)]), 0);
        // The drafter takes longer than the steps.
        let mut slow = costs;
        slow.record_draft(4, 0.08);
        assert_eq!(best_length(&slow, 1, &[outlook(0.9)]), 0);
    }

    /// With a share of 0.9, the rates are `10 (1 - 0.9^(n + 1)) / (10 + 4 n)` and `10 (1 - 0.9^(n + 1)) / (22 + n)`.
    #[test]
    fn drafts_made_at_once_are_longer() {
        let best = [false, true].map(|drafts_at_once| {
            let mut costs = Costs {
                drafts_at_once,
                ..costs()
            };
            costs.record_draft(4, 0.012);
            best_length(&costs, 1, &[outlook(0.9)])
        });
        assert_eq!(best, [4, 14]);
    }

    #[test]
    fn a_sequence_whose_drafts_are_wrong_stops_and_tries_again() {
        let mut costs = costs();
        let mut acceptance = Acceptance::default();
        let trust = Trust(0);
        let verified = |n_drafted, n_right| Verified {
            trust,
            n_drafted,
            n_right,
        };
        let mut n_generated = 100;
        let mut choose = |acceptance: &mut Acceptance, n_generated| {
            let outlook = acceptance.outlook(trust, 16);
            acceptance.choose(&mut costs, 1, outlook, n_generated)
        };
        assert_eq!(choose(&mut acceptance, n_generated), 16);
        (0..40).for_each(|_| acceptance.record(verified(4, 0)));
        assert_eq!(choose(&mut acceptance, n_generated), 0);
        assert!(acceptance.is_off());
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let from = n_generated;
            while acceptance.pauses(n_generated) {
                n_generated += 1;
            }
            pauses.push(n_generated - from);
            assert_eq!(choose(&mut acceptance, n_generated), 1);
            acceptance.record(verified(1, 0));
        }
        assert_eq!(pauses, [16, 32, 64]);
        // Text that repeats itself ends the pauses.
        (0..20).for_each(|_| acceptance.record(verified(1, 1)));
        assert!(choose(&mut acceptance, n_generated + LONGEST_PAUSE) > 1);
        assert!(!acceptance.is_off());
    }
}
