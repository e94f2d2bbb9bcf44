//! Autotuning: measures the candidate configurations of a launch and finds the fastest (`tuning.rs` defines the
//! choices).
//!
//! A [`Trial`] covers one launch shape, on the matrices of a model or on a KV cache of its own. First each candidate
//! must reproduce the output bits of the default; candidates that do not are excluded and reported. Then the candidates
//! are measured in rounds: one sample is a graph of launches on different matrices of the shape, because the weights of
//! a single one would stay in the GPU's cache. [`choose()`] decides.
//!
//! A trial proceeds sample by sample, so it can run in moments when the device is idle.

mod choose;
mod operands;

use std::collections::VecDeque;
use std::sync::Arc;

pub use choose::choose;
use operands::Operands;

use crate::error::GpuError;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::graph::Graph;
use crate::kv::KvShape;
use crate::operands::Matrix;
use crate::ops::{self, AttentionScratch, DecodeExtents, Scores};
use crate::tuning::{Choice, Shape, Tuning};

/// Samples per candidate.
const N_ROUNDS: usize = 15;
/// Target duration of a sample.
const SAMPLE_MS: f32 = 1.0;
/// Maximum number of launches in a sample.
const MAX_LAUNCHES: usize = 64;
/// Launches that are compared, and that are timed before the first sample.
const N_PROBES: usize = 2;

/// A launch to tune.
#[derive(Clone)]
pub enum Work<'a> {
    /// GEMV: one row of activations with up to three matrices of one format; several sets of the same shape.
    Few { sets: Vec<Vec<Matrix<'a>>> },
    /// GEMM: `n_rows` rows, more than [`ops::MAX_ROWS`], with matrices of the same shape.
    Many {
        matrices: Vec<Matrix<'a>>,
        n_rows: usize,
    },
    /// Attention with one row for each of `n_rows` sequences.
    Attention {
        n_rows: usize,
        n_heads: usize,
        scores: Scores,
        /// Head dimensions, page size and type. The cache itself is not used.
        kv: KvShape,
        /// Positions per sequence.
        n_positions: usize,
        scratch: &'a AttentionScratch,
    },
}

impl Work<'_> {
    /// Returns the shape and the candidate choices, the default first. There may be no other.
    ///
    /// # Errors
    /// Those of loading the kernels.
    pub fn ways(&self, gpu: &Gpu) -> Result<(Shape, Vec<Choice>), GpuError> {
        match self {
            Work::Few { sets } => ops::gemv_choices(gpu, &sets[0]),
            Work::Many { matrices, n_rows } => ops::gemm_choices(gpu, &matrices[0], *n_rows),
            Work::Attention {
                n_rows,
                n_heads,
                kv,
                scratch,
                ..
            } => {
                let extents = DecodeExtents {
                    n_rows: *n_rows,
                    n_heads: *n_heads,
                    kv: *kv,
                };
                Ok(extents.ways(scratch))
            }
        }
    }
}

/// A candidate configuration.
struct Candidate {
    choice: Choice,
    /// A handle whose launches use `choice`.
    gpu: Gpu,
    graph: Option<Graph>,
    /// Milliseconds per launch.
    samples: Vec<f32>,
}

/// The state of a running measurement.
pub struct Trial {
    shape: Shape,
    gpu: Gpu,
    /// Choices still to be compared, the default first.
    unchecked: VecDeque<Choice>,
    /// Output bits of the default, while choices are compared.
    expected: Vec<u32>,
    candidates: Vec<Candidate>,
    differing: Vec<Choice>,
    operands: Operands,
    /// Launches per sample; 0 until known.
    n_launches: usize,
    events: [Event; 2],
    n_samples: usize,
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    pub shape: Shape,
    /// Each choice with its milliseconds per launch in every round, the default first.
    pub ways: Vec<(Choice, Vec<f32>)>,
    /// Index of the fastest choice.
    pub chosen: usize,
    /// Choices with different output bits. There should be none.
    pub differing: Vec<Choice>,
}

impl Decided {
    pub fn choice(&self) -> Choice {
        self.ways[self.chosen].0
    }
}

