//! Device memory of a compiled plan, allocated once for the largest step. Addresses never change, so that steps can be
//! captured as graphs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rocmforge_gpu::ops::{AttentionScratch, HeadsMemory, LatentHeads, Routing, RoutingBuffer};
use rocmforge_gpu::{
    Acts, ActsBuffer, Buffer, Gpu, GpuError, KvLayer, KvShape, KvTypes, RowOrder, Slice,
};

use super::shift::ShiftMemory;
use super::step::{StepMemory, StepShape, StepSizes};
use super::weights::DeviceWeights;
use crate::shared_cache::DeviceLayer;
use rocmforge_gguf::GgmlType;
use rocmforge_plan::{
    ActsId, BufferId, BufferInfo, Op, Plan, RopeId, RoutingId, RowCount, WeightId, Weights,
};

/// Positions whose rotations are computed at once.
const ROPE_ROWS: usize = 1024;

/// Sizes that the memory is allocated for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) step: StepSizes,
    pub(crate) n_ctx: usize,
    /// Tokens per KV-cache block.
    pub(crate) page: usize,
    /// Blocks of the KV cache.
    pub(crate) n_blocks: usize,
    pub(crate) kv_types: KvTypes,
}

/// The buffers that operations read and write, except the weights.
pub(crate) struct Memory {
    /// By [`BufferId`].
    buffers: Vec<(BufferInfo, Buffer)>,
    /// By [`ActsId`].
    acts: Vec<(rocmforge_plan::ActsInfo, ActsBuffer)>,
    /// By [`RoutingId`].
    routings: Vec<RoutingBuffer>,
    /// Of every token to every head, by the number of heads.
    heads: BTreeMap<usize, RoutingBuffer>,
    /// `n_rot` and rotations `[n_ctx, n_rot / 2, 2]` of each RoPE table.
    rope: Vec<(usize, Buffer)>,
    /// K and V of each layer.
    cache: Vec<DeviceLayer>,
    /// Whether that is another model's cache.
    is_borrowed: bool,
    /// By state, `[n_slots, len]`.
    states: Vec<Buffer>,
    /// Scratch for one side of a gated GEMM whose activation is a separate launch.
    gated: Buffer,
    pub(crate) attention: AttentionScratch,
    /// For latent attention of prompts.
    heads_memory: Option<HeadsMemory>,
    pub(crate) step: StepMemory,
    pub(crate) shifts: ShiftMemory,
}

impl Memory {
    /// `latent`: the heads of latent attention, if prompts may need keys and values of these. `borrowed`: the layers of another
    /// model's cache, if the plan reads these.
    pub(crate) fn new(
        gpu: &Gpu,
        plan: &Plan,
        (weights, on_device): (&Weights, &DeviceWeights),
        (latent, borrowed): (Option<LatentHeads>, Option<Vec<DeviceLayer>>),
        sizes: &Sizes,
    ) -> Result<Memory, GpuError> {
        let StepSizes {
            max_rows,
            max_logits,
            max_seqs,
            ..
        } = sizes.step;
        let buffers = plan.buffers.iter().map(|info| {
            let n_values = info.rows.rows(max_rows, max_logits) * info.width;
            Ok((*info, gpu.alloc::<f32>(n_values)?))
        });
        let most_experts = routing_shapes(plan).flatten().map(|[n, ..]| n).max();
        let acts = plan.acts.iter().enumerate().map(|(i, info)| {
            let n_rows = info.rows.rows(max_rows, max_logits);
            let n_experts = match info.rows {
                RowCount::Choices { .. } => most_experts,
                RowCount::Heads { n_heads } => Some(n_heads),
                RowCount::Tokens | RowCount::Logits => None,
            };
            let (shape, id) = ([n_rows, info.width], ActsId(i as u32));
            let acts = match is_for_f32(plan, weights, id) {
                true => ActsBuffer::for_f32(gpu, shape)?,
                false => ActsBuffer::of_experts(gpu, info.format, shape, n_experts)?
                    .beside(&read_with(plan, on_device, id)),
            };
            Ok((*info, acts))
        });
        let layers = plan.kv.iter().map(|spec| {
            let shape = KvShape {
                types: sizes.kv_types,
                n_blocks: sizes.n_blocks,
                n_kv_heads: spec.n_kv_heads,
                page: sizes.page,
                k_dim: spec.k_dim,
                v_dim: spec.v_dim,
                values: spec.values,
            };
            Ok((shape, Arc::new(shape.alloc(gpu)?)))
        });
        let is_borrowed = borrowed.is_some();
        let cache: Vec<DeviceLayer> = match borrowed {
            Some(layers) => layers,
            None => layers.collect::<Result<_, GpuError>>()?,
        };
        // Models that borrow a cache have no prompts.
        let of_prompts = cache.iter().filter(|_| !is_borrowed);
        let of_prompts: Vec<KvShape> = of_prompts.map(|(shape, _)| *shape).collect();
        let states = plan.states.iter().map(|state| {
            let states = gpu.alloc::<f32>(sizes.step.n_slots * state.len)?;
            clear(gpu, states.as_slice())?;
            Ok(states)
        });
        let gated = plan.ops.iter().map(|op| match op {
            Op::GatedMatMul { out, .. } => plan.buffers[out.0 as usize].width,
            _ => 0,
        });
        let gated = gated.max().unwrap_or(0) * max_rows;
        let heads = plan.ops.iter().filter_map(|op| match op {
            Op::Attention { layer, n_heads, .. } => Some((*n_heads, plan.kv[*layer].v_dim)),
            _ => None,
        });
        let (n_heads, v_dim) = heads.fold((0, 0), |a, b| (a.0.max(b.0), a.1.max(b.1)));
        Ok(Memory {
            buffers: buffers.collect::<Result<_, GpuError>>()?,
            acts: acts.collect::<Result<_, GpuError>>()?,
            routings: routings(gpu, plan, max_rows)?,
            heads: head_routings(gpu, plan, max_rows)?,
            rope: rope_tables(gpu, plan, sizes.n_ctx)?,
            is_borrowed,
            cache,
            states: states.collect::<Result<_, GpuError>>()?,
            gated: gpu.alloc::<f32>(gated)?,
            attention: AttentionScratch::new(
                gpu,
                sizes.kv_types,
                max_seqs,
                n_heads,
                v_dim,
                sizes.n_ctx,
            )?
            .with_halves(gpu, &of_prompts)?,
            heads_memory: match latent {
                Some(heads) => {
                    let positions = [sizes.page, sizes.n_ctx, max_rows];
                    HeadsMemory::new(gpu, sizes.kv_types, heads, positions)?
                }
                None => None,
            },
            step: StepMemory::new(gpu, sizes.step)?,
            shifts: ShiftMemory::new(gpu, sizes.step.max_pages)?,
        })
    }

