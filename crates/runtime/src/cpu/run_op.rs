//! Runs each operation of a plan on the CPU: looks up its operands and calls the kernel.

use rocmforge_cpu as cpu;
use rocmforge_cpu::{Acts, AttnSeq, AttnShape, Conv, ExpertMatrices, Gate, Product, StateSeq};
use rocmforge_plan::{ExpertStack, ExpertVectors, Factor, OutMode, Values, Weight};

use super::{ActsBuffer, CpuBackend, CpuStep, LayerCache};
use crate::shared_cache;
use rocmforge_plan::Batch;
use rocmforge_plan::{ActsId, BufferId, Linear, MixWeights, Op, RowCount};

impl CpuBackend {
    /// Returns activations with a row for each token.
    fn rows(&self, id: ActsId) -> &Acts {
        let ActsBuffer::Rows(acts) = &self.acts[id.0 as usize] else {
            panic!("activations {} are sorted by expert", id.0);
        };
        acts
    }

    /// Returns the matrix and bias of a linear layer.
    fn linear(&self, linear: Linear) -> (Weight<'_>, Option<&[f32]>) {
        let bias = linear.bias.map(|id| self.weights.vector(id));
        (self.weights.matrix(linear.weight), bias)
    }

    /// Runs an operation of a step.
    pub(crate) fn run_op(&mut self, op: &Op, batch: &Batch, step: &CpuStep) {
        match op {
            Op::Embed { .. }
            | Op::AddPositions { .. }
            | Op::SelectRows { .. }
            | Op::CopyPart { .. }
            | Op::Import { .. } => self.run_lookup(op, batch, step),
            // What it reads is taken from the buffer after the step.
            Op::Export { .. } => {}
            Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::Quantize { .. }
            | Op::NormQuantize { .. } => self.run_norm(op),
            Op::MatMul { .. } | Op::MatMuls { .. } | Op::GatedMatMul { .. } => self.run_matmul(op),
            Op::Rope { .. } | Op::KvAppend { .. } | Op::Attention { .. } => {
                self.run_attention(op, batch, step)
            }
            Op::CausalConv { .. } | Op::LinearAttention { .. } => self.run_recurrence(op, batch),
            Op::Activate { .. }
            | Op::GatedActivation { .. }
            | Op::Add { .. }
            | Op::AddGated { .. }
            | Op::Scale { .. }
            | Op::SoftCap { .. } => self.run_elementwise(op),
            Op::Mix { .. } | Op::MatchLength { .. } | Op::Sparsify { .. } => self.run_streams(op),
            Op::Route { .. }
            | Op::QuantizeExperts { .. }
            | Op::ExpertMatMul { .. }
            | Op::CombineExperts { .. } => self.run_experts(op),
            Op::QuantizeHeads { .. } | Op::HeadMatMul { .. } | Op::JoinHeads { .. } => {
                self.run_heads(op, step.tokens.len())
            }
        }
    }

    /// Gathers rows: token and position embeddings, and the rows whose logits are computed.
    fn run_lookup(&mut self, op: &Op, batch: &Batch, step: &CpuStep) {
        let CpuStep { tokens, .. } = step;
        let isa = self.options.isa;
        match *op {
            Op::Embed { table, scale, out } => {
                let mut to = self.take(out);
                cpu::get_rows(&self.weights.matrix(table), tokens, &mut to);
                if scale != 1.0 {
                    to.iter_mut().for_each(|value| *value *= scale);
                }
                self.put(out, to);
            }
            Op::AddPositions { table, out } => {
                let mut to = self.take(out);
                let mut rows = vec![0.0; to.len()];
                let table = self.weights.matrix(table);
                let last = table.n_out as u32 - 1;
                let ids: Vec<u32> = batch.positions.iter().map(|&pos| pos.min(last)).collect();
                cpu::get_rows(&table, &ids, &mut rows);
                cpu::add(isa, &self.pool, &rows, &mut to);
                self.put(out, to);
            }
            Op::Import { out } => {
                let mut to = self.take(out);
                let n = to.len().min(batch.imports.len());
                to[..n].copy_from_slice(&batch.imports[..n]);
                to[n..].fill(0.0);
                self.put(out, to);
            }
            Op::SelectRows { x, out } => {
                let mut to = self.take(out);
                let width = self.plan.buffers[out.0 as usize].width;
                for (row, wanted) in to.chunks_exact_mut(width).zip(&batch.logits) {
                    row.copy_from_slice(&self.buffer(x)[wanted.row * width..][..width]);
                }
                self.put(out, to);
            }
            Op::CopyPart {
                x,
                n_groups,
                first,
                out,
            } => {
                let mut to = self.take(out);
                let group = |id: BufferId| self.plan.buffers[id.0 as usize].width / n_groups;
                let (from, part) = (self.buffer(x).chunks_exact(group(x)), group(out));
                for (out, x) in to.chunks_exact_mut(part).zip(from) {
                    out.copy_from_slice(&x[first..first + part]);
                }
                self.put(out, to);
            }
            _ => unreachable!("{} is not a lookup", op.name()),
        }
    }

