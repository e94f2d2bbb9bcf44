//! The CPU backend: runs a plan operation by operation with the kernels of `rocmforge-cpu`.

mod buffers;
mod run_op;
mod shift;
mod stepwise;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, RwLock};

use half::f16;
use rocmforge_cpu as cpu;
use rocmforge_cpu::{HeadCode, Isa, KvSlice, KvSliceMut, Pool, Routing};
use rocmforge_gguf::quant;

use super::times::{StepPart, Stopwatch};
use super::{Backend, BackendInfo, OpData, OpObserver, Reply, StepObserver, output};
use crate::gpu_config::Graphs;
use crate::offload::Offload;
use crate::shared_cache::{HostLayer, SharedCache};
use buffers::CacheData;
pub(crate) use buffers::{ActsBuffer, LayerCache};
use rocmforge_gguf::TokenId;
use rocmforge_plan::Weights;
use rocmforge_plan::{Batch, InputToken, LogitsRow, RowOutput, Sampled, StepOutput};
use rocmforge_plan::{BatchShape, BufferId, KeyTurn, KvSpec, Op, Plan, PlanPart, Values};
use rocmforge_plan::{KvType, KvTypes};

/// Options of the CPU backend.
#[derive(Debug, Clone, Copy)]
pub struct CpuOptions {
    pub isa: Isa,
    pub n_threads: usize,
    /// Page size: tokens per KV-cache block.
    pub page: usize,
    /// Blocks of the KV cache.
    pub n_blocks: usize,
    pub kv_types: KvTypes,
    /// Slots for states of sequences.
    pub n_slots: usize,
}

/// The float buffers, for observers.
struct Floats<'a>(&'a [Vec<f32>]);

impl OpData for Floats<'_> {
    fn buffer(&self, id: BufferId) -> Cow<'_, [f32]> {
        Cow::Borrowed(&self.0[id.0 as usize])
    }
}

/// Inputs of a step's operations besides buffers.
pub(crate) struct CpuStep {
    tokens: Vec<TokenId>,
    /// Cosines and sines per RoPE table, `[n_tokens, n_rot]`.
    rotations: Vec<Vec<f32>>,
}

/// The observers of running operations.
#[derive(Default)]
pub(crate) struct Observers<'a> {
    pub(crate) observer: Option<&'a mut dyn OpObserver>,
    pub(crate) watch: Option<&'a mut Stopwatch>,
    /// The offset of operation indices here to those of the whole plan.
    pub(crate) shift: usize,
}

impl Observers<'_> {
    fn lap(&mut self, part: StepPart) {
        if let Some(watch) = &mut self.watch {
            watch.lap(part);
        }
    }
}

/// A compiled plan, or a part of one, with its buffers and KV cache.
pub struct CpuBackend {
    options: CpuOptions,
    pool: Pool,
    plan: Plan,
    weights: Arc<Weights>,
    buffers: Vec<Vec<f32>>,
    acts: Vec<ActsBuffer>,
    routings: Vec<Routing>,
    /// By layer. A drafter may read it.
    cache: Vec<HostLayer>,
    /// By state, `[n_slots, len]`.
    states: Vec<Vec<f32>>,
    /// How each layer's keys are rotated, by layer.
    key_turns: Vec<Option<KeyTurn>>,
    /// The token that each output row of the last step sampled.
    last_sampled: Vec<Option<Sampled>>,
    observer: Option<Box<dyn OpObserver>>,
    step_observer: Option<Box<dyn StepObserver>>,
}

impl CpuBackend {
    /// Allocates the backend's memory. The system commits cache memory only when tokens are written.
    pub fn new(
        plan: impl Into<PlanPart>,
        weights: Arc<Weights>,
        options: CpuOptions,
    ) -> CpuBackend {
        let plan = plan.into().plan;
        let new_cache = |spec: &KvSpec| {
            let n_heads = options.n_blocks * options.page * spec.n_kv_heads;
            Arc::new(RwLock::new(LayerCache {
                spec: *spec,
                hadamard: spec.hadamard_lens(options.kv_types),
                k: CacheData::new(options.kv_types.keys, n_heads, spec.k_dim),
                v: match spec.values {
                    Values::Apart => CacheData::new(options.kv_types.values, n_heads, spec.v_dim),
                    Values::InKeys => CacheData::new(options.kv_types.values, 0, spec.v_dim),
                },
            }))
        };
        let cache = plan.kv.iter().map(new_cache).collect();
        CpuBackend::over(plan, weights, options, cache)
    }

