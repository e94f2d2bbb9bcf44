//! The counts and times that answers carry.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::serving::choices::Totals;

/// OpenAI's object of token counts.
pub(crate) fn usage(totals: &Totals) -> Value {
    json!({
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "total_tokens": totals.prompt_tokens + totals.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": totals.cached_tokens },
    })
}

/// llama-server's block of times, and what came before: reading the prompt, and waiting for a turn. `prompt_n` counts the
/// tokens that were computed, `cache_n` those found in the cache, and `n_deadline` the answers that were cut because they
/// took too long.
#[derive(Serialize)]
pub(crate) struct Timings {
    template_ms: f64,
    tokenize_ms: f64,
    queue_ms: f64,
    n_preempted: usize,
    n_deadline: usize,
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    /// Only if tokens were drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n_accepted: Option<u64>,
}

impl Timings {
    pub(crate) fn new(totals: &Totals) -> Timings {
        let share = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let rate = |n: usize, time: Duration| share(n as f64, time.as_secs_f64());
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let each = |time: Duration, n: usize| share(ms(time), n as f64);
        let prompt_n = totals.prompt_tokens.saturating_sub(totals.cached_tokens);
        let (prompt, decode) = (totals.prompt_time, totals.decode_time);
        // The first token comes with the end of the prompt.
        let n_decoded = totals.completion_tokens.saturating_sub(1);
        let drafts = Some(totals.drafts).filter(|drafts| drafts.n_drafted > 0);
        Timings {
            template_ms: ms(totals.prompt_times.template),
            tokenize_ms: ms(totals.prompt_times.tokenize),
            queue_ms: ms(totals.queue_time),
            n_preempted: totals.n_preempted,
            n_deadline: totals.n_deadline,
            cache_n: totals.cached_tokens,
            prompt_n,
            prompt_ms: ms(prompt),
            prompt_per_token_ms: each(prompt, prompt_n),
            prompt_per_second: rate(prompt_n, prompt),
            predicted_n: totals.completion_tokens,
            predicted_ms: ms(decode),
            predicted_per_token_ms: each(decode, n_decoded),
            predicted_per_second: rate(n_decoded, decode),
            draft_n: drafts.map(|drafts| drafts.n_drafted),
            draft_n_accepted: drafts.map(|drafts| drafts.n_accepted),
        }
    }
}
