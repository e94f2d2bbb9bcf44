//! Runs requests of random tokens through an engine, as clients would send them, timed as in `generate`: a prompt from
//! submission to its first sampled token; generation from the first sampled token (of the slowest sequence) to the
//! last, which is as many steps as tokens, each with its sampling.
//!
//! The depth is put into the KV cache before the clock starts; later requests with the same prefix share its pages.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rocmforge_engine::serve::{EventStream, ServeOptions, Server, StreamEvent, Waited, serve};
use rocmforge_engine::speculate::{DraftLength, Drafter};
use rocmforge_engine::{DraftCounts, Engine, EngineConfig, EngineError, Request};
use rocmforge_gguf::TokenId;
use rocmforge_model::Model;
use rocmforge_plan::Batch;
use rocmforge_plan::{BatchShape, Op};
use rocmforge_runtime::{BackendInfo, OpData, OpObserver, SharedCache};

use crate::error::BenchError;
use crate::harness::Stop;
use crate::values::Random;

/// The requests of a run: the number of sequences, and the cached, prompt and generated tokens of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Prompt tokens that are computed; 0 and 1 are the same.
    pub n_prompt: usize,
    /// Tokens generated after the first.
    pub n_gen: usize,
    /// Tokens cached before; whole pages.
    pub n_depth: usize,
}

/// The times of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// From submission to the first token of the slowest sequence.
    pub first: Duration,
    /// From there to the last token.
    pub rest: Duration,
    /// The steps of each, if the run was observed.
    pub first_steps: Vec<BatchShape>,
    pub rest_steps: Vec<BatchShape>,
}

/// Whether to record the steps of a run, which rules out graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    Yes,
    No,
}

/// An engine for workloads with the same number of sequences.
pub struct Requests {
    server: Server,
    n_vocab: usize,
    /// The cached prefix of each sequence, as long as the greatest depth.
    prefixes: Vec<Vec<TokenId>>,
    random: Random,
}

/// Returns `n` pseudo-random tokens of a vocabulary of `n_vocab`, the same each time.
pub fn random_prompt(n: usize, n_vocab: usize) -> Vec<TokenId> {
    let mut random = Random(0);
    (0..n).map(|_| random.below(n_vocab) as TokenId).collect()
}

/// Returns the tokens that the KV cache must hold for `n_seqs` sequences with up to `depth` cached tokens and `after`
/// further tokens. Pages are reused in LRU order, so the cached ones survive if the others suffice for the previous run
/// and this one.
pub fn kv_tokens(n_seqs: usize, depth: usize, after: usize, page: usize) -> usize {
    let pages = depth / page + 2 * after.div_ceil(page) + 1;
    n_seqs.saturating_mul(pages).saturating_mul(page)
}

