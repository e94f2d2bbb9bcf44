//! The GPU backend: runs the plan on the kernels of `rocmforge-gpu`, through HIP, CUDA or the CPU emulator.
//!
//! A step is a sequence of launches. The first copies the step's inputs from the host, the last writes the sampled ids
//! back. Decode steps are recorded as graphs. The next step is queued before the host reads the results of the last.

mod choices;
mod compile;
mod device;
mod graph_check;
mod limits;
mod masks;
mod memory;
mod op_ranges;
mod run_op;
mod segments;
mod shift;
mod step;
mod stepwise;
mod timed;
mod transfers;
mod tune;
mod weights;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rocmforge_cpu::{Isa, Pool};
use rocmforge_gpu::{Event, Gpu, Graph, Variant, ops};

use super::tuning::TuneProgress;
use super::{
    Backend, BackendInfo, DeviceMemory, IdleWork, OpData, OpObserver, Reply, StepObserver, Wait,
    output,
};
use crate::error::{DeviceError, RuntimeError};
pub use crate::gpu_config::{GpuConfig, Graphs, TuningUse, WhenIdle};
pub use crate::offload::{Experts, GpuLayers, Offload};
use crate::shared_cache::{DeviceLayer, SharedCache};
pub(crate) use choices::{Choices, Choosing};
use compile::Segment;
pub use device::{
    Candidate, DeviceId, DeviceInfo, GpuError, Limit, OpenOptions, Selection, Survey, Variants,
    all_kv_types, best, candidates, image_targets, read_bandwidth, roofline, survey, tuning_key,
};
pub(crate) use device::{kv_types, prompt_bytes, weight_bytes};
pub use graph_check::{GraphCheck, StepTimes};
pub(crate) use limits::check;
use memory::{Memory, Sizes};
use op_ranges::OpRanges;
use rocmforge_plan::KvTypes;
use rocmforge_plan::Weights;
use rocmforge_plan::{
    Batch, LogitsRow, RowOutput, SampleRow, Sampled, StepOutput, TokenLogprob, Want,
};
use rocmforge_plan::{BufferId, KeyTurn, Op, Plan, PlanPart};
use run_op::Launcher;
pub(crate) use segments::{Observation, QueuedStep};
pub(crate) use step::sampler_bytes;
use step::{N_SLOTS, StepShape, StepSizes};
use timed::{TimedStep, Timing};
use transfers::Transfers;
use tune::{IdleTuning, Tuner};
use weights::DeviceWeights;
pub(crate) use weights::{file_bytes, row_orders};

/// The sizes of graphs are powers of two up to this many sequences, and multiples of [`BUCKET_STEP`] beyond.
const LAST_POWER: usize = 64;
const BUCKET_STEP: usize = 32;
/// The id that the device returns for a row whose best logit is NaN or infinite.
const NOT_FINITE: u32 = u32::MAX;

/// Sizes and settings of a GPU backend.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// Maximum positions of one sequence.
    pub n_ctx: usize,
    /// Maximum tokens of a step.
    pub max_tokens: usize,
    /// Maximum rows of logits of a step.
    pub max_logits: usize,
    /// How many of these rows may be sampled on the GPU.
    pub max_sampled: usize,
    /// Maximum sequences of a step.
    pub max_seqs: usize,
    /// Sequences that answer at a time at most, for the order of weights: of what is checked, if this is for a check.
    pub answers_at_once: usize,
    /// Tokens per KV-cache block.
    pub page: usize,
    /// Blocks of the KV cache.
    pub n_blocks: usize,
    /// Slots for states of sequences; 0 if no layer keeps one.
    pub n_slots: usize,
    pub kv_types: KvTypes,
    pub graphs: Graphs,
    /// Whether steps are of prompts or of answers only ([`StepRows`](rocmforge_plan::StepRows)).
    pub batch_invariant: bool,
    /// Instruction set of the sampler on the host.
    pub isa: Isa,
    /// Threads of the sampler on the host.
    pub n_threads: usize,
}

/// Runs a compiled plan, or a part of one, on a GPU and owns its device memory.
pub struct GpuBackend {
    gpu: Gpu,
    invariant: InvariantGpus,
    /// Device name for display.
    name: String,
    plan: Plan,
    /// A whole plan has one segment.
    segments: Vec<Segment>,
    /// Whether this backend computes the logits.
    has_output: bool,
    weights: DeviceWeights,
    memory: Memory,
    /// How the keys of each layer are rotated when the context shifts.
    key_turns: Vec<Option<KeyTurn>>,
    transfers: Transfers,
    options: GpuOptions,
    pool: Pool,
    /// By segment and step shape. The first step of a shape is not recorded because it loads the kernels.
    graphs: HashMap<(usize, StepShape), Option<Graph>>,
    /// Recorded at the end of the last step of each slot.
    ends: [Event; N_SLOTS],
    in_flight: VecDeque<InFlight>,
    /// Tokens sampled by the last finished step, by output row.
    last_sampled: Vec<Option<Sampled>>,
    observer: Option<Box<dyn OpObserver>>,
    timing: Timing,
    device_memory: DeviceMemory,
    /// Those of the start.
    notices: Vec<String>,
    /// What takes later ones.
    notice: Option<fn(&str)>,
    tuner: Option<Tuner>,
    idle_tuning: Option<IdleTuning>,
    op_ranges: OpRanges,
}

