//! Requests of random tokens through an engine, as clients would send them, timed where `generate` takes its times: a
//! prompt from its submission to its first sampled token, generation from the first sampled token (of the slowest
//! sequence) to the last, which is as many steps as tokens, each with its sampling.
//!
//! The depth is put into the cache before the clock starts: later requests that begin with the same tokens share its
//! pages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rocmforge_engine::{Engine, EngineConfig, EngineError, Event, Request, RequestError};
use rocmforge_gguf::TokenId;
use rocmforge_model::Model;
use rocmforge_plan::Batch;
use rocmforge_plan::{BatchShape, Op};
use rocmforge_runtime::{BackendInfo, OpData, OpObserver};

use crate::BenchError;
use crate::harness::Stop;
use crate::values::Random;

/// What is sent at once: so many sequences, each with a prompt behind what is in the cache, and what is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Tokens of the prompt that are computed; 0 and 1 are the same.
    pub n_prompt: usize,
    /// Tokens generated after the first.
    pub n_gen: usize,
    /// Tokens in the cache before; whole pages.
    pub n_depth: usize,
}

/// What came of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// From the submission to the first token of the slowest sequence.
    pub first: Duration,
    /// From there to the last token.
    pub rest: Duration,
    /// The steps of either, if the run was watched.
    pub first_steps: Vec<BatchShape>,
    pub rest_steps: Vec<BatchShape>,
}

/// Whether the steps of a run are written down, which keeps it from using graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    Yes,
    No,
}

/// An engine for workloads of the same number of sequences.
pub struct Requests {
    engine: Engine,
    n_vocab: usize,
    /// For each sequence the tokens that stand before its tests, as long as the greatest depth.
    prefixes: Vec<Vec<TokenId>>,
    random: Random,
}

/// A prompt of `n` tokens of a vocabulary of `n_vocab`, the same each time.
pub fn random_prompt(n: usize, n_vocab: usize) -> Vec<TokenId> {
    let mut random = Random(0);
    (0..n).map(|_| random.below(n_vocab) as TokenId).collect()
}

/// Tokens that the cache must hold for `n_seqs` sequences with up to `depth` tokens in it and `after` tokens behind them:
/// pages are taken from those unused for longest, so those of the depth stay if the others suffice for the run before
/// and this one.
pub fn kv_tokens(n_seqs: usize, depth: usize, after: usize, page: usize) -> usize {
    let pages = depth / page + 2 * after.div_ceil(page) + 1;
    n_seqs.saturating_mul(pages).saturating_mul(page)
}

