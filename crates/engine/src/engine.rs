//! The engine: accepts requests, schedules steps, submits them to a device and turns the results into events.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{ConfigError, EngineError, RequestError};
use crate::kv_cache::{BlockPool, ContextShifts, KvUsage};
use crate::request::{Event, FinishReason, Request, RequestId};
use crate::scheduler::{Scheduler, StepRecord};
use crate::sequence::{RowPurpose, Sequence};
use rocmforge_model::Model;
use rocmforge_plan::Fusion;
use rocmforge_plan::{Breakers, SamplingParams};
use rocmforge_plan::{RowOutput, Sampled, TokenLogprob};
use rocmforge_runtime::tuning::TuneProgress;
use rocmforge_runtime::{
    BackendInfo, ContextPolicy, Device, EngineConfig, Executor, Limits, OpObserver, Pending,
    Resolved, Started, StepObserver, start,
};
use rocmforge_text::tokenizer::{Detokenizer, Tokenizer};
use rocmforge_text::{Piece, TextStream};

/// Serves requests for one model on one device.
pub struct Engine {
    executor: Executor,
    scheduler: Scheduler,
    tokenizer: Option<Arc<Tokenizer>>,
    in_flight: VecDeque<(Pending, StepRecord)>,
    steps_in_flight: usize,
    n_vocab: usize,
    next_id: u64,
    /// The sequence breakers of the last request with DRY. Searching a vocabulary for them takes milliseconds, and
    /// requests seldom differ in them.
    last_breakers: Option<(Vec<String>, Arc<Breakers>)>,
    fusion: Fusion,
    kv_usage: KvUsage,
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
        let Started {
            executor,
            resolved,
            steps_in_flight,
        } = start(model, config)?;
        let Resolved { limits, n_blocks } = resolved;
        let pool = BlockPool::new(n_blocks, config.page);
        let engine = Engine::new(
            executor,
            limits,
            pool,
            steps_in_flight,
            model.config.n_vocab,
            tokenizer,
        );
        Ok(Engine {
            fusion: config.fusion,
            ..engine
        })
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
        pool: BlockPool,
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
            scheduler: Scheduler::new(limits, pool),
            tokenizer,
            in_flight: VecDeque::new(),
            steps_in_flight,
            n_vocab,
            next_id: 0,
            last_breakers: None,
            fusion: Fusion::default(),
            kv_usage: KvUsage::default(),
        }
    }

    /// Returns whether the device runs fused operations.
    pub fn fusion(&self) -> Fusion {
        self.fusion
    }

    /// Returns the context size: the number of positions of one sequence.
    pub fn n_ctx(&self) -> usize {
        self.scheduler.limits().n_ctx
    }

    pub fn backend_info(&self) -> &BackendInfo {
        self.executor.info()
    }

    /// Sets the observer of every operation in the following steps.
    pub fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        self.executor.observe(observer);
    }

    /// Sets the step observer, which gets the times of the following steps.
    pub fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.executor.observe_steps(observer);
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

    /// Returns the KV-cache usage when the last step was submitted.
    pub fn kv_usage(&self) -> KvUsage {
        self.kv_usage
    }

    /// Returns how often sequences dropped tokens because their context was full. Shifts that a preempted sequence
    /// repeats count again.
    pub fn context_shifts(&self) -> ContextShifts {
        self.scheduler.context_shifts()
    }

    /// Queues a request; its events come from [`Engine::step`].
    ///
    /// # Errors
    /// [`EngineError::Request`] or [`EngineError::Config`] if the request is invalid.
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId, EngineError> {
        self.check(&request)?;
        SamplingParams::order_bias(&mut request.sampling);
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let text = self.tokenizer.is_some().then(|| {
            let detokenizer = Detokenizer::new(request.special_text, request.leading_space);
            TextStream::new(detokenizer, request.stop.clone())
        });
        let breakers = self.breakers(&request.sampling);
        let policy = self.context_policy(&request);
        self.scheduler
            .add(Sequence::new(id, request, text, breakers, policy));
        Ok(id)
    }

    fn context_policy(&self, request: &Request) -> ContextPolicy {
        let default = self.scheduler.limits().context_policy;
        request.context_policy.unwrap_or(default)
    }

    /// Returns the request's sequence breakers as tokens; none without DRY or a tokenizer.
    fn breakers(&mut self, sampling: &SamplingParams) -> Arc<Breakers> {
        let texts = &sampling.dry.sequence_breakers;
        let (true, Some(tokenizer)) = (sampling.has_dry(), &self.tokenizer) else {
            return Arc::default();
        };
        if let Some((known, breakers)) = &self.last_breakers
            && known == texts
        {
            return Arc::clone(breakers);
        }
        let breakers = Arc::new(Breakers::new(tokenizer.overlapping_sequences(texts)));
        self.last_breakers = Some((texts.clone(), Arc::clone(&breakers)));
        breakers
    }

    fn check(&self, request: &Request) -> Result<(), EngineError> {
        let n_ctx = self.n_ctx();
        request.sampling.validate().map_err(RequestError::from)?;
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt.into());
        }
        let n_tokens = request.prompt.len();
        if n_tokens + usize::from(request.max_tokens > 0) > n_ctx {
            return Err(RequestError::PromptTooLong { n_tokens, n_ctx }.into());
        }
        let policy = self.context_policy(request);
        policy.check(n_ctx)?;
        if policy != ContextPolicy::Stop && !self.scheduler.limits().can_shift {
            return Err(ConfigError::FixedPositions.into());
        }
        let biased = request.sampling.logit_bias.iter().map(|(id, _)| id);
        let mut ids = request.prompt.iter().chain(biased);
        match ids.find(|&&id| id as usize >= self.n_vocab) {
            Some(&id) => Err(RequestError::TokenOutOfRange {
                id,
                n_vocab: self.n_vocab,
            }
            .into()),
            None => Ok(()),
        }
    }

    /// Ends a request without further events. Ignores unknown and ended ids.
    pub fn abort(&mut self, id: RequestId) {
        self.scheduler.remove(id);
    }

    /// Returns whether there is no request and no step in flight.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_empty() && self.in_flight.is_empty()
    }

    /// Schedules and submits the next step, then waits for the oldest one if enough are in flight.
    ///
    /// # Errors
    /// [`EngineError::Device`]; the engine is unusable afterwards.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = Vec::new();
        let scheduled = self.scheduler.schedule();
        let submitted = scheduled.is_some();
        if let Some((batch, record)) = scheduled {
            self.kv_usage = self.scheduler.kv_usage();
            self.in_flight
                .push_back((self.executor.submit(batch), record));
        }
        if (!submitted || self.in_flight.len() >= self.steps_in_flight)
            && let Some((pending, record)) = self.in_flight.pop_front()
        {
            let output = pending.wait()?;
            self.process_output(output.step, output.rows, &record, &mut events);
        }
        Ok(events)
    }

    /// Runs until `request` ends or `on_event` stops it. Returns whether it ended by itself. `on_event` also gets the
    /// events of other requests.
    ///
    /// # Errors
    /// [`RequestError::NotFinite`] if the logits are NaN or infinite; [`EngineError::Device`].
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
                if own && matches!(event, Event::Failed { .. }) {
                    return Err(RequestError::NotFinite.into());
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

    /// Turns the output rows of a finished step into events.
    fn process_output(
        &mut self,
        step: u64,
        outputs: Vec<RowOutput>,
        record: &StepRecord,
        events: &mut Vec<Event>,
    ) {
        let prompt_done = |scheduler: &mut Scheduler, events: &mut Vec<Event>, id: RequestId| {
            if let Some(sequence) = scheduler.sequence(id) {
                events.push(Event::PromptDone {
                    request: id,
                    cached_tokens: sequence.n_cached,
                });
            }
        };
        // Order of events: prompt scores, `PromptDone`, first token.
        for (&(id, purpose), output) in record.rows.iter().zip(outputs) {
            match (purpose, output) {
                (RowPurpose::PromptScore { position }, RowOutput::Scored { logprob, top }) => {
                    if self.scheduler.sequence(id).is_some() {
                        events.push(Event::PromptScore {
                            request: id,
                            position,
                            logprob,
                            top,
                        });
                    }
                }
                (RowPurpose::PromptLogits { position }, RowOutput::Logits(logits)) => {
                    if self.scheduler.sequence(id).is_some() {
                        events.push(Event::PromptLogits {
                            request: id,
                            position,
                            logits,
                        });
                    }
                }
                (RowPurpose::Sample, RowOutput::Sampled { sampled, top }) => {
                    if record.prompts_done.contains(&id) {
                        prompt_done(&mut self.scheduler, events, id);
                    }
                    self.take_token(step, id, sampled, top, events);
                }
                (_, RowOutput::NotFinite) => {
                    if self.scheduler.remove(id).is_some() {
                        events.push(Event::Failed { request: id });
                    }
                }
                (purpose, output) => unreachable!("a row for {purpose:?} returned {output:?}"),
            }
        }
        // Requests for 0 tokens end with their prompt.
        for &id in &record.prompts_done {
            let evaluates_only = self
                .scheduler
                .sequence(id)
                .is_some_and(|sequence| sequence.request.max_tokens == 0);
            if evaluates_only {
                prompt_done(&mut self.scheduler, events, id);
                self.finish(id, FinishReason::Length, String::new(), events);
            }
        }
    }

    fn take_token(
        &mut self,
        step: u64,
        id: RequestId,
        sampled: Sampled,
        top: Vec<TokenLogprob>,
        events: &mut Vec<Event>,
    ) {
        let n_ctx = self.n_ctx();
        let Sampled { id: token, mu } = sampled;
        let Some(sequence) = self.scheduler.sequence(id) else {
            return;
        };
        if sequence.pending.is_some_and(|pending| pending.step == step) {
            sequence.pending = None;
        }
        sequence.tokens.push(token);
        sequence.mu = mu;
        let tokenizer = self.tokenizer.as_deref();
        let is_eog = tokenizer.is_some_and(|tokenizer| tokenizer.is_eog(token));
        let reason = sequence.finish_reason(is_eog, n_ctx);
        // The end-of-generation token is not part of the text.
        let ends_text = is_eog && reason == Some(FinishReason::Stop);
        let piece = match (&mut sequence.text, tokenizer) {
            (Some(text), Some(tokenizer)) if !ends_text => text.push(tokenizer, token),
            _ => Piece::Text(String::new()),
        };
        match piece {
            Piece::Text(text) => {
                events.push(Event::Token {
                    request: id,
                    id: token,
                    text,
                    top,
                });
                if let Some(reason) = reason {
                    let rest = sequence
                        .text
                        .as_mut()
                        .map_or_else(String::new, TextStream::finish);
                    self.finish(id, reason, rest, events);
                }
            }
            Piece::Stopped(text) => {
                events.push(Event::Token {
                    request: id,
                    id: token,
                    text,
                    top,
                });
                self.finish(id, FinishReason::Stop, String::new(), events);
            }
        }
    }

    fn finish(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        text: String,
        events: &mut Vec<Event>,
    ) {
        self.scheduler.remove(id);
        events.push(Event::Finished {
            request: id,
            reason,
            text,
        });
    }

    /// Checks the KV-cache accounting (see `kv_cache::BlockPool::check_integrity`).
    pub fn check_integrity(&self) -> Result<(), String> {
        self.scheduler.check_integrity()
    }
}

#[cfg(test)]
mod tests;
