//! The closed set of operations and the plan that holds them.

use std::collections::HashSet;

use crate::acts::ActFormat;
use crate::kv::{KvSpec, KvTypes};
use crate::params::{
    Activation, ExpertStack, Factor, OutMode, RopeStyle, Router, RowsOf, SharedWeight, Weighed,
};
use crate::rope::RopeTable;
use crate::state::{ConvForm, Decay, LinearHeads, LinearInputs, StateRule, StateSpec};

/// Id of a float buffer of the plan, `[rows, width]`, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Id of a buffer of activations in the format that a matrix product reads (see [`ActFormat`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActsId(pub u32);

/// Id of a tensor of the model: its index in [`Weights`](crate::Weights).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Id of a rotation table of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

/// Id of a routing: the experts chosen for each token of a step by `Op::Route`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoutingId(pub u32);

/// The number of rows of a buffer, which depends on the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCount {
    /// One row per token of the batch.
    Tokens,
    /// One row per token whose logits are needed.
    Logits,
    /// One row per token and chosen expert (`n_used` of them), sorted by expert.
    Choices { n_used: usize },
    /// One row per token and head, sorted by head.
    Heads { n_heads: usize },
}

impl RowCount {
    /// Returns the number of rows in a batch of `n_tokens` tokens, `n_logits` of which need logits.
    pub fn rows(self, n_tokens: usize, n_logits: usize) -> usize {
        match self {
            RowCount::Tokens => n_tokens,
            RowCount::Logits => n_logits,
            RowCount::Choices { n_used } => n_tokens.saturating_mul(n_used),
            RowCount::Heads { n_heads } => n_tokens.saturating_mul(n_heads),
        }
    }
}

/// Shape of a float buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferInfo {
    pub rows: RowCount,
    /// Values per row.
    pub width: usize,
}

/// Shape and format of an activation buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActsInfo {
    pub rows: RowCount,
    pub width: usize,
    pub format: ActFormat,
}

/// How dot products of Q and K become attention scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scores {
    /// Factor on the dot products.
    pub scale: f32,
    /// `Some(cap)` replaces a scaled product `x` by `cap * tanh(x / cap)`.
    pub soft_cap: Option<f32>,
    /// A second factor on the dot products, which grows with the position of the query.
    pub growth: Option<Growth>,
    /// What is subtracted from scores of positions far away.
    pub alibi: Option<Alibi>,
}

/// Attention with linear biases (Press et al. 2021): a score loses the head's slope times the distance of the positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alibi {
    /// The slopes of `n` heads, a power of two, are `2^(-max_bias / n)` and its powers.
    pub max_bias: f32,
}

impl Alibi {
    /// Returns the slope of `head`, one of `n_heads`. Heads beyond a power of two have every other slope of twice as many.
    pub fn slope(self, head: usize, n_heads: usize) -> f32 {
        let n = 1 << n_heads.ilog2();
        let (step, power) = match head.checked_sub(n) {
            None => (self.max_bias / n as f32, head + 1),
            Some(beyond) => (self.max_bias / (2 * n) as f32, 2 * beyond + 1),
        };
        f64::from(-step * power as f32).exp2() as f32
    }
}

/// The factor `1 + slope * ln(1 + floor((position + offset) / step))`, which sharpens attention in long contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    pub slope: f32,
    /// Not 0.
    pub step: u32,
    pub offset: u32,
}

impl Growth {
    /// Returns the factor at `position`.
    pub fn at(self, position: usize) -> f32 {
        let steps = (position as u64 + u64::from(self.offset)) / u64::from(self.step);
        (1.0 + f64::from(self.slope) * (1.0 + steps as f64).ln()) as f32
    }
}

/// The weights with which parts of rows are mixed, `[n_out, n_in]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MixWeights {
    /// Those of each row are a row of this buffer.
    OfRows(BufferId),
    /// A vector for all rows.
    Same(WeightId),
}

/// A matrix `[n_out, n_in]` and its bias `[n_out]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    pub weight: WeightId,
    pub bias: Option<WeightId>,
}

