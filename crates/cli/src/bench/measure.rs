//! Runs a test as requests to the engine ([`rocmforge_bench::requests`]) and takes times where `generate` takes
//! them:
//!
//! - a prompt counts from its submission to its first sampled token, as `prefill_ms` of `generate`;
//!   llama-bench computes the same logits and samples nothing, which is a scan of one row less;
//! - generation counts from the first sampled token (of the slowest sequence) to the last, as `decode_ms`:
//!   as many steps as tokens, each with its sampling;
//! - both together count from the submission to the last token.
//!
//! The depth is put into the cache before the clock starts, once for all runs.

use crate::serve::log;
use crate::session;
use crate::speculation::{self, Target};
use rocmforge::parts::{Started, settled, start_or_fall_back};
use std::time::Duration;

use anyhow::Result;
use rocmforge_bench::BenchError;
use rocmforge_bench::load::Load;
use rocmforge_bench::requests::{Requests, Watch, Workload, kv_tokens};
use rocmforge_cpu::Isa;
use rocmforge_engine::{Device, DeviceError, DraftCounts, EngineConfig, EngineError, KvTokens};
use rocmforge_external::sampler::Source;
use rocmforge_model::Model;
use rocmforge_plan::{BatchShape, KvTypes, PlanCost, Roofline};
use rocmforge_profile::schema::Utilization;
use rocmforge_runtime::BackendInfo;
use rocmforge_runtime::gpu::Offload;

use super::{Test, sensors};
use crate::args::{BenchArgs, Device as DeviceArg, DraftBy, LoadArgs, Speculation};
use crate::interrupt::Working;

/// Where a group of tests runs.
pub struct Machine {
    pub isa: Isa,
    pub kv_types: KvTypes,
    /// In words, if it is not the CPU.
    pub gpu: Option<String>,
    /// Whether the CPU has a part of the model beside a GPU.
    pub is_shared: bool,
    /// The parts of the model that run on the GPU.
    pub offload: Offload,
    /// The kernels that the user asked for; empty if none.
    pub kernel_variant: String,
    /// Launches of the GPU that are made as measured.
    pub n_tuned: usize,
    /// `None` where nothing measures it.
    pub roofline: Option<Roofline>,
}

/// What came of a test.
#[derive(Debug)]
pub struct Measured {
    pub samples: Vec<Duration>,
    /// Share of the cores that other programs took meanwhile, if the system reports it.
    pub other_load: Option<f64>,
    /// The steps that the engine took in a run.
    pub steps: Vec<BatchShape>,
    /// Tokens of a step at most.
    pub max_step_tokens: usize,
    /// In all measured runs.
    pub drafts: DraftCounts,
    /// Of a GPU, in runs after the measured ones; `None` where it is unknown.
    pub condition: Option<Utilization>,
}

impl Measured {
    /// The least time of the steps on `machine`, in seconds.
    pub fn at_roofline(&self, model: &Model, machine: &Machine) -> Option<f64> {
        let roofline = machine.roofline.as_ref()?;
        let cost = PlanCost {
            plan: &model.plan,
            weights: &model.weights,
            kv_types: machine.kv_types,
        };
        let seconds = |shape| cost.step_seconds(shape, roofline);
        Some(self.steps.iter().map(seconds).sum())
    }
}

/// An engine for tests that differ in their tokens only.
pub struct Bench {
    requests: Requests,
    config: EngineConfig,
    is_gpu_wrong: bool,
}

