//! What clients use: submits requests to the engine's thread and asks it for numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::mailbox::{Mailbox, Outbox};
use super::stream::{EventStream, Watch};
use crate::engine::Engine;
use crate::error::{EngineError, RequestError};
use crate::event::Failure;
use crate::intake::Intake;
use crate::request::{PromptOutput, Request, RequestId};
use crate::sequence::Sequence;
use crate::stats::EngineStats;
use rocmforge_runtime::{BackendInfo, PrefixSharing};

/// What clients ask of the engine's thread.
pub(super) enum Command {
    /// Requests that are to enter the queue together.
    Submit(Vec<(Sequence, Outbox)>),
    Abort(RequestId),
    /// Work on the engine between two steps.
    Call(Box<dyn FnOnce(&mut Engine) + Send>),
    Stop,
}

/// What the engine's thread and all handles know.
pub(super) struct Shared {
    intake: Arc<Intake>,
    info: BackendInfo,
    block_tokens: usize,
    max_waiting: usize,
    /// Requests that clients have submitted.
    n_submitted: AtomicU64,
    /// Those of them that no longer wait for their first admission.
    n_left_queue: AtomicU64,
    stats: Mutex<EngineStats>,
}

impl Shared {
    /// Tells all handles the state of the engine.
    pub(super) fn publish(&self, engine: &Engine) {
        self.n_left_queue
            .store(engine.n_left_queue(), Ordering::Release);
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = engine.stats();
    }
}

/// An error of [`Handle::submit`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    #[error("{max_waiting} requests are waiting; try again later")]
    Full { max_waiting: usize },
    #[error("{}", Failure::EngineStopped)]
    Stopped,
    #[error(transparent)]
    Invalid(#[from] EngineError),
}

impl From<SubmitError> for EngineError {
    fn from(error: SubmitError) -> EngineError {
        match error {
            SubmitError::Invalid(error) => error,
            SubmitError::Stopped => EngineError::Failed(Failure::EngineStopped),
            SubmitError::Full { max_waiting } => RequestError::QueueFull { max_waiting }.into(),
        }
    }
}

/// A client's access to an engine on another thread.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
}

impl Handle {
    pub(super) fn new(engine: &Engine, max_waiting: usize) -> (Handle, mpsc::Receiver<Command>) {
        let (commands, inbox) = mpsc::channel();
        let shared = Shared {
            intake: Arc::clone(engine.intake()),
            info: engine.backend_info().clone(),
            block_tokens: engine.block_tokens(),
            max_waiting,
            n_submitted: AtomicU64::new(engine.n_left_queue()),
            n_left_queue: AtomicU64::new(engine.n_left_queue()),
            stats: Mutex::new(engine.stats()),
        };
        let shared = Arc::new(shared);
        (Handle { commands, shared }, inbox)
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Queues a request and returns its events. Does not wait.
    ///
    /// # Errors
    /// [`SubmitError::Full`] if too many requests wait, [`SubmitError::Invalid`] if this one cannot be served.
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        let mut streams = self.submit_all([request])?;
        Ok(streams.pop().expect("one stream per request"))
    }

    /// Queues several requests between the same two steps: all or none.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn submit_all(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Result<Vec<EventStream>, SubmitError> {
        let mut submitted = Vec::new();
        let mut streams = Vec::new();
        for request in requests {
            if request.prompt_output == PromptOutput::Logits {
                return Err(EngineError::from(RequestError::LogitsStreamed).into());
            }
            let sequence = self.shared.intake.prepare(request)?;
            let mailbox = Arc::new(Mailbox::default());
            let watch = Watch {
                id: sequence.id,
                handle: self.clone(),
                progress: Arc::clone(&sequence.progress),
            };
            streams.push((watch, Arc::clone(&mailbox)));
            submitted.push((sequence, Outbox(mailbox)));
        }
        self.take_places(submitted.len() as u64)?;
        let command = Command::Submit(submitted);
        self.commands
            .send(command)
            .map_err(|_| SubmitError::Stopped)?;
        let stream = |(watch, mailbox)| EventStream::new(watch, mailbox);
        Ok(streams.into_iter().map(stream).collect())
    }

    /// Takes `n` places in the queue.
    fn take_places(&self, n: u64) -> Result<(), SubmitError> {
        let max_waiting = self.shared.max_waiting;
        let n_left = self.shared.n_left_queue.load(Ordering::Acquire);
        let with_these = |n_submitted: u64| {
            let n_waiting = n_submitted.saturating_sub(n_left) + n;
            (n_waiting <= max_waiting as u64).then(|| n_submitted + n)
        };
        let n_submitted = &self.shared.n_submitted;
        match n_submitted.fetch_update(Ordering::AcqRel, Ordering::Acquire, with_these) {
            Ok(_) => Ok(()),
            Err(_) => Err(SubmitError::Full { max_waiting }),
        }
    }

    /// Asks the engine to end a request before its next step. Its stream ends with
    /// [`FinishReason::Aborted`](crate::FinishReason::Aborted). Ignores unknown and ended requests.
    pub fn abort(&self, request: RequestId) {
        drop(self.commands.send(Command::Abort(request)));
    }

    /// Returns the state of the engine after its last step.
    pub fn stats(&self) -> EngineStats {
        *self
            .shared
            .stats
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the context size: the number of positions of one sequence.
    pub fn n_ctx(&self) -> usize {
        self.shared.intake.limits.n_ctx
    }

    /// Returns the tokens of a block of the KV cache.
    pub fn block_tokens(&self) -> usize {
        self.shared.block_tokens
    }

    /// Returns whether requests use what earlier ones left in the cache.
    pub fn prefix_sharing(&self) -> PrefixSharing {
        self.shared.intake.limits.prefix_sharing
    }

    /// Describes the backend that the engine was started with.
    pub fn backend_info(&self) -> &BackendInfo {
        &self.shared.info
    }

    /// Runs `work` on the engine between two steps and returns its result. Every request waits meanwhile. Events of
    /// steps that `work` makes itself are lost.
    ///
    /// # Errors
    /// [`EngineError::Failed`] if the engine's thread has ended.
    pub fn with_engine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (to, result) = mpsc::channel();
        let call = move |engine: &mut Engine| drop(to.send(work(engine)));
        drop(self.commands.send(Command::Call(Box::new(call))));
        result
            .recv()
            .map_err(|_| EngineError::Failed(Failure::EngineStopped))
    }

    pub(super) fn stop(&self) {
        drop(self.commands.send(Command::Stop));
    }
}