/// One operation. Shapes are those of its buffers; `t` is a token of the batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out[t] = table[token[t]] * scale`, dequantized.
    Embed {
        table: WeightId,
        scale: f32,
        out: BufferId,
    },
    /// `out[t] += table[position[t]]`, dequantized. Beyond the table its last row is added, so a table of one row is added
    /// everywhere.
    AddPositions { table: WeightId, out: BufferId },
    /// `out = x / sqrt(mean(x^2) + eps) * weight` over groups of `weight.len() / n_groups` values (a whole row, or each head).
    /// So many neighbouring groups have weights of their own.
    RmsNorm {
        x: BufferId,
        weight: WeightId,
        n_groups: usize,
        eps: f32,
        out: BufferId,
    },
    /// `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` over whole rows.
    LayerNorm {
        x: BufferId,
        weight: WeightId,
        bias: WeightId,
        eps: f32,
        out: BufferId,
    },
    /// Converts `x` to the format that the following products read.
    Quantize { x: BufferId, out: ActsId },
    /// `out (+)= x * weight^T (+ bias)`; `weight` is `[n_out, n_in]`.
    MatMul {
        x: ActsId,
        weight: WeightId,
        bias: Option<WeightId>,
        mode: OutMode,
        out: BufferId,
    },
    /// `RmsNorm` and `Quantize` in one pass; the normed values are not stored in a buffer. The weights are of whole rows.
    NormQuantize {
        x: BufferId,
        weight: WeightId,
        n_groups: usize,
        eps: f32,
        out: ActsId,
    },
    /// `MatMul` with several matrices in one pass, each product stored in its own buffer.
    MatMuls {
        x: ActsId,
        products: Vec<(Linear, BufferId)>,
    },
    /// `out = activation(x * gate^T) * (x * up^T)` in one pass.
    GatedMatMul {
        x: ActsId,
        gate: Linear,
        up: Linear,
        activation: Activation,
        out: BufferId,
    },
    /// Chooses the experts of each token, and their weights, from `logits` (one per expert). The scores plus `bias` decide
    /// the choice, the scores alone the weights, which `scales` multiplies. A `shared` expert, whose number is the next
    /// one, is the last choice of every token.
    Route {
        logits: BufferId,
        bias: Option<WeightId>,
        scales: Option<WeightId>,
        router: Router,
        shared: Option<SharedWeight<BufferId>>,
        out: RoutingId,
    },
    /// As `Quantize`, with a row per token and expert; `rows_of` says what the rows of `x` are.
    QuantizeExperts {
        x: BufferId,
        rows_of: RowsOf,
        routing: RoutingId,
        out: ActsId,
    },
    /// `out[row] = x[row] * weight[e]^T (* scales[e]) (+ bias[e])`, `e` the expert of the row; `weight` is
    /// `[n_matrices * n_out, n_in]`, of which `stack` says what is an expert's, `scales` `[n_experts]` and `bias`
    /// `[n_experts * n_out]`. The matrix of a shared expert, `[n_out, n_in]` of the same type, is `shared`; then there are
    /// no scales and no biases.
    ExpertMatMul {
        x: ActsId,
        routing: RoutingId,
        weight: WeightId,
        scales: Option<WeightId>,
        bias: Option<WeightId>,
        stack: ExpertStack,
        shared: Option<WeightId>,
        out: BufferId,
    },
    /// `out[t] = sum(weight * x[row])` over the experts of token `t`, best first; `sum(x[row])` if the weights multiplied
    /// the inputs.
    CombineExperts {
        x: BufferId,
        routing: RoutingId,
        weighed: Weighed,
        out: BufferId,
    },
    /// As `Quantize`, with a row per token and head, sorted by head: values of each head of `x` from `start` on.
    QuantizeHeads {
        x: BufferId,
        start: usize,
        out: ActsId,
    },
    /// `out[row] = x[row] * weight[head of row]^T`; `weight` is `[n_heads * n_out, n_in]`, the heads' matrices stacked.
    HeadMatMul {
        x: ActsId,
        weight: WeightId,
        n_heads: usize,
        out: BufferId,
    },
    /// `out[t, head] = x[row of t and head]`, followed by as many of the last values of `rest[t, head]` as fill the head.
    /// The rows of `x` are sorted by head, as those of `HeadMatMul`.
    JoinHeads {
        n_heads: usize,
        x: BufferId,
        rest: Option<BufferId>,
        out: BufferId,
    },
    /// Rotates `n_rot` values of every head of `x`, from `start` on, by the token's position.
    Rope {
        x: BufferId,
        head_dim: usize,
        start: usize,
        table: RopeId,
        style: RopeStyle,
    },
    /// Writes K and V rows of each token into its slot of the layer's cache. `v` is `k` if the values are in the keys.
    KvAppend {
        layer: usize,
        k: BufferId,
        v: BufferId,
    },
    /// Softmax attention of each token over its sequence's cache, up to and including the token itself. Each head may
    /// have a sink: a score that takes part in the softmax, but has no value.
    Attention {
        layer: usize,
        n_heads: usize,
        scores: Scores,
        sinks: Option<WeightId>,
        q: BufferId,
        out: BufferId,
    },
    /// `out = activation(x)`.
    Activate {
        activation: Activation,
        x: BufferId,
        out: BufferId,
    },
    /// `out = activation(gate) * up`. A narrower `gate` has a value for each group of values of `up`, such as a head.
    GatedActivation {
        activation: Activation,
        gate: BufferId,
        up: BufferId,
        out: BufferId,
    },
    /// `out += x`.
    Add { x: BufferId, out: BufferId },
    /// `out[t] += x[t] / (1 + e^-gate[t])`; `gate` has one value per row.
    AddGated {
        gate: BufferId,
        x: BufferId,
        out: BufferId,
    },
    /// `out[t, i] (+)= sum(weights[t, i, j] * x[t, j])` over the parts `j` of a row, of `part` values each.
    Mix {
        weights: MixWeights,
        part: usize,
        x: BufferId,
        mode: OutMode,
        out: BufferId,
    },
    /// `x[t, i] *= |like[t]| / |x[t, i]|` for parts of a row as wide as `like`: the root of the sum of squares becomes that of
    /// `like`.
    MatchLength { like: BufferId, x: BufferId },
    /// `x = max(x - mean(x) - factor * deviation(x), 0)` over whole rows; the deviation is that of a sample.
    Sparsify { factor: f32, x: BufferId },
    /// `x *= by`.
    Scale { by: Factor, x: BufferId },
    /// `x = cap * tanh(x / cap)`.
    SoftCap { cap: f32, x: BufferId },
    /// Copies the rows whose logits are needed.
    SelectRows { x: BufferId, out: BufferId },
    /// Copies a part of each of `n_groups` groups of values of a row, such as heads, from its value `first` on. The parts
    /// fill the rows of `out`.
    CopyPart {
        x: BufferId,
        n_groups: usize,
        first: usize,
        out: BufferId,
    },
    /// Convolution of each value of a row with its last values, `out[t, c] = form(sum(weight[i, c] * x[t - n + 1 + i, c]) +
    /// bias[c])`; `weight` is `[n, width]`. The state is the last `n - 1` rows before, `[n - 1, width]`.
    CausalConv {
        state: usize,
        weight: WeightId,
        bias: Option<WeightId>,
        form: ConvForm,
        x: BufferId,
        out: BufferId,
    },
    /// `out` is what comes with the batch: [`Batch::imports`](crate::Batch::imports). The first operation of a plan.
    Import { out: BufferId },
    /// `x`, which has a row for each token, goes out beside the logits: [`StepOutput::exports`](crate::StepOutput::exports). The
    /// last operation of a plan.
    Export { x: BufferId },
    /// Linear attention with a state `S` `[k_dim, v_dim]` for each head: `S <- e^decay S + k d^T; out = S^T q`, where `d` is
    /// `beta (v - e^decay S^T k)` or `beta v`, by `rule`. `decay` says which values of `S` have the same factor.
    LinearAttention {
        state: usize,
        heads: LinearHeads,
        rule: StateRule,
        decay: Decay<WeightId>,
        inputs: LinearInputs<BufferId>,
        out: BufferId,
    },
}

