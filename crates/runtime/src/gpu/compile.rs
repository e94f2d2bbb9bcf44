//! Groups the operations of a plan into stages: operations that the GPU runs as one.

mod channel;
mod heads;
mod linear;
mod own;
mod selective;

use std::ops::Range;

use rocmforge_gpu::ops::LatentHeads;
use rocmforge_gpu::{Gpu, Variant, ops};

use rocmforge_plan::Weights;
use rocmforge_plan::{
    ActsId, BufferId, ExpertStack, Linear, Op, OutMode, Plan, PlanPart, RopeId, RoutingId, RowsOf,
    Weighed, WeightId, is_dead,
};

pub(crate) use channel::ChannelDecodeOps;
pub(crate) use heads::{AttendToHeadsOps, HeadProductsOps, LatentQueriesOps};
pub(crate) use linear::{AfterHeads, LinearDecodeOps, LinearInputsOps};
pub(crate) use own::OwnConversion;
pub(crate) use selective::{ConvSiluOps, NormsOps, RowNorm, SelectiveDecodeOps};

/// One or more consecutive operations of a plan that run as one. `first` is the index of the first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stage {
    /// A single operation, by index.
    One(usize),
    /// The norm of rows, and the conversion of its result, which others read, too.
    NormQuantize { first: usize, ops: NormQuantizeOps },
    /// The norm of rows, the products of a router, and the choice of experts.
    Router { first: usize, ops: RouterOps },
    /// Gate and up projections with their activation, and the conversion of the result, which nothing else reads.
    GatedQuantize { first: usize, ops: GatedQuantizeOps },
    /// Optional norms of the query and key heads, RoPE of queries and keys, and the append to the KV cache.
    RopeKv { first: usize, ops: RopeKvOps },
    /// Products of heads with matrices of their own, in rows of tokens.
    HeadProducts { first: usize, ops: HeadProductsOps },
    /// The queries of latent attention with RoPE, and the append of its keys, normalized and rotated, to the KV cache.
    LatentQueries { first: usize, ops: LatentQueriesOps },
    /// Latent attention by keys and values of all heads, in place of latent vectors.
    AttendToHeads { first: usize, ops: AttendToHeadsOps },
    /// Gate and up projections of MoE experts, and the gated activation.
    ExpertGate { first: usize, ops: ExpertGateOps },
    /// The weighted sum of the experts' outputs, added, and maybe the norm of the result.
    CombineAdd { first: usize, ops: CombineAddOps },
    /// The factors of linear attention, the convolution before it, and the norms of queries and keys.
    LinearInputs { first: usize, ops: LinearInputsOps },
    /// Linear attention with the norm and gate after it. The operations run one by one if a sequence has several rows.
    LinearDecode { first: usize, ops: LinearDecodeOps },
    /// All between the products of a layer of linear attention with a decay of each channel. The operations run one by one if
    /// a sequence has several rows.
    ChannelDecode { first: usize, ops: ChannelDecodeOps },
    /// A convolution, its activation and the conversion of that. The operations run one by one if a sequence has several rows.
    ConvSilu { first: usize, ops: ConvSiluOps },
    /// Norms of rows of three values.
    Norms { first: usize, ops: NormsOps },
    /// The scan of Mamba-1 with what is around it. The operations run one by one if a sequence has several rows.
    SelectiveDecode {
        first: usize,
        ops: SelectiveDecodeOps,
    },
}

/// The operands of [`Stage::NormQuantize`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NormQuantizeOps {
    pub(crate) x: BufferId,
    pub(crate) weight: WeightId,
    pub(crate) eps: f32,
    pub(crate) normed: BufferId,
    pub(crate) out: ActsId,
}

/// The operands of [`Stage::Router`]; the choice is its last operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RouterOps {
    pub(crate) norm: NormQuantizeOps,
    pub(crate) matrix: Linear,
    pub(crate) logits: BufferId,
}

impl RouterOps {
    const N_OPS: usize = 4;
}

/// The operands of [`Stage::GatedQuantize`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GatedQuantizeOps {
    pub(crate) x: ActsId,
    /// Gate and up.
    pub(crate) matrices: [Linear; 2],
    pub(crate) activation: rocmforge_plan::Activation,
    /// Holds the result in the unfused plan. Here its contents are undefined.
    pub(crate) unwritten: BufferId,
    pub(crate) out: ActsId,
}

