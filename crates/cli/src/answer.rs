//! Runs one request to its end: streams its text, handles Ctrl-C, shows the progress of long prompts and takes the
//! times. Used by `generate` and `chat`.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use rocmforge_engine::serve::{Server, StreamEvent, Waited};
use rocmforge_engine::{EngineError, FinishReason, Request, RequestProgress};
use rocmforge_gguf::TokenId;
use rocmforge_plan::TokenLogprob;

use crate::interrupt::Interrupt;
use crate::output;
use crate::session::Session;

/// The result of a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// Generated tokens, including the end token.
    pub ids: Vec<TokenId>,
    pub text: String,
    /// Top tokens of every step, if requested.
    pub top: Vec<Vec<TokenLogprob>>,
    /// Scores of the prompt's tokens from the second on, if requested.
    pub prompt_scores: Vec<(f32, Vec<TokenLogprob>)>,
    /// `None` if the user stopped the answer.
    pub finish: Option<FinishReason>,
    /// How the request went.
    pub progress: RequestProgress,
    pub n_prompt: usize,
    /// Prompt tokens found in the KV cache.
    pub n_cached: usize,
    /// Time from submission to the end of the prompt.
    pub prefill: Duration,
    /// Time from the first generated token to the last.
    pub decode: Duration,
}

impl Answer {
    /// Prompt tokens computed per second.
    pub fn prompt_per_second(&self) -> Option<f64> {
        rate(self.n_prompt - self.n_cached, self.prefill)
    }

    /// Tokens generated per second, without the first, which is part of prefill.
    pub fn predicted_per_second(&self) -> Option<f64> {
        rate(self.ids.len().saturating_sub(1), self.decode)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

/// Shortest prompt with a progress bar, in tokens.
const LONG_PROMPT: usize = 1024;

/// Time between two looks at Ctrl-C and at the progress of a prompt.
const POLL: Duration = Duration::from_millis(50);

/// Runs `request` and streams its text to `on_text`.
pub fn run(
    session: &Session<Server>,
    request: Request,
    interrupt: &Interrupt,
    mut on_text: impl FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let mut answer = Answer {
        n_prompt: request.prompt.len(),
        ..Answer::default()
    };
    let progress = progress(answer.n_prompt);
    let working = interrupt.guard();
    let started = Instant::now();
    let mut prompt_done = None;
    let mut stream = session.engine.submit(request).map_err(EngineError::from)?;
    while !working.asked() {
        let event = match stream.next_within(POLL) {
            Waited::Event(event) => event,
            Waited::Timeout => {
                if prompt_done.is_none() {
                    progress.set_position(session.engine.stats().kv_usage.n_tokens as u64);
                }
                continue;
            }
            Waited::Ended => break,
        };
        match event {
            StreamEvent::PromptScores(scores) => {
                let scores = scores.into_iter().map(|score| (score.logprob, score.top));
                answer.prompt_scores.extend(scores);
            }
            // Only requests for embeddings have one.
            StreamEvent::Embedding(_) => {}
            StreamEvent::Failed(failure) => {
                progress.finish_and_clear();
                return Err(EngineError::from(failure).into());
            }
            StreamEvent::PromptDone {
                cached_tokens, at, ..
            } => {
                prompt_done = Some(at);
                answer.prefill = at - started;
                answer.n_cached = cached_tokens;
                progress.finish_and_clear();
            }
            StreamEvent::Tokens { tokens, text, at } => {
                // The first token comes with the end of the prompt.
                answer.decode = at - *prompt_done.get_or_insert(at);
                for token in tokens {
                    answer.ids.push(token.id);
                    answer.top.push(token.top);
                }
                answer.text.push_str(&text);
                on_text(&text)?;
            }
            StreamEvent::Finished { reason, text } => {
                answer.text.push_str(&text);
                on_text(&text)?;
                answer.finish = Some(reason);
            }
        }
        answer.progress = stream.progress();
    }
    // Dropping the stream ends the request.
    progress.finish_and_clear();
    Ok(answer)
}

/// Returns a progress bar for a long prompt, hidden if stderr is not a terminal.
fn progress(n_tokens: usize) -> ProgressBar {
    if n_tokens < LONG_PROMPT {
        return ProgressBar::hidden();
    }
    bar(n_tokens, "prefill {bar:30} {pos}/{len} tokens, {eta} left")
}

/// Returns a progress bar on stderr, hidden if it is not a terminal or with `--quiet`. `template` is indicatif's.
pub fn bar(n: usize, template: &'static str) -> ProgressBar {
    if output::is_quiet() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template(template).expect("the templates of this program are valid");
    ProgressBar::new(n as u64).with_style(style.progress_chars("=> "))
}