impl Requests {
    /// Creates an engine with `config`, for depths up to `depth`.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn new(
        model: &Model,
        config: &EngineConfig,
        depth: usize,
    ) -> Result<Requests, EngineError> {
        let options = ServeOptions {
            max_waiting: usize::MAX,
            max_waiting_tokens: usize::MAX,
            ..ServeOptions::default()
        };
        let mut requests = Requests {
            server: serve(Engine::start(model, None, config)?, options)?,
            n_vocab: model.config.n_vocab,
            prefixes: Vec::new(),
            random: Random(0),
        };
        requests.prefixes = (0..config.max_seqs)
            .map(|_| requests.tokens(depth))
            .collect();
        Ok(requests)
    }

    /// Lets the sequences draft; [`EngineConfig::max_draft`] must allow it.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn speculate(
        &self,
        drafter: Box<dyn Drafter>,
        length: DraftLength,
    ) -> Result<(), EngineError> {
        self.server
            .with_engine(move |engine| engine.speculate(drafter, length))
    }

    /// Returns where the KV cache is, and the context.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn cache(&self) -> Result<(SharedCache, usize), EngineError> {
        self.server
            .with_engine(|engine| (engine.cache().clone(), engine.n_ctx()))
    }

    /// Returns the drafts so far.
    pub fn drafts(&self) -> DraftCounts {
        self.server.stats().drafts
    }

    /// Returns the most tokens of a step.
    pub fn max_step_tokens(&self) -> usize {
        self.server.max_step_tokens()
    }

    pub fn backend_info(&self) -> &BackendInfo {
        self.server.backend_info()
    }

    fn tokens(&mut self, n: usize) -> Vec<TokenId> {
        (0..n)
            .map(|_| self.random.below(self.n_vocab) as TokenId)
            .collect()
    }

    /// Runs a workload once. `stop` is polled before every step; after a stop or any error the engine must not be used
    /// again.
    ///
    /// # Errors
    /// Those of the engine, [`BenchError::CacheLost`] if the cache lost the prefix, and [`BenchError::Stopped`].
    pub fn run(
        &mut self,
        workload: &Workload,
        watch: Watch,
        stop: &Stop<'_>,
    ) -> Result<Run, BenchError> {
        let depth = workload.n_depth;
        if depth > 0 {
            let fill = |prefix: &Vec<TokenId>| Request::greedy(prefix[..depth].to_vec(), 0);
            for mut stream in self.submit(self.prefixes.iter().map(fill).collect())? {
                while next(&mut stream, stop)?.is_some() {}
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
            let observer = Box::new(shapes.clone());
            self.server
                .with_engine(|engine| engine.observe(Some(observer)))?;
        }
        let prompt_end = depth + workload.n_prompt.max(1);
        let mut run = self.timed(requests, depth, stop)?;
        if watch == Watch::Yes {
            self.server.with_engine(|engine| engine.observe(None))?;
            let mut steps = shapes.take();
            run.rest_steps = steps.split_off(n_prompt_steps(&steps, prompt_end));
            run.first_steps = steps;
        }
        Ok(run)
    }

    /// Submits requests that enter the queue together.
    fn submit(&self, requests: Vec<Request>) -> Result<Vec<EventStream>, EngineError> {
        Ok(self.server.submit_all(requests)?)
    }

    fn timed(
        &mut self,
        requests: Vec<Request>,
        depth: usize,
        stop: &Stop<'_>,
    ) -> Result<Run, BenchError> {
        let started = Instant::now();
        let (mut first, mut last) = (started, started);
        for mut stream in self.submit(requests)? {
            while let Some(event) = next(&mut stream, stop)? {
                match event {
                    StreamEvent::PromptDone {
                        cached_tokens, at, ..
                    } => {
                        if cached_tokens != depth {
                            return Err(BenchError::CacheLost {
                                kept: cached_tokens,
                                depth,
                            });
                        }
                        first = first.max(at);
                    }
                    StreamEvent::Tokens { at, .. } => last = last.max(at),
                    _ => {}
                }
            }
        }
        Ok(Run {
            first: first - started,
            rest: last - first,
            ..Run::default()
        })
    }
}

/// Time between two polls of `stop`.
const POLL: Duration = Duration::from_millis(20);

/// Waits for the next event; `None` at the end.
fn next(stream: &mut EventStream, stop: &Stop<'_>) -> Result<Option<StreamEvent>, BenchError> {
    loop {
        if stop() {
            return Err(BenchError::Stopped);
        }
        match stream.next_within(POLL) {
            Waited::Event(StreamEvent::Failed(failure)) => {
                return Err(EngineError::from(failure).into());
            }
            Waited::Event(event) => return Ok(Some(event)),
            Waited::Timeout => {}
            Waited::Ended => return Ok(None),
        }
    }
}

/// Returns the number of steps until the last prompt of `prompt_end` tokens is computed.
fn n_prompt_steps(steps: &[BatchShape], prompt_end: usize) -> usize {
    let ends_prompt = |step: &BatchShape| {
        let mut ends = step.seqs.iter().map(|seq| seq.first_pos + seq.n_rows);
        ends.any(|end| end == prompt_end)
    };
    steps.iter().rposition(ends_prompt).map_or(0, |at| at + 1)
}

/// The shapes of the executed steps.
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

    use rocmforge_engine::KvTokens;
    use rocmforge_gguf::{Gguf, LoadMode};
    use rocmforge_plan::SeqShape;

    use super::*;

    fn forge_mini() -> Model {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/forge-mini-Q4_K_M.gguf");
        let gguf = Gguf::open(&path, LoadMode::Mmap).unwrap();
        Model::load(Arc::new(gguf)).unwrap()
    }

    /// The timed steps are those of the workload: its prompt after the cached depth, then one token per step.
    #[test]
    fn runs_the_steps_of_the_workload() {
        let model = forge_mini();
        let config = EngineConfig {
            n_ctx: Some(256),
            max_seqs: 2,
            kv_tokens: KvTokens::Exactly(kv_tokens(2, 64, 45, 32)),
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
