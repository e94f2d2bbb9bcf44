//! The recorder: a model's wiring calls one method for each operation.

use std::collections::HashMap;

use crate::{ActFormat, Activation, OutMode, RopeStyle, Router, RowsOf};

use super::op::{
    ActsId, ActsInfo, BufferId, BufferInfo, Op, Plan, RopeId, RoutingId, RowCount, Scores, WeightId,
};
use super::rope::RopeTable;
use crate::kv::KvSpec;

/// Records a [`Plan`]. An activation that several products read in the same form is converted once.
#[derive(Debug, Default)]
pub struct Recorder {
    ops: Vec<Op>,
    buffers: Vec<BufferInfo>,
    acts: Vec<ActsInfo>,
    kv: Vec<KvSpec>,
    rope: Vec<RopeTable>,
    n_routings: usize,
    /// The converted forms that are still equal to their buffer.
    current: HashMap<Form, ActsId>,
    /// Activation buffers by shape, so that every layer uses the same memory.
    by_source: HashMap<Form, ActsId>,
    /// Products of low rank that nothing has asked for yet.
    pending: Vec<LowRank>,
    /// Buffers of `A x` by shape, so that every layer uses the same memory.
    low: Vec<(BufferInfo, BufferId)>,
}

/// `out += b (a x)`.
#[derive(Debug, Clone, Copy)]
struct LowRank {
    x: BufferId,
    a: WeightId,
    low: BufferId,
    b: WeightId,
    out: BufferId,
}