/// The norm of a sum and its conversion, of `n_ops` operations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct NormAfter {
    pub(crate) weight: WeightId,
    pub(crate) eps: f32,
    /// Receives the normalized values.
    pub(crate) normed: Option<BufferId>,
    pub(crate) out: ActsId,
    pub(crate) n_ops: usize,
}

/// The operands of [`Stage::CombineAdd`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CombineAddOps {
    pub(crate) x: BufferId,
    pub(crate) routing: (RoutingId, Weighed),
    /// Holds the sum in the unfused plan; this stage does not write it.
    pub(crate) sum_unwritten: BufferId,
    pub(crate) out: BufferId,
    pub(crate) norm: Option<NormAfter>,
}

impl CombineAddOps {
    fn n_ops(&self) -> usize {
        2 + self.norm.map_or(0, |norm| norm.n_ops)
    }

    /// The buffer that stays undefined, if any.
    fn undefined(&self) -> Option<BufferId> {
        // The normalized values may be where the sum was.
        let is_written = self.norm.and_then(|norm| norm.normed) == Some(self.sum_unwritten);
        (!is_written).then_some(self.sum_unwritten)
    }
}

/// The operands of [`Stage::RopeKv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RopeKvOps {
    pub(crate) q: BufferId,
    /// Receives the rotated queries; equal to `q` without norms.
    pub(crate) q_out: BufferId,
    pub(crate) k: BufferId,
    pub(crate) v: BufferId,
    pub(crate) layer: usize,
    pub(crate) table: RopeId,
    pub(crate) style: rocmforge_plan::RopeStyle,
    /// The first rotated value of a head.
    pub(crate) start: usize,
    pub(crate) norms: Option<HeadNorms>,
    /// Holds the rotated keys in the unfused plan. This stage writes them to the KV cache only.
    pub(crate) k_unwritten: BufferId,
}

/// The operands of [`Stage::ExpertGate`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpertGateOps {
    pub(crate) x: ActsId,
    pub(crate) routing: RoutingId,
    pub(crate) gate: (Linear, ExpertStack),
    pub(crate) up: (Linear, ExpertStack),
    /// Factors on the products of each expert, of gate and up.
    pub(crate) scales: [Option<WeightId>; 2],
    /// The matrices of a shared expert, of gate and up.
    pub(crate) shared: [Option<WeightId>; 2],
    pub(crate) activation: rocmforge_plan::Activation,
    pub(crate) out: BufferId,
    /// Hold gate and up in the unfused plan. Here their contents are undefined; the second is scratch space.
    pub(crate) unwritten: [BufferId; 2],
}

/// Weights of the RMS norms of query and key heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HeadNorms {
    pub(crate) q: WeightId,
    pub(crate) k: WeightId,
    pub(crate) eps: f32,
}

impl Stage {
    /// Returns the range of its operations in the plan.
    pub(crate) fn ops(&self) -> Range<usize> {
        match *self {
            Stage::One(index) => index..index + 1,
            Stage::NormQuantize { first, .. } | Stage::GatedQuantize { first, .. } => {
                first..first + 2
            }
            Stage::Router { first, .. } => first..first + RouterOps::N_OPS,
            Stage::RopeKv { first, ops } => first..first + if ops.norms.is_some() { 5 } else { 3 },
            Stage::HeadProducts { first, .. } => first..first + 2,
            Stage::LatentQueries { first, .. } => first..first + heads::LATENT_QUERIES,
            Stage::AttendToHeads { first, ops } => first..ops.attention + 4,
            Stage::ExpertGate { first, .. } => first..first + 3,
            Stage::CombineAdd { first, ops } => first..first + ops.n_ops(),
            Stage::LinearInputs { first, ops } => first..first + ops.n_ops,
            Stage::LinearDecode { first, ops } => first..first + ops.n_ops(),
            Stage::ChannelDecode { first, ops } => first..first + ops.n_ops,
            Stage::ConvSilu { first, .. } => first..first + ConvSiluOps::N_OPS,
            Stage::Norms { first, .. } => first..first + NormsOps::N_OPS,
            Stage::SelectiveDecode { first, .. } => first..first + SelectiveDecodeOps::N_OPS,
        }
    }

