//! The answers to one HTTP request, from their submission to their end.
//!
//! Answers to the same prompt (`n` above 1) are a group of the engine, which computes the prompt once. Dropping [`Choices`]
//! ends them all before the engine's next step.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::Stream;
use rocmforge_engine::serve::{EventStream, PromptScore, StreamEvent, Token};
use rocmforge_engine::{DraftCounts, FinishReason, Request};

use super::lifecycle::UnderWay;
use super::model::Served;
use super::resume::{Kept, Streams};
use crate::http::connection::Connection;
use crate::http::error::{ApiError, whole_seconds};
use crate::http::keys::Place;
use crate::observe::metrics::Cause;
use crate::observe::requests::Listed;
use crate::observe::traces::Trace;

/// What happened to an answer.
#[derive(Debug)]
pub(crate) enum Update {
    /// Scores of the prompt's tokens.
    PromptScores {
        choice: usize,
        scores: Vec<PromptScore>,
    },
    /// New tokens, and the text that is now final.
    Tokens {
        choice: usize,
        tokens: Vec<Token>,
        text: String,
    },
    /// The end of an answer, with the text that was held back.
    Finished {
        choice: usize,
        reason: FinishReason,
        text: String,
    },
}

/// The right to run a request: counted by the server and by its key, and in the table of what is under way.
pub(crate) struct Ticket {
    pub(crate) place: Option<Place>,
    pub(crate) under_way: UnderWay,
    pub(crate) listed: Listed,
    pub(crate) connection: Connection,
    /// Its span, if spans are sent anywhere.
    pub(crate) trace: Option<Trace>,
    /// Its stream, if its client wants it to be kept.
    pub(crate) stream: Option<(Arc<Streams>, Arc<Kept>)>,
}

impl Ticket {
    /// Whose turn the request takes: its key's. Without keys, all are one.
    pub(crate) fn tenant(&self) -> Arc<str> {
        let place = self.place.as_ref();
        place.map_or_else(Arc::default, |place| Arc::clone(place.owner()))
    }

    /// Notes in its span that the request has not come to its end.
    fn fail(&mut self, error: &'static str) {
        if let Some(trace) = &mut self.trace {
            trace.fail(error);
        }
    }

    /// Who cuts answers that are dropped now.
    pub(crate) fn cause(&self) -> Cause {
        if self.under_way.is_to_end() {
            Cause::Shutdown
        } else if self.connection.is_slow() {
            Cause::SlowReader
        } else {
            Cause::Client
        }
    }
}

/// What it took to read a prompt.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PromptTimes {
    pub(crate) template: Duration,
    pub(crate) tokenize: Duration,
}

/// The sums of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache.
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Times that an answer gave its place in the cache to another request.
    pub(crate) n_preempted: usize,
    pub(crate) drafts: DraftCounts,
    /// Answers that the server's limit on their time has ended.
    pub(crate) n_deadline: usize,
    pub(crate) prompt_times: PromptTimes,
    /// Time that the last of the prompts waited for its turn.
    pub(crate) queue_time: Duration,
    /// Time from submission to the end of the prompt: waiting and prefill.
    pub(crate) prompt_time: Duration,
    /// Time from then to the last token.
    pub(crate) decode_time: Duration,
}

/// Answers that are under way.
pub(crate) struct Choices {
    slots: Vec<Slot>,
    /// Updates that are to be read before the next event.
    ready: VecDeque<Update>,
    /// The slot to look at first, so that none is forgotten.
    first: usize,
    started: Instant,
    prompt_done: Option<Instant>,
    totals: Totals,
    ticket: Ticket,
    /// Dropped last: the others hold parts of it, and its memory counts as free when this is the last one.
    model: Arc<Served>,
}

/// One answer.
struct Slot {
    /// `None` once it has ended.
    events: Option<EventStream>,
    /// Whether it computes its group's prompt.
    leads: bool,
    last_token: Option<Instant>,
}

