//! The GPU backend: runs the plan on the kernels of `rocmforge-gpu`, through HIP, CUDA or the CPU that plays a GPU.
//!
//! A step is a row of launches between one that takes the step's words over from the host and one that writes back what
//! was chosen; steps of generation are recorded as graphs. The device has its next step before the host has read what
//! came of the last one.

mod choices;
mod compile;
mod device;
mod graph_check;
mod memory;
mod run_op;
mod shift;
mod step;
mod stepwise;
mod timed;
mod weights;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rocmforge_cpu::{Isa, Pool};
use rocmforge_gpu::{Event, Gpu, Graph, ops};

use super::times::StepPart;
use super::{
    Backend, BackendInfo, DeviceMemory, OpData, OpObserver, Reply, StepObserver, Wait, output,
};
use crate::batch::{Batch, InputToken, LogitsRow, RowOutput, Sampled, StepOutput};
use crate::error::EngineError;
use crate::kv_cache::KvType;
use crate::model::Weights;
use crate::plan::{BufferId, KeyTurn, Op, Plan};
use choices::{Choices, Chooser};
use compile::Stage;
pub use device::{
    DeviceId, DeviceInfo, GpuConfig, GpuError, Graphs, OpenOptions, Survey, Variants, first,
    image_targets, read_bandwidth, survey,
};
pub(crate) use device::{free_for_steps, kv_type};
use memory::{Memory, Sizes};
use run_op::Launcher;
use step::{N_SLOTS, StepShape, StepSizes, StepToken};
use timed::{TimedStep, Timing};
use weights::DeviceWeights;

/// Sequences of the largest graph; the sizes of graphs are powers of two.
const MAX_BUCKET: usize = 64;
/// What the device says of a row whose best logit is no number.
const NOT_FINITE: u32 = u32::MAX;

/// What a GPU backend is made for.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// Positions of one sequence.
    pub n_ctx: usize,
    /// Tokens of a step, rows of logits and sequences, at most.
    pub max_tokens: usize,
    pub max_logits: usize,
    pub max_seqs: usize,
    /// Tokens per page of the KV cache.
    pub page: usize,
    /// Pages of the KV cache.
    pub n_blocks: usize,
    pub kv_type: KvType,
    pub graphs: Graphs,
    /// What the host samples with.
    pub isa: Isa,
    pub n_threads: usize,
}

/// A compiled plan with its memory on a device.
pub struct GpuBackend {
    gpu: Gpu,
    /// The device in words.
    name: String,
    plan: Plan,
    stages: Vec<Stage>,
    weights: DeviceWeights,
    memory: Memory,
    /// By layer.
    key_turns: Vec<Option<KeyTurn>>,
    options: GpuOptions,
    pool: Pool,
    /// By the shape of the step. The first step of a shape is not recorded: it loads the kernels.
    graphs: HashMap<StepShape, Option<Graph>>,
    /// The end of the last step of each slot.
    ends: [Event; N_SLOTS],
    in_flight: VecDeque<InFlight>,
    /// What each output row of the last finished step sampled.
    last_sampled: Vec<Option<Sampled>>,
    observer: Option<Box<dyn OpObserver>>,
    timing: Timing,
    device_memory: DeviceMemory,
    notices: Vec<String>,
}

/// A step without a reply.
struct InFlight {
    batch: Batch,
    shape: StepShape,
    slot: usize,
    /// The rows whose logits are read before the next step begins.
    of_host: Vec<usize>,
    times: Option<TimedStep>,
    reply: Reply,
}

impl GpuBackend {
    /// Takes the memory of everything and copies the weights. Rotations of `plan` are settled for the context.
    ///
    /// # Errors
    /// Those of the device, and what it does not compute.
    pub fn new(
        gpu: Gpu,
        plan: Plan,
        weights: &Arc<Weights>,
        options: GpuOptions,
    ) -> Result<GpuBackend, EngineError> {
        let stages = compile::stages(&plan, weights, gpu.variants())?;
        let mut name = format!("{} ({}, {}", gpu.info()?.name, gpu.id(), gpu.target());
        if !gpu.variants().is_empty() {
            name.push_str(&format!(", {}", gpu.variants()));
        }
        name.push(')');
        let bucket = bucket(options.max_seqs);
        let sizes = Sizes {
            step: StepSizes {
                max_rows: options.max_tokens.max(bucket),
                max_logits: options.max_logits.max(bucket),
                max_seqs: options.max_seqs.max(bucket),
                max_pages: options.n_ctx.div_ceil(options.page),
            },
            n_ctx: options.n_ctx,
            page: options.page,
            n_blocks: options.n_blocks,
            kv_type: kv_type(options.kv_type)?,
        };
        let before = gpu.allocated_bytes();
        let memory = Memory::new(&gpu, &plan, &sizes)?;
        let scratch = gpu.allocated_bytes() - before - memory.kv_bytes();
        let weights = DeviceWeights::upload(&gpu, &plan, weights)?;
        let total = gpu.allocated_bytes() - before;
        Ok(GpuBackend {
            name,
            stages,
            weights,
            memory,
            key_turns: plan.key_turns(),
            pool: Pool::new(options.n_threads),
            graphs: HashMap::new(),
            ends: [Event::new(&gpu)?, Event::new(&gpu)?],
            in_flight: VecDeque::new(),
            last_sampled: Vec::new(),
            observer: None,
            timing: Timing::default(),
            device_memory: DeviceMemory { total, scratch },
            notices: Vec::new(),
            options,
            gpu,
            plan,
        })
    }

