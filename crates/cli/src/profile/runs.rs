//! The runs of `profile`: the same request repeatedly, alternating without and with the step observer, after a warm-up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rocmforge_cpu::default_threads;
use rocmforge_engine::kv_cache::KvUsage;
use rocmforge_engine::{ContextPolicy, Device, EngineConfig, EngineError, Event, Request};
use rocmforge_external::ExternalError;
use rocmforge_external::sampler::{EVERY, Sampler, Source};
use rocmforge_gguf::TokenId;
use rocmforge_profile::schema::Utilization;
use rocmforge_profile::timer::Collector;
use rocmforge_runtime::times::{StepObserver, StepTimes};

use crate::answer::bar;
use crate::args::ProfileArgs;
use crate::interrupt::Working;
use crate::session::Session;

/// Duration of the runs that sample device utilization.
const SAMPLED: Duration = Duration::from_secs(1);

/// Returns the device's name: `cpu`, `cuda:0`.
pub fn backend_name(config: &EngineConfig) -> String {
    match &config.device {
        Device::Cpu => "cpu".to_string(),
        Device::Gpu(gpu) => gpu.id.map_or("gpu".to_string(), |id| id.to_string()),
    }
}

/// The wall-clock times of a run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Time from submission to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct Runs {
    pub unprofiled: Vec<Run>,
    /// Profiled runs with their steps.
    pub profiled: Vec<(Run, Vec<StepTimes>)>,
    /// Peak KV-cache usage.
    pub kv_usage: KvUsage,
    /// `None` if the user stopped before.
    pub utilization: Option<Result<Utilization, ExternalError>>,
    /// Whether the user stopped early.
    pub was_stopped: bool,
}

/// The engine's steps.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<StepTimes>>>);

impl Steps {
    fn take(&self) -> Vec<StepTimes> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl StepObserver for Steps {
    fn step(&mut self, times: StepTimes) {
        let mut steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(times);
    }
}

impl Runs {
    /// Alternates until all runs are done or the user stops. Parts of the first profiled run are recorded as scopes.
    pub fn measure(
        session: &mut Session,
        prompt: &[TokenId],
        args: &ProfileArgs,
        (working, scopes): (&Working<'_>, &Collector),
    ) -> Result<Runs> {
        let n_gen = args.max_tokens as usize;
        let n_ctx = session.engine.n_ctx();
        let stops = session.config.context_policy == ContextPolicy::Stop;
        if stops && prompt.len().saturating_add(n_gen) > n_ctx {
            bail!(
                "the prompt of {} tokens and {n_gen} more do not fit in the context of {n_ctx}; take fewer with \
                 --prompt-tokens and -n, a larger --ctx, or --context-policy shift",
                prompt.len()
            );
        }
        let bar = bar(
            2 * args.runs as usize + 1,
            "profiling {bar:30} {pos}/{len} runs, {eta} left",
        );
        let steps = Steps::default();
        let mut runs = Runs::default();
        // Warm-up: loads kernels and records graphs.
        let plain = |runs: &mut Runs, session: &mut Session| {
            let run = runs.run(session, prompt, n_gen, working, None);
            bar.inc(1);
            run
        };
        runs.was_stopped = plain(&mut runs, session)?.is_none();
        for n in 0..args.runs {
            if runs.was_stopped {
                break;
            }
            let unprofiled = plain(&mut runs, session)?;
            session.engine.observe_steps(Some(Box::new(steps.clone())));
            let scopes = (n == 0).then_some(scopes);
            let profiled = runs.run(session, prompt, n_gen, working, scopes)?;
            session.engine.observe_steps(None);
            bar.inc(1);
            // Discards the steps of a stopped run.
            let steps = steps.take();
            runs.was_stopped = unprofiled.is_none() || profiled.is_none();
            runs.unprofiled.extend(unprofiled);
            runs.profiled.extend(profiled.map(|run| (run, steps)));
        }
        bar.finish_and_clear();
        if !runs.was_stopped {
            runs.utilization = Some(runs.sample(session, prompt, n_gen, working)?);
        }
        Ok(runs)
    }

    /// Measures device utilization in separate runs, so that sampling does not disturb the timed ones.
    fn sample(
        &mut self,
        session: &mut Session,
        prompt: &[TokenId],
        n_gen: usize,
        working: &Working<'_>,
    ) -> Result<Result<Utilization, ExternalError>> {
        let n_threads = session.config.n_threads.unwrap_or_else(default_threads);
        let backend = backend_name(&session.config);
        let source = Source::of_backend(&backend, n_threads, &|name| std::env::var(name).ok());
        let sampler = match source.and_then(|source| Sampler::start(&source, EVERY)) {
            Ok(sampler) => sampler,
            Err(error) => return Ok(Err(error)),
        };
        let started = Instant::now();
        while started.elapsed() < SAMPLED {
            if self.run(session, prompt, n_gen, working, None)?.is_none() {
                self.was_stopped = true;
                break;
            }
        }
        Ok(sampler.finish())
    }

    /// Returns whether there are results.
    pub fn is_complete(&self) -> bool {
        !self.unprofiled.is_empty() && !self.profiled.is_empty()
    }

    /// Runs once; `None` if the user stopped it.
    fn run(
        &mut self,
        session: &mut Session,
        prompt: &[TokenId],
        n_gen: usize,
        working: &Working<'_>,
        scopes: Option<&Collector>,
    ) -> Result<Option<Run>> {
        let engine = &mut session.engine;
        let request = Request {
            ignore_eos: true,
            ..Request::greedy(prompt.to_vec(), n_gen)
        };
        let mut scope = scopes.map(|scopes| scopes.scope("prefill"));
        let started = Instant::now();
        let id = engine.submit(request)?;
        let mut first = None;
        let mut last = started;
        while !engine.is_idle() {
            // Also reached if Ctrl-C came before the run.
            if working.asked() {
                engine.abort(id);
                while !engine.is_idle() {
                    engine.step()?;
                }
                return Ok(None);
            }
            for event in engine.step()? {
                match event {
                    Event::Token { .. } => {
                        last = Instant::now();
                        if first.is_none() {
                            first = Some(last);
                            drop(scope.take());
                            scope = scopes.map(|scopes| scopes.scope("decode"));
                        }
                    }
                    Event::Failed { failure, .. } => {
                        return Err(EngineError::from(failure).into());
                    }
                    _ => {}
                }
            }
            let usage = engine.kv_usage();
            if usage.n_tokens > self.kv_usage.n_tokens {
                self.kv_usage = usage;
            }
        }
        let Some(first) = first else {
            bail!("the model generated no token");
        };
        Ok(Some(Run {
            prefill: first - started,
            decode: last - first,
        }))
    }
}
