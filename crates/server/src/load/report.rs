//! The numbers of a load.

use std::time::Duration;

use rocmforge_profile::stats::percentile;
use serde::Serialize;

use super::client::{Outcome, Times};
use super::{LoadError, Slo, TurnReport};

/// The numbers of a load. Times of requests that failed are not part of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub n_ok: usize,
    pub n_failed: usize,
    /// From the first request to the end of the last answer.
    pub duration_s: f64,
    pub requests_s: f64,
    pub output_tokens_s: f64,
    /// From the request to the first piece of text.
    pub ttft_ms: Percentiles,
    /// Between two pieces of text.
    pub itl_ms: Percentiles,
    /// From the request to the end of the answer.
    pub e2e_ms: Percentiles,
    /// Answers a second that kept the times asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    /// Of conversations: the numbers of their turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnReport>,
    /// Why requests failed, the first few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// Percentiles of times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

/// Failures that are shown, at most.
const MAX_FAILURES: usize = 3;

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Percentiles {
    /// Returns those of `times`; zeros if there are none.
    pub(super) fn new(times: impl Iterator<Item = f64>) -> Percentiles {
        let mut sorted: Vec<f64> = times.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |p: f64| match sorted.is_empty() {
            true => 0.0,
            false => percentile(&sorted, p),
        };
        Percentiles {
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
        }
    }
}

impl Times {
    pub(super) fn ttft_ms(&self) -> Option<f64> {
        self.pieces.first().copied().map(ms)
    }

    fn gaps_ms(&self) -> impl Iterator<Item = f64> {
        self.pieces.windows(2).map(|pair| ms(pair[1] - pair[0]))
    }

    fn keeps(&self, slo: Slo) -> bool {
        let first = self.pieces.first().copied().unwrap_or(self.whole);
        let last = self.pieces.last().copied().unwrap_or(self.whole);
        let each = ms(last - first) / self.n_tokens.saturating_sub(1).max(1) as f64;
        ms(first) <= slo.ttft_ms && each <= slo.itl_ms
    }
}

impl Report {
    pub(super) fn new(
        outcomes: &[Outcome],
        duration: Duration,
        slo: Option<Slo>,
        n_turns: Option<usize>,
    ) -> Result<Report, LoadError> {
        let ok: Vec<&Times> = outcomes.iter().flatten().collect();
        let errors = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let failures: Vec<String> = errors.take(MAX_FAILURES).cloned().collect();
        if let (true, Some(first)) = (ok.is_empty(), failures.first()) {
            return Err(LoadError::AllFailed(first.clone()));
        }
        let seconds = duration.as_secs_f64();
        let n_tokens: usize = ok.iter().map(|times| times.n_tokens).sum();
        let n_good = |slo| ok.iter().filter(|times| times.keeps(slo)).count();
        Ok(Report {
            n_ok: ok.len(),
            n_failed: outcomes.len() - ok.len(),
            duration_s: seconds,
            requests_s: ok.len() as f64 / seconds,
            output_tokens_s: n_tokens as f64 / seconds,
            ttft_ms: Percentiles::new(ok.iter().filter_map(|times| times.ttft_ms())),
            itl_ms: Percentiles::new(ok.iter().flat_map(|times| times.gaps_ms())),
            e2e_ms: Percentiles::new(ok.iter().map(|times| ms(times.whole))),
            goodput: slo.map(|slo| n_good(slo) as f64 / seconds),
            turns: n_turns.map(|n_turns| TurnReport::new(n_turns, &ok)),
            failures,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_kept_its_times() {
        let times = |first: u64, gap: u64| {
            let at = |k: u64| Duration::from_millis(first + k * gap);
            Ok(Times {
                pieces: (0..4).map(at).collect(),
                whole: at(4),
                n_tokens: 4,
                ..Times::default()
            })
        };
        let outcomes = [
            times(100, 10),
            times(600, 10),
            times(100, 70),
            Err("x".to_string()),
        ];
        let slo = Slo {
            ttft_ms: 500.0,
            itl_ms: 60.0,
        };
        let report = Report::new(&outcomes, Duration::from_secs(2), Some(slo), None).unwrap();
        assert_eq!((report.n_ok, report.n_failed), (3, 1));
        assert_eq!(report.goodput, Some(0.5));
        assert_eq!(report.output_tokens_s, 6.0);
        assert_eq!(report.ttft_ms.p50, 100.0);
        assert_eq!(report.itl_ms.p50, 10.0);
        assert_eq!(report.failures, ["x"]);
        let none = Report::new(&[Err("x".to_string())], Duration::from_secs(1), None, None);
        assert!(none.unwrap_err().to_string().contains("failed: x"));
    }
}
