//! What clients use: submits requests to the engine's thread and asks it for numbers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::failure::FailureWatch;
use super::mailbox::{Mailbox, Outbox};
use super::step_clock::StepClock;
use super::stream::{EventStream, Watch};
use crate::engine::Engine;
use crate::error::{EngineError, QueueLimit, RequestError};
use crate::event::Failure;
use crate::intake::Intake;
use crate::request::{PromptOutput, Request, RequestId};
use crate::sequence::Sequence;
use crate::stats::{EngineStats, Queued};
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
    /// What may wait.
    most: Queued,
    /// What clients have submitted. The engine's thread does not use it.
    submitted: Mutex<Queued>,
    /// What of it no longer waits for its first admission.
    left_queue: Mutex<Queued>,
    stats: Mutex<EngineStats>,
    pub(super) step_clock: StepClock,
    pub(super) failure: Arc<FailureWatch>,
}

/// Locks what no code panics with.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Tells all handles the state of the engine.
    pub(super) fn publish(&self, engine: &Engine) {
        *lock(&self.left_queue) = engine.left_queue();
        *lock(&self.stats) = engine.stats();
    }
}

/// An error of [`Handle::submit`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too much waits.
    #[error("{0}; try again later")]
    Full(QueueLimit),
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
            SubmitError::Full(limit) => RequestError::QueueFull(limit).into(),
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
    pub(super) fn new(engine: &Engine, most: Queued) -> (Handle, mpsc::Receiver<Command>) {
        let (commands, inbox) = mpsc::channel();
        let shared = Shared {
            intake: Arc::clone(engine.intake()),
            info: engine.backend_info().clone(),
            block_tokens: engine.block_tokens(),
            most,
            submitted: Mutex::new(engine.left_queue()),
            left_queue: Mutex::new(engine.left_queue()),
            stats: Mutex::new(engine.stats()),
            step_clock: StepClock::new(),
            failure: Arc::new(FailureWatch::new()),
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
    /// [`SubmitError::Full`] if too much waits, [`SubmitError::Invalid`] if this one cannot be served.
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
        self.submit_groups(requests.into_iter().map(|request| vec![request]))
    }

    /// Queues groups of requests: all or none. Those of a group have the same prompt. Its first one computes it; the
    /// others have their turns after that, and find it in the cache.
    ///
    /// # Errors
    /// As [`Handle::submit`].
    pub fn submit_groups(
        &self,
        groups: impl IntoIterator<Item = Vec<Request>>,
    ) -> Result<Vec<EventStream>, SubmitError> {
        let mut submitted = Vec::new();
        let mut streams = Vec::new();
        let mut queued = Queued::default();
        for group in groups {
            let mut leader = None;
            for request in group {
                if matches!(request.prompt_output, PromptOutput::Logits { .. }) {
                    return Err(EngineError::from(RequestError::LogitsStreamed).into());
                }
                let mut sequence = self.shared.intake.prepare(request)?;
                sequence.leader = leader;
                leader.get_or_insert(sequence.id);
                queued += Queued::by(&sequence);
                let mailbox = Arc::new(Mailbox::default());
                let watch = Watch {
                    id: sequence.id,
                    handle: self.clone(),
                    progress: Arc::clone(&sequence.progress),
                };
                streams.push((watch, Arc::clone(&mailbox)));
                submitted.push((sequence, Outbox(mailbox)));
            }
        }
        self.take_places(queued)?;
        let command = Command::Submit(submitted);
        self.commands
            .send(command)
            .map_err(|_| SubmitError::Stopped)?;
        let stream = |(watch, mailbox)| EventStream::new(watch, mailbox);
        Ok(streams.into_iter().map(stream).collect())
    }

    /// Takes places in the queue. When nothing waits, there is place for any number.
    fn take_places(&self, these: Queued) -> Result<(), SubmitError> {
        let most = self.shared.most;
        let mut submitted = lock(&self.shared.submitted);
        let mut waiting = submitted.without(*lock(&self.shared.left_queue));
        if waiting.requests > 0 {
            waiting += these;
            if waiting.requests > most.requests {
                return Err(SubmitError::Full(QueueLimit::Requests(most.requests)));
            }
            if waiting.tokens > most.tokens {
                return Err(SubmitError::Full(QueueLimit::Tokens(most.tokens)));
            }
        }
        *submitted += these;
        Ok(())
    }

    /// Asks the engine to end a request before its next step. Its stream ends with
    /// [`FinishReason::Aborted`](crate::FinishReason::Aborted). Ignores unknown and ended requests.
    pub fn abort(&self, request: RequestId) {
        drop(self.commands.send(Command::Abort(request)));
    }

    /// Returns the state of the engine after its last step.
    pub fn stats(&self) -> EngineStats {
        *lock(&self.shared.stats)
    }

    /// Returns how long the engine waits for the step under way; `None` between two steps. A device that hangs shows here,
    /// a backend that is being replaced does not.
    pub fn step_time(&self) -> Option<Duration> {
        self.shared.step_clock.read()
    }

    /// Returns why the engine's thread has ended, if that was not asked for.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure.get()
    }

    /// Has `told` called when the engine's thread ends without being asked to: its device is lost for good, or it has
    /// panicked. `told` runs on that thread, or at once if it has ended.
    pub fn on_failure(&self, told: impl FnOnce(Failure) + Send + 'static) {
        self.shared.failure.tell(Box::new(told));
    }

    /// Returns the context size: the number of positions of one sequence.
    pub fn n_ctx(&self) -> usize {
        self.shared.intake.limits.n_ctx
    }

    /// Returns the most tokens of a step.
    pub fn max_step_tokens(&self) -> usize {
        self.shared.intake.limits.max_tokens
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