    /// As [`CpuBackend::new`], with the layers of a cache.
    pub(crate) fn over(
        plan: Plan,
        weights: Arc<Weights>,
        options: CpuOptions,
        cache: Vec<HostLayer>,
    ) -> CpuBackend {
        CpuBackend {
            pool: Pool::new(options.n_threads),
            buffers: vec![Vec::new(); plan.buffers.len()],
            acts: plan.acts.iter().map(ActsBuffer::new).collect(),
            routings: (0..plan.n_routings).map(|_| Routing::new()).collect(),
            cache,
            states: { plan.states.iter() }
                .map(|state| vec![0.0; options.n_slots * state.len])
                .collect(),
            key_turns: plan.key_turns(),
            last_sampled: Vec::new(),
            observer: None,
            step_observer: None,
            options,
            plan,
            weights,
        }
    }

    /// Applies the batch's context shifts and sizes the buffers for it.
    pub(crate) fn begin(&mut self, batch: &Batch) -> CpuStep {
        for shift in &batch.shifts {
            self.shift(shift);
        }
        let tokens: Vec<TokenId> = batch
            .tokens
            .iter()
            .map(|&token| self.resolve(token))
            .collect();
        for (buffer, info) in self.buffers.iter_mut().zip(&self.plan.buffers) {
            let rows = info.rows.rows(tokens.len(), batch.logits.len());
            buffer.resize(rows * info.width, 0.0);
        }
        let rotations: Vec<Vec<f32>> = self
            .plan
            .rope
            .iter()
            .map(|table| {
                let mut rows = vec![0.0; tokens.len() * table.n_rot()];
                table.fill(&batch.positions, &mut rows);
                rows
            })
            .collect();
        CpuStep { tokens, rotations }
    }

    fn run(&mut self, batch: &Batch) -> StepOutput {
        let mut watch = self.step_observer.as_ref().map(|_| Stopwatch::start());
        let mut observer = self.observer.take();
        let mut observers = Observers {
            observer: observer.as_mut().map(|observer| observer.as_mut() as _),
            watch: watch.as_mut(),
            shift: 0,
        };
        let step = self.begin(batch);
        observers.lap(StepPart::Begin);
        self.run_ops(0..self.plan.ops.len(), batch, &step, &mut observers);
        let rows = self.choose(batch);
        observers.lap(StepPart::Choose);
        self.observer = observer;
        if let (Some(watch), Some(observer)) = (watch, &mut self.step_observer) {
            observer.step(watch.finish(batch.step, BatchShape::of(batch)));
        }
        StepOutput {
            step: batch.step,
            rows,
            exports: self.exports(batch),
        }
    }

    /// Returns what a step exports, if it does.
    pub(crate) fn exports(&self, batch: &Batch) -> Vec<f32> {
        match self.plan.export().filter(|_| batch.exports) {
            Some(id) => self.buffer(id).to_vec(),
            None => Vec::new(),
        }
    }

    /// Runs a range of operations of a step from [`CpuBackend::begin`].
    pub(crate) fn run_ops(
        &mut self,
        range: Range<usize>,
        batch: &Batch,
        step: &CpuStep,
        observers: &mut Observers<'_>,
    ) {
        // The plan is lent out so that operations can borrow the rest of `self` mutably.
        let ops = std::mem::take(&mut self.plan.ops);
        for (index, op) in range.clone().zip(&ops[range]) {
            // Without output rows, operations after the last layer have no work.
            if batch.logits.is_empty() && self.plan.is_for_logits(op) {
                continue;
            }
            let index = index + observers.shift;
            if let Some(observer) = &mut observers.observer {
                observer.before(index, op, batch, &Floats(&self.buffers));
            }
            self.run_op(op, batch, step);
            if let Some(observer) = &mut observers.observer {
                observer.after(index, op, batch, &Floats(&self.buffers));
            }
            observers.lap(StepPart::Ops(index..index + 1));
        }
        self.plan.ops = ops;
    }

    /// Samples, scores or copies the rows of logits, as the batch requests.
    pub(crate) fn choose(&mut self, batch: &Batch) -> Vec<RowOutput> {
        let mut logits = self.take(self.plan.logits);
        let (isa, last_sampled) = (self.options.isa, &self.last_sampled);
        let wanted: Vec<&LogitsRow> = batch.logits.iter().collect();
        let tokens = &batch.tokens;
        let rows = output::rows(isa, &self.pool, &mut logits, tokens, &wanted, last_sampled);
        self.put(self.plan.logits, logits);
        self.set_last_sampled(&rows);
        rows
    }

    /// Records the sampled tokens, which may be inputs of the next step.
    pub(crate) fn set_last_sampled(&mut self, rows: &[RowOutput]) {
        self.last_sampled = output::sampled(rows);
    }