    /// Normalizes rows and quantizes activations.
    fn run_norm(&mut self, op: &Op) {
        let isa = self.options.isa;
        match *op {
            Op::RmsNorm {
                x,
                weight,
                n_groups,
                eps,
                out,
            } => {
                let mut to = self.take(out);
                let (x, weight) = (self.buffer(x), self.weights.vector(weight));
                match n_groups {
                    1 => cpu::rms_norm(isa, &self.pool, x, weight, eps, &mut to),
                    _ => {
                        let weights = (weight, n_groups);
                        cpu::rms_norm_groups(isa, &self.pool, x, weights, eps, &mut to);
                    }
                }
                self.put(out, to);
            }
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => {
                let mut to = self.take(out);
                cpu::layer_norm(
                    isa,
                    &self.pool,
                    self.buffer(x),
                    &cpu::LayerNormParams {
                        weight: self.weights.vector(weight),
                        bias: self.weights.vector(bias),
                        eps,
                    },
                    &mut to,
                );
                self.put(out, to);
            }
            Op::Quantize { x, out } => {
                let info = self.plan.acts[out.0 as usize];
                let from = &self.buffers[x.0 as usize];
                let n_rows = from.len() / info.width;
                let ActsBuffer::Rows(acts) = &mut self.acts[out.0 as usize] else {
                    panic!("activations {} are sorted by expert", out.0);
                };
                acts.quantize(isa, &self.pool, from, [n_rows, info.width], info.format);
            }
            Op::NormQuantize {
                x,
                weight,
                n_groups,
                eps,
                out,
            } => {
                let format = self.plan.acts[out.0 as usize].format;
                let ActsBuffer::Rows(acts) = &mut self.acts[out.0 as usize] else {
                    panic!("activations {} are sorted by expert", out.0);
                };
                let norm = (self.weights.vector(weight), n_groups, eps);
                let x = &self.buffers[x.0 as usize];
                cpu::rms_norm_acts(isa, &self.pool, x, norm, format, acts);
            }
            _ => unreachable!("{} is not a norm or quantization", op.name()),
        }
    }

    /// Multiplies activations with weight matrices.
    fn run_matmul(&mut self, op: &Op) {
        let isa = self.options.isa;
        match *op {
            Op::MatMul {
                x,
                weight,
                bias,
                mode,
                out,
            } => {
                let mut to = self.take(out);
                let (w, bias) = self.linear(Linear { weight, bias });
                let product = Product {
                    w,
                    bias,
                    mode,
                    out: &mut to,
                };
                cpu::matmul(isa, &self.pool, self.rows(x), product);
                self.put(out, to);
            }
            Op::MatMuls { x, ref products } => {
                let outs = products.iter().map(|(_, out)| self.take(*out));
                let mut outs: Vec<Vec<f32>> = outs.collect();
                let parts = products.iter().zip(&mut outs).map(|((linear, _), out)| {
                    let (w, bias) = self.linear(*linear);
                    let mode = OutMode::Store;
                    Product { w, bias, mode, out }
                });
                cpu::matmul_all(isa, &self.pool, self.rows(x), parts.collect());
                for ((_, out), values) in products.iter().zip(outs) {
                    self.put(*out, values);
                }
            }
            Op::GatedMatMul {
                x,
                gate,
                up,
                activation,
                out,
            } => {
                let mut to = self.take(out);
                let sides = [gate, up].map(|side| {
                    let (w, bias) = self.linear(side);
                    Gate { w, bias }
                });
                let acts = self.rows(x);
                cpu::matmul_gated(isa, &self.pool, acts, sides, activation, &mut to);
                self.put(out, to);
            }
            _ => unreachable!("{} is not a matmul", op.name()),
        }
    }