/// The same device with kernels that give a row the same bits in any step of such rows.
struct InvariantGpus {
    prompt: Gpu,
    answer: Gpu,
}

impl InvariantGpus {
    fn new(gpu: &Gpu) -> InvariantGpus {
        let with = |variant| gpu.with_variants(gpu.variants().with(variant));
        InvariantGpus {
            prompt: with(Variant::RowsPrompt),
            answer: with(Variant::RowsAnswer),
        }
    }
}

/// A submitted step that has no reply yet.
struct InFlight {
    batch: Batch,
    queued: QueuedStep,
    /// Rows sampled on the host. Their logits are read before the next step begins.
    host_rows: Vec<usize>,
    /// Rows whose masks the rest of the step, the choice of its tokens, waits for.
    awaited_rows: Vec<usize>,
    times: Option<TimedStep>,
    reply: Reply,
}

impl GpuBackend {
    /// Allocates all memory and uploads the weights. The RoPE tables of `plan` must be settled for the context.
    ///
    /// # Errors
    /// Device errors, and operations or formats that the kernels do not support.
    pub fn new(
        gpu: Gpu,
        plan: impl Into<PlanPart>,
        weights: &Arc<Weights>,
        options: GpuOptions,
    ) -> Result<GpuBackend, RuntimeError> {
        GpuBackend::over(gpu, plan, weights, (options, None))
    }

    /// As [`GpuBackend::new`], with the layers of another model's cache.
    pub(crate) fn over(
        gpu: Gpu,
        plan: impl Into<PlanPart>,
        weights: &Arc<Weights>,
        (options, borrowed): (GpuOptions, Option<Vec<DeviceLayer>>),
    ) -> Result<GpuBackend, RuntimeError> {
        let part: PlanPart = plan.into();
        let segments = compile::segments(&part, weights, &gpu);
        let mut name = format!("{} ({}, {}", gpu.info()?.name, gpu.id(), gpu.target());
        if !gpu.variants().is_empty() {
            name.push_str(&format!(", {}", gpu.variants()));
        }
        name.push(')');
        let bucket = bucket(options.max_seqs);
        // Memory for a few rows may not have what GEMMs need.
        let least_rows = match options.batch_invariant {
            true => bucket.max(ops::MAX_ANSWER_ROWS),
            false => bucket,
        };
        let sizes = Sizes {
            step: StepSizes {
                max_rows: options.max_tokens.max(least_rows),
                max_logits: options.max_logits.max(least_rows),
                max_sampled: options.max_sampled.max(bucket),
                max_seqs: options.max_seqs.max(bucket),
                max_pages: options.n_ctx.div_ceil(options.page),
                n_slots: match part.plan.states.is_empty() {
                    true => 0,
                    false => options.n_slots,
                },
            },
            n_ctx: options.n_ctx,
            page: options.page,
            n_blocks: options.n_blocks,
            kv_types: kv_types(options.kv_types)?,
        };
        let before = gpu.allocated_bytes();
        let on_device = DeviceWeights::upload(&gpu, &part.plan, weights, options.answers_at_once)?;
        let with_weights = gpu.allocated_bytes();
        let latent = compile::latent_heads(&part.plan, &segments);
        let beside = (latent, borrowed);
        let memory = Memory::new(&gpu, &part.plan, (weights, &on_device), beside, &sizes)?;
        let kept = memory.kv_bytes() + memory.state_bytes();
        let scratch = gpu.allocated_bytes() - with_weights - kept;
        let transfers = Transfers::new(&gpu, &part, &sizes.step)?;
        let PlanPart {
            plan, has_output, ..
        } = part;
        let op_ranges = OpRanges::new(&gpu, &plan, weights, &segments);
        let no_ranges = gpu.has_ranges().err();
        let no_ranges =
            no_ranges.map(|reason| format!("operations have no names for a profiler: {reason}"));
        let notices = no_ranges.into_iter().collect();
        let total = gpu.allocated_bytes() - before;
        Ok(GpuBackend {
            name,
            segments,
            has_output,
            weights: on_device,
            memory,
            key_turns: plan.key_turns(),
            transfers,
            pool: Pool::new(options.n_threads),
            graphs: HashMap::new(),
            ends: [Event::new(&gpu)?, Event::new(&gpu)?],
            in_flight: VecDeque::new(),
            last_sampled: Vec::new(),
            observer: None,
            timing: Timing::default(),
            device_memory: DeviceMemory { total, scratch },
            notices,
            notice: None,
            tuner: None,
            idle_tuning: None,
            op_ranges,
            options,
            invariant: InvariantGpus::new(&gpu),
            gpu,
            plan,
        })
    }

