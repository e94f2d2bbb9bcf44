//! Measures the ways to make a launch and finds the fastest (`tuning.rs` says what there is to choose).
//!
//! A [`Trial`] is one launch on the matrices of a model, or on a cache of its own. Before anything is measured each way has
//! to give the bits of the usual one; one that does not is left out and told. Then the ways are measured in turn, over and
//! over: a sample is a graph of launches on different matrices of the shape, since the weights of one would stay in the
//! cache of the GPU. [`choose`] decides.
//!
//! A trial goes on sample by sample, so that it can be done where a device has nothing else to do for a moment.

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

/// Samples of each way.
const N_ROUNDS: usize = 15;
/// How long a sample should take, and the most launches of one.
const SAMPLE_MS: f32 = 1.0;
const MAX_LAUNCHES: usize = 64;
/// Launches that are compared, and timed before the first sample.
const N_PROBES: usize = 2;

/// A launch to tune.
#[derive(Clone)]
pub enum Work<'a> {
    /// Products of one row of activations with up to three matrices of one format; several sets of one shape.
    Few { sets: Vec<Vec<Matrix<'a>>> },
    /// Products of `n_rows` rows, more than [`ops::MAX_ROWS`], with matrices of one shape.
    Many {
        matrices: Vec<Matrix<'a>>,
        n_rows: usize,
    },
    /// Attention of a row of each of `n_rows` sequences.
    Attention {
        n_rows: usize,
        n_heads: usize,
        scores: Scores,
        /// Extents of a head, a page and a type; the cache itself is not used.
        kv: KvShape,
        /// Positions of each sequence.
        n_positions: usize,
        scratch: &'a AttentionScratch,
    },
}

impl Work<'_> {
    /// The shape, and the ways to make the launch, the usual one first. There may be no other.
    pub fn ways(&self, gpu: &Gpu) -> (Shape, Vec<Choice>) {
        match self {
            Work::Few { sets } => ops::ways_of_one(gpu, &sets[0]),
            Work::Many { matrices, n_rows } => ops::ways_of_many(&matrices[0], *n_rows),
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
                extents.ways(scratch)
            }
        }
    }
}

/// A way to make the launch.
struct Way {
    choice: Choice,
    /// Makes it so.
    gpu: Gpu,
    graph: Option<Graph>,
    /// Milliseconds of a launch.
    samples: Vec<f32>,
}

/// The ways to make a launch while they are measured.
pub struct Trial {
    shape: Shape,
    gpu: Gpu,
    /// Those that are still to be compared, the usual one first.
    unproved: VecDeque<Choice>,
    /// The bits of the usual way, while there are any.
    expected: Vec<u32>,
    ways: Vec<Way>,
    differing: Vec<Choice>,
    operands: Operands,
    /// Of a sample; 0 before it is known.
    n_launches: usize,
    events: [Event; 2],
    n_samples: usize,
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    pub shape: Shape,
    /// Each way and the milliseconds of a launch in every round, the usual one first.
    pub ways: Vec<(Choice, Vec<f32>)>,
    /// Which of the ways is the fastest.
    pub chosen: usize,
    /// Ways that gave other bits, which none should.
    pub differing: Vec<Choice>,
}

impl Decided {
    pub fn choice(&self) -> Choice {
        self.ways[self.chosen].0
    }
}

impl Trial {
    /// Takes the memory of a trial; `None` if there is nothing to choose.
    ///
    /// # Errors
    /// Those of the device, which may lack the memory.
    pub fn begin(gpu: &Gpu, work: &Work<'_>) -> Result<Option<Trial>, GpuError> {
        let (shape, choices) = work.ways(gpu);
        if choices.len() < 2 {
            return Ok(None);
        }
        Ok(Some(Trial {
            shape,
            gpu: gpu.clone(),
            unproved: choices.into(),
            expected: Vec::new(),
            ways: Vec::new(),
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

    /// Whether every way is compared and has its samples.
    pub fn is_done(&self) -> bool {
        // The first round only warms up.
        let is_measured = self.n_samples == (1 + N_ROUNDS) * self.ways.len();
        self.unproved.is_empty() && (self.ways.len() < 2 || is_measured)
    }

    /// Compares the next way with the usual one, or takes the next sample. `work` is that of [`Trial::begin`].
    ///
    /// # Errors
    /// Those of the device.
    pub fn go_on(&mut self, work: &Work<'_>) -> Result<(), GpuError> {
        if self.is_done() {
            return Ok(());
        }
        match self.unproved.pop_front() {
            Some(choice) => self.compare(choice, work),
            None => self.sample(work),
        }
    }

    fn compare(&mut self, choice: Choice, work: &Work<'_>) -> Result<(), GpuError> {
        let tuning = Tuning::only(self.shape, choice);
        let gpu = self.gpu.with_tuning(Arc::new(tuning));
        let found = self.operands.results(&gpu, work, N_PROBES)?;
        if self.ways.is_empty() {
            self.expected = found;
        } else if self.expected != found {
            self.differing.push(choice);
            return Ok(());
        }
        self.ways.push(Way {
            choice,
            gpu,
            graph: None,
            samples: Vec::with_capacity(N_ROUNDS),
        });
        if self.unproved.is_empty() {
            self.expected = Vec::new();
        }
        Ok(())
    }

    /// How many launches take as long as a sample should.
    fn n_launches(&self, work: &Work<'_>) -> Result<usize, GpuError> {
        let usual = &self.ways[0].gpu;
        let ms = self.time(|trial| trial.operands.queue(usual, work, N_PROBES))?;
        let of_one = (ms / N_PROBES as f32).max(SAMPLE_MS / MAX_LAUNCHES as f32);
        Ok(((SAMPLE_MS / of_one) as usize).max(1))
    }

    fn sample(&mut self, work: &Work<'_>) -> Result<(), GpuError> {
        if self.n_launches == 0 {
            self.n_launches = self.n_launches(work)?;
        }
        let (n_ways, n) = (self.ways.len(), self.n_launches);
        let (round, place) = (self.n_samples / n_ways, self.n_samples % n_ways);
        // To and fro, so that what changes with time is no way's gain.
        let at = match round % 2 {
            0 => place,
            _ => n_ways - 1 - place,
        };
        let graph = match self.ways[at].graph.take() {
            Some(graph) => graph,
            None => {
                let gpu = &self.ways[at].gpu;
                gpu.capture(|| self.operands.queue(gpu, work, n))?
            }
        };
        let ms = self.time(|_| graph.launch())?;
        let way = &mut self.ways[at];
        way.graph = Some(graph);
        if round > 0 {
            way.samples.push(ms / n as f32);
        }
        self.n_samples += 1;
        Ok(())
    }

    /// Milliseconds from the begin to the end of what `queue` queues.
    fn time(&self, queue: impl FnOnce(&Trial) -> Result<(), GpuError>) -> Result<f32, GpuError> {
        let [start, end] = &self.events;
        start.record()?;
        queue(self)?;
        end.record()?;
        end.wait()?;
        end.elapsed_ms(start)
    }

    /// The fastest way, by the rounds that are complete.
    pub fn decide(self) -> Decided {
        let ways: Vec<(Choice, Vec<f32>)> = self
            .ways
            .into_iter()
            .map(|way| (way.choice, way.samples))
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
