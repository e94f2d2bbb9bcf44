//! Launches the GPU kernels of each operation of a plan.

use rocmforge_gpu::ops::{
    self, ChannelFactors, ChannelInput, Conv, ConvPart, ExpertGated, ExpertProduct, ExpertSum,
    Gated, GroupNorm, HeadFactors, HeadNorms, LatentHeads, LatentRopeKv, Product, Queries, RopeKv,
    Rotation, Routing, Scores, SelectiveWeights,
};
use rocmforge_gpu::{Acts, Gpu, GpuError, KvLayer, OutMode, Slice, Source};

use super::compile::{
    AfterHeads, AttendToHeadsOps, ChannelDecodeOps, CombineAddOps, ConvSiluOps, ExpertGateOps,
    GatedQuantizeOps, HeadProductsOps, LatentQueriesOps, LinearDecodeOps, LinearInputsOps,
    NormQuantizeOps, NormsOps, OwnConversion, RopeKvOps, RouterOps, RowNorm, SelectiveDecodeOps,
    Stage,
};
use super::memory::Memory;
use super::step::StepShape;
use super::weights::DeviceWeights;
use rocmforge_plan::{
    Activation, ActsId, BufferId, ConvForm, ExpertStack, ExpertVectors, Factor, Linear, MixWeights,
    Op, Plan, RopeId, RopeStyle, RoutingId, RowCount, RowsOf, StepRows, Weighed, WeightId,
};

/// Everything that launches read. They change device memory only.
#[derive(Clone, Copy)]
pub(crate) struct Launcher<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a DeviceWeights,
    pub(crate) memory: &'a Memory,
    pub(crate) shape: &'a StepShape,
    /// What the products of a stage convert themselves.
    pub(crate) source: Option<(ActsId, Source<'a>)>,
}

impl<'a> Launcher<'a> {
    /// Queues the operations of a stage.
    pub(crate) fn run(&self, stage: &Stage) -> Result<(), GpuError> {
        match stage {
            Stage::One(index) => self.run_op(&self.plan.ops[*index]),
            Stage::NormQuantize { ops, .. } => self.norm_quantize(ops),
            Stage::Router { ops, .. } => self.router(ops, stage.ops().end - 1),
            Stage::GatedQuantize { ops, .. } => self.gated_quantize(ops),
            Stage::RopeKv { ops, .. } => self.rope_kv(ops),
            Stage::HeadProducts { ops, .. } => self.head_products(ops),
            Stage::LatentQueries { ops, .. } => {
                self.head_products(&ops.product)?;
                let q = [ops.product.out, ops.q_tail].map(|id| self.buffer(id));
                self.latent_rope_kv(ops, q)
            }
            Stage::AttendToHeads { ops, .. } => self.attend_to_heads(ops),
            Stage::ExpertGate { ops, .. } => self.expert_gate(ops, None),
            Stage::CombineAdd { ops, .. } => self.combine_add(ops),
            Stage::LinearInputs { ops, .. } => self.linear_inputs(ops),
            Stage::LinearDecode { ops, .. } if self.has_one_row_each() => self.linear_decode(ops),
            Stage::ChannelDecode { ops, .. } if self.has_one_row_each() => self.channel_decode(ops),
            Stage::ConvSilu { ops, .. } if self.has_one_row_each() => self.conv_silu(ops),
            Stage::Norms { ops, .. } => self.norms(ops),
            Stage::SelectiveDecode { ops, .. } if self.has_one_row_each() => {
                self.selective_decode(ops)
            }
            Stage::LinearDecode { .. }
            | Stage::ChannelDecode { .. }
            | Stage::ConvSilu { .. }
            | Stage::SelectiveDecode { .. } => {
                let mut indices = stage.ops();
                indices.try_for_each(|index| self.run_op(&self.plan.ops[index]))
            }
        }
    }

    /// Whether the step is of answers, with at most one row for each sequence.
    fn has_one_row_each(&self) -> bool {
        self.shape.max_rows_of_seq == 1 && self.shape.rows != StepRows::Prompt
    }