    /// Returns where the cache is, for a drafter that reads it.
    pub(crate) fn shared_cache(&self) -> SharedCache {
        SharedCache::on_device(self.gpu.id(), self.memory.own_cache())
    }

    /// Ends the start: notices go to `notice` from now on.
    pub(crate) fn tell_notices(&mut self, notice: fn(&str)) {
        self.notice = Some(notice);
    }

    /// Queues a step. Returns its timers too, if steps are timed.
    fn queue_step(
        &mut self,
        batch: &Batch,
        choices: &Choices,
    ) -> Result<(QueuedStep, Option<TimedStep>), GpuError> {
        let queued = self.write_step(batch, choices)?;
        self.import_batch(batch, &queued)?;
        let mut observer = self.observer.take();
        let observation = match &mut observer {
            Some(observer) => Observation::Values(observer.as_mut(), 0),
            None if self.timing.is_on() => Observation::Times,
            None => Observation::Unobserved,
        };
        let times = self.queue_segment(0, &queued, batch, observation);
        self.observer = observer;
        let times = times?;
        self.queue_batch_export(batch, &queued)?;
        if queued.shape.choosing == Choosing::InStep {
            self.record_end(&queued)?;
        }
        Ok((queued, times))
    }

    /// Queues the rest of the oldest step in flight, if it awaits masks. Ends the step if that fails.
    fn complete_oldest(&mut self) {
        let Some(mut step) = self.in_flight.pop_front() else {
            return;
        };
        let rows = std::mem::take(&mut step.awaited_rows);
        let completed = match rows.is_empty() {
            true => Ok(()),
            false => self
                .queue_choice(&step.queued, &step.batch, &rows)
                .and_then(|()| self.record_end(&step.queued)),
        };
        match completed {
            Ok(()) => self.in_flight.push_front(step),
            Err(error) => {
                // If this fails too, so will the next step.
                drop(self.restart());
                (step.reply)(Err(error.into()));
            }
        }
    }

    /// Waits for the oldest step in flight and sends its reply.
    fn finish_oldest(&mut self) {
        self.complete_oldest();
        if let Some(mut step) = self.in_flight.pop_front() {
            let times = step.times.take();
            let rows = self.output(&step.batch, &step.queued, &step.host_rows);
            let result = rows.and_then(|rows| {
                if let Some(times) = times {
                    self.report_times(&step.batch, times)?;
                }
                Ok(StepOutput {
                    step: step.batch.step,
                    rows,
                    exports: self.batch_export(&step.batch, &step.queued),
                })
            });
            (step.reply)(result);
        }
    }

    /// Waits for a queued step and returns its output rows; none if the logits are not computed here.
    ///
    /// `host_rows` are the rows that the host samples.
    pub(crate) fn output(
        &mut self,
        batch: &Batch,
        queued: &QueuedStep,
        host_rows: &[usize],
    ) -> Result<Vec<RowOutput>, RuntimeError> {
        self.ends[queued.slot].wait()?;
        let n_rows = match self.has_output {
            true => batch.logits.len(),
            false => 0,
        };
        let ids = self.memory.step.ids(queued.slot, batch.step, n_rows);
        let ids = ids.map_err(|found| DeviceError::LostStep {
            step: batch.step,
            found,
        })?;
        let ids = ids.into_iter().enumerate();
        let mut rows: Vec<RowOutput> = ids
            .map(|(row, id)| {
                if masks::has_failed(batch, row) {
                    return RowOutput::NoMask;
                }
                let Want::Sample(SampleRow {
                    logprobs: Some(_), ..
                }) = &batch.logits[row].want
                else {
                    return sampled(id);
                };
                // The host replaces the rows that it samples.
                let logprobs = self.memory.step.row_logprobs(queued.slot, row);
                with_logprobs(sampled(id), logprobs)
            })
            .collect();
        let outputs = self.sample_on_host(batch, queued, host_rows)?;
        for (&index, output) in host_rows.iter().zip(outputs) {
            rows[index] = output;
        }
        self.set_last_sampled(&rows);
        Ok(rows)
    }

    /// Stores the sampled tokens, which the next step may use as inputs.
    pub(crate) fn set_last_sampled(&mut self, rows: &[RowOutput]) {
        self.last_sampled = output::sampled(rows);
    }

