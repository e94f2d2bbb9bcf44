//! The events of one request, as its client reads them.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::handle::Handle;
use super::mailbox::Mailbox;
use crate::event::{Failure, FinishReason};
use crate::progress::{RequestProgress, Tracker};
use crate::request::RequestId;
use rocmforge_plan::TokenLogprob;
use rocmforge_text::tokenizer::TokenId;

/// Progress of a request: what happened since the last event was read.
#[derive(Debug, Clone)]
pub enum StreamEvent {
    /// Log-probabilities of the prompt's tokens.
    PromptScores(Vec<PromptScore>),
    /// The hidden values of the prompt, pooled as the request asks.
    Embedding(Vec<f32>),
    /// The whole prompt is in the cache; `cached_tokens` of it came from earlier requests.
    PromptDone {
        cached_tokens: usize,
        /// How long the request waited for its place in the cache.
        queue_time: Duration,
        at: Instant,
    },
    /// Generated tokens and the text that is now final.
    Tokens {
        tokens: Vec<Token>,
        text: String,
        /// When the last of them was there.
        at: Instant,
    },
    /// The end of the request, with the text that was held back.
    Finished { reason: FinishReason, text: String },
    /// The request failed.
    Failed(Failure),
}

/// The log-probability of the prompt token at `position`, given the tokens before it.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptScore {
    pub position: usize,
    pub logprob: f32,
    pub top: Vec<TokenLogprob>,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub id: TokenId,
    /// Its log-probability, if the request asks for log-probabilities.
    pub logprob: Option<f32>,
    /// The best tokens, best first.
    pub top: Vec<TokenLogprob>,
}

/// What came of waiting for an event.
#[derive(Debug)]
pub enum Waited {
    Event(StreamEvent),
    /// None came in time.
    Timeout,
    /// There are no more.
    Ended,
}

/// A view of a request for others than the reader of its events.
#[derive(Clone)]
pub struct Watch {
    pub(super) id: RequestId,
    pub(super) handle: Handle,
    pub(super) progress: Arc<Tracker>,
}

impl Watch {
    /// Returns how far the request is. Does not wait.
    pub fn progress(&self) -> RequestProgress {
        self.progress.read()
    }

    /// Asks the engine to end the request, as [`EventStream::abort`].
    pub fn abort(&self) {
        self.handle.abort(self.id);
    }
}

/// The events of one request: an iterator that waits for the next one. Dropping it aborts the request.
///
/// Events wait in the order of [`StreamEvent`]'s variants, at most one of each kind. Tokens that the client has not read
/// are merged into one event, so memory is bounded by what the request asks for.
pub struct EventStream {
    watch: Watch,
    mailbox: Arc<Mailbox>,
    is_over: bool,
}

impl EventStream {
    pub(super) fn new(watch: Watch, mailbox: Arc<Mailbox>) -> EventStream {
        EventStream {
            watch,
            mailbox,
            is_over: false,
        }
    }

    /// Returns the request.
    pub fn id(&self) -> RequestId {
        self.watch.id
    }

    /// Returns a view of the request for others.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Returns how far the request is. Does not wait.
    pub fn progress(&self) -> RequestProgress {
        self.watch.progress()
    }

    /// Asks the engine to end the request. Its last event is [`FinishReason::Aborted`], unless it ends before.
    pub fn abort(&self) {
        self.watch.abort();
    }

    /// Waits for the next event, but no longer than `timeout`.
    pub fn next_within(&mut self, timeout: Duration) -> Waited {
        if self.is_over {
            return Waited::Ended;
        }
        match self.mailbox.take_until(Some(Instant::now() + timeout)) {
            Some(event) => Waited::Event(self.noted(event)),
            None => Waited::Timeout,
        }
    }

    /// Takes the next event without waiting, `None` after the last. If there is none yet, the task of `context` is woken
    /// when there is. Only the task that polled last is woken.
    ///
    /// With the feature `stream`, [`EventStream`] is a `futures_core::Stream` that does this.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let event = self.mailbox.poll_take(context);
        event.map(|event| Some(self.noted(event)))
    }

    /// Notes whether an event is the last one.
    fn noted(&mut self, event: StreamEvent) -> StreamEvent {
        self.is_over = matches!(event, StreamEvent::Finished { .. } | StreamEvent::Failed(_));
        event
    }
}

impl Iterator for EventStream {
    type Item = StreamEvent;

    fn next(&mut self) -> Option<StreamEvent> {
        if self.is_over {
            return None;
        }
        let event = self.mailbox.take_until(None);
        let event = event.expect("it waits until there is one");
        Some(self.noted(event))
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for EventStream {
    type Item = StreamEvent;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<StreamEvent>> {
        self.get_mut().poll_event(context)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if !self.is_over {
            self.abort();
        }
    }
}
