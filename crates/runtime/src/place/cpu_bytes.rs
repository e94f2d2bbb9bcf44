//! Cost model for splits of a model between GPU and CPU: the bytes that the CPU reads per token, because a GPU reads
//! the rest many times as fast. A few passes over the plan give the cost of all splits.

use rocmforge_model::Model;
use rocmforge_plan::KvTypes;
use rocmforge_plan::{
    BatchShape, OpCost, Placement, Plan, PlanCost, SeqShape, Side, Split, is_of_experts,
    layer_starts,
};

/// The cost of a buffer that crosses between devices, in bytes that the CPU reads: the wait takes about as long.
const CROSSING_BYTES: u64 = 512 << 10;

/// Bytes of weights and cache that the CPU reads for one token in the middle of the context, and crossings.
pub(crate) struct CpuBytes {
    /// The first operation on the GPU if the layers from each one on are there.
    starts: Vec<usize>,
    /// The bytes of all operations before each operation.
    before: Vec<u64>,
    /// The bytes of experts from each operation on.
    of_experts: Vec<u64>,
    /// The cost of crossings after each operation, if the experts of all layers are on the CPU.
    crossing: Vec<u64>,
}

impl CpuBytes {
    pub(crate) fn of(plan: &Plan, model: &Model, kv_types: KvTypes, n_ctx: usize) -> CpuBytes {
        let cost = PlanCost {
            plan,
            weights: &model.weights,
            kv_types,
        };
        let shape = BatchShape {
            seqs: vec![SeqShape {
                first_pos: n_ctx / 2,
                n_rows: 1,
            }],
            n_logits: 1,
        };
        let n_ops = plan.ops.len();
        let mut bytes = Vec::with_capacity(n_ops);
        for op in &plan.ops {
            let OpCost {
                weight_bytes,
                kv_bytes,
                ..
            } = cost.op(op, &shape);
            bytes.push(weight_bytes + kv_bytes);
        }
        let mut before = vec![0; n_ops + 1];
        for (at, bytes) in bytes.iter().enumerate() {
            before[at + 1] = before[at] + bytes;
        }
        let divided = Split {
            n_gpu_layers: plan.layers.len(),
            experts: Side::Cpu,
        };
        let mut crossing = vec![0; n_ops + 1];
        for segment in Placement::split(plan, divided).segments() {
            let n_imports = segment.imports.len() as u64;
            if let Some(before) = segment.ops.start.checked_sub(1) {
                crossing[before] = n_imports * CROSSING_BYTES;
            }
        }
        let mut of_experts = vec![0; n_ops + 1];
        for (at, op) in plan.ops.iter().enumerate().rev() {
            let own = match is_of_experts(plan, op) {
                true => bytes[at],
                false => 0,
            };
            of_experts[at] = of_experts[at + 1] + own;
            crossing[at] += crossing[at + 1];
        }
        CpuBytes {
            starts: layer_starts(plan),
            before,
            of_experts,
            crossing,
        }
    }

    /// Returns the cost with everything on the CPU.
    pub(crate) fn of_all(&self) -> u64 {
        self.before.last().copied().unwrap_or(0)
    }

    /// Returns the cost of `split`.
    ///
    /// # Panics
    /// If the GPU has no layers, or more than the model.
    pub(crate) fn of_split(&self, split: Split) -> u64 {
        let first = self.starts[self.starts.len() - split.n_gpu_layers];
        let on_cpu = match split.experts {
            Side::Gpu => 0,
            Side::Cpu => self.of_experts[first] + self.crossing[first],
        };
        // The residual stream crosses where the GPU's layers begin.
        self.before[first] + on_cpu + CROSSING_BYTES
    }
}
