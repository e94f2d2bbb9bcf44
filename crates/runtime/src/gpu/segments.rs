//! Queues the segments of a step: of a whole plan the one that it is, of a part of a plan one after the other, with the
//! other device's work between them. The first begins with the step's words, the last ends with what was chosen.

use rocmforge_gpu::{GpuError, ops};

use super::choices::{Choices, Chooser};
use super::compile::Stage;
use super::run_op::Launcher;
use super::step::{StepShape, StepToken};
use super::timed::TimedStep;
use super::{GpuBackend, Graphs, MAX_BUCKET, bucket};
use crate::backend::OpObserver;
use crate::times::StepPart;
use rocmforge_plan::{Batch, InputToken};

/// A step whose words are written and whose segments can be queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuedStep {
    pub(crate) shape: StepShape,
    pub(crate) slot: usize,
    kind: StepKind,
}

/// Which steps are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepKind {
    /// Of generation.
    Decode,
    Mixed,
}

/// Who looks on while a segment runs.
pub(crate) enum Observation<'a> {
    Unobserved,
    /// Is told of each operation, by its place here and this number more.
    Values(&'a mut dyn OpObserver, usize),
    /// The times of all launches are taken.
    Times,
}

impl GpuBackend {
    /// Writes the words of the step that begins next, and queues what it moves in the cache.
    pub(crate) fn write_step(
        &mut self,
        batch: &Batch,
        choices: &Choices,
    ) -> Result<QueuedStep, GpuError> {
        let (shape, kind) = self.shape(batch, choices.chooser());
        let tokens: Vec<StepToken> = batch
            .tokens
            .iter()
            .map(|&token| self.resolve(token))
            .collect();
        let slot = self.memory.step.write(batch, &tokens, choices, &shape);
        self.shift(&batch.shifts, slot)?;
        Ok(QueuedStep { shape, slot, kind })
    }

    /// Queues a segment; what its times are read from, if they are taken.
    pub(crate) fn queue_segment(
        &mut self,
        segment: usize,
        queued: &QueuedStep,
        batch: &Batch,
        observation: Observation<'_>,
    ) -> Result<Option<TimedStep>, GpuError> {
        let shape = &queued.shape;
        match observation {
            Observation::Values(observer, shift) => {
                self.launch_observed(segment, queued, batch, (observer, shift))?
            }
            Observation::Times => return Ok(Some(self.launch_timed(segment, shape)?)),
            Observation::Unobserved
                if queued.kind == StepKind::Decode && self.options.graphs == Graphs::On =>
            {
                self.launch_graph(segment, shape)?
            }
            Observation::Unobserved => self.launch(segment, shape)?,
        }
        Ok(None)
    }

    /// The end of a step whose segments are all queued.
    pub(crate) fn end_queue(&self, queued: &QueuedStep) -> Result<(), GpuError> {
        self.ends[queued.slot].record()
    }

    /// Counts steps anew, after one that was not queued to its end.
    pub(crate) fn restart(&mut self) -> Result<(), GpuError> {
        self.memory.step.restart(&self.gpu)
    }

    /// Steps in which every sequence has one row, whose logits are wanted, have a few sizes only.
    fn shape(&self, batch: &Batch, chooser: Chooser) -> (StepShape, StepKind) {
        let n = batch.tokens.len();
        let is_decode = batch.seqs.len() == n && batch.logits.len() == n && n <= MAX_BUCKET;
        match is_decode {
            true => (StepShape::decode(bucket(n), chooser), StepKind::Decode),
            false => (StepShape::of(batch, chooser), StepKind::Mixed),
        }
    }

    fn resolve(&self, token: InputToken) -> StepToken {
        match token {
            InputToken::Id(id) => StepToken::Id(id),
            InputToken::Sampled { row } if !self.in_flight.is_empty() => StepToken::FromRow(row),
            // A row that could not sample has failed its request: what this row computes is dropped.
            InputToken::Sampled { row } => {
                StepToken::Id(self.last_sampled[row].map_or(0, |sampled| sampled.id))
            }
        }
    }