    /// Rotates queries and keys, appends to the KV cache and computes attention.
    fn run_attention(&mut self, op: &Op, batch: &Batch, step: &CpuStep) {
        let CpuStep { tokens, rotations } = step;
        let isa = self.options.isa;
        match *op {
            Op::Rope {
                x,
                head_dim,
                start,
                table,
                style,
            } => {
                let mut to = self.take(x);
                let n_rot = self.plan.rope[table.0 as usize].n_rot();
                cpu::rope(
                    isa,
                    &self.pool,
                    tokens.len(),
                    &cpu::Rotation {
                        style,
                        head_dim,
                        n_rot,
                        start,
                        cos_sin: &rotations[table.0 as usize],
                    },
                    &mut to,
                );
                self.put(x, to);
            }
            Op::KvAppend { layer, k, v } => {
                let page = self.options.page;
                let LayerCache {
                    spec,
                    hadamard: [of_k, of_v],
                    k: k_cache,
                    v: v_cache,
                } = &mut *shared_cache::write(&self.cache[layer]);
                let keys = Some((k, spec.k_dim, *of_k, k_cache));
                let values =
                    (spec.values == Values::Apart).then_some((v, spec.v_dim, *of_v, v_cache));
                for (x, dim, hadamard, cache) in [keys, values].into_iter().flatten() {
                    let rows = &self.buffers[x.0 as usize];
                    let layout = cpu::KvLayout {
                        n_kv_heads: spec.n_kv_heads,
                        dim,
                        page,
                        hadamard,
                    };
                    cpu::kv_append(isa, &self.pool, &layout, rows, &batch.slots, cache.as_mut());
                }
            }
            Op::Attention {
                layer,
                n_heads,
                scores,
                sinks,
                q,
                out,
            } => {
                let mut to = self.take(out);
                let cache = shared_cache::read(&self.cache[layer]);
                let LayerCache {
                    spec,
                    hadamard: [k_hadamard, v_hadamard],
                    k,
                    v,
                } = &*cache;
                let shape = AttnShape {
                    n_heads,
                    n_kv_heads: spec.n_kv_heads,
                    k_dim: spec.k_dim,
                    v_dim: spec.v_dim,
                    k_hadamard: *k_hadamard,
                    v_hadamard: *v_hadamard,
                    page: self.options.page,
                    scale: scores.scale,
                    soft_cap: scores.soft_cap,
                    growth: scores.growth,
                    alibi: scores.alibi,
                    // The cache may be another model's.
                    mask: self.plan.kv[layer].mask,
                };
                let seqs: Vec<AttnSeq<'_>> = batch
                    .seqs
                    .iter()
                    .map(|seq| AttnSeq {
                        first_row: seq.first_row,
                        n_rows: seq.n_rows,
                        first_pos: seq.first_pos,
                        block_table: &seq.block_table,
                    })
                    .collect();
                cpu::attention(
                    isa,
                    &self.pool,
                    &shape,
                    cpu::AttnInputs {
                        q: self.buffer(q),
                        k: k.as_ref(),
                        v: (spec.values == Values::Apart).then(|| v.as_ref()),
                        sinks: sinks.map(|sinks| self.weights.vector(sinks)),
                    },
                    &seqs,
                    &mut to,
                );
                drop(cache);
                self.put(out, to);
            }
            _ => unreachable!("{} is not an attention operation", op.name()),
        }
    }

    /// Runs what keeps a state of each sequence.
    fn run_recurrence(&mut self, op: &Op, batch: &Batch) {
        let isa = self.options.isa;
        let seqs = batch.seqs.iter().map(|seq| StateSeq {
            first_row: seq.first_row,
            n_rows: seq.n_rows,
            state: seq.state.as_ref().expect("sequences have slots"),
        });
        let seqs: Vec<StateSeq<'_>> = seqs.collect();
        match *op {
            Op::CausalConv {
                state,
                weight,
                bias,
                form,
                x,
                out,
            } => {
                let mut to = self.take(out);
                let mut states = std::mem::take(&mut self.states[state]);
                let conv = Conv {
                    weight: self.weights.vector(weight),
                    bias: bias.map(|bias| self.weights.vector(bias)),
                    form,
                    width: self.plan.buffers[out.0 as usize].width,
                };
                let x = self.buffer(x);
                cpu::causal_conv(isa, &self.pool, &conv, &seqs, x, &mut states, &mut to);
                self.states[state] = states;
                self.put(out, to);
            }
            Op::LinearAttention {
                state,
                ref heads,
                rule,
                decay,
                inputs,
                out,
            } => {
                let mut to = self.take(out);
                let mut states = std::mem::take(&mut self.states[state]);
                let inputs = inputs.map(|input| self.buffer(input));
                let decay = decay.map(|rates| self.weights.vector(rates));
                let how = (heads, rule, decay);
                cpu::linear_attention(isa, &self.pool, how, &seqs, inputs, &mut states, &mut to);
                self.states[state] = states;
                self.put(out, to);
            }
            _ => unreachable!("{} keeps no state", op.name()),
        }
    }