impl Choices {
    /// Submits requests; those of a group have the same prompt.
    ///
    /// # Errors
    /// One of them cannot be served, or too many requests wait.
    pub(crate) fn submit(
        model: Arc<Served>,
        groups: Vec<Vec<Request>>,
        ticket: Ticket,
    ) -> Result<Choices, ApiError> {
        let mut leads = Vec::new();
        let mut totals = Totals::default();
        let tenant = ticket.tenant();
        let groups = groups.into_iter().map(|mut group| {
            totals.prompt_tokens += group.first().map_or(0, |leader| leader.prompt.len());
            leads.extend((0..group.len()).map(|at| at == 0));
            for request in &mut group {
                request.tenant = Arc::clone(&tenant);
                request.shared_tokens = model.shared.n_shared(&request.prompt);
            }
            group
        });
        if ticket.listed.is_ended() {
            return Err(ApiError::ended());
        }
        let submitted = model.engine.submit_groups(groups);
        let streams = submitted.map_err(|error| model.busy(error.into()))?;
        let mut watches = [Vec::new(), Vec::new()];
        for (events, &leads) in streams.iter().zip(&leads) {
            watches[usize::from(!leads)].push(events.watch());
        }
        ticket
            .listed
            .submitted(&model.name, totals.prompt_tokens, watches);
        let slot = |(events, leads)| Slot {
            events: Some(events),
            leads,
            last_token: None,
        };
        Ok(Choices {
            model,
            slots: streams.into_iter().zip(leads).map(slot).collect(),
            ready: VecDeque::new(),
            first: 0,
            started: Instant::now(),
            prompt_done: None,
            totals,
            ticket,
        })
    }

    /// Adds what it took to read the prompt.
    pub(crate) fn after(mut self, prompt_times: PromptTimes) -> Choices {
        self.totals.prompt_times = prompt_times;
        self
    }

    /// Returns the sums so far.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Notes that the answers are streamed, and keeps the stream if the client wants it.
    pub(crate) fn are_streamed(&self) {
        self.ticket.listed.streams();
        if let Some((streams, kept)) = &self.ticket.stream {
            streams.keep(kept);
        }
    }

    /// Lets go of an answer that has ended; returns whether it had not been let go of.
    fn end(&mut self, choice: usize) -> bool {
        let events = self.slots[choice].events.take();
        if let Some(events) = &events {
            let progress = events.progress();
            self.totals.n_preempted += progress.preemptions;
            self.totals.drafts += progress.drafts;
        }
        events.is_some()
    }

    /// Ends an answer that is complete and needs no more tokens.
    pub(crate) fn end_early(&mut self, choice: usize) {
        if self.end(choice) {
            self.model.metrics.completed();
        }
    }

    /// Waits for all answers.
    ///
    /// # Errors
    /// One of them failed.
    pub(crate) async fn whole(self) -> Result<(Vec<Whole>, Totals), ApiError> {
        self.whole_until(|_, _| false).await
    }

    /// Waits for all answers. `is_over` gets the text of each as it comes, and says whether that answer needs no more
    /// tokens; it then ends without a reason.
    ///
    /// # Errors
    /// One of them failed.
    pub(crate) async fn whole_until(
        mut self,
        mut is_over: impl FnMut(usize, &str) -> bool,
    ) -> Result<(Vec<Whole>, Totals), ApiError> {
        let mut all: Vec<Whole> = self.slots.iter().map(|_| Whole::default()).collect();
        while let Some(update) = std::future::poll_fn(|context| self.poll_update(context)).await {
            match update? {
                Update::PromptScores { choice, scores } => all[choice].scores.extend(scores),
                Update::Tokens {
                    choice,
                    tokens,
                    text,
                } => {
                    all[choice].tokens.extend(tokens);
                    all[choice].text.push_str(&text);
                    if is_over(choice, &text) {
                        self.end_early(choice);
                    }
                }
                Update::Finished {
                    choice,
                    reason,
                    text,
                } => {
                    all[choice].text.push_str(&text);
                    all[choice].reason = Some(reason);
                    is_over(choice, &text);
                }
            }
        }
        Ok((all, self.totals))
    }

