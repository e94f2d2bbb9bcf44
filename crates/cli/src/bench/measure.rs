//! Runs a test as requests to the engine ([`rocmforge_bench::requests`]), timed as `generate` does:
//!
//! - prefill: from submission to the first sampled token, like `prefill_ms`. llama-bench computes the same logits but
//!   does not sample, which is one scan of a row less;
//! - decode: from the first sampled token (of the slowest sequence) to the last, like `decode_ms`: as many steps as
//!   tokens, each with sampling;
//! - both together: from submission to the last token.
//!
//! Tokens of the depth are computed before the clock starts, once for all runs.

use std::time::Duration;

use anyhow::Result;
use rocmforge_bench::BenchError;
use rocmforge_bench::requests::{Requests, Watch, Workload, kv_tokens};
use rocmforge_cpu::Isa;
use rocmforge_engine::{Device, DeviceError, EngineConfig, EngineError};
use rocmforge_model::Model;
use rocmforge_plan::Roofline;
use rocmforge_plan::{BatchShape, PlanCost};
use rocmforge_runtime::BackendInfo;
use rocmforge_runtime::gpu::Offload;

use super::Test;
use crate::args::{BenchArgs, CacheArgs, Device as DeviceArg};
use crate::interrupt::Working;
use crate::session;

/// The device that a group of tests runs on.
pub struct Machine<'a> {
    pub isa: Isa,
    pub cache: &'a CacheArgs,
    /// Description, if it is not the CPU.
    pub gpu: Option<String>,
    /// Whether the CPU runs a part of the model beside a GPU.
    pub is_shared: bool,
    /// The part of the model that is on the GPU.
    pub offload: Offload,
    /// Forced kernel variants; empty if none.
    pub kernel_variant: String,
    /// Number of autotuned launches.
    pub n_tuned: usize,
    /// `None` if the peaks cannot be measured.
    pub roofline: Option<Roofline>,
}

/// The result of a test.
#[derive(Debug)]
pub struct Measured {
    pub samples: Vec<Duration>,
    /// The engine's steps in a run.
    pub steps: Vec<BatchShape>,
    /// Most tokens per step.
    pub chunk_tokens: usize,
}

impl Measured {
    /// Returns the roofline time of the steps on `machine`, in seconds.
    pub fn at_roofline(&self, model: &Model, machine: &Machine<'_>) -> Option<f64> {
        let roofline = machine.roofline.as_ref()?;
        let cost = PlanCost {
            plan: &model.plan,
            weights: &model.weights,
            kv_type: session::cache_config(machine.cache, None).kv_type,
        };
        let seconds = |shape| cost.step_seconds(shape, roofline);
        Some(self.steps.iter().map(seconds).sum())
    }
}

/// An engine for tests that differ only in their tokens.
pub struct Bench {
    requests: Requests,
    chunk_tokens: usize,
    device: Device,
    is_gpu_wrong: bool,
}

impl Bench {
    /// Starts an engine that fits each of `tests` on `device`; on the CPU if the device failed its check or does not
    /// support the model, unless it was `asked` for.
    pub fn new(
        model: &Model,
        tests: &[Test],
        (isa, device, asked): (Isa, &Device, DeviceArg),
        cache: &CacheArgs,
    ) -> Result<Bench, EngineError> {
        let n_seqs = tests[0].n_seqs;
        let largest = |of: &dyn Fn(&Test) -> usize| tests.iter().map(of).max().unwrap_or(0);
        // A generated sequence also contains the token it starts from.
        let depth = largest(&|test| test.n_depth);
        let after = largest(&|test| test.n_prompt + test.n_gen) + 2;
        let config = EngineConfig {
            max_seqs: n_seqs,
            n_kv_tokens: Some(kv_tokens(n_seqs, depth, after, cache.page)),
            isa,
            n_threads: Some(tests[0].n_threads),
            ..session::cache_config(cache, Some(depth + after))
        };
        let config = session::run_on(device.clone(), config);
        let session::Started {
            engine: requests,
            config,
            not_on_gpu,
        } = session::start_or_on_cpu(config, asked, |config| Requests::new(model, config, depth))?;
        let config = session::settled(config, requests.backend_info());
        Ok(Bench {
            requests,
            chunk_tokens: config.chunk_tokens,
            device: config.device,
            is_gpu_wrong: matches!(
                not_on_gpu,
                Some(EngineError::Device(DeviceError::WrongGpu { .. }))
            ),
        })
    }

    /// Returns whether the CPU replaces a GPU that failed its check.
    pub fn is_gpu_wrong(&self) -> bool {
        self.is_gpu_wrong
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn backend_info(&self) -> &BackendInfo {
        self.requests.backend_info()
    }

    /// Measures `test` and calls `on_run` after each counted run. `None` if the user stopped it.
    pub fn measure(
        &mut self,
        test: &Test,
        args: &BenchArgs,
        working: &Working<'_>,
        on_run: &mut dyn FnMut(&str),
    ) -> Result<Option<Measured>> {
        let n_warmup = u32::from(!args.no_warmup);
        let mut measured = Measured {
            samples: Vec::new(),
            steps: Vec::new(),
            chunk_tokens: self.chunk_tokens,
        };
        let workload = Workload {
            n_prompt: test.n_prompt,
            n_gen: test.n_gen,
            n_depth: test.n_depth,
        };
        for i in 0..n_warmup + args.repetitions {
            if i >= n_warmup {
                on_run(&format!("{}/{}", i - n_warmup + 1, args.repetitions));
            }
            // Records the steps of the first run only: all runs compute the same.
            let watch = if i == 0 { Watch::Yes } else { Watch::No };
            let run = self.requests.run(&workload, watch, &|| working.asked());
            let mut run = match run {
                Err(BenchError::Stopped) => return Ok(None),
                run => run?,
            };
            // The token that decode starts from is not counted.
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
        Ok(Some(measured))
    }
}