    /// Queues a step; its slot and shape, and what its times are read from.
    fn start(
        &mut self,
        batch: &Batch,
        choices: &Choices,
    ) -> Result<(usize, StepShape, Option<TimedStep>), GpuError> {
        let (shape, kind) = self.shape(batch, choices.chooser());
        let tokens: Vec<StepToken> = batch
            .tokens
            .iter()
            .map(|&token| self.resolve(token))
            .collect();
        let slot = self.memory.step.write(batch, &tokens, choices, &shape);
        self.shift(&batch.shifts, slot)?;
        let mut times = None;
        let mut observer = self.observer.take();
        let queued = match &mut observer {
            Some(observer) => self.launch_observed(batch, &shape, observer.as_mut()),
            None if self.timing.is_on() => {
                let timed = self.launch_timed(&shape);
                timed.map(|timed| times = Some(timed))
            }
            None if kind == Kind::Decode && self.options.graphs == Graphs::On => {
                self.launch_graph(&shape)
            }
            None => self.launch(&shape),
        };
        self.observer = observer;
        queued?;
        self.ends[slot].record()?;
        Ok((slot, shape, times))
    }

    /// Steps in which every sequence has one row, whose logits are wanted, have a few sizes only.
    fn shape(&self, batch: &Batch, chooser: Chooser) -> (StepShape, Kind) {
        let n = batch.tokens.len();
        let is_decode = batch.seqs.len() == n && batch.logits.len() == n && n <= MAX_BUCKET;
        match is_decode {
            true => (StepShape::decode(bucket(n), chooser), Kind::Decode),
            false => (StepShape::of(batch, chooser), Kind::Mixed),
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

    fn launcher<'a>(&'a self, shape: &'a StepShape) -> Launcher<'a> {
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

    fn launch(&self, shape: &StepShape) -> Result<(), GpuError> {
        self.launch_marked(shape, &mut |_| {})
    }

    /// `mark` is told of each part once its launches are queued.
    fn launch_marked(
        &self,
        shape: &StepShape,
        mark: &mut dyn FnMut(StepPart),
    ) -> Result<(), GpuError> {
        let launcher = self.launcher(shape);
        self.begin(shape)?;
        mark(StepPart::Begin);
        for stage in &self.stages {
            if !self.is_idle(stage.ops().start, shape) {
                launcher.run(stage)?;
                mark(StepPart::Ops(stage.ops()));
            }
        }
        self.choose(shape)?;
        mark(StepPart::Choose);
        self.end(shape)?;
        mark(StepPart::End);
        Ok(())
    }

    fn begin(&self, shape: &StepShape) -> Result<(), GpuError> {
        ops::begin_step(&self.gpu, &self.memory.step.io(shape))
    }

    /// The token of each row.
    fn choose(&self, shape: &StepShape) -> Result<(), GpuError> {
        let step = &self.memory.step;
        let sampled = step.sampled(shape);
        if shape.n_logits > 0 {
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

    /// Replays the graph of this shape, which is recorded at its second use.
    fn launch_graph(&mut self, shape: &StepShape) -> Result<(), GpuError> {
        match self.graphs.get(shape) {
            None => {
                self.graphs.insert(*shape, None);
                return self.launch(shape);
            }
            Some(None) => {
                let graph = self.gpu.capture(|| self.launch(shape))?;
                self.graphs.insert(*shape, Some(graph));
            }
            Some(Some(_)) => {}
        }
        let graph = self.graphs[shape].as_ref();
        graph.expect("it is recorded").launch()
    }

    /// Operation by operation.
    fn launch_observed(
        &self,
        batch: &Batch,
        shape: &StepShape,
        observer: &mut dyn OpObserver,
    ) -> Result<(), GpuError> {
        let launcher = self.launcher(shape);
        self.begin(shape)?;
        for (index, op) in self.plan.ops.iter().enumerate() {
            if self.is_idle(index, shape) {
                continue;
            }
            observer.before(index, op, batch, &launcher);
            launcher.run(&Stage::One(index))?;
            observer.after(index, op, batch, &launcher);
        }
        self.choose(shape)?;
        self.end(shape)
    }

    /// Waits for the oldest step and replies.
    fn finish_oldest(&mut self) {
        if let Some(mut step) = self.in_flight.pop_front() {
            let times = step.times.take();
            let result = self.output(&step).and_then(|output| {
                if let Some(times) = times {
                    self.tell_times(&step.batch, times)?;
                }
                Ok(output)
            });
            (step.reply)(result);
        }
    }

    fn output(&mut self, step: &InFlight) -> Result<StepOutput, EngineError> {
        let batch = &step.batch;
        self.ends[step.slot].wait()?;
        let ids = self
            .memory
            .step
            .ids(step.slot, batch.step, batch.logits.len());
        let ids = ids.map_err(|found| EngineError::LostStep {
            step: batch.step,
            found,
        })?;
        let mut rows: Vec<RowOutput> = ids.into_iter().map(sampled).collect();
        for (&index, output) in step.of_host.iter().zip(self.host_rows(step)?) {
            rows[index] = output;
        }
        self.last_sampled = output::sampled(&rows);
        Ok(StepOutput {
            step: batch.step,
            rows,
        })
    }

    /// What the host makes of the rows that are left to it.
    fn host_rows(&self, step: &InFlight) -> Result<Vec<RowOutput>, GpuError> {
        let InFlight {
            batch,
            shape,
            of_host,
            ..
        } = step;
        let all = self.memory.buffer(self.plan.logits, shape);
        let n_vocab = all.len() / shape.n_logits.max(1);
        let mut logits = Vec::with_capacity(of_host.len() * n_vocab);
        // One copy for rows that follow each other.
        for rows in of_host.chunk_by(|a, b| a + 1 == *b) {
            let (first, end) = (rows[0] * n_vocab, (rows[0] + rows.len()) * n_vocab);
            logits.extend(self.gpu.read(all.part(first..end))?);
        }
        let wanted: Vec<&LogitsRow> = of_host.iter().map(|&row| &batch.logits[row]).collect();
        Ok(output::rows(
            self.options.isa,
            &self.pool,
            &mut logits,
            &batch.tokens,
            &wanted,
            &self.last_sampled,
        ))
    }
}

/// Which steps are alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of generation.
    Decode,
    Mixed,
}

/// Sequences of the smallest graph that takes `n`.
fn bucket(n: usize) -> usize {
    n.min(MAX_BUCKET).next_power_of_two()
}

/// What the device chose for a row.
fn sampled(id: u32) -> RowOutput {
    if id == NOT_FINITE {
        return RowOutput::NotFinite;
    }
    RowOutput::Sampled {
        sampled: Sampled { id, mu: None },
        top: Vec::new(),
    }
}

impl OpData for Launcher<'_> {
    fn buffer(&self, id: BufferId) -> Cow<'_, [f32]> {
        let buffer = self.memory.buffer(id, self.shape);
        // A device that cannot be read ends the step with its next launch; until then there are no numbers.
        let values = self.gpu.read(buffer);
        Cow::Owned(values.unwrap_or_else(|_| vec![f32::NAN; buffer.len()]))
    }
}

impl Backend for GpuBackend {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        let needs_logits = |step: &InFlight| !step.of_host.is_empty();
        while self.in_flight.len() == N_SLOTS || self.in_flight.back().is_some_and(needs_logits) {
            self.finish_oldest();
        }
        let choices = Choices::of(&batch);
        match self.start(&batch, &choices) {
            Ok((slot, shape, times)) => self.in_flight.push_back(InFlight {
                times,
                of_host: choices.of_host,
                batch,
                shape,
                slot,
                reply,
            }),
            Err(error) => {
                self.finish(Wait::All);
                reply(Err(error.into()));
            }
        }
    }

    fn n_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn finish(&mut self, wait: Wait) {
        if wait == Wait::Oldest {
            self.finish_oldest();
        }
        while let Some(oldest) = self.in_flight.front() {
            // An error is found again, and told, by the wait for the step.
            if wait != Wait::All && matches!(self.ends[oldest.slot].is_done(), Ok(false)) {
                return;
            }
            self.finish_oldest();
        }
    }

    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        self.observer = observer;
    }

    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        // Steps in flight are told of to the one they were begun for.
        self.finish(Wait::All);
        self.timing.set(observer);
    }

    fn info(&self) -> BackendInfo {
        let mut slow_ops: Vec<(String, usize)> = Vec::new();
        for op in &self.plan.ops {
            let Op::Attention { layer, .. } = *op else {
                continue;
            };
            let kv = &self.plan.kv[layer];
            if ops::is_fast(kv.k_dim, kv.v_dim) {
                continue;
            }
            let name = format!("attention with heads of {} values", kv.k_dim);
            match slow_ops.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => slow_ops.push((name, 1)),
            }
        }
        BackendInfo {
            device: self.name.clone(),
            slow_ops,
            kv_bytes: self.memory.kv_bytes(),
            device_memory: Some(self.device_memory),
            graphs: self.options.graphs == Graphs::On,
            notices: self.notices.clone(),
        }
    }
}