impl Op {
    /// The operation's name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::AddPositions { .. } => "add_positions",
            Op::RmsNorm { .. } => "rms_norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::Quantize { .. } => "quantize",
            Op::MatMul { .. } => "matmul",
            Op::NormQuantize { .. } => "norm_quantize",
            Op::MatMuls { .. } => "matmuls",
            Op::GatedMatMul { .. } => "gated_matmul",
            Op::Route { .. } => "route",
            Op::QuantizeExperts { .. } => "quantize_experts",
            Op::ExpertMatMul { .. } => "expert_matmul",
            Op::CombineExperts { .. } => "combine_experts",
            Op::QuantizeHeads { .. } => "quantize_heads",
            Op::HeadMatMul { .. } => "head_matmul",
            Op::JoinHeads { .. } => "join_heads",
            Op::Rope { .. } => "rope",
            Op::KvAppend { .. } => "kv_append",
            Op::Attention { .. } => "attention",
            Op::Activate { .. } => "activate",
            Op::GatedActivation { .. } => "gated_activation",
            Op::Add { .. } => "add",
            Op::AddGated { .. } => "add_gated",
            Op::Mix { .. } => "mix",
            Op::MatchLength { .. } => "match_length",
            Op::Sparsify { .. } => "sparsify",
            Op::Scale { .. } => "scale",
            Op::SoftCap { .. } => "soft_cap",
            Op::SelectRows { .. } => "select_rows",
            Op::CopyPart { .. } => "copy_part",
            Op::CausalConv { .. } => "causal_conv",
            Op::LinearAttention { .. } => "linear_attention",
            Op::Import { .. } => "import",
            Op::Export { .. } => "export",
        }
    }

    /// Returns the float buffers this operation reads.
    pub fn reads(&self) -> Vec<BufferId> {
        match *self {
            Op::Embed { .. }
            | Op::Import { .. }
            | Op::ExpertMatMul { .. }
            | Op::HeadMatMul { .. }
            | Op::MatMuls { .. }
            | Op::GatedMatMul { .. } => vec![],
            Op::Route { logits, shared, .. } => {
                let gate = shared.and_then(SharedWeight::gate);
                gate.into_iter().chain([logits]).collect()
            }
            Op::AddPositions { out, .. } => vec![out],
            Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::Quantize { x, .. }
            | Op::NormQuantize { x, .. }
            | Op::QuantizeExperts { x, .. }
            | Op::CombineExperts { x, .. }
            | Op::QuantizeHeads { x, .. }
            | Op::Rope { x, .. }
            | Op::Activate { x, .. }
            | Op::Sparsify { x, .. }
            | Op::Scale { x, .. }
            | Op::SoftCap { x, .. }
            | Op::SelectRows { x, .. }
            | Op::CopyPart { x, .. }
            | Op::CausalConv { x, .. }
            | Op::Export { x } => vec![x],
            Op::LinearAttention { inputs, .. } => inputs.into_array().to_vec(),
            Op::MatMul { mode, out, .. } => match mode {
                OutMode::Add => vec![out],
                OutMode::Store => vec![],
            },
            Op::JoinHeads { x, rest, .. } => [Some(x), rest].into_iter().flatten().collect(),
            Op::KvAppend { k, v, .. } => vec![k, v],
            Op::Attention { q, .. } => vec![q],
            Op::GatedActivation { gate, up, .. } => vec![gate, up],
            Op::Add { x, out } => vec![x, out],
            Op::AddGated { gate, x, out } => vec![gate, x, out],
            Op::Mix {
                weights,
                x,
                mode,
                out,
                ..
            } => {
                let weights = match weights {
                    MixWeights::OfRows(weights) => Some(weights),
                    MixWeights::Same(_) => None,
                };
                let sum = (mode == OutMode::Add).then_some(out);
                [weights, Some(x), sum].into_iter().flatten().collect()
            }
            Op::MatchLength { like, x } => vec![like, x],
        }
    }

    /// Returns the matrices this operation multiplies with.
    pub fn matrices(&self) -> Vec<WeightId> {
        match self {
            Op::MatMul { weight, .. } | Op::HeadMatMul { weight, .. } => vec![*weight],
            Op::ExpertMatMul { weight, shared, .. } => {
                [Some(*weight), *shared].into_iter().flatten().collect()
            }
            Op::MatMuls { products, .. } => {
                products.iter().map(|(linear, _)| linear.weight).collect()
            }
            Op::GatedMatMul { gate, up, .. } => vec![gate.weight, up.weight],
            _ => vec![],
        }
    }

    /// Returns the matrix whose rows this operation looks up.
    pub fn table(&self) -> Option<WeightId> {
        match *self {
            Op::Embed { table, .. } | Op::AddPositions { table, .. } => Some(table),
            _ => None,
        }
    }

    /// Returns the vectors this operation reads: norm weights, biases and factors.
    pub fn vectors(&self) -> Vec<WeightId> {
        match self {
            Op::RmsNorm { weight, .. } | Op::NormQuantize { weight, .. } => vec![*weight],
            Op::LayerNorm { weight, bias, .. } => vec![*weight, *bias],
            Op::MatMul { bias, .. } => bias.iter().copied().collect(),
            Op::Route { bias, scales, .. } | Op::ExpertMatMul { bias, scales, .. } => {
                bias.iter().chain(scales).copied().collect()
            }
            Op::Scale {
                by: Factor::Vector(weight),
                ..
            } => vec![*weight],
            Op::Mix {
                weights: MixWeights::Same(weights),
                ..
            } => vec![*weights],
            Op::Attention { sinks, .. } => sinks.iter().copied().collect(),
            Op::CausalConv { weight, bias, .. } => {
                [Some(*weight), *bias].into_iter().flatten().collect()
            }
            Op::LinearAttention {
                decay: Decay::Value(rates),
                ..
            } => vec![*rates],
            Op::MatMuls { products, .. } => products
                .iter()
                .filter_map(|(linear, _)| linear.bias)
                .collect(),
            Op::GatedMatMul { gate, up, .. } => {
                [gate.bias, up.bias].into_iter().flatten().collect()
            }
            _ => vec![],
        }
    }

    /// Returns the converted activations this operation reads.
    pub fn acts_read(&self) -> Option<ActsId> {
        match *self {
            Op::MatMul { x, .. }
            | Op::MatMuls { x, .. }
            | Op::GatedMatMul { x, .. }
            | Op::ExpertMatMul { x, .. }
            | Op::HeadMatMul { x, .. } => Some(x),
            _ => None,
        }
    }

    /// Returns the converted activations this operation writes.
    pub fn acts_written(&self) -> Option<ActsId> {
        match *self {
            Op::Quantize { out, .. }
            | Op::NormQuantize { out, .. }
            | Op::QuantizeExperts { out, .. }
            | Op::QuantizeHeads { out, .. } => Some(out),
            _ => None,
        }
    }

    /// Returns the routing this operation writes or reads.
    pub fn routing(&self) -> Option<RoutingId> {
        match *self {
            Op::Route { out, .. } => Some(out),
            Op::QuantizeExperts { routing, .. }
            | Op::ExpertMatMul { routing, .. }
            | Op::CombineExperts { routing, .. } => Some(routing),
            _ => None,
        }
    }

    /// Returns the shape of the routing this operation writes: the experts, those of a token, and how many of both are
    /// shared.
    pub fn routing_shape(&self, buffers: &[BufferInfo]) -> Option<[usize; 3]> {
        match self {
            Op::Route {
                logits,
                router,
                shared,
                ..
            } => {
                let n_shared = usize::from(shared.is_some());
                let n_experts = buffers[logits.0 as usize].width;
                let n_used = router.n_used + n_shared;
                Some([n_experts + n_shared, n_used, n_shared])
            }
            _ => None,
        }
    }

    /// Returns the layer of the KV cache this operation writes or reads.
    pub fn kv_layer(&self) -> Option<usize> {
        match *self {
            Op::KvAppend { layer, .. } | Op::Attention { layer, .. } => Some(layer),
            _ => None,
        }
    }

    /// Returns the state this operation reads and writes.
    pub fn state(&self) -> Option<usize> {
        match *self {
            Op::CausalConv { state, .. } | Op::LinearAttention { state, .. } => Some(state),
            _ => None,
        }
    }

    /// Returns the float buffers this operation writes.
    pub fn writes(&self) -> Vec<BufferId> {
        match *self {
            Op::Embed { out, .. }
            | Op::Import { out }
            | Op::AddPositions { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::MatMul { out, .. }
            | Op::GatedMatMul { out, .. }
            | Op::ExpertMatMul { out, .. }
            | Op::CombineExperts { out, .. }
            | Op::HeadMatMul { out, .. }
            | Op::JoinHeads { out, .. }
            | Op::Attention { out, .. }
            | Op::Activate { out, .. }
            | Op::GatedActivation { out, .. }
            | Op::Add { out, .. }
            | Op::AddGated { out, .. }
            | Op::Mix { out, .. }
            | Op::SelectRows { out, .. }
            | Op::CopyPart { out, .. }
            | Op::CausalConv { out, .. }
            | Op::LinearAttention { out, .. } => vec![out],
            Op::MatMuls { ref products, .. } => products.iter().map(|(_, out)| *out).collect(),
            Op::Rope { x, .. }
            | Op::MatchLength { x, .. }
            | Op::Sparsify { x, .. }
            | Op::Scale { x, .. }
            | Op::SoftCap { x, .. } => vec![x],
            Op::Quantize { .. }
            | Op::NormQuantize { .. }
            | Op::QuantizeExperts { .. }
            | Op::QuantizeHeads { .. }
            | Op::Route { .. }
            | Op::KvAppend { .. }
            | Op::Export { .. } => vec![],
        }
    }
}

