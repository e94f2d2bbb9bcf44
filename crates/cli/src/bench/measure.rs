//! Runs a test on the engine, with requests of random tokens as clients would send them, and takes times
//! where `generate` takes them:
//!
//! - a prompt counts from its submission to its first sampled token, as `prefill_ms` of `generate`;
//!   llama-bench computes the same logits and samples nothing, which is a scan of one row less;
//! - generation counts from the first sampled token (of the slowest sequence) to the last, as `decode_ms`:
//!   as many steps as tokens, each with its sampling;
//! - both together count from the submission to the last token.
//!
//! The depth is put into the cache before the clock starts, once for all runs: later requests that begin
//! with the same tokens share its pages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rocmforge::engine::backend::{BackendInfo, OpData, OpObserver};
use rocmforge::engine::batch::Batch;
use rocmforge::engine::model::Model;
use rocmforge::engine::plan::{BatchShape, Op, PlanCost};
use rocmforge::engine::tokenizer::TokenId;
use rocmforge::engine::{Device, Engine, EngineConfig, EngineError, Event, Isa, Request, Roofline};

use super::Test;
use crate::args::{BenchArgs, CacheArgs};
use crate::interrupt::Working;
use crate::session;

/// Where a group of tests runs.
pub struct Machine<'a> {
    pub isa: Isa,
    pub cache: &'a CacheArgs,
    /// In words, if it is not the CPU.
    pub gpu: Option<String>,
    /// `None` where nothing measures it.
    pub roofline: Option<Roofline>,
}

/// What came of a test.
#[derive(Debug)]
pub struct Measured {
    pub samples: Vec<Duration>,
    /// The steps that the engine took in a run.
    pub steps: Vec<BatchShape>,
    /// Tokens of a step at most.
    pub chunk_tokens: usize,
}

impl Measured {
    /// The least time of the steps on `machine`, in seconds.
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

/// An engine for tests that differ in their tokens only.
pub struct Bench<'a> {
    model: &'a Model,
    engine: Engine,
    config: EngineConfig,
    /// For each sequence the tokens that stand before its tests, as long as the greatest depth.
    prefixes: Vec<Vec<TokenId>>,
    random: Random,
}