    /// Lets the products of a stage convert their activations.
    pub(crate) fn with_source(self, own: &OwnConversion) -> Launcher<'a> {
        let source = Source {
            x: self.buffer(own.x),
            rows: own.rows,
        };
        Launcher {
            source: Some((own.out, source)),
            ..self
        }
    }

    /// The activations that the products of experts or heads take.
    fn acts(&self, id: ActsId) -> Acts<'a> {
        let acts = self.memory.acts(id, self.shape);
        let source = self.source.filter(|(own, _)| *own == id);
        Acts {
            source: source.map(|(_, source)| source),
            ..acts
        }
    }

    fn buffer(&self, id: BufferId) -> Slice<'a, f32> {
        self.memory.buffer(id, self.shape)
    }

    fn width(&self, id: BufferId) -> usize {
        self.plan.buffers[id.0 as usize].width
    }

    /// Queues a single operation.
    fn run_op(&self, op: &Op) -> Result<(), GpuError> {
        match op {
            Op::Embed { .. }
            | Op::AddPositions { .. }
            | Op::SelectRows { .. }
            | Op::CopyPart { .. } => self.run_lookup(op),
            Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::Quantize { .. }
            | Op::NormQuantize { .. } => self.run_norm(op),
            Op::MatMul { .. } | Op::MatMuls { .. } | Op::GatedMatMul { .. } => self.run_matmul(op),
            Op::Rope { .. } | Op::KvAppend { .. } | Op::Attention { .. } => self.run_attention(op),
            Op::CausalConv { .. } | Op::LinearAttention { .. } => self.run_recurrent(op),
            Op::Activate { .. }
            | Op::GatedActivation { .. }
            | Op::Add { .. }
            | Op::AddGated { .. }
            | Op::Scale { .. }
            | Op::SoftCap { .. } => self.run_elementwise(op),
            // Copied before the step, and after it.
            Op::Import { .. } | Op::Export { .. } => Ok(()),
            Op::Mix { .. } | Op::MatchLength { .. } | Op::Sparsify { .. } => self.run_streams(op),
            Op::Route { .. }
            | Op::QuantizeExperts { .. }
            | Op::ExpertMatMul { .. }
            | Op::CombineExperts { .. } => self.run_experts(op),
            Op::QuantizeHeads { .. } | Op::HeadMatMul { .. } | Op::JoinHeads { .. } => {
                self.run_heads(op)
            }
        }
    }

    /// Gathers rows: token and position embeddings, and the rows whose logits are computed.
    fn run_lookup(&self, op: &Op) -> Result<(), GpuError> {
        let Launcher {
            gpu,
            weights,
            memory,
            ..
        } = *self;
        let step = memory.step.step(self.shape);
        match *op {
            Op::Embed { table, scale, out } => {
                let (table, out) = (weights.matrix(table), self.buffer(out));
                let tokens = memory.step.tokens(self.shape);
                ops::get_rows(gpu, &table, tokens, scale, OutMode::Store, out)
            }
            Op::AddPositions { table, out } => {
                let (table, out) = (weights.matrix(table), self.buffer(out));
                ops::get_rows(gpu, &table, step.positions, 1.0, OutMode::Add, out)
            }
            Op::SelectRows { x, out } => {
                let rows = memory.step.logits_rows(self.shape);
                let width = self.width(out);
                ops::select_rows(gpu, self.buffer(x), rows, width, self.buffer(out))
            }
            Op::CopyPart {
                x,
                n_groups,
                first,
                out,
            } => {
                let [from, to] = [x, out].map(|id| (self.buffer(id), self.width(id) / n_groups));
                ops::copy_part(gpu, from, first, to)
            }
            _ => unreachable!("{} is not a lookup", op.name()),
        }
    }

    /// Normalizes rows and quantizes activations.
    fn run_norm(&self, op: &Op) -> Result<(), GpuError> {
        let Launcher {
            gpu,
            weights,
            memory,
            ..
        } = *self;
        match *op {
            Op::RmsNorm {
                x,
                weight,
                n_groups,
                eps,
                out,
            } => {
                let (x, out) = (self.buffer(x), self.buffer(out));
                let weight = weights.vector(weight);
                match n_groups {
                    1 => ops::rms_norm(gpu, x, weight, eps, out),
                    _ => ops::rms_norm_groups(gpu, x, (weight, n_groups), eps, out),
                }
            }
            Op::LayerNorm {
                x,
                weight,
                bias,
                eps,
                out,
            } => {
                let (weight, bias) = (weights.vector(weight), weights.vector(bias));
                ops::layer_norm(gpu, self.buffer(x), weight, bias, eps, self.buffer(out))
            }
            Op::Quantize { x, out } => {
                ops::quantize(gpu, self.buffer(x), &memory.acts(out, self.shape))
            }
            Op::NormQuantize {
                x,
                weight,
                n_groups,
                eps,
                out,
            } => {
                let (x, out) = (self.buffer(x), memory.acts(out, self.shape));
                let weight = weights.vector(weight);
                match n_groups {
                    1 => ops::rms_norm_quantize(gpu, x, weight, eps, None, &out),
                    _ => ops::rms_norm_groups_quantize(gpu, x, (weight, n_groups), eps, &out),
                }
            }
            _ => unreachable!("{} is not a norm or quantization", op.name()),
        }
    }

    fn norm_quantize(&self, ops: &NormQuantizeOps) -> Result<(), GpuError> {
        let Launcher { gpu, memory, .. } = *self;
        let (x, normed) = (self.buffer(ops.x), self.buffer(ops.normed));
        let (weight, out) = (
            self.weights.vector(ops.weight),
            memory.acts(ops.out, self.shape),
        );
        ops::rms_norm_quantize(gpu, x, weight, ops.eps, Some(normed), &out)
    }

    /// Chooses experts: of one row in a launch, of more in one for each operation. `choice`: the index of the last one.
    fn router(&self, operands: &RouterOps, choice: usize) -> Result<(), GpuError> {
        let Launcher { gpu, memory, .. } = *self;
        let Op::Route {
            bias,
            scales,
            router,
            shared,
            out,
            ..
        } = self.plan.ops[choice]
        else {
            unreachable!("the last operation of a router is the choice");
        };
        let routing = memory.routing(out, self.shape);
        let Linear {
            weight,
            bias: of_products,
        } = operands.matrix;
        let matrix = self.weights.matrix(weight);
        let is_any = self.shape.rows == StepRows::Any;
        if !is_any || !ops::routes_row(gpu, &matrix, (&router, bias.is_some()), &routing) {
            self.norm_quantize(&operands.norm)?;
            return (choice - 1..=choice).try_for_each(|index| self.run_op(&self.plan.ops[index]));
        }
        let norm = &operands.norm;
        let row = ops::RouterRow {
            x: self.buffer(norm.x),
            norm: (self.weights.vector(norm.weight), norm.eps),
            normed: self.buffer(norm.normed),
            acts: memory.acts(norm.out, self.shape),
            matrix,
            bias: of_products.map(|id| self.weights.vector(id)),
            logits: self.buffer(operands.logits),
        };
        let vectors = ExpertVectors { bias, scales }.map(|id| self.weights.vector(id));
        let shared = shared.map(|shared| shared.map(|gate| self.buffer(gate)));
        let seq_of_row = memory.step.step(self.shape).seq_of_row;
        ops::route_row(gpu, &row, vectors, (router, shared), seq_of_row, &routing)
    }

    /// Multiplies activations with weight matrices.
    fn run_matmul(&self, op: &Op) -> Result<(), GpuError> {
        match *op {
            Op::MatMul {
                x,
                weight,
                bias,
                mode,
                out,
            } => {
                let product = self.product(Linear { weight, bias }, mode, self.buffer(out));
                self.products(x, &[product])
            }
            Op::MatMuls { x, ref products } => {
                let products = products
                    .iter()
                    .map(|&(linear, out)| self.product(linear, OutMode::Store, self.buffer(out)));
                self.products(x, &products.collect::<Vec<_>>())
            }
            Op::GatedMatMul {
                x,
                gate,
                up,
                activation,
                out,
            } => self.gated(x, [gate, up], activation, self.buffer(out)),
            _ => unreachable!("{} is not a matmul", op.name()),
        }
    }

    /// Rotates queries and keys, appends to the KV cache and computes attention.
    fn run_attention(&self, op: &Op) -> Result<(), GpuError> {
        let Launcher { gpu, memory, .. } = *self;
        let step = memory.step.step(self.shape);
        match *op {
            Op::Rope {
                x,
                head_dim,
                start,
                table,
                style,
            } => {
                let rotation = self.rotation(table, style, start);
                ops::rope(gpu, self.buffer(x), head_dim, &rotation, &step)
            }
            Op::KvAppend { layer, k, v } => {
                let (k, v) = (self.buffer(k), self.buffer(v));
                ops::kv_append(gpu, &memory.layer(layer), k, v, &step)
            }
            Op::Attention { .. } => {
                let (queries, kv) = self.queries(op);
                ops::attention(gpu, &queries, &kv, &step, &memory.attention)
            }
            _ => unreachable!("{} is not an attention operation", op.name()),
        }
    }

    /// Attention with the conversion of its result.
    pub(super) fn attend_quantize(&self, attention: &Op, out: ActsId) -> Result<(), GpuError> {
        let Launcher { gpu, memory, .. } = *self;
        let (queries, kv) = self.queries(attention);
        let step = memory.step.step(self.shape);
        let memory = (&memory.attention, &memory.acts(out, self.shape));
        ops::attention_quantize(gpu, &queries, &kv, &step, memory)
    }

    /// The queries of an attention operation, and the layer of the cache that they attend to.
    fn queries(&self, op: &Op) -> (Queries<'_>, KvLayer<'_>) {
        let Op::Attention {
            layer,
            n_heads,
            scores,
            sinks,
            q,
            out,
        } = *op
        else {
            unreachable!("{} is not attention", op.name());
        };
        let queries = Queries {
            q: self.buffer(q),
            n_heads,
            scores: Scores {
                scale: scores.scale,
                soft_cap: scores.soft_cap,
                growth: scores.growth,
                alibi: scores.alibi,
                mask: self.plan.kv[layer].mask,
            },
            sinks: sinks.map(|sinks| self.weights.vector(sinks)),
            out: self.buffer(out),
        };
        (queries, self.memory.layer(layer))
    }

    /// Whether an attention operation rounds queries and weights to f16.
    pub(super) fn attends_in_halves(&self, op: &Op) -> bool {
        let Launcher { gpu, memory, .. } = *self;
        let (queries, kv) = self.queries(op);
        let step = memory.step.step(self.shape);
        ops::attends_in_halves(gpu, &queries, &kv, &step, &memory.attention)
    }

    /// Computes what depends on states of sequences, and the states after it.
    fn run_recurrent(&self, op: &Op) -> Result<(), GpuError> {
        let Launcher { gpu, memory, .. } = *self;
        let (step, places) = (memory.step.step(self.shape), memory.step.states(self.shape));
        match *op {
            Op::CausalConv {
                state,
                weight,
                bias,
                form,
                x,
                out,
            } => {
                let conv = self.conv(weight, bias, (form, self.width(out)));
                let (x, out) = (self.buffer(x), self.buffer(out));
                let states = memory.state(state);
                ops::causal_conv(gpu, &conv, x, (&step, &places), states, out)
            }
            Op::LinearAttention {
                state,
                ref heads,
                rule,
                decay,
                inputs,
                out,
            } => {
                let inputs = inputs.map(|id| self.buffer(id));
                let (states, out) = (memory.state(state), self.buffer(out));
                let how = (heads, rule, decay.map(|rates| self.weights.vector(rates)));
                ops::linear_attention(gpu, how, inputs, (&step, &places), states, out)
            }
            _ => unreachable!("{} keeps no state", op.name()),
        }
    }

    /// Computes activation functions, sums, multiples and soft caps.
    fn run_elementwise(&self, op: &Op) -> Result<(), GpuError> {
        let gpu = self.gpu;
        match *op {
            Op::Activate { activation, x, out } => {
                ops::activate(gpu, activation, self.buffer(x), self.buffer(out))
            }
            Op::GatedActivation {
                activation,
                gate,
                up,
                out,
            } => {
                let [gate, up, out] = [gate, up, out].map(|id| self.buffer(id));
                ops::gated_activation(gpu, activation, gate, up, out)
            }
            Op::Add { x, out } => ops::add(gpu, self.buffer(x), self.buffer(out)),
            Op::AddGated { gate, x, out } => {
                let [gate, x, out] = [gate, x, out].map(|id| self.buffer(id));
                ops::add_gated(gpu, gate, x, out)
            }
            Op::Scale { by, x } => match by {
                Factor::Constant(by) => ops::scale(gpu, by, self.buffer(x)),
                Factor::Vector(by) => ops::scale_rows(gpu, self.weights.vector(by), self.buffer(x)),
            },
            Op::SoftCap { cap, x } => ops::soft_cap(gpu, cap, self.buffer(x)),
            _ => unreachable!("{} is not an elementwise operation", op.name()),
        }
    }

    /// Mixes residual streams and makes activations sparse.
    fn run_streams(&self, op: &Op) -> Result<(), GpuError> {
        let gpu = self.gpu;
        match *op {
            Op::Mix {
                weights,
                part,
                x,
                mode,
                out,
            } => {
                let (n_in, n_out) = (self.width(x) / part, self.width(out) / part);
                let weights = match weights {
                    MixWeights::OfRows(id) => self.buffer(id),
                    MixWeights::Same(id) => self.weights.vector(id),
                };
                let (x, out) = (self.buffer(x), self.buffer(out));
                let n_rows = out.len() / (n_out * part);
                ops::mix(gpu, [n_rows, n_in, n_out], weights, x, (mode, out))
            }
            Op::MatchLength { like, x } => {
                let like = (self.buffer(like), self.width(like));
                ops::match_length(gpu, like, self.buffer(x))
            }
            Op::Sparsify { factor, x } => {
                ops::sparsify(gpu, factor, (self.buffer(x), self.width(x)))
            }
            _ => unreachable!("{} is not an operation on streams", op.name()),
        }
    }

    /// Routes tokens to MoE experts, multiplies with their matrices and combines their outputs.
    fn run_experts(&self, op: &Op) -> Result<(), GpuError> {
        let Launcher {
            gpu,
            weights,
            memory,
            ..
        } = *self;
        let step = memory.step.step(self.shape);
        match *op {
            Op::Route {
                logits,
                bias,
                scales,
                router,
                shared,
                out,
            } => {
                let routing = memory.routing(out, self.shape);
                let vectors = ExpertVectors { bias, scales }.map(|id| weights.vector(id));
                let logits = (self.buffer(logits), vectors);
                let shared = shared.map(|shared| shared.map(|gate| self.buffer(gate)));
                ops::route(gpu, logits, (router, shared), step.seq_of_row, &routing)
            }
            Op::QuantizeExperts {
                x,
                rows_of,
                routing,
                out,
            } => {
                let (x, out) = (self.buffer(x), memory.acts(out, self.shape));
                let routing = memory.routing(routing, self.shape);
                let weighed = match rows_of {
                    RowsOf::Choices => return ops::quantize_choices(gpu, x, &routing, &out),
                    RowsOf::Tokens => Weighed::Outputs,
                    RowsOf::WeighedTokens => Weighed::Inputs,
                };
                ops::quantize_experts(gpu, x, (&routing, weighed), &out)
            }
            Op::ExpertMatMul { .. } => {
                let (x, routing, product, out) = self.expert_product(op);
                ops::expert_products(gpu, &x, &routing, &product, out)
            }
            Op::CombineExperts {
                x,
                routing,
                weighed,
                out,
            } => self.combine(x, (routing, weighed), OutMode::Store, out),
            _ => unreachable!("{} is not an expert operation", op.name()),
        }
    }

    /// The operands of [`Op::ExpertMatMul`].
    fn expert_product(
        &self,
        op: &Op,
    ) -> (Acts<'a>, Routing<'a>, ExpertProduct<'a>, Slice<'a, f32>) {
        let &Op::ExpertMatMul {
            x,
            routing,
            weight,
            scales,
            bias,
            stack,
            shared,
            out,
        } = op
        else {
            unreachable!("{} is not a product of experts", op.name());
        };
        let product = self.experts((Linear { weight, bias }, stack), (scales, shared));
        let routing = self.memory.routing(routing, self.shape);
        (self.acts(x), routing, product, self.buffer(out))
    }

    /// Multiplies heads with matrices of their own.
    fn run_heads(&self, op: &Op) -> Result<(), GpuError> {
        let Launcher {
            gpu, memory, shape, ..
        } = *self;
        match *op {
            Op::QuantizeHeads { x, start, out } => {
                let RowCount::Heads { n_heads } = self.plan.acts[out.0 as usize].rows else {
                    panic!("activations {} are not of heads", out.0);
                };
                let (x, heads) = (self.buffer(x), memory.heads(n_heads, shape));
                ops::quantize_heads(gpu, x, start, &heads, &memory.acts(out, shape))
            }
            Op::HeadMatMul {
                x,
                weight,
                n_heads,
                out,
            } => {
                let (x, heads) = (self.acts(x), memory.heads(n_heads, shape));
                let linear = Linear { weight, bias: None };
                let stack = ExpertStack::whole(n_heads);
                let matrices = self.experts((linear, stack), (None, None));
                ops::expert_products(gpu, &x, &heads, &matrices, self.buffer(out))
            }
            Op::JoinHeads {
                n_heads,
                x,
                rest,
                out,
            } => {
                let rest = rest.map(|rest| self.buffer(rest));
                let rows = [n_heads, shape.n_rows];
                ops::join_heads(gpu, rows, self.buffer(x), rest, self.buffer(out))
            }
            _ => unreachable!("{} is not an operation on heads", op.name()),
        }
    }

    fn product(&self, linear: Linear, mode: OutMode, out: Slice<'a, f32>) -> Product<'a> {
        Product {
            matrix: self.weights.matrix(linear.weight),
            bias: self.bias(linear),
            mode,
            out,
        }
    }

    /// Returns the stacked matrices of experts, with factors on them and the matrix of a shared one.
    fn experts(
        &self,
        (linear, stack): (Linear, ExpertStack),
        (scales, shared): (Option<WeightId>, Option<WeightId>),
    ) -> ExpertProduct<'a> {
        ExpertProduct {
            matrices: self.weights.experts(linear.weight, stack),
            scales: scales.map(|id| self.weights.vector(id)),
            bias: self.bias(linear),
            shared: shared.map(|id| self.weights.matrix(id)),
        }
    }

    fn bias(&self, linear: Linear) -> Option<Slice<'a, f32>> {
        linear.bias.map(|id| self.weights.vector(id))
    }

    /// Multiplies the same activations with several matrices.
    fn products(&self, x: ActsId, products: &[Product<'_>]) -> Result<(), GpuError> {
        ops::products(self.gpu, &self.memory.acts(x, self.shape), products)
    }

    /// Computes `out = activation(x * gate^T) * (x * up^T)`.
    fn gated(
        &self,
        x: ActsId,
        matrices: [Linear; 2],
        activation: Activation,
        out: Slice<'a, f32>,
    ) -> Result<(), GpuError> {
        let gated = self.gate_and_up(matrices, activation, out);
        let x = self.memory.acts(x, self.shape);
        ops::gated_products(self.gpu, &x, &gated, self.memory.gated(out.len()))
    }

    /// The same, converted.
    fn gated_quantize(&self, operands: &GatedQuantizeOps) -> Result<(), GpuError> {
        let Launcher { memory, shape, .. } = *self;
        let out = self.buffer(operands.unwritten);
        let gated = self.gate_and_up(operands.matrices, operands.activation, out);
        let [x, to] = [operands.x, operands.out].map(|id| memory.acts(id, shape));
        ops::gated_products_quantized(self.gpu, &x, &gated, memory.gated(out.len()), &to)
    }

    fn gate_and_up(
        &self,
        matrices: [Linear; 2],
        activation: Activation,
        out: Slice<'a, f32>,
    ) -> Gated<'a> {
        Gated {
            matrices: matrices.map(|linear| self.weights.matrix(linear.weight)),
            biases: matrices.map(|linear| self.bias(linear)),
            activation,
            out,
        }
    }

    /// Computes gate, up and activation of MoE experts, and maybe converts the result.
    pub(crate) fn expert_gate(
        &self,
        operands: &ExpertGateOps,
        converted: Option<ActsId>,
    ) -> Result<(), GpuError> {
        let [gate_scales, up_scales] = operands.scales;
        let [gate_shared, up_shared] = operands.shared;
        let gated = ExpertGated {
            sides: [
                self.experts(operands.gate, (gate_scales, gate_shared)),
                self.experts(operands.up, (up_scales, up_shared)),
            ],
            activation: operands.activation,
            out: self.buffer(operands.out),
        };
        let x = self.acts(operands.x);
        let routing = self.memory.routing(operands.routing, self.shape);
        let scratch = self.buffer(operands.unwritten[1]);
        match converted {
            Some(to) => {
                let to = self.memory.acts(to, self.shape);
                let rows = (&x, &routing);
                ops::expert_gated_products_quantized(self.gpu, rows, &gated, scratch, &to)
            }
            None => ops::expert_gated_products(self.gpu, &x, &routing, &gated, scratch),
        }
    }

    /// Computes the weighted sum of the experts' outputs.
    fn combine(
        &self,
        x: BufferId,
        (routing, weighed): (RoutingId, Weighed),
        mode: OutMode,
        out: BufferId,
    ) -> Result<(), GpuError> {
        let (x, out) = (self.buffer(x), self.buffer(out));
        let routing = self.memory.routing(routing, self.shape);
        ops::combine_experts(self.gpu, x, (&routing, weighed), mode, out)
    }

    /// Adds the weighted sum of the experts' outputs, and maybe normalizes the result.
    fn combine_add(&self, combine: &CombineAddOps) -> Result<(), GpuError> {
        let Some(norm) = combine.norm else {
            return self.combine(combine.x, combine.routing, OutMode::Add, combine.out);
        };
        let (routing, weighed) = combine.routing;
        let routing = self.memory.routing(routing, self.shape);
        let normed = norm.normed.map(|id| self.buffer(id));
        let out = self.memory.acts(norm.out, self.shape);
        ops::combine_and_norm(
            self.gpu,
            self.buffer(combine.x),
            (&routing, weighed),
            self.buffer(combine.out),
            (self.weights.vector(norm.weight), norm.eps),
            (normed, &out),
        )
    }

    /// Computes products of experts, adds their weighted sum, and maybe normalizes the result.
    pub(crate) fn expert_sum(&self, product: &Op, combine: &CombineAddOps) -> Result<(), GpuError> {
        let gpu = self.gpu;
        let (x, routing, product, out) = self.expert_product(product);
        let sum = self.buffer(combine.out);
        let experts = (&routing, combine.routing.1);
        if let Some(at_once) = ExpertSum::new(gpu, &x, experts, &product, [out, sum])? {
            at_once.launch(gpu)?;
            return combine.norm.map_or(Ok(()), |norm| {
                let (weight, eps) = (self.weights.vector(norm.weight), norm.eps);
                let normed = norm.normed.map(|id| self.buffer(id));
                let to = self.memory.acts(norm.out, self.shape);
                ops::rms_norm_quantize(gpu, sum, weight, eps, normed, &to)
            });
        }
        ops::expert_products(gpu, &x, &routing, &product, out)?;
        self.combine_add(combine)
    }

    fn rotation(&self, table: RopeId, style: RopeStyle, start: usize) -> Rotation<'a> {
        let (table, n_rot) = self.memory.rope(table);
        Rotation {
            style,
            table,
            n_rot,
            start,
        }
    }

    /// Normalizes (optionally) and rotates queries and keys, and appends keys and values to the KV cache.
    fn rope_kv(&self, ops: &RopeKvOps) -> Result<(), GpuError> {
        let operands = RopeKv {
            q: self.buffer(ops.q),
            q_out: self.buffer(ops.q_out),
            k: self.buffer(ops.k),
            v: self.buffer(ops.v),
            rotation: self.rotation(ops.table, ops.style, ops.start),
            norms: ops.norms.map(|norms| HeadNorms {
                q: self.weights.vector(norms.q),
                k: self.weights.vector(norms.k),
                eps: norms.eps,
            }),
        };
        let step = self.memory.step.step(self.shape);
        ops::rope_kv(self.gpu, &operands, &self.memory.layer(ops.layer), &step)
    }

    fn head_products(&self, ops: &HeadProductsOps) -> Result<(), GpuError> {
        let Launcher { memory, shape, .. } = *self;
        let (x, heads) = (self.acts(ops.x), memory.heads(ops.n_heads, shape));
        let stack = ExpertStack::whole(ops.n_heads);
        let matrices = self.weights.experts(ops.weight, stack);
        ops::head_products(self.gpu, &x, &heads, matrices, self.buffer(ops.out))
    }

    /// Rotates the ends of latent queries, and appends the keys to the KV cache.
    fn latent_rope_kv(
        &self,
        ops: &LatentQueriesOps,
        [q, q_tail]: [Slice<'_, f32>; 2],
    ) -> Result<(), GpuError> {
        let (norm, eps) = ops.norm;
        let operands = LatentRopeKv {
            q,
            q_tail,
            k: self.buffer(ops.k),
            k_tail: self.buffer(ops.k_tail),
            rotation: self.rotation(ops.table, ops.style, ops.start),
            norm: self.weights.vector(norm),
            eps,
        };
        let step = self.memory.step.step(self.shape);
        ops::latent_rope_kv(self.gpu, &operands, &self.memory.layer(ops.layer), &step)
    }

    /// Computes latent attention by keys and values of all heads.
    fn attend_to_heads(&self, ops: &AttendToHeadsOps) -> Result<(), GpuError> {
        let Launcher {
            gpu, memory, shape, ..
        } = *self;
        let keys = &ops.queries;
        let heads = memory
            .heads_memory()
            .expect("the shape says that there is memory");
        let LatentHeads {
            n_heads,
            k_dim,
            n_rot,
            ..
        } = heads.heads();
        let (step, layer) = (memory.step.step(shape), memory.layer(keys.layer));
        let q = self.buffer(keys.q_tail);
        let rotated = self.buffer(keys.product.out).part(0..q.len());
        let rotation = self.rotation(keys.table, keys.style, k_dim - n_rot);
        ops::rope_to(gpu, [q, rotated], k_dim, &rotation, &step)?;
        self.latent_rope_kv(keys, [q.part(0..0); 2])?;
        let (queries, _) = self.queries(&self.plan.ops[ops.attention]);
        let queries = Queries {
            q: rotated,
            out: self.buffer(ops.values.out),
            ..queries
        };
        let stack = ExpertStack::whole(n_heads);
        let matrices = [keys.product.weight, ops.values.weight]
            .map(|weight| self.weights.experts(weight, stack));
        let latents = (&layer, shape.n_to_heads);
        ops::attend_to_heads(
            gpu,
            &queries,
            latents,
            matrices,
            &step,
            (heads, &memory.attention),
        )
    }

    fn conv(
        &self,
        weight: WeightId,
        bias: Option<WeightId>,
        (form, width): (ConvForm, usize),
    ) -> Conv<'a> {
        Conv {
            weight: self.weights.vector(weight),
            bias: bias.map(|bias| self.weights.vector(bias)),
            form,
            width,
        }
    }

    /// Computes the inputs of linear attention.
    fn linear_inputs(&self, ops: &LinearInputsOps) -> Result<(), GpuError> {
        let memory = self.memory;
        let (step, places) = (memory.step.step(self.shape), memory.step.states(self.shape));
        let conv = self.conv(ops.weight, ops.bias, (ConvForm::Plain, self.width(ops.x)));
        let parts = ops.parts.map(|part| ConvPart {
            first: part.first,
            norm: part.norm.map(|norm| self.group_norm(norm)),
            out: self.buffer(part.out),
        });
        let factors = HeadFactors {
            beta: self.buffer(ops.beta),
            decay: self.buffer(ops.decay),
            rate: self.weights.vector(ops.rate),
            beta_out: self.buffer(ops.beta_out),
            decay_out: self.buffer(ops.decay_out),
        };
        ops::linear_inputs(
            self.gpu,
            (&conv, self.buffer(ops.x)),
            parts,
            (ops.of_beta, factors),
            (&step, &places),
            memory.state(ops.state),
        )
    }

    /// Computes linear attention of one row per sequence, and what comes after it.
    fn linear_decode(&self, ops: &LinearDecodeOps) -> Result<(), GpuError> {
        let memory = self.memory;
        let (step, places) = (memory.step.step(self.shape), memory.step.states(self.shape));
        let after = match ops.after {
            AfterHeads::Norm(weight, eps) => ops::AfterHeads::Norm(self.group_norm((weight, eps))),
            AfterHeads::Skip(weight) => ops::AfterHeads::Skip(self.weights.vector(weight)),
        };
        ops::linear_decode(
            self.gpu,
            (&ops.heads, ops.rule),
            ops.inputs.map(|id| self.buffer(id)),
            (after, self.buffer(ops.gate)),
            (&step, &places),
            (memory.state(ops.state), self.buffer(ops.out)),
        )
    }

    /// Computes all between the products of a layer of linear attention with a decay of each channel.
    fn channel_decode(&self, ops: &ChannelDecodeOps) -> Result<(), GpuError> {
        let memory = self.memory;
        let (step, places) = (memory.step.step(self.shape), memory.step.states(self.shape));
        let parts = ops.parts.map(|part| ChannelInput {
            x: self.buffer(part.x),
            conv: self.weights.vector(part.weight),
            states: memory.state(part.state),
            norm: part.norm.map(|norm| self.group_norm(norm)),
        });
        let factors = ChannelFactors {
            beta: self.buffer(ops.beta),
            decay: self.buffer(ops.decay),
            rate: self.weights.vector(ops.rate),
            bound: ops.bound,
        };
        ops::channel_decode(
            self.gpu,
            &ops.heads,
            (parts, factors),
            (self.group_norm(ops.norm), self.buffer(ops.gate)),
            (&step, &places),
            (memory.state(ops.state), self.buffer(ops.out)),
        )
    }

    /// Computes a convolution of one row per sequence with its activation.
    fn conv_silu(&self, ops: &ConvSiluOps) -> Result<(), GpuError> {
        let memory = self.memory;
        let (step, places) = (memory.step.step(self.shape), memory.step.states(self.shape));
        let conv = self.conv(ops.weight, ops.bias, (ConvForm::Plain, self.width(ops.x)));
        let acts = memory.acts(ops.acts, self.shape);
        ops::conv_silu(
            self.gpu,
            (&conv, self.buffer(ops.x)),
            (&step, &places),
            memory.state(ops.state),
            (self.buffer(ops.out), &acts),
        )
    }

    /// Normalizes the rows of three values.
    fn norms(&self, ops: &NormsOps) -> Result<(), GpuError> {
        let norm = |norm: RowNorm| ops::RowNorm {
            x: self.buffer(norm.x),
            weight: self.weights.vector(norm.weight),
            eps: norm.eps,
        };
        let norms = ops.norms.map(|(of, out)| (norm(of), self.buffer(out)));
        let (last, out) = ops.last;
        let acts = self.memory.acts(out, self.shape);
        ops::rms_norms(self.gpu, norms, (norm(last), &acts))
    }

    /// Computes the scan of Mamba-1 of one row per sequence, and what is around it.
    fn selective_decode(&self, ops: &SelectiveDecodeOps) -> Result<(), GpuError> {
        let memory = self.memory;
        let (step, places) = (memory.step.step(self.shape), memory.step.states(self.shape));
        let weights = SelectiveWeights {
            rates: self.weights.vector(ops.rates),
            skip: self.weights.vector(ops.skip),
        };
        let inputs = ops.inputs.map(|id| self.buffer(id));
        ops::selective_decode(
            self.gpu,
            (&ops.heads, weights),
            (inputs, self.buffer(ops.dt)),
            self.buffer(ops.gate),
            (&step, &places),
            (memory.state(ops.state), self.buffer(ops.out)),
        )
    }

    fn group_norm(&self, (weight, eps): (WeightId, f32)) -> GroupNorm<'a> {
        GroupNorm {
            weight: self.weights.vector(weight),
            eps,
        }
    }
}