    /// Returns the activations that the unfused operations write but this stage may leave as they are.
    pub(crate) fn unwritten_acts(&self) -> Option<ActsId> {
        match self {
            Stage::Router { ops, .. } => Some(ops.norm.out),
            _ => None,
        }
    }

    /// Returns the buffers that the unfused operations write but this stage leaves undefined.
    pub(crate) fn undefined(&self) -> Vec<BufferId> {
        match *self {
            Stage::One(_)
            | Stage::NormQuantize { .. }
            | Stage::Router { .. }
            | Stage::Norms { .. } => vec![],
            Stage::GatedQuantize { ops, .. } => vec![ops.unwritten],
            Stage::RopeKv { ops, .. } => vec![ops.k_unwritten],
            Stage::HeadProducts { ops, .. } => vec![ops.unwritten],
            Stage::LatentQueries { ops, .. } => {
                let [normed, keys] = ops.unwritten;
                vec![ops.product.unwritten, normed, keys]
            }
            Stage::AttendToHeads { ops, .. } => {
                let [normed, keys] = ops.queries.unwritten;
                let wide = ops.queries.product;
                vec![
                    wide.out,
                    wide.unwritten,
                    normed,
                    keys,
                    ops.unwritten,
                    ops.values.unwritten,
                ]
            }
            Stage::ExpertGate { ops, .. } => ops.unwritten.to_vec(),
            Stage::CombineAdd { ops, .. } => ops.undefined().into_iter().collect(),
            Stage::LinearInputs { ops, .. } => ops.unwritten.into_iter().flatten().collect(),
            Stage::LinearDecode { ops, .. } => ops.unwritten.into_iter().flatten().collect(),
            Stage::ChannelDecode { ops, .. } => ops.unwritten.into_iter().flatten().collect(),
            Stage::ConvSilu { ops, .. } => ops.unwritten.into_iter().collect(),
            Stage::SelectiveDecode { ops, .. } => ops.unwritten.into_iter().flatten().collect(),
        }
    }
}

/// A run of operations on one device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Segment {
    /// Their range in the plan.
    pub(crate) ops: Range<usize>,
    pub(crate) stages: Vec<Stage>,
    /// The same for steps whose latent attention is that to keys and values of heads.
    pub(crate) stages_to_heads: Vec<Stage>,
    /// Conversions that steps of one token leave to products, in order.
    pub(crate) own: Vec<OwnConversion>,
    /// Conversions that run with the stage before, attention, or gate and up of experts, whose result nothing else reads: their
    /// operations and what they write, in order. Those of experts run so in steps whose products do not convert.
    pub(crate) joined: Vec<(usize, ActsId)>,
    /// Products of experts, by operation and in order, that run with their sum, the stage after, where products convert.
    pub(crate) summed: Vec<usize>,
}