impl<'a> Bench<'a> {
    /// An engine with room for each of `tests`.
    pub fn new(
        model: &'a Model,
        tests: &[Test],
        (isa, device): (Isa, &Device),
        cache: &CacheArgs,
    ) -> Result<Bench<'a>, EngineError> {
        let n_seqs = tests[0].n_seqs;
        let page = cache.page;
        let largest = |of: &dyn Fn(&Test) -> usize| tests.iter().map(of).max().unwrap_or(0);
        // Beside its tokens a sequence of a generation has the one that begins it.
        let depth = largest(&|test| test.n_depth);
        let after = largest(&|test| test.n_prompt + test.n_gen) + 2;
        // Pages are taken from those unused for longest. Those of the depth stay if the others suffice for
        // the run before and this one.
        let pages = depth / page + 2 * after.div_ceil(page) + 1;
        let config = EngineConfig {
            max_seqs: n_seqs,
            n_kv_tokens: Some(n_seqs.saturating_mul(pages).saturating_mul(page)),
            isa,
            n_threads: Some(tests[0].n_threads),
            ..session::cache_config(cache, Some(depth + after))
        };
        let config = session::run_on(device.clone(), config);
        let engine = Engine::start(model, None, &config)?;
        let mut random = Random(0);
        let n_vocab = model.config.n_vocab;
        let prefixes = (0..n_seqs).map(|_| random.tokens(depth, n_vocab)).collect();
        Ok(Bench {
            model,
            engine,
            config,
            prefixes,
            random,
        })
    }

    pub fn backend_info(&self) -> &BackendInfo {
        self.engine.backend_info()
    }

    /// Measures `test`; `on_run` is told of each run that counts. `None` if the user stopped it.
    pub fn measure(
        &mut self,
        test: &Test,
        args: &BenchArgs,
        working: &Working<'_>,
        on_run: &mut dyn FnMut(&str),
    ) -> Result<Option<Measured>> {
        let n_warmup = u32::from(!args.no_warmup);
        let shapes = Shapes::default();
        // Only the first run is watched: what each of them computes is the same.
        self.engine.observe(Some(Box::new(shapes.clone())));
        let mut measured = Measured {
            samples: Vec::new(),
            steps: Vec::new(),
            chunk_tokens: self.config.chunk_tokens,
        };
        for i in 0..n_warmup + args.repetitions {
            if i >= n_warmup {
                on_run(&format!("{}/{}", i - n_warmup + 1, args.repetitions));
            }
            let Some(time) = self.run(test, &shapes, working)? else {
                return Ok(None);
            };
            if i == 0 {
                self.engine.observe(None);
                measured.steps = shapes.take();
            }
            if i >= n_warmup {
                measured.samples.push(time);
            }
        }
        Ok(Some(measured))
    }

    /// One run; `shapes` is emptied when the clock starts. `None` if the user stopped it.
    fn run(
        &mut self,
        test: &Test,
        shapes: &Shapes,
        working: &Working<'_>,
    ) -> Result<Option<Duration>> {
        let depth = test.n_depth;
        if depth > 0 {
            for prefix in &self.prefixes {
                let request = Request::greedy(prefix[..depth].to_vec(), 0);
                self.engine.submit(request)?;
            }
            while !self.engine.is_idle() {
                if working.asked() {
                    return Ok(None);
                }
                self.engine.step()?;
            }
        }
        let n_vocab = self.model.config.n_vocab;
        let mut requests = Vec::new();
        for prefix in &self.prefixes {
            let mut prompt = prefix[..depth].to_vec();
            prompt.extend(self.random.tokens(test.n_prompt.max(1), n_vocab));
            requests.push(Request {
                ignore_eos: true,
                ..Request::greedy(prompt, test.n_gen + 1)
            });
        }
        shapes.take();
        let mut started = Instant::now();
        for request in requests {
            self.engine.submit(request)?;
        }
        let mut n_without_token = test.n_seqs;
        while !self.engine.is_idle() {
            if working.asked() {
                return Ok(None);
            }
            for event in self.engine.step()? {
                match event {
                    Event::PromptDone { cached_tokens, .. } => {
                        if cached_tokens != depth {
                            bail!(
                                "the cache kept {cached_tokens} of {depth} tokens between two runs; take a smaller -d or -b"
                            );
                        }
                        n_without_token -= 1;
                    }
                    Event::Failed { .. } => return Err(EngineError::NotFinite.into()),
                    _ => {}
                }
            }
            // Sequences with one token to compute get there in the same step.
            if n_without_token == 0 && test.n_prompt == 0 && test.n_gen > 0 {
                n_without_token = usize::MAX;
                shapes.take();
                started = Instant::now();
            }
        }
        Ok(Some(started.elapsed()))
    }
}

/// The shapes of the steps that were run.
#[derive(Clone, Default)]
struct Shapes(Arc<Mutex<Vec<BatchShape>>>);

impl Shapes {
    fn take(&self) -> Vec<BatchShape> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OpObserver for Shapes {
    fn before(&mut self, index: usize, _: &Op, batch: &Batch, _: &dyn OpData) {
        if index == 0 {
            let mut shapes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            shapes.push(BatchShape::of(batch));
        }
    }

    fn after(&mut self, _: usize, _: &Op, _: &Batch, _: &dyn OpData) {}
}

/// Numbers without a pattern, the same in every run of the program (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `n` tokens of a vocabulary of `n_vocab`.
    fn tokens(&mut self, n: usize, n_vocab: usize) -> Vec<TokenId> {
        let token = |_| (self.next() % n_vocab as u64) as TokenId;
        (0..n).map(token).collect()
    }
}
