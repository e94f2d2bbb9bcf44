//! The engine: accepts requests, schedules steps, submits them to a device and turns the results into events.

mod output;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{DeviceError, EngineError};
use crate::event::{Event, Failure, FinishReason};
use crate::intake::Intake;
use crate::kv_cache::{BlockPool, ContextShifts, KvUsage};
use crate::masks::{MaskWatcher, Masks};
use crate::request::{Request, RequestId};
use crate::scheduler::{Scheduler, StepRecord};
use crate::sequence::Sequence;
use crate::sequences::Slot;
use crate::speculate::{Attempt, DraftLength, Drafter, DrafterStatus, Speculator};
use crate::stats::{EngineStats, Queued};
use rocmforge_model::Model;
use rocmforge_plan::{BatchShape, Fusion, Plan};
use rocmforge_runtime::tuning::TuneProgress;
use rocmforge_runtime::{
    BackendInfo, Device, EngineConfig, Executor, Limits, OpObserver, Pending, Resolved,
    RuntimeError, SharedCache, Started, StepObserver, running_plan, start,
};
use rocmforge_text::TextStream;
use rocmforge_text::tokenizer::Tokenizer;

/// Serves requests for one model on one device.
pub struct Engine {
    // Before the executor: its steps in flight may wait for masks of sequences that are dropped here.
    scheduler: Scheduler,
    executor: Executor,
    intake: Arc<Intake>,
    masks: Masks,
    in_flight: VecDeque<Submitted>,
    /// When the result of the last step came.
    last_result: Option<Instant>,
    speculator: Option<Speculator>,
    steps_in_flight: usize,
    /// Events of a step that ended with an error.
    kept: Vec<Event>,
    n_computed_steps: u64,
    n_restarts: u64,
    watcher: Option<StepWatcher>,
    fusion: Fusion,
}

/// A step that the device has computed.
#[derive(Debug, Clone)]
pub struct ComputedStep {
    pub shape: BatchShape,
    /// Sequences that generated.
    pub n_decoding: usize,
    /// Tokens of prompts.
    pub n_prefill: usize,
    /// From when the device was free for it to its result, by the host's clock.
    pub time: Duration,
    /// When its result came.
    pub at: Instant,
}

/// Takes the steps of an engine on its thread, so it must not wait.
pub type StepWatcher = Box<dyn FnMut(ComputedStep) + Send>;

/// A step whose result has not come yet.
struct Submitted {
    pending: Pending,
    record: StepRecord,
    /// If somebody watches.
    shape: Option<BatchShape>,
    attempt: Attempt,
    at: Instant,
}

impl Engine {
    /// Starts `model` on the device of `config`. Without a tokenizer, events carry only token ids and no
    /// end-of-generation token is recognized.
    ///
    /// # Errors
    /// [`EngineError::Config`] or [`EngineError::Device`].
    pub fn start(
        model: &Model,
        tokenizer: Option<Arc<Tokenizer>>,
        config: &EngineConfig,
    ) -> Result<Engine, EngineError> {
        let started = start(model, config)?;
        let n_vocab = model.config.n_vocab;
        Ok(Engine {
            fusion: config.fusion,
            ..Engine::over(started, config.page, n_vocab, tokenizer)
        })
    }