/// Returns the heads of latent attention, if all layers that have it have the same.
pub(crate) fn latent_heads(plan: &Plan, segments: &[Segment]) -> Option<LatentHeads> {
    let stages = segments.iter().flat_map(|segment| &segment.stages_to_heads);
    let mut all = stages.filter_map(|stage| match stage {
        Stage::AttendToHeads { ops, .. } => Some(heads::heads_of(plan, ops)),
        _ => None,
    });
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

/// Returns the segments of `part`, in order, with fused stages where the variants of `gpu` allow.
pub(crate) fn segments(part: &PlanPart, weights: &Weights, gpu: &Gpu) -> Vec<Segment> {
    let plan = &part.plan;
    let segments = part.segments.iter().map(|ops| {
        let mut stages = Vec::new();
        let mut at = ops.start;
        while at < ops.end {
            let range = at..ops.end;
            let with_rope = || match gpu.variants().contains(Variant::RopeSeparate) {
                true => None,
                false => rope_kv(plan, weights, range.clone())
                    .map(|ops| Stage::RopeKv { first: at, ops })
                    .or_else(|| {
                        let ops = heads::latent_queries(plan, weights, range.clone())?;
                        Some(Stage::LatentQueries { first: at, ops })
                    }),
            };
            let merged = with_rope()
                .or_else(|| {
                    let ops = heads::products(plan, range.clone())?;
                    Some(Stage::HeadProducts { first: at, ops })
                })
                .or_else(|| router(plan, weights, range.clone()))
                .or_else(|| norm_quantize(plan, weights, range.clone()))
                .or_else(|| gated_quantize(plan, range.clone()))
                .or_else(|| expert_gate(plan, range.clone()))
                .or_else(|| {
                    let ops = combine_add(plan, weights, range.clone())?;
                    Some(Stage::CombineAdd { first: at, ops })
                })
                .or_else(|| {
                    let ops = linear::inputs(plan, weights, range.clone())?;
                    Some(Stage::LinearInputs { first: at, ops })
                })
                .or_else(|| {
                    let ops = linear::decode(plan, weights, range.clone())?;
                    Some(Stage::LinearDecode { first: at, ops })
                })
                .or_else(|| {
                    let ops = channel::decode(plan, weights, range.clone())?;
                    Some(Stage::ChannelDecode { first: at, ops })
                })
                .or_else(|| {
                    let ops = selective::conv_silu(plan, range.clone())?;
                    Some(Stage::ConvSilu { first: at, ops })
                })
                .or_else(|| {
                    let ops = selective::norms(plan, weights, range.clone())?;
                    Some(Stage::Norms { first: at, ops })
                })
                .or_else(|| {
                    let ops = selective::decode(plan, range)?;
                    Some(Stage::SelectiveDecode { first: at, ops })
                });
            let stage = merged.filter(|stage| !is_exported(part, stage));
            let stage = stage.unwrap_or(Stage::One(at));
            at = stage.ops().end;
            stages.push(stage);
        }
        Segment {
            ops: ops.clone(),
            stages_to_heads: to_heads(part, &stages),
            joined: { stages.windows(2) }
                .filter_map(|pair| joined(part, &pair[0], &pair[1]))
                .collect(),
            summed: { stages.windows(2) }
                .filter_map(|pair| summed(part, &pair[0], &pair[1]))
                .collect(),
            own: own::conversions(plan, &stages)
                .into_iter()
                .filter(|own| ops::converts(gpu, plan.acts[own.out.0 as usize].width))
                .collect(),
            stages,
        }
    });
    segments.collect()
}

/// Whether the other device reads a value that the stage does not write.
fn is_exported(part: &PlanPart, stage: &Stage) -> bool {
    let undefined = stage.undefined();
    let mut exporters = part.exporters.range(stage.ops());
    exporters.any(|&op| {
        let writes = part.plan.ops[op].writes();
        writes.iter().any(|id| undefined.contains(id))
    })
}

/// Matches attention and the conversion of its result, or gate and up of experts and the conversion of theirs, which nothing
/// else reads.
fn joined(part: &PlanPart, first: &Stage, next: &Stage) -> Option<(usize, ActsId)> {
    let &Stage::One(index) = next else {
        return None;
    };
    if let &Stage::One(attention) = first {
        let of_attention = [&part.plan.ops[attention], &part.plan.ops[index]];
        let [&Op::Attention { out: result, .. }, &Op::Quantize { x, out }] = of_attention else {
            return None;
        };
        return (x == result).then_some((index, out));
    }
    let &Stage::ExpertGate { ops, .. } = first else {
        return None;
    };
    let &Op::QuantizeExperts {
        x,
        rows_of: RowsOf::Choices,
        routing,
        out,
    } = &part.plan.ops[index]
    else {
        return None;
    };
    let is_only_converted = (x, routing) == (ops.out, ops.routing)
        && is_dead(&part.plan.ops[index + 1..], x, part.plan.logits)
        && part.exporters.range(first.ops()).next().is_none();
    is_only_converted.then_some((index, out))
}

/// Returns stages with latent attention as one stage where it can be.
fn to_heads(part: &PlanPart, stages: &[Stage]) -> Vec<Stage> {
    let mut all = Vec::new();
    let mut rest = stages;
    while let Some((stage, after)) = rest.split_first() {
        let merged = heads::attend_to_heads(&part.plan, rest);
        let merged = merged.filter(|stage| !is_exported(part, stage));
        let stage = merged.unwrap_or(*stage);
        let n_left = after
            .iter()
            .filter(|next| next.ops().start >= stage.ops().end);
        rest = &after[after.len() - n_left.count()..];
        all.push(stage);
    }
    all
}

/// Matches the norm of rows whose result is converted next.
fn norm_quantize(plan: &Plan, weights: &Weights, range: Range<usize>) -> Option<Stage> {
    let first = range.start;
    let &[
        Op::RmsNorm {
            x,
            weight,
            n_groups: 1,
            eps,
            out: normed,
        },
        Op::Quantize { x: read, out },
        ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let is_whole_row = weights.vector(weight).len() == plan.buffers[normed.0 as usize].width;
    let ops = NormQuantizeOps {
        x,
        weight,
        eps,
        normed,
        out,
    };
    (read == normed && is_whole_row).then_some(Stage::NormQuantize { first, ops })
}

/// Matches the norm of rows, the products of its result with a router's matrix, which nothing else reads converted, and the
/// choice of experts.
fn router(plan: &Plan, weights: &Weights, range: Range<usize>) -> Option<Stage> {
    let first = range.start;
    let Stage::NormQuantize { ops: norm, .. } = norm_quantize(plan, weights, range.clone())? else {
        return None;
    };
    let &[
        _,
        _,
        Op::MatMul {
            x,
            weight,
            bias,
            mode: OutMode::Store,
            out,
        },
        Op::Route { logits, .. },
        ref rest @ ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let ops = RouterOps {
        norm,
        matrix: Linear { weight, bias },
        logits,
    };
    let is_router = x == norm.out && out == logits && own::is_read_no_more(rest, x);
    is_router.then_some(Stage::Router { first, ops })
}

/// Matches gate and up projections whose result is only converted.
fn gated_quantize(plan: &Plan, range: Range<usize>) -> Option<Stage> {
    let first = range.start;
    let &[
        Op::GatedMatMul {
            x,
            gate,
            up,
            activation,
            out: gated,
        },
        Op::Quantize { x: read, out },
        ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let ops = GatedQuantizeOps {
        x,
        matrices: [gate, up],
        activation,
        unwritten: gated,
        out,
    };
    let is_only_converted = read == gated && is_dead(&plan.ops[first + 2..], gated, plan.logits);
    is_only_converted.then_some(Stage::GatedQuantize { first, ops })
}

/// Matches two expert GEMMs of the same rows whose results are used only by a gated activation.
fn expert_gate(plan: &Plan, range: Range<usize>) -> Option<Stage> {
    let first = range.start;
    let &[
        Op::ExpertMatMul {
            x,
            routing,
            weight: gate,
            scales: gate_scales,
            bias: gate_bias,
            stack: gate_stack,
            shared: gate_shared,
            out: gate_out,
        },
        Op::ExpertMatMul {
            x: up_x,
            routing: up_routing,
            weight: up,
            scales: up_scales,
            bias: up_bias,
            stack: up_stack,
            shared: up_shared,
            out: up_out,
        },
        Op::GatedActivation {
            activation,
            gate: gate_read,
            up: up_read,
            out,
        },
        ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let rest = &plan.ops[first + 3..];
    let width = |id: BufferId| plan.buffers[id.0 as usize].width;
    let alike = (x, routing, width(gate_out)) == (up_x, up_routing, width(up_out));
    let meet = (gate_read, up_read) == (gate_out, up_out) && gate_out != up_out;
    let apart = out != gate_out && out != up_out;
    let dead = [gate_out, up_out].map(|side| is_dead(rest, side, plan.logits));
    let ops = ExpertGateOps {
        x,
        routing,
        gate: (
            Linear {
                weight: gate,
                bias: gate_bias,
            },
            gate_stack,
        ),
        up: (
            Linear {
                weight: up,
                bias: up_bias,
            },
            up_stack,
        ),
        scales: [gate_scales, up_scales],
        shared: [gate_shared, up_shared],
        activation,
        out,
        unwritten: [gate_out, up_out],
    };
    let is_one = alike && activation.joins_products();
    (is_one && meet && apart && dead == [true; 2]).then_some(Stage::ExpertGate { first, ops })
}

/// Matches the weighted sum of the experts' outputs when its only use is an addition, with the norm of the result.
fn combine_add(plan: &Plan, weights: &Weights, range: Range<usize>) -> Option<CombineAddOps> {
    let (first, after) = (range.start, range.start + 2..range.end);
    let &[
        Op::CombineExperts {
            x,
            routing,
            weighed,
            out: sum,
        },
        Op::Add { x: added, out },
        ..,
    ] = &plan.ops[range]
    else {
        return None;
    };
    let rest = &plan.ops[first + 2..];
    let is_only_added = added == sum && out != sum && out != x;
    (is_only_added && is_dead(rest, sum, plan.logits)).then_some(CombineAddOps {
        x,
        routing: (routing, weighed),
        sum_unwritten: sum,
        out,
        norm: norm_after(plan, weights, after, out),
    })
}

/// Returns the operation of the products of experts, if nothing but the sum in the next stage reads them.
fn summed(part: &PlanPart, first: &Stage, next: &Stage) -> Option<usize> {
    let (&Stage::One(index), Stage::CombineAdd { ops, .. }) = (first, next) else {
        return None;
    };
    let plan = &part.plan;
    let &Op::ExpertMatMul { routing, out, .. } = &plan.ops[index] else {
        return None;
    };
    let is_only_summed = (ops.x, ops.routing.0) == (out, routing)
        && is_dead(&plan.ops[index + 2..], out, plan.logits)
        && part.exporters.range(first.ops()).next().is_none();
    is_only_summed.then_some(index)
}

/// Matches the norm of `x` and its conversion.
fn norm_after(
    plan: &Plan,
    weights: &Weights,
    range: Range<usize>,
    x: BufferId,
) -> Option<NormAfter> {
    if let Some(&Op::NormQuantize {
        x: read,
        weight,
        n_groups: 1,
        eps,
        out,
    }) = plan.ops[range.clone()].first()
    {
        return (read == x).then_some(NormAfter {
            weight,
            eps,
            normed: None,
            out,
            n_ops: 1,
        });
    }
    match norm_quantize(plan, weights, range)? {
        Stage::NormQuantize { ops, .. } if ops.x == x => Some(NormAfter {
            weight: ops.weight,
            eps: ops.eps,
            normed: Some(ops.normed),
            out: ops.out,
            n_ops: 2,
        }),
        _ => None,
    }
}

/// Matches optional norms of query and key heads, equal rotations of both, and the append of those keys to the KV
/// cache.
fn rope_kv(plan: &Plan, weights: &Weights, range: Range<usize>) -> Option<RopeKvOps> {
    let end = range.end;
    let ops = &plan.ops[range];
    let (norms, after) = match ops {
        [q @ Op::RmsNorm { .. }, k @ Op::RmsNorm { .. }, after @ ..] => (Some((q, k)), after),
        _ => (None, ops),
    };
    let &[
        Op::Rope {
            x: q,
            head_dim,
            start,
            table,
            style,
        },
        Op::Rope {
            x: rotated,
            head_dim: k_dim,
            start: k_start,
            table: k_table,
            style: k_style,
        },
        Op::KvAppend { layer, k, v },
        ref rest @ ..,
    ] = after
    else {
        return None;
    };
    // The fused kernel writes the rotated keys to the KV cache only.
    let is_of_cache = rotated == k && q != k && plan.kv[layer].k_dim == k_dim;
    let k_is_read = !is_dead(&plan.ops[end - rest.len()..], k, plan.logits);
    let alike = (head_dim, start, table, style) == (k_dim, k_start, k_table, k_style);
    if !alike || !is_of_cache || k_is_read {
        return None;
    }
    let mut found = RopeKvOps {
        q,
        q_out: q,
        k,
        v,
        layer,
        table,
        style,
        start,
        norms: None,
        k_unwritten: k,
    };
    if let Some((
        &Op::RmsNorm {
            x: q_in,
            weight: q_weight,
            n_groups: 1,
            eps,
            out: q_normed,
        },
        &Op::RmsNorm {
            x: k_in,
            weight: k_weight,
            n_groups: 1,
            eps: k_eps,
            out: k_normed,
        },
    )) = norms
    {
        let is_by_head = |weight| weights.vector(weight).len() == head_dim;
        // The rotated queries must not overlap the inputs. The rotated keys go to the KV cache only.
        let apart = ![q_in, k_in, v].contains(&q_normed);
        if (q_normed, k_normed, eps) != (q, k, k_eps)
            || !apart
            || !is_by_head(q_weight)
            || !is_by_head(k_weight)
        {
            return None;
        }
        (found.q, found.k) = (q_in, k_in);
        found.norms = Some(HeadNorms {
            q: q_weight,
            k: k_weight,
            eps,
        });
    }
    Some(found)
}