/// The recorded computation of one step, from token ids to the logits of the requested rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub ops: Vec<Op>,
    /// The first operation of each layer. Those before the first layer look tokens up; the last layer is followed by those
    /// that compute the output.
    pub layers: Vec<usize>,
    pub buffers: Vec<BufferInfo>,
    pub acts: Vec<ActsInfo>,
    /// Number of routings.
    pub n_routings: usize,
    /// One entry per attention layer, indexed by `Op::KvAppend::layer`.
    pub kv: Vec<KvSpec>,
    /// Where these layers are in the cache of another model's plan; empty if they are its own.
    pub borrowed: Vec<usize>,
    /// One entry for each operation that keeps a state of each sequence.
    pub states: Vec<StateSpec>,
    pub rope: Vec<RopeTable>,
    /// `[n_logits_rows, n_vocab]`; in a plan for embeddings the hidden values, or scores, of these rows.
    pub logits: BufferId,
}

impl Plan {
    /// Returns whether `op` works only on rows that need logits, so that a step without such rows can skip it.
    pub fn is_for_logits(&self, op: &Op) -> bool {
        if let Op::Quantize { out, .. } | Op::NormQuantize { out, .. } = op {
            return self.acts[out.0 as usize].rows == RowCount::Logits;
        }
        let rows = |out: &BufferId| self.buffers[out.0 as usize].rows;
        op.writes().first().map(rows) == Some(RowCount::Logits)
    }

