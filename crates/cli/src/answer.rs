//! Runs one request to its end: streams its text, watches for Ctrl-C, shows the progress of a long
//! prompt and takes the times. Shared by `generate` and `chat`.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use rocmforge_engine::{EngineError, Event, FinishReason, Request, RequestError};
use rocmforge_gguf::TokenId;
use rocmforge_plan::TokenLogprob;

use crate::interrupt::Interrupt;
use crate::session::Session;

/// What came of a request.
#[derive(Debug, Default)]
pub struct Answer {
    /// Generated tokens, with the one that ended the text.
    pub ids: Vec<TokenId>,
    pub text: String,
    /// The best tokens of every step, where asked for.
    pub top: Vec<Vec<TokenLogprob>>,
    /// Scores of the prompt's second and later tokens, where asked for.
    pub prompt_scores: Vec<(f32, Vec<TokenLogprob>)>,
    /// `None` if the user stopped it.
    pub finish: Option<FinishReason>,
    pub n_prompt: usize,
    /// Tokens of the prompt that were in the cache from earlier requests.
    pub n_cached: usize,
    /// From the submission to the end of the prompt.
    pub prefill: Duration,
    /// From the first generated token to the last.
    pub decode: Duration,
}

impl Answer {
    /// Prompt tokens computed in a second.
    pub fn prompt_per_second(&self) -> Option<f64> {
        rate(self.n_prompt - self.n_cached, self.prefill)
    }

    /// Tokens generated in a second, after the first, which the prompt's step gives.
    pub fn predicted_per_second(&self) -> Option<f64> {
        rate(self.ids.len().saturating_sub(1), self.decode)
    }
}

fn rate(n: usize, time: Duration) -> Option<f64> {
    (n > 0 && !time.is_zero()).then(|| n as f64 / time.as_secs_f64())
}

/// Prompts of fewer tokens get no progress bar.
const LONG_PROMPT: usize = 1024;

/// Runs `request`; `on_text` gets the text as it becomes certain.
pub fn run(
    session: &mut Session,
    request: Request,
    interrupt: &Interrupt,
    mut on_text: impl FnMut(&str) -> Result<()>,
) -> Result<Answer> {
    let engine = &mut session.engine;
    let mut answer = Answer {
        n_prompt: request.prompt.len(),
        ..Answer::default()
    };
    let progress = progress(answer.n_prompt);
    let working = interrupt.guard();
    let started = Instant::now();
    let mut first_token = None;
    let id = engine.submit(request)?;
    while !working.asked() {
        let mut ended = false;
        for event in engine.step()? {
            match event {
                Event::PromptScore { logprob, top, .. } => {
                    answer.prompt_scores.push((logprob, top))
                }
                Event::PromptLogits { .. } => {}
                Event::Failed { .. } => {
                    progress.finish_and_clear();
                    return Err(EngineError::from(RequestError::NotFinite).into());
                }
                Event::PromptDone { cached_tokens, .. } => {
                    answer.prefill = started.elapsed();
                    answer.n_cached = cached_tokens;
                    progress.finish_and_clear();
                }
                Event::Token { id, text, top, .. } => {
                    let now = Instant::now();
                    answer.decode = now - *first_token.get_or_insert(now);
                    answer.ids.push(id);
                    answer.top.push(top);
                    answer.text.push_str(&text);
                    on_text(&text)?;
                }
                Event::Finished { reason, text, .. } => {
                    answer.text.push_str(&text);
                    on_text(&text)?;
                    answer.finish = Some(reason);
                    ended = true;
                }
            }
        }
        progress.inc(session.chunk_tokens as u64);
        if ended {
            return Ok(answer);
        }
    }
    engine.abort(id);
    progress.finish_and_clear();
    Ok(answer)
}

/// A bar over the tokens of a long prompt; it hides itself where stderr is no terminal.
fn progress(n_tokens: usize) -> ProgressBar {
    if n_tokens < LONG_PROMPT {
        return ProgressBar::hidden();
    }
    bar(
        n_tokens,
        "reading the prompt {bar:30} {pos}/{len} tokens, {eta} left",
    )
}

/// A bar on stderr, for terminals only. `template` is indicatif's.
pub fn bar(n: usize, template: &'static str) -> ProgressBar {
    let style =
        ProgressStyle::with_template(template).expect("the templates of this program are valid");
    ProgressBar::new(n as u64).with_style(style.progress_chars("=> "))
}