    /// Serves on a backend that is already running. Its KV cache has pages of `page` tokens.
    pub fn over(
        started: Started,
        page: usize,
        n_vocab: usize,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Engine {
        let Resolved {
            limits,
            n_blocks,
            n_slots,
        } = started.resolved;
        Engine::new(
            started.executor,
            limits,
            (BlockPool::new(n_blocks, page), n_slots),
            started.steps_in_flight,
            n_vocab,
            tokenizer,
        )
    }

    /// Like [`Engine::start`], but always on the CPU.
    pub fn on_cpu(
        model: &Model,
        tokenizer: Option<Arc<Tokenizer>>,
        config: &EngineConfig,
    ) -> Result<Engine, EngineError> {
        let config = EngineConfig {
            device: Device::Cpu,
            ..config.clone()
        };
        Engine::start(model, tokenizer, &config)
    }

    pub(crate) fn new(
        executor: Executor,
        limits: Limits,
        (pool, n_slots): (BlockPool, usize),
        steps_in_flight: usize,
        n_vocab: usize,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Engine {
        assert!(
            (1..=2).contains(&steps_in_flight),
            "one or two steps in flight"
        );
        Engine {
            executor,
            scheduler: Scheduler::new(limits, pool, n_slots),
            intake: Arc::new(Intake::new(limits, n_vocab, tokenizer)),
            masks: Masks::new(n_vocab),
            in_flight: VecDeque::new(),
            last_result: None,
            speculator: None,
            steps_in_flight,
            kept: Vec::new(),
            n_computed_steps: 0,
            n_restarts: 0,
            watcher: None,
            fusion: Fusion::default(),
        }
    }

    /// Returns whether the device runs fused operations.
    pub fn fusion(&self) -> Fusion {
        self.fusion
    }

    /// Tokens of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.intake.n_vocab
    }

    /// Returns the context size: the number of positions of one sequence.
    pub fn n_ctx(&self) -> usize {
        self.intake.limits.n_ctx
    }

    /// Returns the tokens of a block of the KV cache.
    pub(crate) fn block_tokens(&self) -> usize {
        self.scheduler.block_tokens()
    }

    pub fn backend_info(&self) -> &BackendInfo {
        self.executor.info()
    }

    /// Returns the plan of `model`, with which the engine was started, as its backend runs it.
    pub fn running_plan(&self, model: &Model) -> Plan {
        running_plan(model, self.fusion, self.backend_info())
    }

    /// Sets the observer of every operation in the following steps.
    pub fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        self.executor.observe(observer);
    }