    pub(crate) fn launcher<'a>(&'a self, shape: &'a StepShape) -> Launcher<'a> {
        Launcher {
            gpu: &self.gpu,
            plan: &self.plan,
            weights: &self.weights,
            memory: &self.memory,
            shape,
        }
    }

    /// Whether an operation has nothing to do in a step without wanted rows.
    fn is_idle(&self, index: usize, shape: &StepShape) -> bool {
        shape.n_logits == 0 && self.plan.is_for_logits(&self.plan.ops[index])
    }

    fn launch(&self, segment: usize, shape: &StepShape) -> Result<(), GpuError> {
        self.launch_marked(segment, shape, &mut |_| {})
    }

    /// `mark` is told of each part once its launches are queued.
    pub(crate) fn launch_marked(
        &self,
        segment: usize,
        shape: &StepShape,
        mark: &mut dyn FnMut(StepPart),
    ) -> Result<(), GpuError> {
        let launcher = self.launcher(shape);
        if segment == 0 {
            self.begin(shape)?;
            mark(StepPart::Begin);
        }
        for stage in &self.segments[segment].stages {
            if !self.is_idle(stage.ops().start, shape) {
                launcher.run(stage)?;
                mark(StepPart::Ops(stage.ops()));
            }
        }
        if segment + 1 == self.segments.len() {
            self.choose(shape)?;
            mark(StepPart::Choose);
            self.end(shape)?;
            mark(StepPart::End);
        }
        Ok(())
    }

    pub(crate) fn begin(&self, shape: &StepShape) -> Result<(), GpuError> {
        ops::begin_step(&self.gpu, &self.memory.step.io(shape))
    }

    /// The token of each row.
    fn choose(&self, shape: &StepShape) -> Result<(), GpuError> {
        let step = &self.memory.step;
        let sampled = step.sampled(shape);
        if self.has_output && shape.n_logits > 0 {
            let logits = self.memory.buffer(self.plan.logits, shape);
            match shape.chooser {
                Chooser::Best => ops::argmax(&self.gpu, logits, sampled)?,
                Chooser::Sample => {
                    let choices = step.choices(shape);
                    ops::sample(&self.gpu, logits, &choices, sampled)?;
                }
            }
        }
        Ok(())
    }

    /// What was chosen, to the host.
    fn end(&self, shape: &StepShape) -> Result<(), GpuError> {
        let step = &self.memory.step;
        let (io, sampled) = (step.io(shape), step.sampled(shape));
        ops::end_step(&self.gpu, &io, sampled, step.results())
    }

    /// Replays the graph of a segment in steps of this shape, which is recorded at its second use.
    fn launch_graph(&mut self, segment: usize, shape: &StepShape) -> Result<(), GpuError> {
        let key = (segment, *shape);
        match self.graphs.get(&key) {
            None => {
                self.graphs.insert(key, None);
                return self.launch(segment, shape);
            }
            Some(None) => {
                let graph = self.gpu.capture(|| self.launch(segment, shape))?;
                self.graphs.insert(key, Some(graph));
            }
            Some(Some(_)) => {}
        }
        let graph = self.graphs[&key].as_ref();
        graph.expect("it is recorded").launch()
    }

    /// Operation by operation.
    fn launch_observed(
        &self,
        segment: usize,
        queued: &QueuedStep,
        batch: &Batch,
        (observer, shift): (&mut dyn OpObserver, usize),
    ) -> Result<(), GpuError> {
        let shape = &queued.shape;
        let launcher = self.launcher(shape);
        if segment == 0 {
            self.begin(shape)?;
        }
        for index in self.segments[segment].ops.clone() {
            if self.is_idle(index, shape) {
                continue;
            }
            let op = &self.plan.ops[index];
            observer.before(index + shift, op, batch, &launcher);
            launcher.run(&Stage::One(index))?;
            observer.after(index + shift, op, batch, &launcher);
        }
        if segment + 1 == self.segments.len() {
            self.choose(shape)?;
            self.end(shape)?;
        }
        Ok(())
    }
}
