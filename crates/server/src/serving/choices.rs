//! The answers to one HTTP request, from their submission to their end.
//!
//! Answers to the same prompt (`n` above 1) begin when the first of them has computed the prompt, which they then find in
//! the cache. Dropping [`Choices`] ends them all before the engine's next step.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::Stream;
use rocmforge_engine::serve::{EventStream, PromptScore, StreamEvent, Token};
use rocmforge_engine::{FinishReason, Request};

use super::lifecycle::UnderWay;
use super::model::Served;
use crate::http::error::ApiError;
use crate::http::keys::Place;
use crate::observe::metrics::Cause;
use crate::observe::requests::Listed;

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
    pub(crate) _under_way: UnderWay,
    pub(crate) listed: Listed,
}

/// The sums of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache.
    pub(crate) cached_tokens: usize,
    pub(crate) completion_tokens: usize,
    /// Time that the last of the prompts waited for its turn.
    pub(crate) queue_time: Duration,
    /// Time from submission to the end of the prompt: waiting and prefill.
    pub(crate) prompt_time: Duration,
    /// Time from then to the last token.
    pub(crate) decode_time: Duration,
}

/// Answers that are under way.
pub(crate) struct Choices {
    model: Arc<Served>,
    slots: Vec<Slot>,
    /// Updates that are to be read before the next event.
    ready: VecDeque<Update>,
    /// The slot to look at first, so that none is forgotten.
    first: usize,
    started: Instant,
    prompt_done: Option<Instant>,
    totals: Totals,
    ticket: Ticket,
}

/// One answer.
struct Slot {
    state: State,
    /// The slot whose prompt this one shares.
    leader: usize,
    last_token: Option<Instant>,
}

enum State {
    /// It waits for its leader's prompt.
    Waiting(Box<Request>),
    Running(EventStream),
    Ended,
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
        let mut slots = Vec::new();
        let mut leaders = Vec::new();
        let mut totals = Totals::default();
        for group in groups {
            let leader = slots.len();
            let mut group = group.into_iter();
            if let Some(request) = group.next() {
                totals.prompt_tokens += request.prompt.len();
                leaders.push(request);
                slots.push(Slot::new(State::Ended, leader));
            }
            slots.extend(group.map(|request| Slot::new(State::Waiting(request.into()), leader)));
        }
        if ticket.listed.is_ended() {
            return Err(ApiError::ended());
        }
        let submitted = model.engine.submit_all(leaders);
        let streams = submitted.map_err(|error| model.busy(error.into()))?;
        let watches = streams.iter().map(EventStream::watch).collect();
        ticket
            .listed
            .submitted(&model.name, totals.prompt_tokens, watches);
        let mut streams = streams.into_iter();
        for (at, slot) in slots.iter_mut().enumerate() {
            if slot.leader == at {
                slot.state = State::Running(streams.next().expect("one stream for each leader"));
            }
        }
        Ok(Choices {
            model,
            slots,
            ready: VecDeque::new(),
            first: 0,
            started: Instant::now(),
            prompt_done: None,
            totals,
            ticket,
        })
    }

    /// Returns the sums so far.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Notes that the answers are streamed.
    pub(crate) fn are_streamed(&self) {
        self.ticket.listed.streams();
    }

    /// Ends an answer that needs no more tokens.
    pub(crate) fn end(&mut self, choice: usize) {
        self.slots[choice].state = State::Ended;
    }

    /// Waits for all answers.
    ///
    /// # Errors
    /// One of them failed.
    pub(crate) async fn whole(mut self) -> Result<(Vec<Whole>, Totals), ApiError> {
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
                }
                Update::Finished {
                    choice,
                    reason,
                    text,
                } => {
                    all[choice].text.push_str(&text);
                    all[choice].reason = Some(reason);
                }
            }
        }
        Ok((all, self.totals))
    }

    /// Returns the next update, `None` after the last. An error is the last one.
    pub(crate) fn poll_update(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Update, ApiError>>> {
        loop {
            if !self.slots.is_empty() && self.ticket.listed.poll_ended(context).is_ready() {
                self.model.metrics.aborted(Cause::Owner, self.n_cut());
                self.slots.clear();
                self.ready.clear();
                return Poll::Ready(Some(Err(ApiError::ended())));
            }
            if let Some(update) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(update)));
            }
            let n = self.slots.len();
            let mut is_over = true;
            let mut event = None;
            for at in (0..n).map(|i| (self.first + i) % n) {
                match &mut self.slots[at].state {
                    State::Running(stream) => {
                        is_over = false;
                        if let Poll::Ready(Some(found)) = stream.poll_event(context) {
                            event = Some((at, found));
                            break;
                        }
                    }
                    State::Waiting(_) => is_over = false,
                    State::Ended => {}
                }
            }
            match event {
                None if is_over => return Poll::Ready(None),
                None => return Poll::Pending,
                Some((at, event)) => {
                    self.first = (at + 1) % n;
                    if let Err(error) = self.take(at, event) {
                        self.slots.clear();
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
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
                if self.slots[choice].leader == choice {
                    self.model
                        .metrics
                        .prompt_done(queue_time, at - self.started);
                    self.totals.queue_time = queue_time;
                    self.totals.cached_tokens += cached_tokens;
                    self.totals.prompt_time = at - self.started;
                    self.prompt_done = Some(at);
                    self.start_followers(choice)?;
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
                self.slots[choice].state = State::Ended;
                self.model.metrics.finished(reason);
                // A leader that ends early may have had no prompt to share.
                self.start_followers(choice)?;
                self.ready.push_back(Update::Finished {
                    choice,
                    reason,
                    text,
                });
            }
            StreamEvent::Failed(failure) => {
                self.model.metrics.failed();
                return Err(failure.into());
            }
        }
        Ok(())
    }

    fn start_followers(&mut self, leader: usize) -> Result<(), ApiError> {
        for slot in &mut self.slots {
            if slot.leader != leader || !matches!(slot.state, State::Waiting(_)) {
                continue;
            }
            let State::Waiting(request) = std::mem::replace(&mut slot.state, State::Ended) else {
                continue;
            };
            let stream = self.model.engine.submit(*request);
            let stream = stream.map_err(|error| self.model.busy(error.into()))?;
            self.ticket.listed.follows(stream.watch());
            slot.state = State::Running(stream);
        }
        Ok(())
    }

    /// Returns the number of answers that have not ended.
    fn n_cut(&self) -> usize {
        let is_cut = |slot: &&Slot| !matches!(slot.state, State::Ended);
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
        self.model.metrics.aborted(Cause::Client, self.n_cut());
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

impl Slot {
    fn new(state: State, leader: usize) -> Slot {
        Slot {
            state,
            leader,
            last_token: None,
        }
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
    fn busy(&self, error: ApiError) -> ApiError {
        match error.code {
            Some("queue_full") => {
                let n_waiting = self.engine.stats().waiting;
                error.retry_after(self.metrics.time_to_end(n_waiting))
            }
            _ => error,
        }
    }
}
