//! The numbers of conversations: how long each turn waits for its answer, and what the server's prefix cache spares it.

use serde::Serialize;

use super::client::Times;
use super::report::Percentiles;

/// The numbers of the turns of conversations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TurnReport {
    /// Turns of each conversation.
    pub n_turns: usize,
    /// From the request to the first piece of text or of a call: of first turns.
    pub first_ttft_ms: Percentiles,
    /// The same of last turns.
    pub last_ttft_ms: Percentiles,
    /// Its median for each turn.
    pub ttft_ms: Vec<f64>,
    /// Of all turns.
    pub prompt_tokens: usize,
    /// Of the longest prompt.
    pub max_prompt_tokens: usize,
    /// Prompt tokens that the server had in its cache, if it says so.
    pub cached_tokens: Option<usize>,
    /// Their share of the prompt tokens.
    pub cached_share: Option<f64>,
    /// Tokens of all turns but the first that the turn before had as its prompt or its answer: those that can be cached.
    pub earlier_tokens: usize,
    /// The share of these that were.
    pub earlier_cached_share: Option<f64>,
}

impl TurnReport {
    pub(super) fn new(n_turns: usize, all: &[&Times]) -> TurnReport {
        let ttft = |turn: usize| {
            let of_turn = all.iter().filter(move |times| times.turn == turn);
            Percentiles::new(of_turn.filter_map(|times| times.ttft_ms()))
        };
        let sum = |of: fn(&Times) -> usize| all.iter().map(|times| of(times)).sum();
        let prompt_tokens = sum(|times| times.prompt_tokens);
        let earlier_tokens = sum(|times| times.earlier_tokens);
        let cached: Option<Vec<usize>> = all.iter().map(|times| times.cached_tokens).collect();
        let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
        let earlier_cached = cached.as_ref().map(|cached| {
            let each = cached.iter().zip(all);
            each.map(|(&n, times)| n.min(times.earlier_tokens)).sum()
        });
        let cached_tokens = cached.map(|cached| cached.into_iter().sum());
        TurnReport {
            n_turns,
            first_ttft_ms: ttft(0),
            last_ttft_ms: ttft(n_turns - 1),
            ttft_ms: (0..n_turns).map(|turn| ttft(turn).p50).collect(),
            prompt_tokens,
            max_prompt_tokens: all.iter().map(|t| t.prompt_tokens).max().unwrap_or(0),
            cached_tokens,
            cached_share: cached_tokens.map(|n| share(n, prompt_tokens)),
            earlier_tokens,
            earlier_cached_share: earlier_cached.map(|n| share(n, earlier_tokens)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn counts_what_the_cache_spares() {
        let times = |turn: usize, ms: u64, tokens: [usize; 3]| Times {
            pieces: vec![Duration::from_millis(ms)],
            turn,
            prompt_tokens: tokens[0],
            cached_tokens: Some(tokens[1]),
            earlier_tokens: tokens[2],
            ..Times::default()
        };
        // The first turn finds what another conversation had; that is not counted as its own.
        let mut all = [
            times(0, 10, [100, 50, 0]),
            times(1, 20, [200, 96, 120]),
            times(2, 30, [300, 250, 230]),
        ];
        let report = TurnReport::new(3, &all.iter().collect::<Vec<_>>());
        assert_eq!(report.ttft_ms, [10.0, 20.0, 30.0]);
        assert_eq!(
            (report.first_ttft_ms.p95, report.last_ttft_ms.p50),
            (10.0, 30.0)
        );
        assert_eq!((report.prompt_tokens, report.max_prompt_tokens), (600, 300));
        assert_eq!(report.cached_tokens, Some(396));
        assert_eq!(report.cached_share, Some(0.66));
        assert_eq!(report.earlier_tokens, 350);
        assert_eq!(report.earlier_cached_share, Some(326.0 / 350.0));
        // A server that does not say what it had.
        all[1].cached_tokens = None;
        let report = TurnReport::new(3, &all.iter().collect::<Vec<_>>());
        assert_eq!(
            (report.cached_tokens, report.earlier_cached_share),
            (None, None)
        );
    }
}