    /// Returns a buffer, `[rows, width]` in a step of `shape`.
    pub(crate) fn buffer(&self, id: BufferId, shape: &StepShape) -> Slice<'_, f32> {
        let (info, buffer) = &self.buffers[id.0 as usize];
        let n_rows = info.rows.rows(shape.n_rows, shape.n_logits);
        buffer.as_slice().part(0..n_rows * info.width)
    }

    /// Returns activations with the rows of a step of `shape`.
    pub(crate) fn acts(&self, id: ActsId, shape: &StepShape) -> Acts<'_> {
        let (info, acts) = &self.acts[id.0 as usize];
        acts.rows(info.rows.rows(shape.n_rows, shape.n_logits))
    }

    /// Returns the expert routing of a step of `shape`.
    pub(crate) fn routing(&self, id: RoutingId, shape: &StepShape) -> Routing<'_> {
        self.routings[id.0 as usize].of(shape.n_rows)
    }

    /// Returns the routing of every token of a step of `shape` to each of `n_heads` heads.
    pub(crate) fn heads(&self, n_heads: usize, shape: &StepShape) -> Routing<'_> {
        self.heads[&n_heads].of(shape.n_rows)
    }

    /// Returns `[n_values]` of scratch space, used within one operation.
    pub(crate) fn gated(&self, n_values: usize) -> Slice<'_, f32> {
        self.gated.as_slice().part(0..n_values)
    }

    /// Returns the rotations of each position, `[n_ctx, n_rot / 2, 2]`, and `n_rot`.
    pub(crate) fn rope(&self, id: RopeId) -> (Slice<'_, f32>, usize) {
        let (n_rot, table) = &self.rope[id.0 as usize];
        (table.as_slice(), *n_rot)
    }

    pub(crate) fn heads_memory(&self) -> Option<&HeadsMemory> {
        self.heads_memory.as_ref()
    }

    /// Returns K and V of all layers; none if they are another model's.
    pub(crate) fn own_cache(&self) -> &[DeviceLayer] {
        match self.is_borrowed {
            true => &[],
            false => &self.cache,
        }
    }

    /// Returns the KV cache of a layer.
    pub(crate) fn layer(&self, layer: usize) -> KvLayer<'_> {
        let (shape, memory) = &self.cache[layer];
        KvLayer::new(*shape, memory)
    }

    /// Returns a state in all slots, `[n_slots, len]`.
    pub(crate) fn state(&self, state: usize) -> Slice<'_, f32> {
        self.states[state].as_slice()
    }

    /// Fills all states with zeros.
    pub(crate) fn clear_states(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let mut states = self.states.iter();
        states.try_for_each(|states| clear(gpu, states.as_slice()))
    }

    /// Returns the bytes of all states.
    pub(crate) fn state_bytes(&self) -> u64 {
        let buffers = self.states.iter();
        buffers.map(|buffer| buffer.n_bytes() as u64).sum()
    }

    /// Returns the bytes of the KV cache.
    pub(crate) fn kv_bytes(&self) -> u64 {
        let buffers = { self.own_cache().iter() }.flat_map(|(_, memory)| memory.iter());
        buffers.map(|buffer| buffer.n_bytes() as u64).sum()
    }
}

