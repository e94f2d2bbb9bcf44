//! Cost estimates: what each operation of a plan moves and computes in a given batch, and the least time that
//! takes by the roofline model (the slower of memory and arithmetic).
//!
//! Memory traffic means the bytes that no cache can save for a model larger than the caches: weights, keys and
//! values. Float buffers between operations are counted separately, since they mostly stay in a cache.
//! An exponential counts as one operation; those of attention's softmax are left out, as is usual.

use std::iter::Sum;

use crate::acts::ActFormat;
use crate::batch::{Batch, BatchSeq};
use crate::kv::{KvSpec, KvTypes, Mask};
use crate::op::{ActsId, BufferId, Linear, MixWeights, Op, Plan, RowCount, WeightId};
use crate::params::{ExpertStack, Factor, OutMode};
use crate::roofline::Roofline;
use crate::state::{Decay, StateRule};
use crate::weights::Weights;

/// The properties of a batch that determine its cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchShape {
    pub seqs: Vec<SeqShape>,
    /// Number of rows whose logits are needed.
    pub n_logits: usize,
}

/// The rows of one sequence in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqShape {
    /// Position of the first row, which is also the number of tokens already in the cache.
    pub first_pos: usize,
    pub n_rows: usize,
}

impl BatchShape {
    pub fn of(batch: &Batch) -> BatchShape {
        let shape = |seq: &BatchSeq| SeqShape {
            first_pos: seq.first_pos,
            n_rows: seq.n_rows,
        };
        BatchShape {
            seqs: batch.seqs.iter().map(shape).collect(),
            n_logits: batch.logits.len(),
        }
    }

    pub fn n_tokens(&self) -> usize {
        self.seqs.iter().map(|seq| seq.n_rows).sum()
    }

    fn n_rows(&self, rows: RowCount) -> usize {
        rows.rows(self.n_tokens(), self.n_logits)
    }
}

impl SeqShape {
    /// Number of (row, visible position) pairs.
    fn pairs(&self, mask: Mask) -> u64 {
        let rows = self.first_pos..self.first_pos + self.n_rows;
        let len = self.first_pos + self.n_rows;
        rows.map(|pos| (mask.last_seen(pos, len) + 1 - mask.first_seen(pos)) as u64)
            .sum()
    }

    /// Operations of attention of one head, at least. For latent attention, those of the cheaper way, whichever a device
    /// takes: with latent vectors, or with keys and values of the head, whose products for the rows themselves are other
    /// operations.
    fn attention_ops(&self, kv: &KvSpec) -> u64 {
        let pairs = self.pairs(kv.mask);
        let all = 2 * pairs * (kv.k_dim + kv.v_dim) as u64;
        let of_heads = kv.heads.map(|[k_dim, v_dim]| {
            let n_out = k_dim + v_dim - (kv.k_dim - kv.v_dim);
            2 * pairs * (k_dim + v_dim) as u64 + 2 * (self.first_pos * kv.v_dim * n_out) as u64
        });
        of_heads.map_or(all, |of_heads| all.min(of_heads))
    }

    /// Number of positions visible to at least one row.
    fn positions(&self, mask: Mask) -> u64 {
        (self.first_pos + self.n_rows - mask.first_seen(self.first_pos)) as u64
    }
}

/// What one operation moves and computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpCost {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of the KV cache read or written.
    pub kv_bytes: u64,
    /// Bytes of float buffers and converted activations read or written.
    pub buffer_bytes: u64,
    /// f32 operations; a multiply-add counts as two.
    pub f32_ops: u64,
    /// Operations of int8 dot products; a multiply-add counts as two.
    pub i8_ops: u64,
}

impl OpCost {
    /// Returns the least time in seconds: that of memory traffic or of arithmetic, whichever is longer.
    pub fn seconds(&self, roofline: &Roofline) -> f64 {
        let memory = (self.weight_bytes + self.kv_bytes) as f64 / roofline.read_bytes_per_s;
        let arithmetic = self.f32_ops as f64 / roofline.f32_ops_per_s
            + self.i8_ops as f64 / roofline.i8_ops_per_s;
        memory.max(arithmetic)
    }
}

