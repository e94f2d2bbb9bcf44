//! Queues the segments of a step. A whole plan is one segment. A part of a plan has several, and the other device works
//! between them. The first segment starts with copying the step's inputs, the last ends with sampling.

use rocmforge_gpu::{Gpu, GpuError, ops};

use super::choices::{Choices, Chooser, Choosing, Logprobs};
use super::compile::{Segment, Stage};
use super::run_op::Launcher;
use super::step::{StepShape, StepToken};
use super::timed::TimedStep;
use super::{GpuBackend, Graphs, bucket};
use crate::backend::OpObserver;
use crate::output;
use crate::times::StepPart;
use rocmforge_plan::{Batch, InputToken, StepRows};

/// A step whose inputs are written and whose segments can be queued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuedStep {
    pub(crate) shape: StepShape,
    pub(crate) slot: usize,
    kind: StepKind,
}

/// Whether a step can run as a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepKind {
    /// One row per sequence, all with logits, padded to the size of a graph.
    Decode,
    /// Any other step.
    Mixed,
}

/// What is observed while a segment runs.
pub(crate) enum Observation<'a> {
    Unobserved,
    /// The observer is called for each operation. Its index in the whole plan is the local one plus this offset.
    Values(&'a mut dyn OpObserver, usize),
    /// All launches are timed.
    Times,
}

impl GpuBackend {
    /// Writes the inputs of the next step, and queues its KV cache moves.
    pub(crate) fn write_step(
        &mut self,
        batch: &Batch,
        choices: &Choices,
    ) -> Result<QueuedStep, GpuError> {
        let (shape, kind) = self.shape(batch, choices.chooser());
        let shape = StepShape {
            choosing: choices.choosing(),
            ..shape
        };
        let tokens: Vec<StepToken> = batch
            .tokens
            .iter()
            .map(|&token| self.resolve(token))
            .collect();
        let slot = self.memory.step.write(batch, &tokens, choices, &shape);
        self.shift(&batch.shifts, slot)?;
        Ok(QueuedStep { shape, slot, kind })
    }

