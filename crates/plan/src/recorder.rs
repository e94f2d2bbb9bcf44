//! The recorder: a model's code calls one method per operation, and gets a plan.

use std::collections::HashMap;

use crate::acts::ActFormat;
use crate::kv::KvSpec;
use crate::liveness::share_buffers;
use crate::op::{
    ActsId, ActsInfo, BufferId, BufferInfo, MixWeights, Op, Plan, RopeId, RoutingId, RowCount,
    Scores, WeightId,
};
use crate::params::{
    Activation, ExpertStack, ExpertVectors, Factor, OutMode, RopeStyle, Router, RowsOf, Weighed,
};
use crate::rope::RopeTable;
use crate::state::{ConvForm, Decay, LinearHeads, LinearInputs, StateRule, StateSpec};

/// What an operation of a plan computes: `[rows, width]`. A value ends where an operation changes it in place; that
/// operation returns the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    id: BufferId,
    /// How often the buffer had been changed in place.
    version: u32,
    rows: RowCount,
    width: usize,
}

impl Value {
    /// Values per row.
    pub fn width(self) -> usize {
        self.width
    }
}

/// The experts that a router chose for each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routing {
    id: RoutingId,
    n_used: usize,
    weighed: Weighed,
}

impl Routing {
    /// The same choice, whose weights multiply something else than the outputs.
    pub fn weighing(self, weighed: Weighed) -> Routing {
        Routing { weighed, ..self }
    }
}

/// The weights with which parts of rows are mixed, `[n_out, n_in]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    /// Those of each row.
    OfRows(Value),
    /// A vector for all rows.
    Same(WeightId),
}

/// A matrix, its bias, and the format of the activations that it multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Projection {
    pub weight: WeightId,
    pub bias: Option<WeightId>,
    pub format: ActFormat,
}

impl Projection {
    /// A matrix without a bias.
    pub fn of(weight: WeightId, format: ActFormat) -> Projection {
        Projection {
            weight,
            bias: None,
            format,
        }
    }
}

/// The stacked matrices of experts with their biases, and a factor for each expert's products, `[n_experts]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertProjection {
    pub linear: Projection,
    pub scales: Option<WeightId>,
    /// Which of the matrices are the experts'.
    pub stack: ExpertStack,
}

/// Records a [`Plan`]. Activations that several products read in the same format are converted once.
#[derive(Debug, Default)]
pub struct Recorder {
    ops: Vec<Op>,
    /// The buffers, and how often each was changed in place.
    buffers: Vec<(BufferInfo, u32)>,
    acts: Vec<ActsInfo>,
    kv: Vec<KvSpec>,
    borrowed: Vec<usize>,
    states: Vec<StateSpec>,
    rope: Vec<RopeTable>,
    n_routings: usize,
    /// The forms to which each buffer's present value has been converted.
    converted: HashMap<BufferId, Vec<(Form, ActsId)>>,
    /// Low-rank products that no later operation has needed so far.
    pending: Vec<LowRank>,
    /// The first operation of each layer.
    layers: Vec<usize>,
}

/// `out += b (a x)`.
#[derive(Debug, Clone, Copy)]
struct LowRank {
    x: Value,
    a: WeightId,
    rank: usize,
    b: WeightId,
    out: Value,
}