impl Trial {
    /// Allocates the memory of a trial. Returns `None` if there is nothing to choose.
    ///
    /// # Errors
    /// Those of the device, such as [`GpuError::OutOfMemory`].
    pub fn begin(gpu: &Gpu, work: &Work<'_>) -> Result<Option<Trial>, GpuError> {
        let (shape, choices) = work.ways(gpu)?;
        if choices.len() < 2 {
            return Ok(None);
        }
        Ok(Some(Trial {
            shape,
            gpu: gpu.clone(),
            unchecked: choices.into(),
            expected: Vec::new(),
            candidates: Vec::new(),
            differing: Vec::new(),
            operands: Operands::new(gpu, work)?,
            n_launches: 0,
            events: [Event::new(gpu)?, Event::new(gpu)?],
            n_samples: 0,
        }))
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether all choices are compared and measured.
    pub fn is_done(&self) -> bool {
        // The first round is warm-up.
        let is_measured = self.n_samples == (1 + N_ROUNDS) * self.candidates.len();
        self.unchecked.is_empty() && (self.candidates.len() < 2 || is_measured)
    }

    /// Compares the next choice with the default, or takes the next sample. `work` must be that of [`Trial::begin`].
    ///
    /// # Errors
    /// Those of the device.
    pub fn go_on(&mut self, work: &Work<'_>) -> Result<(), GpuError> {
        if self.is_done() {
            return Ok(());
        }
        match self.unchecked.pop_front() {
            Some(choice) => self.compare(choice, work),
            None => self.sample(work),
        }
    }

    fn compare(&mut self, choice: Choice, work: &Work<'_>) -> Result<(), GpuError> {
        let tuning = Tuning::only(self.shape, choice);
        let gpu = self.gpu.with_tuning(Arc::new(tuning));
        let found = self.operands.results(&gpu, work, N_PROBES)?;
        if self.candidates.is_empty() {
            self.expected = found;
        } else if self.expected != found {
            self.differing.push(choice);
            return Ok(());
        }
        self.candidates.push(Candidate {
            choice,
            gpu,
            graph: None,
            samples: Vec::with_capacity(N_ROUNDS),
        });
        if self.unchecked.is_empty() {
            self.expected = Vec::new();
        }
        Ok(())
    }

    /// Returns how many launches take [`SAMPLE_MS`].
    fn n_launches(&self, work: &Work<'_>) -> Result<usize, GpuError> {
        let default = &self.candidates[0].gpu;
        let ms = self.time(|trial| trial.operands.queue(default, work, N_PROBES))?;
        let ms_of_one = (ms / N_PROBES as f32).max(SAMPLE_MS / MAX_LAUNCHES as f32);
        Ok(((SAMPLE_MS / ms_of_one) as usize).max(1))
    }

    fn sample(&mut self, work: &Work<'_>) -> Result<(), GpuError> {
        if self.n_launches == 0 {
            self.n_launches = self.n_launches(work)?;
        }
        let (n_candidates, n) = (self.candidates.len(), self.n_launches);
        let (round, place) = (self.n_samples / n_candidates, self.n_samples % n_candidates);
        // Alternate the direction, so that drift over time favours no candidate.
        let at = match round % 2 {
            0 => place,
            _ => n_candidates - 1 - place,
        };
        let graph = match self.candidates[at].graph.take() {
            Some(graph) => graph,
            None => {
                let gpu = &self.candidates[at].gpu;
                gpu.capture(|| self.operands.queue(gpu, work, n))?
            }
        };
        let ms = self.time(|_| graph.launch())?;
        let candidate = &mut self.candidates[at];
        candidate.graph = Some(graph);
        if round > 0 {
            candidate.samples.push(ms / n as f32);
        }
        self.n_samples += 1;
        Ok(())
    }

    /// Returns the milliseconds on the device of the work that `queue` queues.
    fn time(&self, queue: impl FnOnce(&Trial) -> Result<(), GpuError>) -> Result<f32, GpuError> {
        let [start, end] = &self.events;
        start.record()?;
        queue(self)?;
        end.record()?;
        end.wait()?;
        end.elapsed_ms(start)
    }

    /// Chooses the fastest candidate by the rounds that are complete.
    pub fn decide(self) -> Decided {
        let ways: Vec<(Choice, Vec<f32>)> = self
            .candidates
            .into_iter()
            .map(|candidate| (candidate.choice, candidate.samples))
            .collect();
        let samples: Vec<&[f32]> = ways.iter().map(|(_, samples)| &samples[..]).collect();
        Decided {
            shape: self.shape,
            chosen: choose(&samples),
            ways,
            differing: self.differing,
        }
    }
}