/// Fills the slots of a state with zeros. States of layers on the other device have no values.
fn clear(gpu: &Gpu, states: Slice<'_, f32>) -> Result<(), GpuError> {
    match states.is_empty() {
        true => Ok(()),
        false => gpu.fill_bytes(states, 0),
    }
}

/// Allocates each expert routing for steps of up to `max_rows` tokens.
fn routings(gpu: &Gpu, plan: &Plan, max_rows: usize) -> Result<Vec<RoutingBuffer>, GpuError> {
    // A routing that is never written is never read.
    let of = |shape: Option<_>| {
        let [n_experts, n_used, n_shared] = shape.unwrap_or([1, 1, 0]);
        let buffer = RoutingBuffer::new(gpu, [n_experts, n_used], max_rows)?;
        Ok(buffer.with_shared(n_shared))
    };
    routing_shapes(plan).map(of).collect()
}

/// Experts, those of a token, and how many are shared, of each expert routing; `None` if it is never written.
fn routing_shapes(plan: &Plan) -> impl Iterator<Item = Option<[usize; 3]>> {
    (0..plan.n_routings).map(|id| {
        let mut ops = plan.ops.iter();
        ops.find_map(|op| match op.routing() {
            Some(routing) if routing.0 as usize == id => op.routing_shape(&plan.buffers),
            _ => None,
        })
    })
}

/// Allocates a routing to heads for each number of heads that have matrices of their own.
fn head_routings(
    gpu: &Gpu,
    plan: &Plan,
    max_rows: usize,
) -> Result<BTreeMap<usize, RoutingBuffer>, GpuError> {
    let numbers = plan.ops.iter().filter_map(|op| match *op {
        Op::HeadMatMul { n_heads, .. } => Some(n_heads),
        _ => None,
    });
    let numbers: BTreeSet<usize> = numbers.collect();
    let buffer = |n| Ok((n, RoutingBuffer::new(gpu, [n, n], max_rows)?));
    numbers.into_iter().map(buffer).collect()
}

/// Computes and uploads the RoPE tables; returns `n_rot` and the rotations of each.
fn rope_tables(gpu: &Gpu, plan: &Plan, n_ctx: usize) -> Result<Vec<(usize, Buffer)>, GpuError> {
    let mut tables = Vec::with_capacity(plan.rope.len());
    for table in &plan.rope {
        let n_rot = table.n_rot();
        let buffer = gpu.alloc::<f32>(n_ctx * n_rot)?;
        let mut rows = vec![0.0; ROPE_ROWS.min(n_ctx) * n_rot];
        for first in (0..n_ctx).step_by(ROPE_ROWS) {
            let end = n_ctx.min(first + ROPE_ROWS);
            let positions: Vec<u32> = (first as u32..end as u32).collect();
            let rows = &mut rows[..positions.len() * n_rot];
            table.fill(&positions, rows);
            gpu.write(buffer.as_slice().part(first * n_rot..end * n_rot), rows)?;
        }
        tables.push((n_rot, buffer));
    }
    Ok(tables)
}

/// Returns the matrices that are multiplied with these activations.
fn matrices_of(plan: &Plan, id: ActsId) -> impl Iterator<Item = WeightId> {
    let readers = plan.ops.iter().filter(move |op| op.acts_read() == Some(id));
    readers.flat_map(Op::matrices)
}

/// Returns whether only F32 weights are multiplied with these activations.
fn is_for_f32(plan: &Plan, weights: &Weights, id: ActsId) -> bool {
    matrices_of(plan, id).all(|id| weights.matrix(id).ty == GgmlType::F32)
}

/// Returns the type and the order of rows of each matrix that is multiplied with these activations.
fn read_with(plan: &Plan, weights: &DeviceWeights, id: ActsId) -> Vec<(GgmlType, RowOrder)> {
    let matrices = matrices_of(plan, id).map(|id| (weights.ty(id), weights.order(id)));
    matrices.collect()
}