/// How a value is converted for products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    format: ActFormat,
    /// The routing that sorts the rows, for products with experts.
    routing: Option<RoutingId>,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder::default()
    }

    fn new_value(&mut self, rows: RowCount, width: usize) -> Value {
        self.buffers.push((BufferInfo { rows, width }, 0));
        Value {
            id: BufferId(self.buffers.len() as u32 - 1),
            version: 0,
            rows,
            width,
        }
    }

    /// Returns the buffer of a value.
    ///
    /// # Panics
    /// If an operation has changed the value in place.
    fn at(&self, x: Value) -> BufferId {
        let (_, version) = self.buffers[x.id.0 as usize];
        assert_eq!(version, x.version, "value {} was changed in place", x.id.0);
        x.id
    }

    /// Ends the value `x`, which an operation changes in place, and returns the new one.
    fn changed(&mut self, x: Value) -> Value {
        let (_, version) = &mut self.buffers[x.id.0 as usize];
        *version += 1;
        Value {
            version: *version,
            ..x
        }
    }

    fn push(&mut self, op: Op) {
        let (reads, writes) = (op.reads(), op.writes());
        let touches = |p: &LowRank| {
            reads.contains(&p.out.id) || writes.contains(&p.out.id) || writes.contains(&p.x.id)
        };
        if self.pending.iter().any(touches) {
            self.add_pending();
        }
        for written in writes {
            self.converted.remove(&written);
        }
        self.ops.push(op);
    }

    fn acts(&mut self, x: Value, format: ActFormat) -> ActsId {
        let form = Form {
            format,
            routing: None,
        };
        if let Some(acts) = self.known(x, form) {
            return acts;
        }
        let out = self.new_acts(x.rows, x.width, format);
        self.push(Op::Quantize { x: x.id, out });
        self.remember(x, form, out)
    }

    /// Returns `x` converted for products with experts; its rows are tokens, or choices of `routing`.
    fn expert_acts(&mut self, x: Value, format: ActFormat, routing: Routing) -> ActsId {
        let form = Form {
            format,
            routing: Some(routing.id),
        };
        if let Some(acts) = self.known(x, form) {
            return acts;
        }
        let rows_of = match (x.rows, routing.weighed) {
            (RowCount::Choices { .. }, _) => RowsOf::Choices,
            (_, Weighed::Outputs) => RowsOf::Tokens,
            (_, Weighed::Inputs) => RowsOf::WeighedTokens,
        };
        let n_used = routing.n_used;
        let out = self.new_acts(RowCount::Choices { n_used }, x.width, format);
        self.push(Op::QuantizeExperts {
            x: x.id,
            rows_of,
            routing: routing.id,
            out,
        });
        self.remember(x, form, out)
    }

    /// Returns the present value `x` in a form to which it has already been converted.
    fn known(&self, x: Value, form: Form) -> Option<ActsId> {
        let mut known = self.converted.get(&self.at(x))?.iter();
        known
            .find(|(known, _)| *known == form)
            .map(|(_, acts)| *acts)
    }

    fn remember(&mut self, x: Value, form: Form, acts: ActsId) -> ActsId {
        self.converted.entry(x.id).or_default().push((form, acts));
        acts
    }

    fn new_acts(&mut self, rows: RowCount, width: usize, format: ActFormat) -> ActsId {
        self.acts.push(ActsInfo {
            rows,
            width,
            format,
        });
        ActsId(self.acts.len() as u32 - 1)
    }

    /// Records the rows of `table` for the tokens, times `scale`.
    pub fn embed(&mut self, table: WeightId, scale: f32, width: usize) -> Value {
        let out = self.new_value(RowCount::Tokens, width);
        self.push(Op::Embed {
            table,
            scale,
            out: out.id,
        });
        out
    }

    /// Records rows of `width` values that come with the batch, one for each token.
    ///
    /// # Panics
    /// If it is not the first operation: devices may have the values before they begin.
    pub fn import(&mut self, width: usize) -> Value {
        assert!(self.ops.is_empty(), "imports come first");
        let out = self.new_value(RowCount::Tokens, width);
        self.push(Op::Import { out: out.id });
        out
    }

    /// Adds the rows of `table` for the tokens' positions to `x`.
    pub fn add_positions(&mut self, table: WeightId, x: Value) -> Value {
        let out = self.at(x);
        self.push(Op::AddPositions { table, out });
        self.changed(x)
    }

    /// Records the RMS norm of groups of values, as many as `weight` has.
    pub fn rms_norm(&mut self, x: Value, weight: WeightId, eps: f32) -> Value {
        self.rms_norm_groups(x, (weight, 1), eps)
    }

    /// Records the RMS norm of groups of values; `weight` has those of so many groups.
    pub fn rms_norm_groups(
        &mut self,
        x: Value,
        (weight, n_groups): (WeightId, usize),
        eps: f32,
    ) -> Value {
        let out = self.new_value(x.rows, x.width);
        let (x, out_id) = (self.at(x), out.id);
        self.push(Op::RmsNorm {
            x,
            weight,
            n_groups,
            eps,
            out: out_id,
        });
        out
    }

    pub fn layer_norm(&mut self, x: Value, weight: WeightId, bias: WeightId, eps: f32) -> Value {
        let out = self.new_value(x.rows, x.width);
        let (x, out_id) = (self.at(x), out.id);
        self.push(Op::LayerNorm {
            x,
            weight,
            bias,
            eps,
            out: out_id,
        });
        out
    }

    /// Records `x * weight^T + bias`, of `n_out` values per row.
    pub fn matmul(&mut self, x: Value, linear: Projection, n_out: usize) -> Value {
        let acts = self.acts(x, linear.format);
        let out = self.new_value(x.rows, n_out);
        self.push(Op::MatMul {
            x: acts,
            weight: linear.weight,
            bias: linear.bias,
            mode: OutMode::Store,
            out: out.id,
        });
        out
    }

    /// Chooses the experts of each token from `logits`, one per expert.
    pub fn route(
        &mut self,
        logits: Value,
        ExpertVectors { bias, scales }: ExpertVectors<WeightId>,
        router: Router,
    ) -> Routing {
        let out = Routing {
            id: RoutingId(self.n_routings as u32),
            n_used: router.n_used,
            weighed: Weighed::Outputs,
        };
        self.n_routings += 1;
        self.push(Op::Route {
            logits: self.at(logits),
            bias,
            scales,
            router,
            shared: None,
            out: out.id,
        });
        out
    }

    /// Records the product of every row with its expert's matrix; a row per token and chosen expert.
    pub fn expert_matmul(
        &mut self,
        x: Value,
        routing: Routing,
        experts: ExpertProjection,
        n_out: usize,
    ) -> Value {
        let linear = experts.linear;
        let acts = self.expert_acts(x, linear.format, routing);
        let n_used = routing.n_used;
        let out = self.new_value(RowCount::Choices { n_used }, n_out);
        self.push(Op::ExpertMatMul {
            x: acts,
            routing: routing.id,
            weight: linear.weight,
            scales: experts.scales,
            bias: linear.bias,
            stack: experts.stack,
            shared: None,
            out: out.id,
        });
        out
    }

    /// Records the weighted sum over the experts of each token.
    pub fn combine_experts(&mut self, x: Value, routing: Routing) -> Value {
        let out = self.new_value(RowCount::Tokens, x.width);
        self.push(Op::CombineExperts {
            x: self.at(x),
            routing: routing.id,
            weighed: routing.weighed,
            out: out.id,
        });
        out
    }

    /// Records the product of each head of `x` with the head's matrix: of `n_in` values of a head from `start` on. A row
    /// per token and head, sorted by head, of `n_out` values. `linear` holds the matrices of `n_heads` heads, and no
    /// bias.
    pub fn head_matmul(
        &mut self,
        x: Value,
        [start, n_in]: [usize; 2],
        (linear, n_heads): (Projection, usize),
        n_out: usize,
    ) -> Value {
        let rows = RowCount::Heads { n_heads };
        let acts = self.new_acts(rows, n_in, linear.format);
        let x = self.at(x);
        self.push(Op::QuantizeHeads {
            x,
            start,
            out: acts,
        });
        let out = self.new_value(rows, n_out);
        self.push(Op::HeadMatMul {
            x: acts,
            weight: linear.weight,
            n_heads,
            out: out.id,
        });
        out
    }

    /// Records rows of `n_heads` heads: those of `x`, which are sorted by head, each followed by the last `n` values of
    /// that head of `rest`, if there is one.
    pub fn join_heads(&mut self, n_heads: usize, x: Value, rest: Option<(Value, usize)>) -> Value {
        let n_rest = rest.map_or(0, |(_, n)| n);
        let out = self.new_value(RowCount::Tokens, n_heads * (x.width + n_rest));
        let (x, rest) = (self.at(x), rest.map(|(rest, _)| self.at(rest)));
        self.push(Op::JoinHeads {
            n_heads,
            x,
            rest,
            out: out.id,
        });
        out
    }

    /// Adds `x * weight^T` to `sum`; the bias of `linear` is added as well.
    pub fn add_matmul(&mut self, x: Value, linear: Projection, sum: Value) -> Value {
        self.accumulate(x, linear, sum);
        self.changed(sum)
    }

    fn accumulate(&mut self, x: Value, linear: Projection, sum: Value) {
        let x = self.acts(x, linear.format);
        let out = self.at(sum);
        self.push(Op::MatMul {
            x,
            weight: linear.weight,
            bias: linear.bias,
            mode: OutMode::Add,
            out,
        });
    }

    /// Adds `x * a^T * b^T` in f32 to `out`, where `a` has `rank` rows; `out` then stands for the sum. Low-rank products
    /// of the same `x`, such as those of queries, keys and values, are recorded together after the main products, so
    /// that they can be fused.
    pub fn add_low_rank(&mut self, x: Value, [a, b]: [WeightId; 2], rank: usize, out: Value) {
        self.pending.push(LowRank { x, a, rank, b, out });
    }

    /// Begins a layer: what is recorded from here on belongs to it.
    pub fn begin_layer(&mut self) {
        self.add_pending();
        self.layers.push(self.ops.len());
    }

    fn add_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let low = |p: &LowRank, plan: &mut Recorder| {
            plan.matmul(p.x, Projection::of(p.a, ActFormat::F32), p.rank)
        };
        let lows: Vec<Value> = pending.iter().map(|p| low(p, self)).collect();
        for (p, low) in pending.iter().zip(lows) {
            self.accumulate(low, Projection::of(p.b, ActFormat::F32), p.out);
        }
    }

    pub fn rope_table(&mut self, table: RopeTable) -> RopeId {
        self.rope.push(table);
        RopeId(self.rope.len() as u32 - 1)
    }

    /// Rotates the heads of `x` by the tokens' positions, from value `start` of each head on.
    pub fn rope(
        &mut self,
        x: Value,
        [head_dim, start]: [usize; 2],
        table: RopeId,
        style: RopeStyle,
    ) -> Value {
        let rotated = self.at(x);
        self.push(Op::Rope {
            x: rotated,
            head_dim,
            start,
            table,
            style,
        });
        self.changed(x)
    }

    /// Adds a layer to the KV cache; returns the index that `kv_append` and `attention` take.
    pub fn kv_layer(&mut self, spec: KvSpec) -> usize {
        self.kv.push(spec);
        self.kv.len() - 1
    }

    /// As [`Recorder::kv_layer`], of a layer that is the layer `of_other` in the cache of another model's plan.
    pub fn borrowed_kv_layer(&mut self, spec: KvSpec, of_other: usize) -> usize {
        assert_eq!(
            self.borrowed.len(),
            self.kv.len(),
            "all layers are borrowed"
        );
        self.borrowed.push(of_other);
        self.kv_layer(spec)
    }

    pub fn kv_append(&mut self, layer: usize, k: Value, v: Value) {
        let (k, v) = (self.at(k), self.at(v));
        self.push(Op::KvAppend { layer, k, v });
    }

    /// Records attention of `n_heads` query heads, which may have sinks, over a layer of the KV cache.
    pub fn attention(
        &mut self,
        layer: usize,
        (n_heads, sinks): (usize, Option<WeightId>),
        scores: Scores,
        q: Value,
    ) -> Value {
        let out = self.new_value(q.rows, n_heads * self.kv[layer].v_dim);
        self.push(Op::Attention {
            layer,
            n_heads,
            scores,
            sinks,
            q: self.at(q),
            out: out.id,
        });
        out
    }

    /// Records the convolution of each value with its last ones, of rows of `width` values: `kernel` `[n, width]`, and
    /// perhaps a bias.
    ///
    /// # Panics
    /// If `n` is 0, or the width of `x` does not fit.
    pub fn causal_conv(
        &mut self,
        x: Value,
        (kernel, bias, n): (WeightId, Option<WeightId>, usize),
        form: ConvForm,
        width: usize,
    ) -> Value {
        let wanted = match form {
            ConvForm::Plain => width,
            ConvForm::Gated => 3 * width,
        };
        assert!(n > 0 && x.width == wanted, "rows of {wanted} values");
        let state = self.new_state((n - 1) * width);
        let out = self.new_value(x.rows, width);
        self.push(Op::CausalConv {
            state,
            weight: kernel,
            bias,
            form,
            x: self.at(x),
            out: out.id,
        });
        out
    }

    /// Records linear attention, `[n_heads * v_dim]` for each token.
    ///
    /// # Panics
    /// If the widths of the inputs are not those of `heads`.
    pub fn linear_attention(
        &mut self,
        heads: LinearHeads,
        (rule, decay): (StateRule, Decay<WeightId>),
        inputs: LinearInputs<Value>,
    ) -> Value {
        let n_k = heads.n_k_heads * heads.k_dim;
        let n_v = heads.n_heads * heads.v_dim;
        let [n_decay, n_beta] = decay.widths(&heads);
        let widths = inputs.map(Value::width).into_array();
        assert_eq!(
            widths,
            [n_k, n_k, n_v, n_decay, n_beta],
            "inputs of these heads"
        );
        let state = self.new_state(heads.state_len());
        let out = self.new_value(inputs.v.rows, n_v);
        self.push(Op::LinearAttention {
            state,
            heads,
            rule,
            decay,
            inputs: inputs.map(|input| self.at(input)),
            out: out.id,
        });
        out
    }

    fn new_state(&mut self, len: usize) -> usize {
        self.states.push(StateSpec { len });
        self.states.len() - 1
    }

    pub fn activate(&mut self, activation: Activation, x: Value) -> Value {
        let out = self.new_value(x.rows, x.width);
        let (x, out_id) = (self.at(x), out.id);
        self.push(Op::Activate {
            activation,
            x,
            out: out_id,
        });
        out
    }

    /// Records `activation(gate) * up`. A narrower `gate` has a value for each group of values of `up`.
    ///
    /// # Panics
    /// If the width of `gate` does not divide that of `up`.
    pub fn gated_activation(&mut self, activation: Activation, gate: Value, up: Value) -> Value {
        assert!(
            gate.width > 0 && up.width.is_multiple_of(gate.width),
            "gates of whole groups"
        );
        let out = self.new_value(up.rows, up.width);
        let (gate, up) = (self.at(gate), self.at(up));
        self.push(Op::GatedActivation {
            activation,
            gate,
            up,
            out: out.id,
        });
        out
    }

    /// Adds `x` to `sum`.
    pub fn add(&mut self, x: Value, sum: Value) -> Value {
        let (x, out) = (self.at(x), self.at(sum));
        self.push(Op::Add { x, out });
        self.changed(sum)
    }

    /// Adds `x`, times the sigmoid of the row's `gate`, to `sum`.
    pub fn add_gated(&mut self, gate: Value, x: Value, sum: Value) -> Value {
        let (gate, x, out) = (self.at(gate), self.at(x), self.at(sum));
        self.push(Op::AddGated { gate, x, out });
        self.changed(sum)
    }

    /// Records the mix of the parts of `x`, of `part` values each, with `weights`, in `n_out` parts.
    ///
    /// # Panics
    /// If `x` is not whole parts, or a row of weights is not `[n_out, n_in]`.
    pub fn mix(&mut self, weights: Mixing, (x, part): (Value, usize), n_out: usize) -> Value {
        let out = self.new_value(x.rows, n_out * part);
        self.push_mix(weights, (x, part), OutMode::Store, out);
        out
    }

    /// As [`Recorder::mix`], added to `sum`.
    ///
    /// # Panics
    /// As [`Recorder::mix`].
    pub fn add_mix(&mut self, weights: Mixing, (x, part): (Value, usize), sum: Value) -> Value {
        self.push_mix(weights, (x, part), OutMode::Add, sum);
        self.changed(sum)
    }

    fn push_mix(&mut self, weights: Mixing, (x, part): (Value, usize), mode: OutMode, out: Value) {
        let whole = [x.width, out.width].map(|width| width.is_multiple_of(part));
        assert_eq!(whole, [true; 2], "whole parts");
        let weights = match weights {
            Mixing::OfRows(weights) => {
                let n = x.width / part * (out.width / part);
                assert_eq!(weights.width, n, "a weight for each pair of parts");
                MixWeights::OfRows(self.at(weights))
            }
            Mixing::Same(weights) => MixWeights::Same(weights),
        };
        let (x, out) = (self.at(x), self.at(out));
        self.push(Op::Mix {
            weights,
            part,
            x,
            mode,
            out,
        });
    }

    /// Gives parts of `x`, as wide as `like`, the length of `like`.
    ///
    /// # Panics
    /// If `x` is not whole parts.
    pub fn match_length(&mut self, like: Value, x: Value) -> Value {
        assert!(x.width.is_multiple_of(like.width), "whole parts");
        let (like, matched) = (self.at(like), self.at(x));
        self.push(Op::MatchLength { like, x: matched });
        self.changed(x)
    }

    /// Keeps what exceeds the mean of each row by `factor` standard deviations.
    pub fn sparsify(&mut self, factor: f32, x: Value) -> Value {
        let sparse = self.at(x);
        self.push(Op::Sparsify { factor, x: sparse });
        self.changed(x)
    }

    /// Multiplies `x` by a constant or a vector.
    pub fn scale(&mut self, by: Factor, x: Value) -> Value {
        let scaled = self.at(x);
        self.push(Op::Scale { by, x: scaled });
        self.changed(x)
    }

    pub fn soft_cap(&mut self, cap: f32, x: Value) -> Value {
        let capped = self.at(x);
        self.push(Op::SoftCap { cap, x: capped });
        self.changed(x)
    }

    /// Records `width / n_groups` values of each of the `n_groups` groups of a row, from the value `first` of each on.
    ///
    /// # Panics
    /// If the groups have no such values.
    pub fn part(&mut self, x: Value, n_groups: usize, first: usize, width: usize) -> Value {
        let is_whole = x.width.is_multiple_of(n_groups) && width.is_multiple_of(n_groups);
        assert!(is_whole, "whole groups of values");
        assert!(first + width / n_groups <= x.width / n_groups, "a part");
        let out = self.new_value(x.rows, width);
        self.push(Op::CopyPart {
            x: self.at(x),
            n_groups,
            first,
            out: out.id,
        });
        out
    }

    /// Keeps the rows whose logits are needed.
    pub fn select_rows(&mut self, x: Value) -> Value {
        let out = self.new_value(RowCount::Logits, x.width);
        self.push(Op::SelectRows {
            x: self.at(x),
            out: out.id,
        });
        out
    }

    /// Returns the plan, with `export` beside the logits. Values of equal shape that do not live at the same time share a
    /// buffer.
    pub fn finish_with(mut self, logits: Value, export: Value) -> Plan {
        self.add_pending();
        let x = self.at(export);
        self.push(Op::Export { x });
        self.finish(logits)
    }

    /// Returns the plan. Values of equal shape that do not live at the same time share a buffer.
    pub fn finish(mut self, logits: Value) -> Plan {
        self.add_pending();
        share_buffers(Plan {
            logits: self.at(logits),
            ops: self.ops,
            layers: self.layers,
            buffers: self.buffers.into_iter().map(|(info, _)| info).collect(),
            acts: self.acts,
            kv: self.kv,
            borrowed: self.borrowed,
            states: self.states,
            n_routings: self.n_routings,
            rope: self.rope,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linear(weight: u32, format: ActFormat) -> Projection {
        Projection::of(WeightId(weight), format)
    }

    #[test]
    fn converts_an_activation_once_until_it_changes() {
        let mut b = Recorder::new();
        let x = b.embed(WeightId(0), 1.0, 32);
        b.matmul(x, linear(1, ActFormat::Q8x32), 32);
        b.matmul(x, linear(2, ActFormat::Q8x32), 32);
        let y = b.matmul(x, linear(3, ActFormat::F32), 32);
        let x = b.add(y, x);
        let y = b.matmul(x, linear(4, ActFormat::Q8x32), 32);
        let plan = b.finish(y);
        let read = plan.ops.iter().filter_map(Op::acts_read);
        assert_eq!(read.map(|id| id.0).collect::<Vec<_>>(), [0, 0, 1, 0]);
        let written = plan.ops.iter().filter_map(Op::acts_written);
        assert_eq!(written.map(|id| id.0).collect::<Vec<_>>(), [0, 1, 0]);
    }

    #[test]
    #[should_panic(expected = "was changed in place")]
    fn a_changed_value_cannot_be_read() {
        let mut b = Recorder::new();
        let x = b.embed(WeightId(0), 1.0, 32);
        let y = b.activate(Activation::Silu, x);
        b.add(y, x);
        b.select_rows(x);
    }

    /// The low-rank products of queries and keys stand after the main products and before the first read of the
    /// queries.
    #[test]
    fn records_low_rank_products_together() {
        let mut b = Recorder::new();
        let low_rank = |a: u32| [WeightId(a), WeightId(a + 1)];
        let x = b.embed(WeightId(0), 1.0, 32);
        let q = b.matmul(x, linear(1, ActFormat::Q8x32), 32);
        b.add_low_rank(x, low_rank(10), 4, q);
        b.add_low_rank(x, low_rank(12), 4, q);
        let k = b.matmul(x, linear(2, ActFormat::Q8x32), 32);
        b.add_low_rank(x, low_rank(14), 4, k);
        let k = b.add(q, k);
        b.add_low_rank(k, low_rank(16), 4, x);
        let plan = b.finish(x);
        let weights: Vec<u32> = plan
            .ops
            .iter()
            .flat_map(Op::matrices)
            .map(|w| w.0)
            .collect();
        assert_eq!(weights, [1, 2, 10, 12, 14, 11, 13, 15, 16, 17]);
        // Three products are needed at once before the sum, and a fourth after it.
        let lows = plan.buffers.iter().filter(|buffer| buffer.width == 4);
        assert_eq!(lows.count(), 3);
    }
}
