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

/// llama-server's block of times, and the time that the request waited for its turn. `prompt_n` counts the tokens that were computed, `cache_n` those found in the cache.
#[derive(Serialize)]
pub(crate) struct Timings {
    queue_ms: f64,
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl Timings {
    pub(crate) fn new(totals: &Totals) -> Timings {
        let share = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let rate = |n: usize, time: Duration| share(n as f64, time.as_secs_f64());
        let each = |time: Duration, n: usize| share(time.as_secs_f64() * 1e3, n as f64);
        let prompt_n = totals.prompt_tokens.saturating_sub(totals.cached_tokens);
        let (prompt, decode) = (totals.prompt_time, totals.decode_time);
        // The first token comes with the end of the prompt.
        let n_decoded = totals.completion_tokens.saturating_sub(1);
        Timings {
            queue_ms: totals.queue_time.as_secs_f64() * 1e3,
            cache_n: totals.cached_tokens,
            prompt_n,
            prompt_ms: prompt.as_secs_f64() * 1e3,
            prompt_per_token_ms: each(prompt, prompt_n),
            prompt_per_second: rate(prompt_n, prompt),
            predicted_n: totals.completion_tokens,
            predicted_ms: decode.as_secs_f64() * 1e3,
            predicted_per_token_ms: each(decode, n_decoded),
            predicted_per_second: rate(n_decoded, decode),
        }
    }
}
