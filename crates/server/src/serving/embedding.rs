//! Texts whose embeddings, or scores, are computed for one HTTP request. Dropping [`Embedding`] ends them all before the
//! engine's next step.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rocmforge_engine::Request;
use rocmforge_engine::serve::{EventStream, StreamEvent, SubmitError};
use rocmforge_gguf::TokenId;
use rocmforge_model::Embedding as Pooled;

use super::choices::{Ticket, Totals};
use super::model::Served;
use crate::http::error::ApiError;
use crate::observe::metrics::Cause;

/// Texts that are submitted before the first one's result is there. The engine fills its steps from them, and other
/// requests have turns between them.
const AHEAD: usize = 64;

/// Texts that are under way.
pub(crate) struct Embedding {
    pooled: Pooled,
    ticket: Ticket,
    /// Those that the engine does not have yet.
    texts: VecDeque<Vec<TokenId>>,
    under_way: VecDeque<EventStream>,
    /// The values of the first one under way, once they are there.
    first: Vec<f32>,
    results: Vec<Vec<f32>>,
    /// Time that a text may wait for its turn.
    max_queue_time: Duration,
    started: Instant,
    totals: Totals,
    /// Dropped last, as in [`super::choices::Choices`].
    model: Arc<Served>,
}

impl Embedding {
    /// Begins with texts for a model that was loaded for them.
    pub(crate) fn new(
        model: Arc<Served>,
        pooled: Pooled,
        ticket: Ticket,
        texts: Vec<Vec<TokenId>>,
        max_queue_time: Duration,
    ) -> Embedding {
        let prompt_tokens = texts.iter().map(Vec::len).sum();
        ticket.listed.embeds(&model.name, prompt_tokens);
        Embedding {
            model,
            pooled,
            ticket,
            results: Vec::with_capacity(texts.len()),
            texts: texts.into(),
            under_way: VecDeque::new(),
            first: Vec::new(),
            max_queue_time,
            started: Instant::now(),
            totals: Totals {
                prompt_tokens,
                ..Totals::default()
            },
        }
    }

    /// Waits for the results of all texts, in their order.
    ///
    /// # Errors
    /// One of them cannot be computed, or too many requests wait.
    pub(crate) async fn results(mut self) -> Result<(Vec<Vec<f32>>, Totals), ApiError> {
        let results = std::future::poll_fn(|context| self.poll_results(context)).await?;
        Ok((results, self.totals))
    }

    fn poll_results(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<Vec<f32>>, ApiError>> {
        if self.ticket.listed.poll_ended(context).is_ready() {
            self.cut(Cause::Owner);
            return Poll::Ready(Err(ApiError::ended()));
        }
        loop {
            self.submit()?;
            let Some(first) = self.under_way.front_mut() else {
                return Poll::Ready(Ok(std::mem::take(&mut self.results)));
            };
            match ready!(first.poll_event(context)) {
                Some(StreamEvent::Embedding(values)) => self.first = values,
                Some(StreamEvent::PromptDone {
                    cached_tokens,
                    queue_time,
                    at,
                }) => {
                    self.totals.cached_tokens += cached_tokens;
                    self.totals.queue_time = self.totals.queue_time.max(queue_time);
                    self.totals.prompt_time = at - self.started;
                }
                Some(StreamEvent::Failed(failure)) => {
                    self.under_way.pop_front();
                    self.model.metrics.failed();
                    return Poll::Ready(Err(failure.into()));
                }
                Some(StreamEvent::Finished { .. }) | None => {
                    self.under_way.pop_front();
                    self.model.metrics.completed();
                    let mut values = std::mem::take(&mut self.first);
                    self.pooled.finish(&mut values);
                    self.results.push(values);
                }
                Some(StreamEvent::Tokens { .. } | StreamEvent::PromptScores(_)) => {}
            }
        }
    }

    /// Gives the engine further texts.
    fn submit(&mut self) -> Result<(), ApiError> {
        while self.under_way.len() < AHEAD
            && let Some(text) = self.texts.pop_front()
        {
            let tenant = self.ticket.tenant();
            let request = Request {
                // As that of answers.
                cache_salt: (!tenant.is_empty()).then(|| format!("{tenant}:")),
                tenant,
                start_by: Some(Instant::now() + self.max_queue_time),
                ..Request::embedding(text.clone(), self.pooled.tokens)
            };
            match self.model.engine.submit(request) {
                Ok(stream) => self.under_way.push_back(stream),
                // One of the others leaves a place.
                Err(SubmitError::Full(_)) if !self.under_way.is_empty() => {
                    self.texts.push_front(text);
                    return Ok(());
                }
                Err(error) => return Err(self.model.busy(error.into())),
            }
        }
        Ok(())
    }

    /// Counts the texts that are left, and lets go of them.
    fn cut(&mut self, cause: Cause) {
        let n_left = self.texts.len() + self.under_way.len();
        self.model.metrics.aborted(cause, n_left);
        self.texts.clear();
        self.under_way.clear();
    }
}

impl Drop for Embedding {
    fn drop(&mut self) {
        self.cut(self.ticket.cause());
        let Totals {
            prompt_tokens,
            queue_time,
            prompt_time,
            ..
        } = self.totals;
        if let Some(place) = &self.ticket.place {
            place.charge(prompt_tokens);
        }
        let metrics = &self.model.metrics;
        metrics.prompt_done(queue_time, prompt_time);
        metrics.request_ended(self.started.elapsed(), Duration::ZERO, prompt_tokens, 0);
    }
}