    /// Sets the step observer, which gets the times of the following steps.
    pub fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.executor.observe_steps(observer);
    }

    /// Sets what takes the shape and the time of the following steps. Unlike the observers, it changes nothing in how they
    /// run.
    pub fn watch_steps(&mut self, watcher: Option<StepWatcher>) {
        self.watcher = watcher;
    }

    /// Sets what drafts the next tokens of sequences. Texts do not change. A model with states drafts no more tokens than
    /// [`EngineConfig::max_draft`] has slots for.
    pub fn speculate(&mut self, drafter: Box<dyn Drafter>, length: DraftLength) {
        self.speculator = Some(Speculator::new(drafter, length));
    }

    /// Returns where the KV cache is, for a drafter that reads it.
    pub fn cache(&self) -> &SharedCache {
        self.executor.cache()
    }

    /// Returns what drafts, if anything does.
    pub fn drafter(&self) -> Option<DrafterStatus> {
        self.speculator.as_ref().map(Speculator::status)
    }

    /// Sets what takes the time of each mask that is computed from now on.
    pub fn watch_masks(&mut self, watcher: Option<MaskWatcher>) {
        self.masks.watch(watcher);
    }

    /// Autotunes the device's launches for about `budget`. Returns `None` if the device has nothing to tune.
    ///
    /// The result applies at the next start with a [`TuningStore`](rocmforge_runtime::tuning::TuningStore) that holds
    /// it. This engine's launches and results do not change.
    ///
    /// # Errors
    /// [`EngineError::Device`].
    ///
    /// # Panics
    /// If a request is in progress.
    pub fn tune(&mut self, budget: Duration) -> Result<Option<TuneProgress>, EngineError> {
        assert!(self.is_idle(), "a request is in progress");
        Ok(self.executor.tune(budget)?)
    }

    /// Returns what the engine is doing.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            restarts: self.n_restarts,
            ..self.scheduler.stats()
        }
    }

    /// Returns the KV-cache usage when the last step was submitted.
    pub fn kv_usage(&self) -> KvUsage {
        self.stats().kv_usage
    }

    /// Returns how often sequences dropped tokens because their context was full. Shifts that a preempted sequence
    /// repeats count again.
    pub fn context_shifts(&self) -> ContextShifts {
        self.stats().context_shifts
    }

    /// Queues a request; its events come from [`Engine::step`].
    ///
    /// # Errors
    /// [`EngineError::Request`] or [`EngineError::Config`] if the request is invalid, [`Failure::Overloaded`] if it would
    /// wait too long.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let sequence = self.intake.prepare(request)?;
        let id = sequence.id;
        self.add(sequence)?;
        Ok(id)
    }

    /// Returns what threads need to prepare sequences for this engine.
    pub(crate) fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }

    /// Queues a prepared sequence.
    ///
    /// # Errors
    /// [`Failure::Overloaded`].
    pub(crate) fn add(&mut self, mut sequence: Sequence) -> Result<(), Failure> {
        self.scheduler.check(&mut sequence)?;
        if let Some(constrained) = &mut sequence.constrained {
            self.masks.begin(constrained);
        }
        self.scheduler.add(sequence);
        Ok(())
    }

    /// Returns what was admitted to the cache or ended before, since the start.
    pub(crate) fn left_queue(&self) -> Queued {
        self.scheduler.left_queue()
    }

    /// Ends a request: [`Engine::step`] has no more events of it. Returns its last event, with the text that was held
    /// back; `None` if the request has ended or never was.
    pub fn abort(&mut self, id: RequestId) -> Option<Event> {
        let slot = self.scheduler.find(id)?;
        Some(self.finish(slot, FinishReason::Aborted))
    }

    /// Returns whether there is no request and no step in flight.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_empty() && self.in_flight.is_empty()
    }

    /// Schedules and submits the next step, then waits for the oldest one if enough are in flight.
    ///
    /// A request fails if a step with it alone fails twice. Others lose nothing when a step fails: they are computed
    /// again and go on with the same tokens.
    ///
    /// # Errors
    /// [`EngineError::Device`] if the device is lost ([`DeviceError::is_loss`]), or if a step with one request alone has
    /// failed for the first time: the request or the device is at fault. The engine keeps all requests: continue on
    /// another backend ([`Engine::restart`]), step again if the device is not lost, or give up.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = std::mem::take(&mut self.kept);
        while let Some((slot, is_deadline)) = self.scheduler.overdue() {
            events.push(match is_deadline {
                true => self.finish(slot, FinishReason::Deadline),
                false => Event::Failed {
                    request: self.scheduler.remove(slot).id,
                    failure: Failure::NotStarted,
                },
            });
        }
        let is_ready = match &mut self.speculator {
            Some(speculator) => speculator.prepare(&mut self.scheduler, &mut self.masks),
            None => true,
        };
        let scheduled = match is_ready || self.in_flight.is_empty() {
            true => self.scheduler.schedule(),
            false => None,
        };
        let submitted = scheduled.is_some();
        if let Some((mut batch, record)) = scheduled {
            if let Some(speculator) = &mut self.speculator {
                batch.exports = speculator.takes_hidden(&record, &self.scheduler);
            }
            let shape = self.watcher.is_some().then(|| BatchShape::of(&batch));
            let overlaps = self.steps_in_flight == 1 || !self.in_flight.is_empty();
            let attempt = match &mut self.speculator {
                Some(speculator) => speculator.attempt(overlaps),
                None => Attempt::default(),
            };
            self.in_flight.push_back(Submitted {
                shape,
                pending: self.executor.submit(batch),
                record,
                attempt,
                at: Instant::now(),
            });
        }
        if (!submitted || self.in_flight.len() >= self.steps_in_flight)
            && let Some(Submitted {
                pending,
                record,
                shape,
                attempt,
                at,
            }) = self.in_flight.pop_front()
        {
            match pending.wait() {
                Ok(mut output) => {
                    let now = Instant::now();
                    // The device ran the step before until then.
                    let before = self.last_result.replace(now);
                    let since = before.map_or(at, |before| before.max(at));
                    let time = now - since;
                    self.scheduler.record_time(record.load, time);
                    if let (Some(watcher), Some(shape)) = (&mut self.watcher, shape) {
                        watcher(ComputedStep {
                            shape,
                            n_decoding: record.load.n_decoding,
                            n_prefill: record.load.n_prefill,
                            time,
                            at: now,
                        });
                    }
                    if let Some(speculator) = &mut self.speculator {
                        speculator.computed(&record, &std::mem::take(&mut output.exports));
                    }
                    let n_before = events.len();
                    self.process_output(output, &record, &mut events);
                    if let Some(speculator) = &mut self.speculator {
                        let is_token = |event: &&Event| matches!(event, Event::Token { .. });
                        let n_tokens = events[n_before..].iter().filter(is_token).count();
                        speculator.record_step(record.load, attempt, (at, now), n_tokens);
                    }
                }
                Err(error) => match self.step_failed(error, record) {
                    Ok(failed) => events.extend(failed),
                    Err(error) => {
                        self.kept = events;
                        return Err(error);
                    }
                },
            }
        }
        Ok(events)
    }

    /// Takes all requests up again after a failed step. Returns the event of a request that has failed for good.
    fn step_failed(
        &mut self,
        error: RuntimeError,
        record: StepRecord,
    ) -> Result<Option<Event>, EngineError> {
        self.scheduler.break_promises();
        let mut failed = vec![record];
        // What comes after it has used its results.
        for later in self.in_flight.drain(..) {
            drop(later.pending.wait());
            failed.push(later.record);
        }
        let error = self.with_cause(error);
        let is_lost = matches!(&error, RuntimeError::Device(error) if error.is_loss());
        let slot = match self.scheduler.recover(&failed) {
            Some(slot) if self.scheduler.failed_before(slot) => slot,
            None if !is_lost => return Ok(None),
            _ => return Err(error.into()),
        };
        let request = self.scheduler.discard(slot).id;
        let failure = Failure::Device(Arc::new(error));
        Ok(Some(Event::Failed { request, failure }))
    }

    /// Adds why the backend has ended to an error that says that it has.
    fn with_cause(&mut self, error: RuntimeError) -> RuntimeError {
        if let RuntimeError::Device(DeviceError::WorkerGone { .. }) = error
            && let Some(reason) = self.executor.close()
        {
            return DeviceError::WorkerGone { reason }.into();
        }
        error
    }

    /// Returns how many steps the device has computed.
    pub(crate) fn n_computed_steps(&self) -> u64 {
        self.n_computed_steps
    }

    /// Frees the memory of the backend, so that another one can be started. Steps fail until [`Engine::restart`].
    pub fn close_backend(&mut self) {
        self.scheduler.break_promises();
        self.lose_cache();
        self.executor.close();
    }

    fn lose_cache(&mut self) {
        if let Some(speculator) = &mut self.speculator {
            speculator.lose_cache();
        }
    }

    /// Continues on another backend of the same model and limits. Requests in progress are computed again from their
    /// tokens.
    pub fn restart(&mut self, executor: Executor) {
        let in_flight = self.in_flight.drain(..);
        let records: Vec<StepRecord> = in_flight.map(|step| step.record).collect();
        self.scheduler.recover(&records);
        self.lose_cache();
        // The old one ends; none of its steps waits for a mask any more.
        self.executor = executor;
        self.n_restarts += 1;
    }

    /// Runs until `request` ends or `on_event` stops it. Returns whether it ended by itself. `on_event` also gets the
    /// events of other requests.
    ///
    /// # Errors
    /// [`RequestError::NotFinite`](crate::RequestError::NotFinite) if the logits are NaN or infinite;
    /// [`EngineError::Device`].
    pub fn run(
        &mut self,
        request: RequestId,
        mut on_event: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<bool, EngineError> {
        loop {
            let mut ended = None;
            for event in self.step()? {
                let own = event.request() == request;
                if own && ended.is_some() {
                    continue;
                }
                if own && let Event::Failed { failure, .. } = event {
                    return Err(failure.into());
                }
                let wanted = on_event(&event);
                if own && matches!(event, Event::Finished { .. }) {
                    ended = Some(true);
                } else if wanted == ControlFlow::Break(()) && ended.is_none() {
                    self.abort(request);
                    ended = Some(false);
                }
            }
            if let Some(ended) = ended {
                return Ok(ended);
            }
            if self.is_idle() {
                return Ok(false);
            }
        }
    }

    /// Ends a sequence and returns its last event.
    fn finish(&mut self, slot: Slot, reason: FinishReason) -> Event {
        let mut sequence = self.scheduler.remove(slot);
        sequence.draft.note(&sequence.progress);
        let n_generated = sequence.n_generated();
        let is_complete = !matches!(reason, FinishReason::Aborted | FinishReason::Deadline);
        if is_complete && n_generated > 0 {
            self.scheduler.record_answer(n_generated);
        }
        let text = sequence.text.as_mut();
        Event::Finished {
            request: sequence.id,
            reason,
            text: text.map_or_else(String::new, TextStream::finish),
        }
    }

    /// Checks the KV-cache accounting (see `kv_cache::BlockPool::check_integrity`).
    pub fn check_integrity(&self) -> Result<(), String> {
        self.scheduler.check_integrity()
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod constraint_tests;

#[cfg(test)]
mod prefill_tests;

#[cfg(test)]
mod embedding_tests;