    /// Computes activation functions, sums, multiples and soft caps.
    fn run_elementwise(&mut self, op: &Op) {
        let isa = self.options.isa;
        match *op {
            Op::Activate { activation, x, out } => {
                let mut to = self.take(out);
                cpu::activate(isa, &self.pool, activation, self.buffer(x), &mut to);
                self.put(out, to);
            }
            Op::GatedActivation {
                activation,
                gate,
                up,
                out,
            } => {
                let mut to = self.take(out);
                let (gate, up) = (self.buffer(gate), self.buffer(up));
                cpu::gated_activation(isa, &self.pool, activation, gate, up, &mut to);
                self.put(out, to);
            }
            Op::Add { x, out } => {
                let mut to = self.take(out);
                cpu::add(isa, &self.pool, self.buffer(x), &mut to);
                self.put(out, to);
            }
            Op::AddGated { gate, x, out } => {
                let mut to = self.take(out);
                cpu::add_gated(isa, &self.pool, self.buffer(gate), self.buffer(x), &mut to);
                self.put(out, to);
            }
            Op::Scale { by, x } => {
                let mut to = self.take(x);
                match by {
                    Factor::Constant(by) => cpu::scale(isa, &self.pool, &[by], &mut to),
                    Factor::Vector(by) => {
                        cpu::scale(isa, &self.pool, self.weights.vector(by), &mut to);
                    }
                }
                self.put(x, to);
            }
            Op::SoftCap { cap, x } => {
                let mut to = self.take(x);
                cpu::soft_cap(isa, &self.pool, cap, &mut to);
                self.put(x, to);
            }
            _ => unreachable!("{} is not an elementwise operation", op.name()),
        }
    }

    /// Mixes residual streams and makes activations sparse.
    fn run_streams(&mut self, op: &Op) {
        let isa = self.options.isa;
        let width = |id: BufferId| self.plan.buffers[id.0 as usize].width;
        match *op {
            Op::Mix {
                weights,
                part,
                x,
                mode,
                out,
            } => {
                let (n_in, n_out) = (width(x) / part, width(out) / part);
                let mut to = self.take(out);
                let n_rows = to.len() / (n_out * part);
                let weights = match weights {
                    MixWeights::OfRows(id) => self.buffer(id),
                    MixWeights::Same(id) => self.weights.vector(id),
                };
                let (shape, x) = ([n_rows, n_in, n_out], self.buffer(x));
                cpu::mix(isa, &self.pool, shape, weights, x, (mode, &mut to));
                self.put(out, to);
            }
            Op::MatchLength { like, x } => {
                let width = width(like);
                let mut to = self.take(x);
                cpu::match_length(isa, &self.pool, (self.buffer(like), width), &mut to);
                self.put(x, to);
            }
            Op::Sparsify { factor, x } => {
                let width = width(x);
                let mut to = self.take(x);
                cpu::sparsify(isa, &self.pool, factor, (&mut to, width));
                self.put(x, to);
            }
            _ => unreachable!("{} is not an operation on streams", op.name()),
        }
    }