    /// Returns the buffer for what comes with a batch.
    pub fn import(&self) -> Option<BufferId> {
        match self.ops.first() {
            Some(Op::Import { out }) => Some(*out),
            _ => None,
        }
    }

    /// Returns the buffer that goes out beside the logits.
    pub fn export(&self) -> Option<BufferId> {
        match self.ops.last() {
            Some(Op::Export { x }) => Some(*x),
            _ => None,
        }
    }

    /// Returns whether tokens see those after them, so that each sequence must be computed whole, in one step.
    pub fn looks_ahead(&self) -> bool {
        self.kv.iter().any(|spec| spec.mask.looks_ahead())
    }

    /// Returns the bytes that one token takes in a KV cache of these types, none if that is another model's.
    pub fn kv_bytes_per_token(&self, kv_types: impl Into<KvTypes>) -> u64 {
        if !self.borrowed.is_empty() {
            return 0;
        }
        let kv_types = kv_types.into();
        let layers = self.kv.iter();
        layers.map(|spec| spec.bytes_per_token(kv_types)).sum()
    }

    /// Returns an upper bound of the bytes of all buffers in a step of `n_tokens` tokens and `n_logits` rows of logits.
    pub fn buffer_bytes(&self, n_tokens: usize, n_logits: usize) -> u64 {
        let n_rows = |rows: RowCount| rows.rows(n_tokens, n_logits) as u64;
        let floats = self
            .buffers
            .iter()
            .map(|buffer| (buffer.rows, buffer.width, 4));
        let acts = self.acts.iter().map(|acts| {
            let value_bytes = match acts.format {
                ActFormat::F32 => 4,
                // One byte, and a share of scales and sums.
                ActFormat::Q8x32 | ActFormat::Q8x256 => 2,
            };
            (acts.rows, acts.width, value_bytes)
        });
        floats
            .chain(acts)
            .map(|(rows, width, value_bytes)| {
                n_rows(rows)
                    .saturating_mul(width as u64)
                    .saturating_mul(value_bytes)
            })
            .fold(0, u64::saturating_add)
    }
    /// Sets the width of everything that no operation uses to 0, so that it takes no memory.
    pub(crate) fn forget_unused(&mut self) {
        let Plan {
            ops,
            buffers,
            acts,
            kv,
            states,
            ..
        } = self;
        let touched: HashSet<BufferId> = ops
            .iter()
            .flat_map(|op| [op.reads(), op.writes()].concat())
            .collect();
        for (id, buffer) in (0..).zip(buffers) {
            if !touched.contains(&BufferId(id)) {
                buffer.width = 0;
            }
        }
        let written: HashSet<ActsId> = ops.iter().filter_map(Op::acts_written).collect();
        for (id, acts) in (0..).zip(acts) {
            if !written.contains(&ActsId(id)) {
                acts.width = 0;
            }
        }
        let cached: HashSet<usize> = ops.iter().filter_map(Op::kv_layer).collect();
        for (layer, kv) in kv.iter_mut().enumerate() {
            if !cached.contains(&layer) {
                kv.n_kv_heads = 0;
            }
        }
        let kept: HashSet<usize> = ops.iter().filter_map(Op::state).collect();
        for (id, state) in states.iter_mut().enumerate() {
            if !kept.contains(&id) {
                state.len = 0;
            }
        }
    }
}