impl Requests {
    /// An engine as `config` says, for depths up to `depth`.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn new(
        model: &Model,
        config: &EngineConfig,
        depth: usize,
    ) -> Result<Requests, EngineError> {
        let mut requests = Requests {
            engine: Engine::start(model, None, config)?,
            n_vocab: model.config.n_vocab,
            prefixes: Vec::new(),
            random: Random(0),
        };
        requests.prefixes = (0..config.max_seqs)
            .map(|_| requests.tokens(depth))
            .collect();
        Ok(requests)
    }

    pub fn backend_info(&self) -> &BackendInfo {
        self.engine.backend_info()
    }

    fn tokens(&mut self, n: usize) -> Vec<TokenId> {
        (0..n)
            .map(|_| self.random.below(self.n_vocab) as TokenId)
            .collect()
    }

    /// One run. `stop` is asked before every step; after it, and any other error, the engine is of no more use.
    ///
    /// # Errors
    /// Those of the engine, if the cache lost what was to be in it, and [`BenchError::Stopped`].
    pub fn run(
        &mut self,
        workload: &Workload,
        watch: Watch,
        stop: &Stop<'_>,
    ) -> Result<Run, BenchError> {
        let depth = workload.n_depth;
        if depth > 0 {
            for prefix in &self.prefixes {
                let request = Request::greedy(prefix[..depth].to_vec(), 0);
                self.engine.submit(request)?;
            }
            while !self.engine.is_idle() {
                if stop() {
                    return Err(BenchError::Stopped);
                }
                self.engine.step()?;
            }
        }
        let mut requests = Vec::new();
        for i in 0..self.prefixes.len() {
            let mut prompt = self.prefixes[i][..depth].to_vec();
            prompt.extend(self.tokens(workload.n_prompt.max(1)));
            requests.push(Request {
                ignore_eos: true,
                ..Request::greedy(prompt, workload.n_gen + 1)
            });
        }
        let shapes = Shapes::default();
        if watch == Watch::Yes {
            self.engine.observe(Some(Box::new(shapes.clone())));
        }
        let run = self.timed(requests, depth, &shapes, stop);
        if watch == Watch::Yes {
            self.engine.observe(None);
        }
        run
    }

    fn timed(
        &mut self,
        requests: Vec<Request>,
        depth: usize,
        shapes: &Shapes,
        stop: &Stop<'_>,
    ) -> Result<Run, BenchError> {
        let mut n_without_token = requests.len();
        let mut run = Run::default();
        let mut started = Instant::now();
        for request in requests {
            self.engine.submit(request)?;
        }
        while !self.engine.is_idle() {
            if stop() {
                return Err(BenchError::Stopped);
            }
            let had_tokens = n_without_token == 0;
            for event in self.engine.step()? {
                match event {
                    Event::PromptDone { cached_tokens, .. } => {
                        if cached_tokens != depth {
                            return Err(BenchError::CacheLost {
                                kept: cached_tokens,
                                depth,
                            });
                        }
                        n_without_token -= 1;
                    }
                    Event::Failed { .. } => {
                        return Err(EngineError::from(RequestError::NotFinite).into());
                    }
                    _ => {}
                }
            }
            if n_without_token == 0 && !had_tokens {
                run.first = started.elapsed();
                run.first_steps = shapes.take();
                started = Instant::now();
            }
        }
        run.rest = started.elapsed();
        run.rest_steps = shapes.take();
        Ok(run)
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rocmforge_gguf::{Gguf, LoadMode};
    use rocmforge_plan::SeqShape;

    use super::*;

    fn forge_mini() -> Model {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
        let gguf = Gguf::open(&path, LoadMode::Mmap).unwrap();
        Model::load(Arc::new(gguf)).unwrap()
    }

    /// The steps that were timed are those of the workload: its prompt behind the depth, then a token a step.
    #[test]
    fn a_run_has_the_steps_of_its_workload() {
        let model = forge_mini();
        let config = EngineConfig {
            n_ctx: Some(256),
            max_seqs: 2,
            n_kv_tokens: Some(kv_tokens(2, 64, 45, 32)),
            n_threads: Some(1),
            ..EngineConfig::default()
        };
        let mut requests = Requests::new(&model, &config, 64).unwrap();
        let workload = Workload {
            n_prompt: 40,
            n_gen: 3,
            n_depth: 64,
        };
        for _ in 0..2 {
            let run = requests.run(&workload, Watch::Yes, &|| false).unwrap();
            let rows =
                |steps: &[BatchShape]| -> usize { steps.iter().map(BatchShape::n_tokens).sum() };
            assert_eq!(rows(&run.first_steps), 2 * 40);
            assert_eq!(run.rest_steps.len(), 3);
            let seqs = (1..=3).map(|i| {
                vec![
                    SeqShape {
                        first_pos: 64 + 39 + i,
                        n_rows: 1
                    };
                    2
                ]
            });
            for (step, seqs) in run.rest_steps.iter().zip(seqs) {
                assert_eq!(step.seqs, seqs);
            }
            assert!(run.first > Duration::ZERO && run.rest > Duration::ZERO);
        }
        let unwatched = requests.run(&workload, Watch::No, &|| false).unwrap();
        assert!(unwatched.first_steps.is_empty() && unwatched.rest_steps.is_empty());
        let stopped = requests.run(&workload, Watch::No, &|| true);
        assert!(matches!(stopped, Err(BenchError::Stopped)));
    }
}