    /// Waits until the request has begun: a prompt is computed, or there is an update.
    ///
    /// # Errors
    /// It has failed before.
    pub(crate) async fn begun(&mut self) -> Result<(), ApiError> {
        while self.prompt_done.is_none() && self.ready.is_empty() {
            let taken = std::future::poll_fn(|context| self.poll_take(context)).await;
            match taken {
                None => break,
                Some(taken) => taken?,
            }
        }
        Ok(())
    }

    /// Returns the next update, `None` after the last. An error is the last one.
    pub(crate) fn poll_update(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Update, ApiError>>> {
        loop {
            if !self.slots.is_empty() && self.ticket.listed.poll_ended(context).is_ready() {
                self.ticket.fail(Cause::Owner.name());
                self.model.metrics.aborted(Cause::Owner, self.n_cut());
                self.slots.clear();
                self.ready.clear();
                return Poll::Ready(Some(Err(ApiError::ended())));
            }
            if let Some(update) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(update)));
            }
            match ready!(self.poll_take(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(())) => {}
            }
        }
    }

    /// Takes the next event of an answer; `None` if all have ended.
    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(), ApiError>>> {
        let n = self.slots.len();
        let mut is_over = true;
        for at in (0..n).map(|i| (self.first + i) % n) {
            let Some(events) = &mut self.slots[at].events else {
                continue;
            };
            is_over = false;
            if let Poll::Ready(Some(event)) = events.poll_event(context) {
                self.first = (at + 1) % n;
                let taken = self.take(at, event);
                if taken.is_err() {
                    self.slots.clear();
                }
                return Poll::Ready(Some(taken));
            }
        }
        match is_over {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    fn take(&mut self, choice: usize, event: StreamEvent) -> Result<(), ApiError> {
        match event {
            StreamEvent::PromptScores(scores) => {
                self.ready
                    .push_back(Update::PromptScores { choice, scores });
            }
            StreamEvent::Embedding(_) => {}
            StreamEvent::PromptDone {
                cached_tokens,
                queue_time,
                at,
            } => {
                if self.slots[choice].leads {
                    self.model
                        .metrics
                        .prompt_done(queue_time, at - self.started);
                    self.totals.queue_time = queue_time;
                    self.totals.cached_tokens += cached_tokens;
                    self.totals.prompt_time = at - self.started;
                    self.prompt_done = Some(at);
                }
            }
            StreamEvent::Tokens { tokens, text, at } => {
                self.totals.completion_tokens += tokens.len();
                let slot = &mut self.slots[choice];
                let metrics = &self.model.metrics;
                match slot.last_token.replace(at) {
                    None => metrics.first_tokens(at - self.started, tokens.len()),
                    Some(last) => metrics.more_tokens(at - last, tokens.len()),
                }
                if let Some(done) = self.prompt_done {
                    self.totals.decode_time = at - done;
                }
                self.ready.push_back(Update::Tokens {
                    choice,
                    tokens,
                    text,
                });
            }
            StreamEvent::Finished { reason, text } => {
                self.end(choice);
                self.model.metrics.finished(reason);
                self.totals.n_deadline += usize::from(reason == FinishReason::Deadline);
                self.ready.push_back(Update::Finished {
                    choice,
                    reason,
                    text,
                });
            }
            StreamEvent::Failed(failure) => {
                self.ticket.fail("failed");
                self.model.metrics.failed();
                return Err(failure.into());
            }
        }
        Ok(())
    }

    /// Adds the answers to the span of the request.
    fn trace(&mut self) {
        let Some(trace) = &mut self.ticket.trace else {
            return;
        };
        let totals = &self.totals;
        trace.set("gen_ai.response.model", self.model.name.as_str().into());
        trace.set("gen_ai.usage.input_tokens", totals.prompt_tokens.into());
        trace.set(
            "gen_ai.usage.output_tokens",
            totals.completion_tokens.into(),
        );
        trace.set("rocmforge.cached_tokens", totals.cached_tokens.into());
        trace.set("rocmforge.preemptions", totals.n_preempted.into());
        if totals.drafts.n_drafted > 0 {
            let DraftCounts {
                n_drafted,
                n_accepted,
            } = totals.drafts;
            trace.set("rocmforge.drafted_tokens", (n_drafted as usize).into());
            trace.set("rocmforge.accepted_tokens", (n_accepted as usize).into());
        }
        let PromptTimes { template, tokenize } = totals.prompt_times;
        let parts = [
            ("template", self.started - tokenize - template, template),
            ("tokenize", self.started - tokenize, tokenize),
        ];
        for (name, from, time) in parts.into_iter().filter(|(.., time)| !time.is_zero()) {
            trace.part(name, from, time);
        }
        let Some(done) = self.prompt_done else {
            return trace.part("queue", self.started, self.started.elapsed());
        };
        // The engine may have begun before this thread noted the time.
        let (done, end) = (done.max(self.started), done + totals.decode_time);
        let begun = (self.started + totals.queue_time).min(done);
        trace.part("queue", self.started, begun - self.started);
        trace.part("prefill", begun, done - begun);
        trace.part("decode", done, end.saturating_duration_since(done));
    }

    /// Returns the number of answers that have not ended.
    fn n_cut(&self) -> usize {
        let is_cut = |slot: &&Slot| slot.events.is_some();
        self.slots.iter().filter(is_cut).count()
    }
}

impl Drop for Choices {
    fn drop(&mut self) {
        let Totals {
            prompt_tokens,
            cached_tokens,
            completion_tokens,
            decode_time,
            ..
        } = self.totals;
        if let Some(place) = &self.ticket.place {
            place.charge(prompt_tokens - cached_tokens.min(prompt_tokens) + completion_tokens);
        }
        let (cause, n_cut) = (self.ticket.cause(), self.n_cut());
        if n_cut > 0 {
            self.ticket.fail(cause.name());
        }
        self.trace();
        self.model.metrics.aborted(cause, n_cut);
        let whole = self.started.elapsed();
        self.model
            .metrics
            .request_ended(whole, decode_time, prompt_tokens, completion_tokens);
    }
}

impl Stream for Choices {
    type Item = Result<Update, ApiError>;

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Update, ApiError>>> {
        self.get_mut().poll_update(context)
    }
}

/// A whole answer.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    pub(crate) scores: Vec<PromptScore>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    pub(crate) reason: Option<FinishReason>,
}

impl Served {
    /// Says when a client that found no place in the queue may try again.
    pub(crate) fn busy(&self, error: ApiError) -> ApiError {
        match error.code {
            Some("queue_full") => {
                let queue_time = self.engine.stats().queue_time;
                error.retry_after(whole_seconds(queue_time))
            }
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::requests::{Asked, Requests};
    use crate::serving::lifecycle::{Lifecycle, Phase};

    #[test]
    fn tells_who_cuts_an_answer() {
        let lifecycle = Arc::new(Lifecycle::new());
        let asked = Asked {
            id: "a".into(),
            route: String::new(),
            key: None,
        };
        let ticket = Ticket {
            place: None,
            under_way: lifecycle.admit().unwrap(),
            listed: Arc::<Requests>::default().begin(asked, String::new),
            trace: None,
            connection: Connection::default(),
            stream: None,
        };
        lifecycle.enter(Phase::Draining);
        assert!(matches!(ticket.cause(), Cause::Client));
        ticket.connection.set_slow();
        assert!(matches!(ticket.cause(), Cause::SlowReader));
        lifecycle.enter(Phase::Aborting);
        assert!(matches!(ticket.cause(), Cause::Shutdown));
    }
}