    /// Returns where the cache is, for a drafter that reads it.
    pub(crate) fn shared_cache(&self) -> SharedCache {
        SharedCache::on_host(&self.cache)
    }

    /// Returns the bytes of the KV cache of this backend's layers.
    pub(crate) fn kv_bytes(&self) -> u64 {
        let per_token = self.plan.kv_bytes_per_token(self.options.kv_types);
        per_token * (self.options.n_blocks * self.options.page) as u64
    }

    fn resolve(&self, token: InputToken) -> TokenId {
        match token {
            InputToken::Id(id) => id,
            // A row that could not sample has failed its request; this row's results are discarded.
            InputToken::Sampled { row } => {
                output::sampled_by(&self.last_sampled, row).map_or(0, |sampled| sampled.id)
            }
        }
    }
}

impl CacheData {
    /// Returns a zeroed cache. The system commits its memory only when it is written.
    fn new(kv_type: KvType, n_heads: usize, dim: usize) -> CacheData {
        match kv_type {
            KvType::F16 => CacheData::F16(vec![f16::ZERO.to_bits(); n_heads * dim]),
            KvType::F32 => CacheData::F32(vec![0.0; n_heads * dim]),
            KvType::Q8_0 | KvType::F8E4M3 | KvType::Q5_1 | KvType::Q4_0 => {
                CacheData::of_bytes(kv_type, dim, vec![0; n_heads * kv_type.head_bytes(dim)])
            }
        }
    }

    /// Wraps the bytes of heads of a type with scales.
    fn of_bytes(kv_type: KvType, dim: usize, heads: Vec<u8>) -> CacheData {
        let code = match kv_type {
            KvType::Q8_0 if dim >= 32 => return CacheData::Q8_0(heads),
            KvType::Q8_0 => HeadCode::Q8_0,
            KvType::Q5_1 => HeadCode::Q5_1,
            KvType::Q4_0 => HeadCode::Q4_0,
            KvType::F16 | KvType::F32 | KvType::F8E4M3 => HeadCode::F8E4M3,
        };
        CacheData::Heads { code, heads, dim }
    }

    fn as_ref(&self) -> KvSlice<'_> {
        match self {
            CacheData::F16(values) => KvSlice::F16(values),
            CacheData::F32(values) => KvSlice::F32(values),
            CacheData::Q8_0(bytes) => KvSlice::Q8_0(quant::blocks(bytes)),
            CacheData::Heads { code, heads, dim } => KvSlice::Heads {
                code: *code,
                heads,
                dim: *dim,
            },
        }
    }

    fn as_mut(&mut self) -> KvSliceMut<'_> {
        match self {
            CacheData::F16(values) => KvSliceMut::F16(values),
            CacheData::F32(values) => KvSliceMut::F32(values),
            CacheData::Q8_0(bytes) => KvSliceMut::Q8_0(quant::blocks_mut(bytes)),
            CacheData::Heads { code, heads, dim } => KvSliceMut::Heads {
                code: *code,
                heads,
                dim: *dim,
            },
        }
    }
}

impl Backend for CpuBackend {
    fn submit(&mut self, batch: Batch, reply: Reply) {
        reply(Ok(self.run(&batch)));
    }

    fn observe(&mut self, observer: Option<Box<dyn OpObserver>>) {
        self.observer = observer;
    }

    fn observe_steps(&mut self, observer: Option<Box<dyn StepObserver>>) {
        self.step_observer = observer;
    }

    fn info(&self) -> BackendInfo {
        let mut slow_ops: Vec<(String, usize)> = Vec::new();
        for weight in self.plan.ops.iter().flat_map(Op::matrices) {
            let ty = self.weights.matrix(weight).ty;
            if cpu::is_fast(self.options.isa, ty) {
                continue;
            }
            match slow_ops.iter_mut().find(|(name, _)| name == ty.name()) {
                Some((_, count)) => *count += 1,
                None => slow_ops.push((ty.name().to_string(), 1)),
            }
        }
        BackendInfo {
            device: format!(
                "CPU ({}, {} threads)",
                self.options.isa.name(),
                self.pool.n_threads()
            ),
            slow_ops,
            kv_bytes: self.kv_bytes(),
            state_bytes: self.plan.state_bytes() * self.options.n_slots as u64,
            device_memory: None,
            graphs: Graphs::Off,
            batch_invariant: true,
            n_tuned: 0,
            notices: Vec::new(),
            offload: Offload::NOTHING,
            parts: Vec::new(),
        }
    }
}