    /// Queues a segment; of the last one, all but the choice of tokens if it comes [`Choosing::AfterMasks`]. Returns its
    /// timers for [`Observation::Times`].
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
                if queued.kind == StepKind::Decode && self.has_graph(shape.n_rows) =>
            {
                self.launch_graph((segment, batch.step), shape)?
            }
            Observation::Unobserved => self.launch(segment, shape)?,
        }
        Ok(None)
    }

    /// Whether decode steps of so many rows run as graphs.
    fn has_graph(&self, n_rows: usize) -> bool {
        match self.options.graphs {
            Graphs::On => true,
            Graphs::OfSeveral => n_rows > 1,
            Graphs::Off => false,
        }
    }

    /// Records the end of a step that is queued completely.
    pub(crate) fn record_end(&self, queued: &QueuedStep) -> Result<(), GpuError> {
        self.ends[queued.slot].record()
    }

    /// Resets the step counters after a step that was not queued completely.
    pub(crate) fn restart(&mut self) -> Result<(), GpuError> {
        self.memory.step.restart(&self.gpu)
    }

    /// Returns the shape and kind of a step. Decode steps are padded to a few sizes so that graphs can be reused.
    fn shape(&self, batch: &Batch, chooser: Chooser) -> (StepShape, StepKind) {
        let n = batch.tokens.len();
        let is_decode = batch.seqs.len() == n && batch.logits.len() == n;
        match is_decode {
            true => {
                let shape = StepShape::decode(batch.rows, bucket(n), chooser);
                (shape, StepKind::Decode)
            }
            false => {
                let n_to_heads = self.n_to_heads(batch);
                let shape = StepShape {
                    n_to_heads,
                    ..StepShape::of(batch, chooser)
                };
                (shape, StepKind::Mixed)
            }
        }
    }

    /// Returns the positions of the batch's only sequence if latent attention to keys and values of heads is faster.
    pub(super) fn n_to_heads(&self, batch: &Batch) -> usize {
        match (self.memory.heads_memory(), &batch.seqs[..]) {
            (Some(memory), [seq]) if seq.n_rows == batch.tokens.len() => {
                let n_positions = seq.first_pos + seq.n_rows;
                match memory.is_faster(self.gpu_for(batch.rows), seq.n_rows, n_positions) {
                    true => n_positions,
                    false => 0,
                }
            }
            _ => 0,
        }
    }

    fn resolve(&self, token: InputToken) -> StepToken {
        match token {
            InputToken::Id(id) => StepToken::Id(id),
            InputToken::Sampled { row } if !self.in_flight.is_empty() => StepToken::FromRow(row),
            // The request of a row without a sampled token has failed; this row's output is discarded.
            InputToken::Sampled { row } => StepToken::Id(
                output::sampled_by(&self.last_sampled, row).map_or(0, |sampled| sampled.id),
            ),
        }
    }

    pub(crate) fn launcher<'a>(&'a self, shape: &'a StepShape) -> Launcher<'a> {
        Launcher {
            gpu: self.gpu_for(shape.rows),
            plan: &self.plan,
            weights: &self.weights,
            memory: &self.memory,
            shape,
            source: None,
        }
    }

    /// Returns which rows steps of prompts and of answers have.
    pub(super) fn usual_rows(&self) -> [StepRows; 2] {
        match self.options.batch_invariant {
            true => [StepRows::Prompt, StepRows::Answer],
            false => [StepRows::Any; 2],
        }
    }

    /// Returns the device with the kernels for such rows.
    fn gpu_for(&self, rows: StepRows) -> &Gpu {
        match rows {
            StepRows::Any => &self.gpu,
            StepRows::Prompt => &self.invariant.prompt,
            StepRows::Answer => &self.invariant.answer,
        }
    }

    /// Queues a stage. Products convert their activations themselves where they can.
    pub(super) fn run_stage(
        &self,
        segment: &Segment,
        stage: &Stage,
        shape: &StepShape,
    ) -> Result<(), GpuError> {
        self.converting_launcher(segment, stage, shape).run(stage)
    }

    /// A launcher that lets the products of a stage convert their activations where they can.
    fn converting_launcher<'a>(
        &'a self,
        segment: &Segment,
        stage: &Stage,
        shape: &'a StepShape,
    ) -> Launcher<'a> {
        let launcher = self.launcher(shape);
        let found = segment
            .own
            .binary_search_by_key(&stage.ops().start, |own| own.products);
        match found {
            Ok(at) if GpuBackend::products_convert(shape) => launcher.with_source(&segment.own[at]),
            _ => launcher,
        }
    }

    /// Whether products convert what this stage would.
    fn is_done_by_products(segment: &Segment, stage: &Stage, shape: &StepShape) -> bool {
        let found = segment
            .own
            .binary_search_by_key(&stage.ops().start, |own| own.conversion);
        GpuBackend::products_convert(shape) && found.is_ok()
    }

    /// Whether a stage is followed by a conversion, or products by their sum, that run with it.
    fn is_joined(segment: &Segment, stage: &Stage, next: &Stage, shape: &StepShape) -> bool {
        if segment.summed.binary_search(&stage.ops().start).is_ok() {
            return GpuBackend::products_convert(shape);
        }
        let key = next.ops().start;
        let found = segment.joined.binary_search_by_key(&key, |joined| joined.0);
        let is_apart = match stage {
            Stage::ExpertGate { .. } => GpuBackend::products_convert(shape),
            _ => GpuBackend::is_done_by_products(segment, next, shape),
        };
        found.is_ok() && !is_apart
    }

    /// Queues attention, or gate and up of experts, with the conversion of the result; or products of experts with their sum.
    fn run_joined(
        &self,
        segment: &Segment,
        stage: &Stage,
        next: &Stage,
        shape: &StepShape,
    ) -> Result<(), GpuError> {
        if let Stage::CombineAdd { ops, .. } = next {
            let launcher = self.converting_launcher(segment, stage, shape);
            return launcher.expert_sum(&self.plan.ops[stage.ops().start], ops);
        }
        let key = next.ops().start;
        let found = segment.joined.binary_search_by_key(&key, |joined| joined.0);
        let (_, out) = segment.joined[found.expect("the conversion is joined")];
        let launcher = self.launcher(shape);
        match stage {
            Stage::ExpertGate { ops, .. } => launcher.expert_gate(ops, Some(out)),
            stage => launcher.attend_quantize(&self.plan.ops[stage.ops().start], out),
        }
    }

    /// Whether products convert activations: of one row, if GEMVs compute it.
    fn products_convert(shape: &StepShape) -> bool {
        shape.n_rows == 1 && shape.rows == StepRows::Any
    }

    /// Whether an operation can be skipped because the step computes no logits.
    fn is_skipped(&self, index: usize, shape: &StepShape) -> bool {
        shape.n_logits == 0 && self.plan.is_for_logits(&self.plan.ops[index])
    }

    fn launch(&self, segment: usize, shape: &StepShape) -> Result<(), GpuError> {
        self.launch_marked(segment, shape, &mut |_| {})
    }

    /// Queues the launches of a segment; calls `mark` after each part.
    pub(crate) fn launch_marked(
        &self,
        segment: usize,
        shape: &StepShape,
        mark: &mut dyn FnMut(StepPart),
    ) -> Result<(), GpuError> {
        let _step = self.op_ranges.begin_step(&self.gpu, shape.n_rows);
        if segment == 0 {
            let _range = self.gpu.range(c"begin step");
            self.begin(shape)?;
            mark(StepPart::Begin);
        }
        let segment_stages = &self.segments[segment];
        let stages = match shape.n_to_heads {
            0 => &segment_stages.stages,
            _ => &segment_stages.stages_to_heads,
        };
        let mut stages = stages.iter().peekable();
        while let Some(stage) = stages.next() {
            let is_done = GpuBackend::is_done_by_products(segment_stages, stage, shape);
            if is_done || self.is_skipped(stage.ops().start, shape) {
                continue;
            }
            let _range = self.op_ranges.begin(&self.gpu, stage);
            let next =
                stages.next_if(|next| GpuBackend::is_joined(segment_stages, stage, next, shape));
            match next {
                Some(next) => self.run_joined(segment_stages, stage, next, shape)?,
                None => self.run_stage(segment_stages, stage, shape)?,
            }
            mark(StepPart::Ops(
                stage.ops().start..next.unwrap_or(stage).ops().end,
            ));
        }
        if segment + 1 == self.segments.len() && shape.choosing == Choosing::InStep {
            let range = self.gpu.range(c"choose tokens");
            self.choose(shape)?;
            mark(StepPart::Choose);
            drop(range);
            let _range = self.gpu.range(c"end step");
            self.end(shape)?;
            mark(StepPart::End);
        }
        Ok(())
    }

    /// Loads the kernels of usual steps, so that the first answer does not wait for them: of prompts, of one sequence that
    /// generates, and of some.
    pub(crate) fn load_kernels(&self) -> Result<(), GpuError> {
        let sizes = self.memory.step.sizes();
        let [of_prompts, of_answers] = self.usual_rows();
        let prompt = |n: usize| {
            let n = n.min(sizes.max_rows).min(self.options.n_ctx);
            StepShape {
                rows: of_prompts,
                n_rows: n,
                n_logits: 1,
                n_seqs: 1,
                max_rows_of_seq: n,
                longest: n,
                chooser: Chooser::Best,
                choosing: Choosing::InStep,
                n_to_heads: 0,
            }
        };
        let decode = |n: usize| {
            let n = bucket(n.min(self.options.max_seqs));
            StepShape::decode(of_answers, n, Chooser::Best)
        };
        let shapes = [prompt(512), prompt(64), prompt(8), decode(1), decode(8)];
        self.gpu.load_kernels(|| {
            shapes.iter().try_for_each(|shape| {
                (0..self.segments.len()).try_for_each(|segment| self.launch(segment, shape))
            })
        })
    }

    /// Queues the kernel that copies the step's inputs from the host.
    pub(crate) fn begin(&self, shape: &StepShape) -> Result<(), GpuError> {
        ops::begin_step(&self.gpu, &self.memory.step.io(shape))
    }

    /// Queues the sampling kernel.
    pub(super) fn choose(&self, shape: &StepShape) -> Result<(), GpuError> {
        let step = &self.memory.step;
        let sampled = step.sampled(shape);
        if self.has_output && shape.n_logits > 0 {
            let logits = self.memory.buffer(self.plan.logits, shape);
            match shape.chooser {
                Chooser::Best => ops::argmax(&self.gpu, logits, sampled)?,
                Chooser::Sample {
                    candidates,
                    logprobs,
                } => {
                    let choices = step.choices(shape);
                    ops::sample(&self.gpu, logits, &choices, candidates, sampled)?;
                    if logprobs == Logprobs::Yes {
                        let to = step.logprob_rows();
                        ops::logprobs(&self.gpu, logits, choices.rows, sampled, &to)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Queues the kernel that writes the sampled ids to the host.
    pub(super) fn end(&self, shape: &StepShape) -> Result<(), GpuError> {
        let step = &self.memory.step;
        let (io, sampled) = (step.io(shape), step.sampled(shape));
        ops::end_step(&self.gpu, &io, sampled, step.results())
    }

    /// Replays the graph of a segment for this step shape. The first use launches directly, the second records. If the
    /// driver fails at that, this segment and all later ones are launched directly.
    fn launch_graph(
        &mut self,
        (segment, step): (usize, u64),
        shape: &StepShape,
    ) -> Result<(), GpuError> {
        let key = (segment, *shape);
        match self.graphs.get(&key) {
            None => {
                self.graphs.insert(key, None);
                return self.launch(segment, shape);
            }
            Some(None) => {
                match self.gpu.capture(|| self.launch(segment, shape)) {
                    Ok(graph) => drop(self.graphs.insert(key, Some(graph))),
                    Err(error) if error.is_fatal() => return Err(error),
                    // Nothing of the step was queued.
                    Err(error) => {
                        self.stop_graphs(&format!("cannot be recorded ({error})"));
                        return self.launch(segment, shape);
                    }
                }
            }
            Some(Some(_)) => {}
        }
        let graph = self.graphs[&key].as_ref();
        match graph.expect("it is recorded").launch() {
            Err(error) if !error.is_fatal() => {
                self.stop_graphs(&format!("cannot be launched ({error})"));
                // If the driver has queued a part of the graph, the step fails, and is computed anew.
                match segment == 0 && !self.memory.step.has_begun(&self.gpu, step)? {
                    true => self.launch(segment, shape),
                    false => Err(error),
                }
            }
            launched => launched,
        }
    }

    /// Queues a segment operation by operation, without fused stages, and calls the observer around each.
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
            if self.is_skipped(index, shape) {
                continue;
            }
            let op = &self.plan.ops[index];
            observer.before(index + shift, op, batch, &launcher);
            launcher.run(&Stage::One(index))?;
            observer.after(index + shift, op, batch, &launcher);
        }
        if segment + 1 == self.segments.len() && shape.choosing == Choosing::InStep {
            self.choose(shape)?;
            self.end(shape)?;
        }
        Ok(())
    }
}
