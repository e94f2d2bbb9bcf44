//! The runs of `profile`: the same request again and again, in turn without and with the observer of steps, after one
//! that does not count.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rocmforge_cpu::default_threads;
use rocmforge_engine::kv_cache::KvUsage;
use rocmforge_engine::{
    ContextPolicy, Device, EngineConfig, EngineError, Event, Request, RequestError,
};
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

/// Runs go on for so long while the device is looked at: some readings.
const SAMPLED: Duration = Duration::from_secs(1);

/// The name of what computes: `cpu`, `cuda:0`.
pub fn backend_name(config: &EngineConfig) -> String {
    match &config.device {
        Device::Cpu => "cpu".to_string(),
        Device::Gpu(gpu) => gpu.id.map_or("gpu".to_string(), |id| id.to_string()),
    }
}

/// The wall clock of a run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// From the request to its first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// What came of all runs.
#[derive(Debug, Default)]
pub struct Runs {
    pub unprofiled: Vec<Run>,
    /// Each with its steps.
    pub profiled: Vec<(Run, Vec<StepTimes>)>,
    /// The fullest that the cache was.
    pub kv_usage: KvUsage,
    /// `None` if there was no time for it.
    pub utilization: Option<Result<Utilization, ExternalError>>,
    /// Whether the user did not want to wait for all of them.
    pub was_stopped: bool,
}

/// The steps that the engine took.
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
    /// Takes turns until all runs are done, or the user asks to stop. The parts of the first profiled run are scopes.
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
        // The first run does not count: it loads kernels and records graphs.
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
            // Steps of a run that was stopped tell nothing.
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

    /// How busy the device is, or why that is not known: in runs of their own, so that looking disturbs no measurement.
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

    /// Whether there is something to tell.
    pub fn is_complete(&self) -> bool {
        !self.unprofiled.is_empty() && !self.profiled.is_empty()
    }

    /// One run; `None` if the user stopped it.
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
            // A run that was asked to stop before it began ends here, too.
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
                    Event::Failed { .. } => {
                        return Err(EngineError::from(RequestError::NotFinite).into());
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
            bail!("the model gave no token");
        };
        Ok(Some(Run {
            prefill: first - started,
            decode: last - first,
        }))
    }
}
