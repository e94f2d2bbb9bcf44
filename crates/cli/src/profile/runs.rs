//! The runs of `profile`: the same request repeatedly, alternating without and with the step observer, after a warm-up.

use std::io::{self, IsTerminal as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rocmforge_cpu::default_threads;
use rocmforge_engine::kv_cache::KvUsage;
use rocmforge_engine::{ContextPolicy, Device, EngineConfig, EngineError, Event, Request};
use rocmforge_external::ExternalError;
use rocmforge_external::sampler::Source;
use rocmforge_gguf::TokenId;
use rocmforge_profile::schema::Utilization;
use rocmforge_profile::timer::Collector;
use rocmforge_runtime::times::{StepObserver, StepTimes};

use crate::answer::bar;
use crate::args::ProfileArgs;
use crate::interrupt::Working;
use crate::output;
use crate::sensors::{self, while_running};
use crate::session::Session;

/// How often the progress bar is drawn while nothing ends.
pub const TICK: Duration = Duration::from_millis(200);

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
    /// The run that the user stopped.
    pub stopped_in: Option<String>,
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
        // Warm-up, pairs, and the runs that sample the device.
        let n_runs = 2 * args.runs as usize + 2;
        if !io::stderr().is_terminal() {
            output::note(&format!(
                "profiling {n_runs} runs of {} prompt tokens and {n_gen} generated",
                prompt.len()
            ));
        }
        let bar = bar(n_runs, "{msg} {bar:30} {pos}/{len} runs, {eta} left");
        // Drawn before the first run ends.
        bar.enable_steady_tick(TICK);
        let steps = Steps::default();
        let mut runs = Runs::default();
        // Warm-up: loads kernels and records graphs.
        let plain = |runs: &mut Runs, session: &mut Session| {
            let run = runs.run(session, prompt, n_gen, working, None);
            bar.inc(1);
            run
        };
        let stopped_in = |n: u64, what: &str| Some(format!("run {n} of {n_runs} ({what})"));
        bar.set_message("warm-up");
        if plain(&mut runs, session)?.is_none() {
            runs.stopped_in = stopped_in(1, "warm-up");
        }
        for n in 0..args.runs {
            if runs.stopped_in.is_some() {
                break;
            }
            bar.set_message("without profiling");
            let unprofiled = plain(&mut runs, session)?;
            if unprofiled.is_none() {
                runs.stopped_in = stopped_in(bar.position(), "without profiling");
                break;
            }
            bar.set_message("with profiling");
            session.engine.observe_steps(Some(Box::new(steps.clone())));
            let scopes = (n == 0).then_some(scopes);
            let profiled = runs.run(session, prompt, n_gen, working, scopes)?;
            session.engine.observe_steps(None);
            bar.inc(1);
            // Discards the steps of a stopped run.
            let steps = steps.take();
            if profiled.is_none() {
                runs.stopped_in = stopped_in(bar.position(), "with profiling");
            }
            runs.unprofiled.extend(unprofiled);
            runs.profiled.extend(profiled.map(|run| (run, steps)));
        }
        if runs.stopped_in.is_none() {
            bar.set_message("device utilization");
            let utilization = runs.sample(session, prompt, n_gen, working)?;
            if utilization.is_none() {
                runs.stopped_in = stopped_in(n_runs as u64, "device utilization");
            }
            runs.utilization = utilization;
        }
        bar.finish_and_clear();
        Ok(runs)
    }

    /// Measures device utilization in separate runs, so that sampling does not disturb the timed ones. `None` if the user
    /// stopped it.
    fn sample(
        &mut self,
        session: &mut Session,
        prompt: &[TokenId],
        n_gen: usize,
        working: &Working<'_>,
    ) -> Result<Option<Result<Utilization, ExternalError>>> {
        let n_threads = session.config.n_threads.unwrap_or_else(default_threads);
        let source = match sensors::of(&session.config.device) {
            Some((_, Ok(source))) => source,
            Some((_, Err(error))) => return Ok(Some(Err(error))),
            // The CPU, or a GPU that it imitates.
            None => Source::Process { n_threads },
        };
        let run = || match self.run(session, prompt, n_gen, working, None) {
            Ok(Some(_)) => Ok(n_gen),
            Ok(None) => Err(None),
            Err(error) => Err(Some(error)),
        };
        match while_running(&source, run) {
            Ok(found) => Ok(Some(found)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
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