/// A form of a buffer's values for products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Form {
    x: BufferId,
    format: ActFormat,
    /// By whose choices the rows are sorted, for products with experts.
    routing: Option<RoutingId>,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// A new float buffer of `width` values per row.
    pub fn buffer(&mut self, rows: RowCount, width: usize) -> BufferId {
        self.buffers.push(BufferInfo { rows, width });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// How many rows `buffer` has.
    pub fn rows(&self, buffer: BufferId) -> RowCount {
        self.buffers[buffer.0 as usize].rows
    }

    fn push(&mut self, op: Op) {
        let (reads, writes) = (op.reads(), op.writes());
        let touches = |p: &LowRank| {
            reads.contains(&p.out) || writes.contains(&p.out) || writes.contains(&p.x)
        };
        if self.pending.iter().any(touches) {
            self.add_pending();
        }
        for written in op.writes() {
            self.current.retain(|form, _| form.x != written);
        }
        if let Op::Route { out, .. } = op {
            self.current.retain(|form, _| form.routing != Some(out));
        }
        self.ops.push(op);
    }

    fn acts(&mut self, x: BufferId, format: ActFormat) -> ActsId {
        let form = Form {
            x,
            format,
            routing: None,
        };
        if let Some(&acts) = self.current.get(&form) {
            return acts;
        }
        let out = self.acts_buffer(form, self.buffers[x.0 as usize].rows);
        self.push(Op::Quantize { x, out });
        self.current.insert(form, out);
        out
    }

    /// The form of `x`, which has a row for each token or for each choice of `routing`.
    fn expert_acts(
        &mut self,
        x: BufferId,
        format: ActFormat,
        (routing, n_used): (RoutingId, usize),
    ) -> ActsId {
        let form = Form {
            x,
            format,
            routing: Some(routing),
        };
        if let Some(&acts) = self.current.get(&form) {
            return acts;
        }
        let rows_of = match self.buffers[x.0 as usize].rows {
            RowCount::Choices { .. } => RowsOf::Choices,
            RowCount::Tokens | RowCount::Logits => RowsOf::Tokens,
        };
        let out = self.acts_buffer(form, RowCount::Choices { n_used });
        self.push(Op::QuantizeExperts {
            x,
            rows_of,
            routing,
            out,
        });
        self.current.insert(form, out);
        out
    }

    fn acts_buffer(&mut self, form: Form, rows: RowCount) -> ActsId {
        *self.by_source.entry(form).or_insert_with(|| {
            self.acts.push(ActsInfo {
                rows,
                width: self.buffers[form.x.0 as usize].width,
                format: form.format,
            });
            ActsId(self.acts.len() as u32 - 1)
        })
    }

    pub fn embed(&mut self, table: WeightId, scale: f32, out: BufferId) {
        self.push(Op::Embed { table, scale, out });
    }

    pub fn add_positions(&mut self, table: WeightId, out: BufferId) {
        self.push(Op::AddPositions { table, out });
    }

    pub fn rms_norm(&mut self, x: BufferId, weight: WeightId, eps: f32, out: BufferId) {
        self.push(Op::RmsNorm {
            x,
            weight,
            eps,
            out,
        });
    }

    pub fn layer_norm(
        &mut self,
        x: BufferId,
        weight: WeightId,
        bias: WeightId,
        eps: f32,
        out: BufferId,
    ) {
        self.push(Op::LayerNorm {
            x,
            weight,
            bias,
            eps,
            out,
        });
    }

    /// `out = x * weight^T + bias`, with activations in the form `format`.
    pub fn matmul(
        &mut self,
        x: BufferId,
        weight: WeightId,
        bias: Option<WeightId>,
        format: ActFormat,
        out: BufferId,
    ) {
        let x = self.acts(x, format);
        self.push(Op::MatMul {
            x,
            weight,
            bias,
            mode: OutMode::Store,
            out,
        });
    }

    /// A routing, to be filled by `route`.
    pub fn routing(&mut self) -> RoutingId {
        self.n_routings += 1;
        RoutingId(self.n_routings as u32 - 1)
    }

    pub fn route(&mut self, logits: BufferId, router: Router, out: RoutingId) {
        self.push(Op::Route {
            logits,
            router,
            out,
        });
    }

    /// The product of every row with the matrix of its expert; `out` has rows of `RowCount::Choices`.
    ///
    /// # Panics
    /// If `out` has other rows.
    pub fn expert_matmul(
        &mut self,
        x: BufferId,
        routing: RoutingId,
        (weight, n_experts): (WeightId, usize),
        format: ActFormat,
        out: BufferId,
    ) {
        let RowCount::Choices { n_used } = self.buffers[out.0 as usize].rows else {
            panic!("buffer {} has no rows for experts", out.0);
        };
        let x = self.expert_acts(x, format, (routing, n_used));
        self.push(Op::ExpertMatMul {
            x,
            routing,
            weight,
            n_experts,
            out,
        });
    }

    pub fn combine_experts(&mut self, x: BufferId, routing: RoutingId, out: BufferId) {
        self.push(Op::CombineExperts { x, routing, out });
    }

    /// `out += x * weight^T`, with activations in the form `format`.
    pub fn matmul_add(&mut self, x: BufferId, weight: WeightId, format: ActFormat, out: BufferId) {
        let x = self.acts(x, format);
        self.push(Op::MatMul {
            x,
            weight,
            bias: None,
            mode: OutMode::Add,
            out,
        });
    }

    /// `out += x * a^T * b^T` in f32, with `a` of `rank` rows. What is added to several products of the same `x`, such as
    /// queries, keys and values, is recorded together behind them, so that their passes can be merged.
    pub fn add_low_rank(&mut self, x: BufferId, [a, b]: [WeightId; 2], rank: usize, out: BufferId) {
        let info = BufferInfo {
            rows: self.rows(out),
            width: rank,
        };
        let is_free = |low: BufferId| self.pending.iter().all(|p| p.low != low);
        let mut known = self.low.iter();
        let low = match known.find(|(known, low)| *known == info && is_free(*low)) {
            Some((_, low)) => *low,
            None => {
                let low = self.buffer(info.rows, rank);
                self.low.push((info, low));
                low
            }
        };
        self.pending.push(LowRank { x, a, low, b, out });
    }

    fn add_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        for p in &pending {
            self.matmul(p.x, p.a, None, ActFormat::F32, p.low);
        }
        for p in &pending {
            self.matmul_add(p.low, p.b, ActFormat::F32, p.out);
        }
    }

    pub fn rope_table(&mut self, table: RopeTable) -> RopeId {
        self.rope.push(table);
        RopeId(self.rope.len() as u32 - 1)
    }

    pub fn rope(&mut self, x: BufferId, head_dim: usize, table: RopeId, style: RopeStyle) {
        self.push(Op::Rope {
            x,
            head_dim,
            table,
            style,
        });
    }

    /// A layer of the KV cache; its index is what `kv_append` and `attention` take.
    pub fn kv_layer(&mut self, spec: KvSpec) -> usize {
        self.kv.push(spec);
        self.kv.len() - 1
    }

    pub fn kv_append(&mut self, layer: usize, k: BufferId, v: BufferId) {
        self.push(Op::KvAppend { layer, k, v });
    }

    pub fn attention(
        &mut self,
        layer: usize,
        n_heads: usize,
        scores: Scores,
        q: BufferId,
        out: BufferId,
    ) {
        self.push(Op::Attention {
            layer,
            n_heads,
            scores,
            q,
            out,
        });
    }

    pub fn activate(&mut self, activation: Activation, x: BufferId, out: BufferId) {
        self.push(Op::Activate { activation, x, out });
    }

    pub fn gated_activation(
        &mut self,
        activation: Activation,
        gate: BufferId,
        up: BufferId,
        out: BufferId,
    ) {
        self.push(Op::GatedActivation {
            activation,
            gate,
            up,
            out,
        });
    }

    pub fn add(&mut self, x: BufferId, out: BufferId) {
        self.push(Op::Add { x, out });
    }

    pub fn add_gated(&mut self, gate: BufferId, x: BufferId, out: BufferId) {
        self.push(Op::AddGated { gate, x, out });
    }

    pub fn soft_cap(&mut self, cap: f32, x: BufferId) {
        self.push(Op::SoftCap { cap, x });
    }

    pub fn select_rows(&mut self, x: BufferId, out: BufferId) {
        self.push(Op::SelectRows { x, out });
    }

    pub fn finish(mut self, logits: BufferId) -> Plan {
        self.add_pending();
        Plan {
            ops: self.ops,
            buffers: self.buffers,
            acts: self.acts,
            kv: self.kv,
            n_routings: self.n_routings,
            rope: self.rope,
            logits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_activation_is_converted_once_until_it_changes() {
        let mut b = Recorder::new();
        let x = b.buffer(RowCount::Tokens, 32);
        let y = b.buffer(RowCount::Tokens, 32);
        b.embed(WeightId(0), 1.0, x);
        b.matmul(x, WeightId(1), None, ActFormat::Q8x32, y);
        b.matmul(x, WeightId(2), None, ActFormat::Q8x32, y);
        b.matmul(x, WeightId(3), None, ActFormat::F32, y);
        b.add(y, x);
        b.matmul(x, WeightId(4), None, ActFormat::Q8x32, y);
        let plan = b.finish(y);
        let converted: Vec<ActsId> = plan
            .ops
            .iter()
            .filter_map(|op| {
                if let Op::Quantize { out, .. } = op {
                    Some(*out)
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(converted, [ActsId(0), ActsId(1), ActsId(0)]);
    }

    /// Both adapters of queries and keys come behind the products and before what reads the queries.
    #[test]
    fn products_of_low_rank_stand_together() {
        let mut b = Recorder::new();
        let [x, q, k] = [0; 3].map(|_| b.buffer(RowCount::Tokens, 32));
        b.embed(WeightId(0), 1.0, x);
        b.matmul(x, WeightId(1), None, ActFormat::Q8x32, q);
        b.add_low_rank(x, [WeightId(10), WeightId(11)], 4, q);
        b.add_low_rank(x, [WeightId(12), WeightId(13)], 4, q);
        b.matmul(x, WeightId(2), None, ActFormat::Q8x32, k);
        b.add_low_rank(x, [WeightId(14), WeightId(15)], 4, k);
        b.add(q, k);
        b.add_low_rank(k, [WeightId(16), WeightId(17)], 4, x);
        let plan = b.finish(x);
        let weights: Vec<u32> = plan
            .ops
            .iter()
            .flat_map(Op::matrices)
            .map(|w| w.0)
            .collect();
        assert_eq!(weights, [1, 2, 10, 12, 14, 11, 13, 15, 16, 17]);
        // Three of the first flush, of which the second takes one again.
        let lows = plan.buffers.iter().filter(|buffer| buffer.width == 4);
        assert_eq!(lows.count(), 3);
    }
}
