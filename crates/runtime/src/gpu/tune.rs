//! Autotuning on a model's own matrices: finds the launches of its steps that have several variants, and measures them
//! a few milliseconds at a time between steps.
//!
//! Trials read the model's weights and own all other operands, so they change no sequence. Their results apply from the
//! next start: the graphs of this one are already recorded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocmforge_gpu::ops::{MAX_ROWS, Scores};
use rocmforge_gpu::{Gpu, GpuError, Matrix, Shape, Trial, Work, tuning_key};

use super::memory::Memory;
use super::weights::DeviceWeights;
use super::{GpuBackend, GpuOptions};
use crate::backend::IdleWork;
use crate::error::RuntimeError;
use crate::tuning::{Choice, Kept, TuneProgress, TuningStore, Untuned};
use rocmforge_plan::{Op, Plan, RowCount, WeightId};

/// Maximum matrices (or sets of matrices) per shape that launches are measured on.
const MAX_SETS: usize = 16;
/// Maximum matrices per launch.
const MAX_MATRICES: usize = 3;
/// Positions of the sequences that attention is measured with, unless the context is shorter.
const POSITIONS: usize = 2048;
/// Tokens of a short prompt, which is tuned in addition to a full chunk.
const SHORT_CHUNK: usize = 128;
/// Sequences of the decode steps whose attention is tuned, in the order of trials.
const STEP_ROWS: [usize; 4] = [1, 2, 4, 8];

/// The operands of a launch to tune.
enum Task {
    /// Sets of matrices of one format; one launch multiplies a set.
    Gemv(Vec<Vec<WeightId>>),
    /// Matrices that are multiplied with `n_rows` rows.
    Gemm {
        weights: Vec<WeightId>,
        n_rows: usize,
    },
    Attention {
        layer: usize,
        n_heads: usize,
        scores: Scores,
        n_rows: usize,
    },
}

/// Tunes the launches of a model.
pub(crate) struct Tuner {
    key: String,
    n_shapes: usize,
    /// Shapes that were already tuned.
    n_known: usize,
    left: VecDeque<(Shape, Task)>,
    current: Option<(Task, Trial)>,
}

/// The parts of a backend that tuning reads.
#[derive(Clone, Copy)]
struct Model<'a> {
    gpu: &'a Gpu,
    weights: &'a DeviceWeights,
    memory: &'a Memory,
    options: &'a GpuOptions,
}

impl<'a> Model<'a> {
    fn set(&self, ids: &[WeightId]) -> Vec<Matrix<'a>> {
        ids.iter().map(|&id| self.weights.matrix(id)).collect()
    }

    fn work(&self, task: &Task) -> Work<'a> {
        match task {
            Task::Gemv(sets) => Work::Few {
                sets: sets.iter().map(|ids| self.set(ids)).collect(),
            },
            Task::Gemm { weights, n_rows } => Work::Many {
                matrices: self.set(weights),
                n_rows: *n_rows,
            },
            Task::Attention {
                layer,
                n_heads,
                scores,
                n_rows,
            } => Work::Attention {
                n_rows: *n_rows,
                n_heads: *n_heads,
                scores: *scores,
                kv: self.memory.layer(*layer).shape,
                n_positions: self.options.n_ctx.min(POSITIONS),
                scratch: &self.memory.attention,
            },
        }
    }
}

/// Returns the matrices of `op` whose GEMV launch has several variants.
fn products(op: &Op) -> Vec<WeightId> {
    match op {
        Op::MatMul { .. } | Op::MatMuls { .. } => op.matrices(),
        // The gated GEMV has one variant: a wave computes a row of both matrices.
        _ => vec![],
    }
}

impl Tuner {
    /// Collects the launches of `plan` that have several variants and are not tuned yet.
    fn new(plan: &Plan, model: Model<'_>) -> Result<Tuner, GpuError> {
        let chunk = model.options.max_tokens;
        let mut tasks: Vec<(Shape, Task)> = Vec::new();
        let mut add = |task: Task| -> Result<(), GpuError> {
            let (shape, ways) = model.work(&task).ways(model.gpu)?;
            if ways.len() < 2 {
                return Ok(());
            }
            let known = tasks.iter_mut().find(|(known, _)| *known == shape);
            match (known, task) {
                (None, task) => tasks.push((shape, task)),
                (Some((_, Task::Gemv(sets))), Task::Gemv(more)) if sets.len() < MAX_SETS => {
                    sets.extend(more);
                }
                (Some((_, Task::Gemm { weights, .. })), Task::Gemm { weights: more, .. })
                    if weights.len() < MAX_SETS =>
                {
                    weights.extend(more);
                }
                _ => {}
            }
            Ok(())
        };
        for op in &plan.ops {
            let ids = products(op);
            let ty = |id: &WeightId| model.weights.matrix(*id).ty;
            for ids in ids.chunks(MAX_MATRICES) {
                for (i, first) in ids.iter().enumerate() {
                    if ids[..i].iter().all(|other| ty(other) != ty(first)) {
                        let same = ids.iter().filter(|id| ty(id) == ty(first));
                        add(Task::Gemv(vec![same.copied().collect()]))?;
                    }
                }
            }
        }
        let max_rows = model.options.max_seqs;
        for n_rows in STEP_ROWS.into_iter().filter(|&n| n <= max_rows) {
            for op in &plan.ops {
                if let Op::Attention {
                    layer,
                    n_heads,
                    scores,
                    ..
                } = *op
                {
                    add(Task::Attention {
                        layer,
                        n_heads,
                        scores: Scores {
                            scale: scores.scale,
                            soft_cap: scores.soft_cap,
                            growth: scores.growth,
                            alibi: scores.alibi,
                            mask: plan.kv[layer].mask,
                        },
                        n_rows,
                    })?;
                }
            }
            if n_rows > 1 {
                continue;
            }
            // Prefill comes after decode of one sequence, the most common step, and before larger batches.
            for n_rows in [chunk, SHORT_CHUNK.min(chunk)] {
                let ops = plan.ops.iter().filter(|op| is_of_tokens(plan, op));
                for id in ops.filter(|_| n_rows > MAX_ROWS).flat_map(Op::matrices) {
                    add(Task::Gemm {
                        weights: vec![id],
                        n_rows,
                    })?;
                }
            }
        }
        let n_shapes = tasks.len();
        let tuning = model.gpu.tuning();
        let left = tasks.into_iter();
        let left: VecDeque<_> = left.filter(|(shape, _)| !tuning.contains(shape)).collect();
        Ok(Tuner {
            key: tuning_key(model.gpu)?,
            n_shapes,
            n_known: n_shapes - left.len(),
            left,
            current: None,
        })
    }