impl Sum for OpCost {
    fn sum<I: Iterator<Item = OpCost>>(costs: I) -> OpCost {
        costs.fold(OpCost::default(), |a, b| OpCost {
            weight_bytes: a.weight_bytes + b.weight_bytes,
            kv_bytes: a.kv_bytes + b.kv_bytes,
            buffer_bytes: a.buffer_bytes + b.buffer_bytes,
            f32_ops: a.f32_ops + b.f32_ops,
            i8_ops: a.i8_ops + b.i8_ops,
        })
    }
}

/// Operations per value of a norm: a square, its sum and two factors.
const NORM_OPS: u64 = 4;
/// Operations per value of a conversion: the largest magnitude, a factor and a rounding.
const CONVERSION_OPS: u64 = 3;
/// Operations per value of a gated activation: sign, exponential, sum, quotient, product.
const GATED_OPS: u64 = 5;

/// Computes the costs of a model's plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanCost<'a> {
    pub plan: &'a Plan,
    pub weights: &'a Weights,
    pub kv_types: KvTypes,
}

impl PlanCost<'_> {
    /// Returns the least time of a step in seconds: every operation at the roofline, one after the other.
    pub fn step_seconds(&self, shape: &BatchShape, roofline: &Roofline) -> f64 {
        let ops = self.plan.ops.iter();
        ops.map(|op| self.op(op, shape).seconds(roofline)).sum()
    }

    /// Returns the cost of `op` in a batch of this shape; zero if it has no rows there.
    pub fn op(&self, op: &Op, shape: &BatchShape) -> OpCost {
        match *op {
            Op::Embed { table, scale, out } => {
                let (rows, width) = self.shape(out, shape);
                let table = self.weights.matrix(table);
                OpCost {
                    weight_bytes: rows * (table.data.len() / table.n_out) as u64,
                    buffer_bytes: 4 * rows * width,
                    f32_ops: if scale == 1.0 { 0 } else { rows * width },
                    ..OpCost::default()
                }
            }
            Op::AddPositions { table, out } => {
                let (rows, _) = self.shape(out, shape);
                let table = self.weights.matrix(table);
                OpCost {
                    weight_bytes: rows * (table.data.len() / table.n_out) as u64,
                    ..self.elementwise(&[out, out], 1, shape)
                }
            }
            Op::RmsNorm { x, weight, out, .. } => OpCost {
                weight_bytes: self.vector_bytes(weight, self.shape(out, shape).0),
                ..self.elementwise(&[x, out], NORM_OPS, shape)
            },
            // As an RMS norm, plus subtracting the mean and adding the bias.
            Op::LayerNorm {
                x,
                weight,
                bias,
                out,
                ..
            } => {
                let (rows, _) = self.shape(out, shape);
                OpCost {
                    weight_bytes: self.vector_bytes(weight, rows) + self.vector_bytes(bias, rows),
                    ..self.elementwise(&[x, out], 7, shape)
                }
            }
            // An exponential and a sum.
            Op::Route {
                logits,
                bias,
                scales,
                ..
            } => {
                let (rows, _) = self.shape(logits, shape);
                let vectors = [bias, scales].into_iter().flatten();
                OpCost {
                    weight_bytes: vectors.map(|it| self.vector_bytes(it, rows)).sum(),
                    ..self.elementwise(&op.reads(), 2, shape)
                }
            }
            Op::Quantize { out, .. }
            | Op::QuantizeExperts { out, .. }
            | Op::QuantizeHeads { out, .. } => {
                let acts = self.plan.acts[out.0 as usize];
                let (rows, width) = (shape.n_rows(acts.rows) as u64, acts.width as u64);
                OpCost {
                    // Codes and scales are about a byte for each value.
                    buffer_bytes: (4 + 1) * rows * width,
                    f32_ops: CONVERSION_OPS * rows * width,
                    ..OpCost::default()
                }
            }
            Op::MatMul {
                x, weight, bias, ..
            } => self.product(x, Linear { weight, bias }, shape),
            Op::MatMuls { x, ref products } => products
                .iter()
                .map(|(linear, _)| self.product(x, *linear, shape))
                .sum(),
            Op::GatedMatMul {
                x, gate, up, out, ..
            } => [
                self.product(x, gate, shape),
                self.product(x, up, shape),
                self.elementwise(&[out], GATED_OPS, shape),
            ]
            .into_iter()
            .sum(),
            Op::NormQuantize { weight, out, .. } => {
                let acts = self.plan.acts[out.0 as usize];
                let (rows, width) = (shape.n_rows(acts.rows) as u64, acts.width as u64);
                OpCost {
                    weight_bytes: self.vector_bytes(weight, rows),
                    buffer_bytes: (4 + 1) * rows * width,
                    f32_ops: (NORM_OPS + CONVERSION_OPS) * rows * width,
                    ..OpCost::default()
                }
            }
            Op::ExpertMatMul {
                x,
                weight,
                bias,
                stack,
                shared,
                ..
            } => self.sorted_products(x, (weight, bias), (stack, shared), shape),
            Op::HeadMatMul {
                x, weight, n_heads, ..
            } => {
                let heads = (ExpertStack::whole(n_heads), None);
                self.sorted_products(x, (weight, None), heads, shape)
            }
            Op::CombineExperts { x, out, .. } => self.elementwise(&[out, x], 2, shape),
            Op::JoinHeads { out, .. } => self.elementwise(&[out, out], 0, shape),
            // Four multiplications and two additions per pair.
            Op::Rope {
                x, head_dim, table, ..
            } => {
                let (rows, width) = self.shape(x, shape);
                let n_rot = self.plan.rope[table.0 as usize].n_rot() as u64;
                OpCost {
                    buffer_bytes: 8 * rows * width,
                    f32_ops: 3 * rows * (width / head_dim as u64) * n_rot,
                    ..OpCost::default()
                }
            }
            Op::KvAppend { layer, .. } => {
                let kv = self.plan.kv[layer];
                let n_tokens = shape.n_tokens() as u64;
                let values = kv.numbers_per_token() as u64;
                OpCost {
                    kv_bytes: n_tokens * kv.bytes_per_token(self.kv_types),
                    buffer_bytes: 4 * n_tokens * values,
                    ..OpCost::default()
                }
            }
            // A dot product with every visible key, and a multiply-add of every visible value.
            Op::Attention {
                layer, n_heads, q, ..
            } => {
                let kv = self.plan.kv[layer];
                let (rows, q_width) = self.shape(q, shape);
                let out_width = (n_heads * kv.v_dim) as u64;
                let ops = shape.seqs.iter().map(|seq| seq.attention_ops(&kv));
                let positions = shape.seqs.iter().map(|seq| seq.positions(kv.mask));
                OpCost {
                    kv_bytes: positions.sum::<u64>() * kv.bytes_per_token(self.kv_types),
                    buffer_bytes: 4 * rows * (q_width + out_width),
                    f32_ops: n_heads as u64 * ops.sum::<u64>(),
                    ..OpCost::default()
                }
            }
            Op::GatedActivation { gate, up, out, .. } => {
                self.elementwise(&[gate, up, out], GATED_OPS, shape)
            }
            Op::Mix {
                weights,
                part,
                x,
                mode,
                out,
            } => {
                let (rows, _) = self.shape(out, shape);
                let n_in = (self.plan.buffers[x.0 as usize].width / part) as u64;
                let mut buffers = vec![x, out];
                let weight_bytes = match weights {
                    MixWeights::OfRows(weights) => {
                        buffers.insert(0, weights);
                        0
                    }
                    MixWeights::Same(vector) => self.vector_bytes(vector, rows),
                };
                if mode == OutMode::Add {
                    buffers.insert(0, out);
                }
                OpCost {
                    weight_bytes,
                    ..self.elementwise(&buffers, 2 * n_in, shape)
                }
            }
            // A square and its sum for both, and a factor.
            Op::MatchLength { like, x } => self.elementwise(&[like, x, x], 5, shape),
            // Two sums, a difference and a square, another difference and a maximum.
            Op::Sparsify { x, .. } => self.elementwise(&[x, x], 6, shape),
            Op::Activate { x, out, .. } => self.elementwise(&[x, out], 4, shape),
            Op::Scale { by, x } => OpCost {
                weight_bytes: match by {
                    Factor::Constant(_) => 0,
                    Factor::Vector(vector) => self.vector_bytes(vector, self.shape(x, shape).0),
                },
                ..self.elementwise(&[x, x], 1, shape)
            },
            // A quotient and a factor around tanh, which is an exponential, a sum and a quotient.
            Op::SoftCap { x, .. } => self.elementwise(&[x, x], 5, shape),
            Op::AddGated { gate, x, out } => self.elementwise(&[gate, x, out, out], 2, shape),
            Op::Add { x, out } => self.elementwise(&[x, out, out], 1, shape),
            Op::SelectRows { out, .. } | Op::CopyPart { out, .. } => {
                self.elementwise(&[out, out], 0, shape)
            }
            Op::Import { out: x } | Op::Export { x } => self.elementwise(&[x], 0, shape),
            Op::CausalConv {
                state,
                weight,
                bias,
                x,
                out,
                ..
            } => {
                let (rows, width) = self.shape(out, shape);
                let n = self.plan.states[state].len as u64 / width.max(1) + 1;
                let vectors = [Some(weight), bias].into_iter().flatten();
                OpCost {
                    weight_bytes: vectors.map(|it| self.vector_bytes(it, rows)).sum(),
                    kv_bytes: self.state_bytes(state, shape),
                    ..self.elementwise(&[x, out], 2 * n, shape)
                }
            }
            // A multiplication with the decay and a multiply-add for each value of the state, and another with the query;
            // the delta rule has one more with the key.
            Op::LinearAttention {
                state,
                heads,
                rule,
                decay,
                inputs,
                out,
            } => {
                let (rows, width) = self.shape(out, shape);
                let of_rule = match rule {
                    StateRule::Delta => 7,
                    StateRule::Add => 5,
                };
                // A product with the rate, and an exponential.
                let (of_value, weight_bytes) = match decay {
                    Decay::Head | Decay::Channel => (of_rule, 0),
                    Decay::Value(rates) => (of_rule + 2, self.vector_bytes(rates, rows)),
                };
                let inputs = inputs.into_array().map(|input| self.shape(input, shape));
                let n_read: u64 = inputs.iter().map(|(rows, width)| rows * width).sum();
                OpCost {
                    weight_bytes,
                    kv_bytes: self.state_bytes(state, shape),
                    buffer_bytes: 4 * (n_read + rows * width),
                    f32_ops: of_value * rows * width * heads.k_dim as u64,
                    ..OpCost::default()
                }
            }
        }
    }

    /// Returns the cost of one matrix product, including its output.
    fn product(&self, x: ActsId, linear: Linear, shape: &BatchShape) -> OpCost {
        let acts = self.plan.acts[x.0 as usize];
        let rows = shape.n_rows(acts.rows) as u64;
        if rows == 0 {
            return OpCost::default();
        }
        let matrix = self.weights.matrix(linear.weight);
        let (n_in, n_out) = (matrix.n_in as u64, matrix.n_out as u64);
        let products = 2 * rows * n_in * n_out;
        let (act_bytes, f32_ops, i8_ops) = match acts.format {
            ActFormat::F32 => (4, products, 0),
            ActFormat::Q8x32 | ActFormat::Q8x256 => (1, 0, products),
        };
        let bias = linear.bias;
        OpCost {
            weight_bytes: matrix.data.len() as u64
                + bias.map_or(0, |bias| self.vector_bytes(bias, rows)),
            buffer_bytes: rows * (act_bytes * n_in + 4 * n_out),
            f32_ops,
            i8_ops,
            ..OpCost::default()
        }
    }

    /// Returns the bytes that reading and writing a state of each sequence takes.
    fn state_bytes(&self, state: usize, shape: &BatchShape) -> u64 {
        2 * 4 * self.plan.states[state].len as u64 * shape.seqs.len() as u64
    }

    /// Returns the rows and width of a buffer.
    fn shape(&self, buffer: BufferId, shape: &BatchShape) -> (u64, u64) {
        let info = self.plan.buffers[buffer.0 as usize];
        (shape.n_rows(info.rows) as u64, info.width as u64)
    }

    /// The cost of multiplying rows `x` with the matrix of an expert each; a shared one has a row of each token.
    fn sorted_products(
        &self,
        x: ActsId,
        (weight, bias): (WeightId, Option<WeightId>),
        (stack, shared): (ExpertStack, Option<WeightId>),
        shape: &BatchShape,
    ) -> OpCost {
        let acts = self.plan.acts[x.0 as usize];
        let rows = shape.n_rows(acts.rows) as u64;
        let matrices = self.weights.matrix(weight);
        let (n_matrices, n_experts) = (stack.n_matrices() as u64, stack.n_experts as u64);
        let (n_in, n_out) = (matrices.n_in as u64, matrices.n_out as u64 / n_matrices);
        let products = 2 * rows * n_in * n_out;
        let (act_bytes, f32_ops, i8_ops) = match acts.format {
            ActFormat::F32 => (4, products, 0),
            ActFormat::Q8x32 | ActFormat::Q8x256 => (1, 0, products),
        };
        let bias_bytes = bias.map_or(0, |bias| self.vector_bytes(bias, rows));
        let matrix_bytes = matrices.data.len() as u64 / n_matrices + bias_bytes / n_experts;
        let of_shared = shared.map_or(0, |_| shape.n_tokens() as u64);
        OpCost {
            // The rows use at most this many different matrices.
            weight_bytes: matrix_bytes * ((rows - of_shared).min(n_experts) + of_shared.min(1)),
            buffer_bytes: rows * (act_bytes * n_in + 4 * n_out),
            f32_ops,
            i8_ops,
            ..OpCost::default()
        }
    }

    /// Returns the cost of reading or writing each buffer once, with `ops_per_value` operations for each value of the
    /// last.
    fn elementwise(&self, buffers: &[BufferId], ops_per_value: u64, shape: &BatchShape) -> OpCost {
        let values = |&buffer: &BufferId| {
            let (rows, width) = self.shape(buffer, shape);
            rows * width
        };
        OpCost {
            buffer_bytes: 4 * buffers.iter().map(values).sum::<u64>(),
            f32_ops: ops_per_value * buffers.last().map_or(0, values),
            ..OpCost::default()
        }
    }

    fn vector_bytes(&self, vector: WeightId, rows: u64) -> u64 {
        if rows == 0 {
            return 0;
        }
        size_of_val(self.weights.vector(vector)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_limit_visible_positions() {
        for (first_pos, n_rows, mask, pairs, positions) in [
            (0, 4, Mask::All, 10, 4),
            (0, 4, Mask::Window(2), 7, 4),
            (5, 3, Mask::All, 6 + 7 + 8, 8),
            (5, 3, Mask::Window(4), 12, 6),
            (5, 1, Mask::Window(100), 6, 6),
            (5, 1, Mask::Chunk(4), 2, 2),
            (6, 4, Mask::Chunk(4), 3 + 4 + 1 + 2, 6),
            (0, 4, Mask::Both, 16, 4),
            (0, 4, Mask::Near(1), 2 + 3 + 3 + 2, 4),
        ] {
            let seq = SeqShape { first_pos, n_rows };
            assert_eq!(seq.pairs(mask), pairs, "{seq:?} {mask:?}");
            assert_eq!(seq.positions(mask), positions, "{seq:?} {mask:?}");
        }
    }

    /// GLM 4.7 Flash: a prompt by keys of 192 + 64 and values of 256, a later row by latent vectors of 512 + 64.
    #[test]
    fn latent_attention_goes_the_cheaper_way() {
        let latent = KvSpec {
            n_kv_heads: 1,
            k_dim: 576,
            v_dim: 512,
            mask: Mask::All,
            values: crate::kv::Values::InKeys,
            heads: Some([256, 256]),
        };
        let ops = |first_pos, n_rows| SeqShape { first_pos, n_rows }.attention_ops(&latent);
        assert_eq!(ops(0, 2), 2 * 3 * 512);
        assert_eq!(ops(99, 1), 2 * 100 * (576 + 512));
        let pairs: u64 = (1001..=3000).sum();
        assert_eq!(
            ops(1000, 2000),
            2 * pairs * 512 + 2 * 1000 * 512 * (192 + 256)
        );
    }
}
