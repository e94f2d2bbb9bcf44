//! Measures a server under load: OpenAI's completions or chats as streams, from any server that has them.
//!
//! Requests or conversations come at random times (a Poisson process of a given rate), or each of a number of clients sends its next one
//! when the last has ended. Every prompt is different from its first word on, so that no prefix cache shortens it;
//! only a conversation finds its own earlier turns there.

mod client;
mod conversation;
mod report;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use client::Target;
pub use conversation::Conversation;
pub use report::{Percentiles, Report};
pub use turns::TurnReport;

use client::Outcome;
use serde_json::json;

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// At random times, so many a second on average.
    Rate(f64),
    /// So many at the same time.
    Concurrency(usize),
}

/// The times that a good answer keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slo {
    pub ttft_ms: f64,
    /// Mean time between tokens.
    pub itl_ms: f64,
}

/// What to send.
#[derive(Debug, Clone)]
pub struct Load {
    pub target: Target,
    pub arrivals: Arrivals,
    /// Requests in all, or conversations.
    pub n: usize,
    /// Words of a prompt, or of a conversation's system message. A word is about a token.
    pub prompt_tokens: usize,
    pub max_tokens: usize,
    /// How conversations go on; without it, each request is a prompt of its own.
    pub conversation: Option<Conversation>,
    pub slo: Option<Slo>,
    /// Seed of prompts and times.
    pub seed: u64,
}

/// A load that cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("'{0}' is no address; use one like http://127.0.0.1:8080")]
    Url(String),
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
    #[error("no request succeeded; the first failed: {0}")]
    AllFailed(String),
}

/// Runs a load and waits for its end.
///
/// # Errors
/// No request succeeds.
pub fn run(load: Load) -> Result<Report, LoadError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(LoadError::Threads)?;
    runtime.block_on(measured(Arc::new(load)))
}

async fn measured(load: Arc<Load>) -> Result<Report, LoadError> {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    match load.arrivals {
        Arrivals::Rate(rate) => {
            let mut at = tokio::time::Instant::now();
            for i in 0..load.n {
                tokio::time::sleep_until(at).await;
                at += Duration::from_secs_f64(-open_uniform(load.seed, i).ln() / rate);
                let load = Arc::clone(&load);
                tasks.spawn(async move { outcomes(&load, i).await });
            }
        }
        Arrivals::Concurrency(clients) => {
            let next = Arc::new(AtomicUsize::new(0));
            for _ in 0..clients.min(load.n) {
                let (load, next) = (Arc::clone(&load), Arc::clone(&next));
                tasks.spawn(async move {
                    let mut all = Vec::new();
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= load.n {
                            return all;
                        }
                        all.extend(outcomes(&load, i).await);
                    }
                });
            }
        }
    }
    let outcomes: Vec<Outcome> = tasks.join_all().await.into_iter().flatten().collect();
    let n_turns = load.conversation.map(|conversation| conversation.n_turns);
    Report::new(&outcomes, started.elapsed(), load.slo, n_turns)
}

/// Sends a request, or those of a conversation one after the other.
async fn outcomes(load: &Load, i: usize) -> Vec<Outcome> {
    if let Some(conversation) = &load.conversation {
        return conversation.hold(load, i).await;
    }
    let body = json!({
        "prompt": words(load.seed, i, load.prompt_tokens),
        "max_tokens": load.max_tokens,
        "seed": i,
        "ignore_eos": true,
    });
    let answer = load.target.ask("completions", body).await;
    vec![answer.map(|answer| answer.times)]
}

/// Words that are a token in most vocabularies.
const WORDS: [&str; 32] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an",
    "they", "which", "one", "you", "were",
];

/// Returns a text of `n` words, different for each `i`.
fn words(seed: u64, i: usize, n: usize) -> String {
    let words = (0..n).map(|k| WORDS[(mixed(seed, i, k) % WORDS.len() as u64) as usize]);
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a number above 0 and at most 1.
fn open_uniform(seed: u64, i: usize) -> f64 {
    let bits = mixed(seed, i, usize::MAX) >> 11;
    (bits + 1) as f64 / (1_u64 << 53) as f64
}

/// Returns random bits for each place (SplitMix64).
fn mixed(seed: u64, i: usize, k: usize) -> u64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut z = seed;
    for add in [i as u64, k as u64] {
        z = z.wrapping_add(add.wrapping_add(1).wrapping_mul(STEP));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_and_repeat() {
        assert_eq!(words(1, 2, 50), words(1, 2, 50));
        assert_ne!(words(1, 2, 50), words(1, 3, 50));
        assert_ne!(words(1, 2, 50), words(2, 2, 50));
        assert_eq!(words(1, 2, 50).split(' ').count(), 50);
    }

    #[test]
    fn arrivals_are_a_poisson_process() {
        // Of an exponential distribution with mean 1: mean 1, variance 1.
        let times: Vec<f64> = (0..20_000).map(|i| -open_uniform(3, i).ln()).collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let variance = times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / times.len() as f64;
        assert!(
            (mean - 1.0).abs() < 0.03 && (variance - 1.0).abs() < 0.1,
            "{mean} {variance}"
        );
    }
}