impl Bench {
    /// An engine with room for each of `tests` on `device`, or on the CPU if that computes wrongly, or not what the model
    /// takes, and was not `asked` for.
    pub fn new(
        model: &Model,
        tests: &[Test],
        (isa, device, asked): (Isa, &Device, DeviceArg),
        page: usize,
        speculation: &Speculation,
    ) -> Result<Bench, EngineError> {
        let n_seqs = tests[0].n_seqs;
        let largest = |of: &dyn Fn(&Test) -> usize| tests.iter().map(of).max().unwrap_or(0);
        // Beside its tokens a sequence of a generation has the one that begins it.
        let depth = largest(&|test| test.n_depth);
        let after = largest(&|test| test.n_prompt + test.n_gen) + 2;
        let config = EngineConfig {
            n_ctx: Some(depth + after),
            max_seqs: n_seqs,
            page,
            kv_types: tests[0].kv_types,
            kv_tokens: KvTokens::Exactly(kv_tokens(n_seqs, depth, after, page)),
            isa,
            n_threads: Some(tests[0].n_threads),
            notice: log::notice,
            ..EngineConfig::default()
        };
        let n_draft = match speculation.by {
            DraftBy::Auto | DraftBy::Nothing => 0,
            DraftBy::Ngram | DraftBy::Mtp | DraftBy::Model(_) => speculation.n_most(),
        };
        let config = speculation::with_drafts(config.on(device.clone()), n_draft);
        let Started {
            started: requests,
            config,
            not_on_gpu,
        } = start_or_fall_back(config, asked, |config| Requests::new(model, config, depth))?;
        if let Some(error) = &not_on_gpu {
            session::tell_fallback(error);
        }
        let config = settled(config, requests.backend_info());
        Ok(Bench {
            requests,
            config,
            is_gpu_wrong: matches!(
                not_on_gpu,
                Some(EngineError::Device(DeviceError::WrongGpu { .. }))
            ),
        })
    }

    /// Whether the GPU asked for computes wrongly, so that the CPU is there instead.
    pub fn is_gpu_wrong(&self) -> bool {
        self.is_gpu_wrong
    }

    /// What computes.
    pub fn device(&self) -> &Device {
        &self.config.device
    }

    /// Lets the sequences of a model draft.
    pub fn speculate(
        &self,
        speculation: &Speculation,
        target: Target<'_>,
        load: &LoadArgs,
    ) -> Result<()> {
        if let Some(drafting) = speculation::drafter(speculation, target, load, &self.config)? {
            let (cache, n_ctx) = self.requests.cache()?;
            let (drafter, length) = drafting.start((&cache, n_ctx), &self.config)?;
            self.requests.speculate(drafter, length)?;
        }
        Ok(())
    }

    pub fn backend_info(&self) -> &BackendInfo {
        self.requests.backend_info()
    }

    /// Measures `test` and calls `on_run` after each measured run; reads `sensors` in further runs. Returns `None` if the
    /// user stopped it.
    pub fn measure(
        &mut self,
        test: &Test,
        (args, sensors): (&BenchArgs, Option<&Source>),
        working: &Working<'_>,
        on_run: &mut dyn FnMut(&str),
    ) -> Result<Option<Measured>> {
        let n_warmup = u32::from(!args.no_warmup);
        let mut load = Load::now();
        let mut measured = Measured {
            samples: Vec::new(),
            other_load: None,
            steps: Vec::new(),
            max_step_tokens: self.requests.max_step_tokens(),
            drafts: DraftCounts::default(),
            condition: None,
        };
        let mut before = self.requests.drafts();
        let workload = Workload {
            n_prompt: test.n_prompt,
            n_gen: test.n_gen,
            n_depth: test.n_depth,
        };
        for i in 0..n_warmup + args.repetitions {
            if i >= n_warmup {
                on_run(&format!("{}/{}", i - n_warmup + 1, args.repetitions));
            }
            if i == n_warmup {
                load = Load::now();
                before = self.requests.drafts();
            }
            // Only the first run is watched: what each of them computes is the same.
            let watch = if i == 0 { Watch::Yes } else { Watch::No };
            let run = self.requests.run(&workload, watch, &|| working.asked());
            let mut run = match run {
                Err(BenchError::Stopped) => return Ok(None),
                run => run?,
            };
            // The token that begins a generation is no part of it.
            let (time, steps) = match test.n_prompt {
                0 => (run.rest, run.rest_steps),
                _ => {
                    run.first_steps.append(&mut run.rest_steps);
                    (run.first + run.rest, run.first_steps)
                }
            };
            if i == 0 {
                measured.steps = steps;
            }
            if i >= n_warmup {
                measured.samples.push(time);
            }
        }
        measured.drafts = self.requests.drafts() - before;
        measured.other_load = Load::of_others_since_then(load);
        if let Some(source) = sensors {
            let work = (&workload, test.n_tokens());
            measured.condition =
                match sensors::read(source, &mut self.requests, work, &|| working.asked()) {
                    Err(BenchError::Stopped) => return Ok(None),
                    condition => condition?,
                };
        }
        Ok(Some(measured))
    }
}