    /// Routes tokens to MoE experts, multiplies with their matrices and combines their outputs.
    fn run_experts(&mut self, op: &Op) {
        let isa = self.options.isa;
        match *op {
            Op::Route {
                logits,
                bias,
                scales,
                router,
                shared,
                out,
            } => {
                let n_experts = self.plan.buffers[logits.0 as usize].width;
                let vectors = ExpertVectors { bias, scales }.map(|id| self.weights.vector(id));
                let logits = &self.buffers[logits.0 as usize];
                let shared = shared.map(|it| it.map(|gate| &self.buffers[gate.0 as usize][..]));
                let routing = &mut self.routings[out.0 as usize];
                routing.route(&self.pool, (&router, shared), logits, (n_experts, vectors));
            }
            Op::QuantizeExperts {
                x,
                rows_of,
                routing,
                out,
            } => {
                let format = self.plan.acts[out.0 as usize].format;
                let from = &self.buffers[x.0 as usize];
                let routing = &self.routings[routing.0 as usize];
                let ActsBuffer::ByExpert(acts) = &mut self.acts[out.0 as usize] else {
                    panic!("activations {} are not sorted by expert", out.0);
                };
                acts.quantize(isa, &self.pool, routing, (from, rows_of), format);
            }
            Op::ExpertMatMul {
                x,
                routing,
                weight,
                scales,
                bias,
                stack,
                shared,
                out,
            } => {
                let mut to = self.take(out);
                let ActsBuffer::ByExpert(acts) = &self.acts[x.0 as usize] else {
                    panic!("activations {} are not sorted by expert", x.0);
                };
                cpu::expert_matmul(
                    isa,
                    &self.pool,
                    ExpertMatrices {
                        w: self.weights.matrix(weight),
                        scales: scales.map(|id| self.weights.vector(id)),
                        bias: bias.map(|id| self.weights.vector(id)),
                        stack,
                        shared: shared.map(|id| self.weights.matrix(id)),
                    },
                    &self.routings[routing.0 as usize],
                    acts,
                    &mut to,
                );
                self.put(out, to);
            }
            Op::CombineExperts {
                x,
                routing,
                weighed,
                out,
            } => {
                let mut to = self.take(out);
                let routing = (&self.routings[routing.0 as usize], weighed);
                cpu::combine_experts(isa, &self.pool, routing, self.buffer(x), &mut to);
                self.put(out, to);
            }
            _ => unreachable!("{} is not an expert operation", op.name()),
        }
    }

    /// Multiplies heads with matrices of their own.
    fn run_heads(&mut self, op: &Op, n_tokens: usize) {
        let isa = self.options.isa;
        match *op {
            Op::QuantizeHeads { x, start, out } => {
                let info = self.plan.acts[out.0 as usize];
                let RowCount::Heads { n_heads } = info.rows else {
                    panic!("activations {} are not of heads", out.0);
                };
                let from = &self.buffers[x.0 as usize];
                let ActsBuffer::ByExpert(acts) = &mut self.acts[out.0 as usize] else {
                    panic!("activations {} are not sorted by head", out.0);
                };
                let values = [n_heads, start, info.width];
                acts.quantize_heads(isa, &self.pool, (from, n_tokens), values, info.format);
            }
            Op::HeadMatMul {
                x,
                weight,
                n_heads,
                out,
            } => {
                let mut to = self.take(out);
                let ActsBuffer::ByExpert(acts) = &self.acts[x.0 as usize] else {
                    panic!("activations {} are not sorted by head", x.0);
                };
                cpu::expert_matmul(
                    isa,
                    &self.pool,
                    ExpertMatrices {
                        w: self.weights.matrix(weight),
                        scales: None,
                        bias: None,
                        stack: ExpertStack::whole(n_heads),
                        shared: None,
                    },
                    &cpu::Routing::of_heads(n_heads, n_tokens),
                    acts,
                    &mut to,
                );
                self.put(out, to);
            }
            Op::JoinHeads {
                n_heads,
                x,
                rest,
                out,
            } => {
                let mut to = self.take(out);
                let rest = rest.map(|rest| self.buffer(rest));
                cpu::join_heads(
                    &self.pool,
                    [n_heads, n_tokens],
                    self.buffer(x),
                    rest,
                    &mut to,
                );
                self.put(out, to);
            }
            _ => unreachable!("{} is not an operation on heads", op.name()),
        }
    }

    pub(crate) fn buffer(&self, id: BufferId) -> &[f32] {
        &self.buffers[id.0 as usize]
    }

    /// Returns a buffer that the other device writes.
    pub(crate) fn buffer_mut(&mut self, id: BufferId) -> &mut [f32] {
        &mut self.buffers[id.0 as usize]
    }

    /// Takes a buffer out so that it can be written while others are read. [`CpuBackend::put`] puts it back.
    pub(crate) fn take(&mut self, id: BufferId) -> Vec<f32> {
        std::mem::take(&mut self.buffers[id.0 as usize])
    }

    /// Puts a taken buffer back.
    pub(crate) fn put(&mut self, id: BufferId, buffer: Vec<f32>) {
        self.buffers[id.0 as usize] = buffer;
    }
}
