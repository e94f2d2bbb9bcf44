//! The channel from the engine's thread to the reader of one request. The writer never waits: what the reader has not
//! taken is merged.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::stream::{PromptScore, StreamEvent, Token};
use crate::event::{Event, Failure};

/// What the reader has not taken yet.
#[derive(Default)]
struct Content {
    scores: Vec<PromptScore>,
    embedding: Option<StreamEvent>,
    prompt_done: Option<StreamEvent>,
    tokens: Vec<Token>,
    text: String,
    /// When the last of `tokens` was there.
    tokens_at: Option<Instant>,
    /// The last event.
    end: Option<StreamEvent>,
    has_ended: bool,
    reader: Reader,
}

/// Who is to be told that there is an event.
#[derive(Default)]
enum Reader {
    #[default]
    Nobody,
    /// A thread in [`Mailbox::take_until`].
    Thread,
    /// A task that [`Mailbox::poll_take`] returned to with nothing.
    Task(Waker),
}

/// A channel for the events of one request.
#[derive(Default)]
pub(super) struct Mailbox {
    content: Mutex<Content>,
    filled: Condvar,
}

impl Content {
    /// Takes the first event.
    fn take(&mut self) -> Option<StreamEvent> {
        if !self.scores.is_empty() {
            return Some(StreamEvent::PromptScores(std::mem::take(&mut self.scores)));
        }
        if let Some(embedding) = self.embedding.take() {
            return Some(embedding);
        }
        if let Some(done) = self.prompt_done.take() {
            return Some(done);
        }
        if let Some(at) = self.tokens_at.take() {
            return Some(StreamEvent::Tokens {
                tokens: std::mem::take(&mut self.tokens),
                text: std::mem::take(&mut self.text),
                at,
            });
        }
        self.end.take()
    }

    fn end(&mut self, event: StreamEvent) {
        if !self.has_ended {
            self.has_ended = true;
            self.end = Some(event);
        }
    }

    fn add(&mut self, event: Event, at: Instant) {
        match event {
            Event::PromptScore {
                position,
                logprob,
                top,
                ..
            } => self.scores.push(PromptScore {
                position,
                logprob,
                top,
            }),
            Event::PromptLogits { .. } => unreachable!("such requests are refused"),
            Event::Embedding { values, .. } => {
                self.embedding = Some(StreamEvent::Embedding(values));
            }
            Event::PromptDone {
                cached_tokens,
                queue_time,
                ..
            } => {
                self.prompt_done = Some(StreamEvent::PromptDone {
                    cached_tokens,
                    queue_time,
                    at,
                });
            }
            Event::Token {
                id,
                text,
                logprob,
                top,
                ..
            } => {
                self.tokens.push(Token { id, logprob, top });
                match self.text.is_empty() {
                    true => self.text = text,
                    false => self.text.push_str(&text),
                }
                self.tokens_at = Some(at);
            }
            Event::Finished { reason, text, .. } => {
                self.end(StreamEvent::Finished { reason, text });
            }
            Event::Failed { failure, .. } => self.end(StreamEvent::Failed(failure)),
        }
    }
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Content> {
        // No code panics while it holds the lock.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next event; waits for it until `deadline`, or as long as it takes.
    pub(super) fn take_until(&self, deadline: Option<Instant>) -> Option<StreamEvent> {
        let mut content = self.lock();
        loop {
            if let Some(event) = content.take() {
                return Some(event);
            }
            content.reader = Reader::Thread;
            content = match deadline {
                None => {
                    let content = self.filled.wait(content);
                    content.unwrap_or_else(PoisonError::into_inner)
                }
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        content.reader = Reader::Nobody;
                        return None;
                    }
                    let waited = self.filled.wait_timeout(content, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Takes the next event. If there is none, the writer wakes the task of `context` when there is.
    pub(super) fn poll_take(&self, context: &mut Context<'_>) -> Poll<StreamEvent> {
        let mut content = self.lock();
        if let Some(event) = content.take() {
            return Poll::Ready(event);
        }
        let task = Reader::Task(context.waker().clone());
        let before = std::mem::replace(&mut content.reader, task);
        // A waker's code runs without the lock.
        drop(content);
        drop(before);
        Poll::Pending
    }

    fn put(&self, change: impl FnOnce(&mut Content)) {
        let mut content = self.lock();
        change(&mut content);
        let reader = std::mem::take(&mut content.reader);
        drop(content);
        // Waking a thread costs a system call.
        match reader {
            Reader::Nobody => {}
            Reader::Thread => self.filled.notify_one(),
            Reader::Task(waker) => waker.wake(),
        }
    }
}

/// The writer's end of a [`Mailbox`]. Dropping it tells the reader that nothing more comes.
pub(super) struct Outbox(pub(super) std::sync::Arc<Mailbox>);

impl Outbox {
    pub(super) fn send(&self, event: Event, at: Instant) {
        self.0.put(|content| content.add(event, at));
    }

    pub(super) fn fail(&self, failure: Failure) {
        self.0
            .put(|content| content.end(StreamEvent::Failed(failure)));
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.fail(Failure::EngineStopped);
    }
}