    /// Samples the rows that the GPU cannot sample itself.
    fn sample_on_host(
        &self,
        batch: &Batch,
        queued: &QueuedStep,
        host_rows: &[usize],
    ) -> Result<Vec<RowOutput>, GpuError> {
        let all = self.memory.buffer(self.plan.logits, &queued.shape);
        let n_vocab = all.len() / queued.shape.n_logits.max(1);
        let mut logits = Vec::with_capacity(host_rows.len() * n_vocab);
        // Consecutive rows are read in one copy.
        for rows in host_rows.chunk_by(|a, b| a + 1 == *b) {
            let (first, end) = (rows[0] * n_vocab, (rows[0] + rows.len()) * n_vocab);
            logits.extend(self.gpu.read(all.part(first..end))?);
        }
        let wanted: Vec<&LogitsRow> = host_rows.iter().map(|&row| &batch.logits[row]).collect();
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

/// Sequences of the smallest graph that fits `n` sequences.
fn bucket(n: usize) -> usize {
    match n {
        ..=LAST_POWER => n.next_power_of_two(),
        _ => n.next_multiple_of(BUCKET_STEP),
    }
}

/// Converts an id returned by the device to the output of its row.
fn sampled(id: u32) -> RowOutput {
    if id == NOT_FINITE {
        return RowOutput::NotFinite;
    }
    RowOutput::Sampled {
        sampled: Sampled { id, mu: None },
        logprob: None,
        top: Vec::new(),
    }
}

/// Adds the log-probabilities of the token and of the best ones.
fn with_logprobs(output: RowOutput, (chosen, best): (f32, Vec<TokenLogprob>)) -> RowOutput {
    match output {
        RowOutput::Sampled { sampled, .. } => RowOutput::Sampled {
            sampled,
            logprob: Some(chosen),
            top: best,
        },
        other => other,
    }
}

impl OpData for Launcher<'_> {
    fn buffer(&self, id: BufferId) -> Cow<'_, [f32]> {
        let buffer = self.memory.buffer(id, self.shape);
        // After a failed read the next launch fails the step; until then the observer gets NaN.
        let values = self.gpu.read(buffer);
        Cow::Owned(values.unwrap_or_else(|_| vec![f32::NAN; buffer.len()]))
    }
}

impl Backend for GpuBackend {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        let needs_logits = |step: &InFlight| !step.host_rows.is_empty();
        while self.in_flight.len() == N_SLOTS || self.in_flight.back().is_some_and(needs_logits) {
            self.finish_oldest();
        }
        let choices = Choices::of(&batch);
        // At most one step is left in flight, and this one uses its tokens.
        self.complete_oldest();
        match self.queue_step(&batch, &choices) {
            Ok((queued, times)) => self.in_flight.push_back(InFlight {
                times,
                host_rows: choices.host_rows,
                awaited_rows: choices.masked_rows,
                batch,
                queued,
                reply,
            }),
            Err(error) => {
                self.finish(Wait::All);
                // The step was not queued completely. If this fails too, so will the next step.
                drop(self.restart());
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
            if wait != Wait::All && !masks::are_known(&oldest.batch, &oldest.awaited_rows) {
                return;
            }
            self.complete_oldest();
            let Some(oldest) = self.in_flight.front() else {
                return;
            };
            // The wait in `finish_oldest` reports an error found here.
            if wait != Wait::All && matches!(self.ends[oldest.queued.slot].is_done(), Ok(false)) {
                return;
            }
            self.finish_oldest();
        }
    }

    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        self.observer = observer;
    }

    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        // Steps in flight still belong to the old observer.
        self.finish(Wait::All);
        self.timing.set(observer);
    }

    fn tune(&mut self, budget: Duration) -> Result<Option<TuneProgress>, RuntimeError> {
        self.finish(Wait::All);
        self.continue_tuning(budget).map(Some)
    }

    fn idle(&mut self, budget: Duration) -> IdleWork {
        match self.in_flight.is_empty() {
            true => self.tune_while_idle(budget),
            false => IdleWork::Done,
        }
    }

    fn info(&self) -> BackendInfo {
        let mut slow_ops: Vec<(String, usize)> = Vec::new();
        for op in &self.plan.ops {
            let Op::Attention { layer, scores, .. } = *op else {
                continue;
            };
            let kv = &self.plan.kv[layer];
            let rows = ops::RowKind::of(kv.mask, scores.alibi);
            if ops::is_fast(kv.k_dim, kv.v_dim, kv.values, rows) {
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
            state_bytes: self.memory.state_bytes(),
            device_memory: Some(self.device_memory),
            graphs: self.options.graphs,
            batch_invariant: self.options.batch_invariant,
            n_tuned: match self.gpu.variants().is_empty() && !self.options.batch_invariant {
                true => self.gpu.tuning().len(),
                false => 0,
            },
            notices: self.notices.clone(),
            offload: Offload::default(),
            parts: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
