//! The recorder: a model's wiring calls one method for each operation.

use std::collections::HashMap;

use rocmforge_cpu::{ActFormat, OutMode, RopeStyle};

use super::op::{
    ActsId, ActsInfo, BufferId, BufferInfo, KvSpec, Op, Plan, RopeId, RowCount, WeightId,
};
use super::rope::RopeTable;

/// Records a [`Plan`]. An activation that several products read in the same form is converted once.
#[derive(Debug, Default)]
pub struct PlanBuilder {
    ops: Vec<Op>,
    buffers: Vec<BufferInfo>,
    acts: Vec<ActsInfo>,
    kv: Vec<KvSpec>,
    rope: Vec<RopeTable>,
    /// The converted forms that are still equal to their buffer.
    current: HashMap<(BufferId, ActFormat), ActsId>,
    /// Activation buffers by shape, so that every layer uses the same memory.
    by_source: HashMap<(BufferId, ActFormat), ActsId>,
}

impl PlanBuilder {
    pub fn new() -> PlanBuilder {
        PlanBuilder::default()
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
        if let Some(written) = op.writes() {
            self.current.retain(|(buffer, _), _| *buffer != written);
        }
        self.ops.push(op);
    }

    fn acts(&mut self, x: BufferId, format: ActFormat) -> ActsId {
        if let Some(&acts) = self.current.get(&(x, format)) {
            return acts;
        }
        let out = *self.by_source.entry((x, format)).or_insert_with(|| {
            let BufferInfo { rows, width } = self.buffers[x.0 as usize];
            self.acts.push(ActsInfo {
                rows,
                width,
                format,
            });
            ActsId(self.acts.len() as u32 - 1)
        });
        self.push(Op::Quantize { x, out });
        self.current.insert((x, format), out);
        out
    }

    pub fn embed(&mut self, table: WeightId, scale: f32, out: BufferId) {
        self.push(Op::Embed { table, scale, out });
    }

    pub fn rms_norm(&mut self, x: BufferId, weight: WeightId, eps: f32, out: BufferId) {
        self.push(Op::RmsNorm {
            x,
            weight,
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
        scale: f32,
        q: BufferId,
        out: BufferId,
    ) {
        self.push(Op::Attention {
            layer,
            n_heads,
            scale,
            q,
            out,
        });
    }

    pub fn silu_mul(&mut self, gate: BufferId, up: BufferId, out: BufferId) {
        self.push(Op::SiluMul { gate, up, out });
    }

    pub fn add(&mut self, x: BufferId, out: BufferId) {
        self.push(Op::Add { x, out });
    }

    pub fn select_rows(&mut self, x: BufferId, out: BufferId) {
        self.push(Op::SelectRows { x, out });
    }

    pub fn finish(self, logits: BufferId) -> Plan {
        Plan {
            ops: self.ops,
            buffers: self.buffers,
            acts: self.acts,
            kv: self.kv,
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
        let mut b = PlanBuilder::new();
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
}