    /// Tunes for `budget`, but takes at least one sample. Skips launches that do not fit in memory.
    fn run(&mut self, model: Model<'_>, budget: Duration) -> Result<TuneProgress, GpuError> {
        let started = Instant::now();
        let mut progress = TuneProgress {
            key: self.key.clone(),
            n_shapes: self.n_shapes,
            n_known: self.n_known,
            ..TuneProgress::default()
        };
        while !self.is_done() {
            match self.current.take() {
                Some((_, trial)) if trial.is_done() => progress.decided.push(trial.decide()),
                Some((task, mut trial)) => {
                    trial.go_on(&model.work(&task))?;
                    self.current = Some((task, trial));
                }
                None => self.start_next(model, &mut progress)?,
            }
            if started.elapsed() >= budget {
                break;
            }
        }
        progress.n_left = self.left.len() + usize::from(self.current.is_some());
        Ok(progress)
    }

    /// Starts the trial of the next launch.
    fn start_next(
        &mut self,
        model: Model<'_>,
        progress: &mut TuneProgress,
    ) -> Result<(), GpuError> {
        let Some((shape, task)) = self.left.pop_front() else {
            return Ok(());
        };
        match Trial::begin(model.gpu, &model.work(&task)) {
            Ok(Some(trial)) => self.current = Some((task, trial)),
            Ok(None) => {}
            Err(GpuError::OutOfMemory { .. }) => progress.untuned.push(Untuned {
                shape,
                reason: "there is not enough free memory for it; use a shorter context".into(),
            }),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.left.is_empty() && self.current.is_none()
    }
}

/// Whether an operation computes one row per token of a step.
fn is_of_tokens(plan: &Plan, op: &Op) -> bool {
    let out = match op {
        Op::MatMul { out, .. } | Op::GatedMatMul { out, .. } => Some(*out),
        Op::MatMuls { products, .. } => products.first().map(|(_, out)| *out),
        _ => None,
    };
    out.is_some_and(|out| plan.buffers[out.0 as usize].rows == RowCount::Tokens)
}

/// Tuning while no step runs.
pub(crate) struct IdleTuning {
    store: Arc<dyn TuningStore>,
    /// Results that are not stored yet.
    found: Vec<(Shape, Choice)>,
    /// The key of the results in the store.
    key: String,
    is_tuned: bool,
}

impl IdleTuning {
    /// Stores the results; returns whether none are left to store.
    fn save(&mut self) -> bool {
        if !self.found.is_empty() && self.store.keep(&self.key, &self.found) == Kept::Settled {
            self.found.clear();
        }
        self.found.is_empty()
    }
}

impl GpuBackend {
    /// Enables tuning while no step runs; results go to `store`.
    pub(crate) fn enable_idle_tuning(&mut self, store: Arc<dyn TuningStore>) {
        self.idle_tuning = Some(IdleTuning {
            store,
            found: Vec::new(),
            key: String::new(),
            is_tuned: false,
        });
    }

    /// Continues tuning for `budget`.
    pub(crate) fn continue_tuning(
        &mut self,
        budget: Duration,
    ) -> Result<TuneProgress, RuntimeError> {
        let model = Model {
            gpu: &self.gpu,
            weights: &self.weights,
            memory: &self.memory,
            options: &self.options,
        };
        let mut tuner = match self.tuner.take() {
            Some(tuner) => tuner,
            None => Tuner::new(&self.plan, model)?,
        };
        let progress = tuner.run(model, budget)?;
        self.tuner = Some(tuner);
        Ok(progress)
    }

    /// Tunes for `budget` if idle tuning is enabled, and stores the results; returns what is left to do.
    pub(crate) fn tune_while_idle(&mut self, budget: Duration) -> IdleWork {
        let Some(mut idle) = self.idle_tuning.take() else {
            return IdleWork::Done;
        };
        if !idle.is_tuned {
            // A device that fails here also fails in the next step, which reports it.
            let progress = self.continue_tuning(budget).unwrap_or_default();
            idle.is_tuned = progress.n_left == 0;
            idle.found.extend(progress.found());
            idle.key = progress.key;
        }
        let is_saved = idle.save();
        let work = match (idle.is_tuned, is_saved) {
            (false, _) => IdleWork::Now,
            (true, false) => IdleWork::Later,
            (true, true) => IdleWork::Done,
        };
        if idle.is_tuned {
            // Frees the memory and graphs of the trials.
            self.tuner = None;
        }
        if work != IdleWork::Done {
            self.idle_tuning = Some(idle);
        }
        work
    }
}
