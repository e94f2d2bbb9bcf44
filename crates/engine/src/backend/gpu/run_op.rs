//! What the GPU backend launches for each operation of a plan.

use rocmforge_cpu as cpu;
use rocmforge_gpu::ops::{self, MAX_ROWS, Product, RopeKv, RopeStyle, Scores};
use rocmforge_gpu::{Activation, Gpu, GpuError, Matrix, OutMode, Slice};

use super::compile::{self, Stage};
use super::memory::Memory;
use super::step::StepShape;
use super::weights::DeviceWeights;
use crate::plan::{ActsId, BufferId, Linear, Op, Plan};

/// Matrices that one call of the product of few rows takes.
const MAX_PRODUCTS: usize = 3;

/// All that launches need; what they change is on the device.
#[derive(Clone, Copy)]
pub(super) struct Launcher<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) plan: &'a Plan,
    pub(super) weights: &'a DeviceWeights,
    pub(super) memory: &'a Memory,
    pub(super) shape: &'a StepShape,
}

impl<'a> Launcher<'a> {
    pub(super) fn run(&self, stage: Stage) -> Result<(), GpuError> {
        match stage {
            Stage::One(index) => self.run_op(&self.plan.ops[index]),
            Stage::RopeKv(first) => self.rope_kv(first),
        }
    }

    fn buffer(&self, id: BufferId) -> Slice<'a, f32> {
        self.memory.buffer(id, self.shape)
    }

    fn width(&self, id: BufferId) -> usize {
        self.plan.buffers[id.0 as usize].width
    }

    fn run_op(&self, op: &Op) -> Result<(), GpuError> {
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
            Op::RmsNorm {
                x,
                weight,
                eps,
                out,
            } => {
                let (x, out) = (self.buffer(x), self.buffer(out));
                ops::rms_norm(gpu, x, weights.vector(weight), eps, out)
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
                eps,
                out,
            } => {
                let (x, out) = (self.buffer(x), memory.acts(out, self.shape));
                ops::rms_norm_quantize(gpu, x, weights.vector(weight), eps, &out)
            }
            Op::MatMul {
                x,
                weight,
                bias,
                mode,
                out,
            } => {
                let mode = match mode {
                    cpu::OutMode::Store => OutMode::Store,
                    cpu::OutMode::Add => OutMode::Add,
                };
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
            Op::Rope {
                x,
                head_dim,
                table,
                style,
            } => {
                let (table, n_rot) = memory.rope(table);
                let style = rope_style(style);
                ops::rope(gpu, self.buffer(x), head_dim, style, table, n_rot, &step)
            }
            Op::KvAppend { layer, k, v } => {
                let (k, v) = (self.buffer(k), self.buffer(v));
                ops::kv_append(gpu, &memory.layer(layer), k, v, &step)
            }
            Op::Attention {
                layer,
                n_heads,
                scores,
                q,
                out,
            } => {
                let scores = Scores {
                    scale: scores.scale,
                    soft_cap: scores.soft_cap,
                    window: self.plan.kv[layer].window,
                };
                ops::attention(
                    gpu,
                    self.buffer(q),
                    n_heads,
                    scores,
                    &memory.layer(layer),
                    &step,
                    &memory.attention,
                    self.buffer(out),
                )
            }
            Op::Activate {
                activation: function,
                x,
                out,
            } => ops::activate(gpu, activation(function), self.buffer(x), self.buffer(out)),
            Op::GatedActivation {
                activation: function,
                gate,
                up,
                out,
            } => {
                let [gate, up, out] = [gate, up, out].map(|id| self.buffer(id));
                ops::gated_activation(gpu, activation(function), gate, up, out)
            }
            Op::Add { x, out } => ops::add(gpu, self.buffer(x), self.buffer(out)),
            Op::AddGated { gate, x, out } => {
                let [gate, x, out] = [gate, x, out].map(|id| self.buffer(id));
                ops::add_gated(gpu, gate, x, out)
            }
            Op::SoftCap { cap, x } => ops::soft_cap(gpu, cap, self.buffer(x)),
            Op::SelectRows { x, out } => {
                let rows = memory.step.logits_rows(self.shape);
                let width = self.width(out);
                ops::select_rows(gpu, self.buffer(x), rows, width, self.buffer(out))
            }
            Op::Route { .. }
            | Op::QuantizeExperts { .. }
            | Op::ExpertMatMul { .. }
            | Op::CombineExperts { .. } => unreachable!("a plan with experts is not compiled"),
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

    fn bias(&self, linear: Linear) -> Option<Slice<'a, f32>> {
        linear.bias.map(|id| self.weights.vector(id))
    }

    /// Products of the same activations.
    fn products(&self, x: ActsId, products: &[Product<'_>]) -> Result<(), GpuError> {
        let x = self.memory.acts(x, self.shape);
        if x.n_rows <= MAX_ROWS {
            let mut calls = products.chunks(MAX_PRODUCTS);
            return calls.try_for_each(|products| ops::matvec(self.gpu, &x, products));
        }
        let mut products = products.iter();
        products.try_for_each(|product| ops::matmul(self.gpu, &x, product))
    }

    /// `out = activation(x * gate^T) * (x * up^T)`.
    fn gated(
        &self,
        x: ActsId,
        [gate, up]: [Linear; 2],
        function: cpu::Activation,
        out: Slice<'a, f32>,
    ) -> Result<(), GpuError> {
        let function = activation(function);
        let acts = self.memory.acts(x, self.shape);
        if acts.n_rows <= MAX_ROWS {
            let [gate_matrix, up_matrix]: [Matrix<'_>; 2] =
                [gate, up].map(|linear| self.weights.matrix(linear.weight));
            let biases = [gate, up].map(|linear| self.bias(linear));
            return ops::matvec_gated(
                self.gpu,
                &acts,
                &gate_matrix,
                &up_matrix,
                biases,
                function,
                out,
            );
        }
        let beside = self.memory.gated(out.len());
        let products = [(gate, out), (up, beside)];
        self.products(
            x,
            &products.map(|(linear, out)| self.product(linear, OutMode::Store, out)),
        )?;
        ops::gated_activation(self.gpu, function, out, beside, out)
    }

    fn rope_kv(&self, first: usize) -> Result<(), GpuError> {
        let ops = compile::rope_kv(self.plan, &self.plan.ops[first..]);
        let found = ops.expect("the plan was compiled so");
        let (table, n_rot) = self.memory.rope(found.table);
        let operands = RopeKv {
            q: self.buffer(found.q),
            k: self.buffer(found.k),
            v: self.buffer(found.v),
            style: rope_style(found.style),
            table,
            n_rot,
            norms: None,
        };
        let step = self.memory.step.step(self.shape);
        ops::rope_kv(self.gpu, &operands, &self.memory.layer(found.layer), &step)
    }
}

fn activation(activation: cpu::Activation) -> Activation {
    match activation {
        cpu::Activation::Silu => Activation::Silu,
        cpu::Activation::GeluTanh => Activation::GeluTanh,
    }
}

fn rope_style(style: cpu::RopeStyle) -> RopeStyle {
    match style {
        cpu::RopeStyle::Norm => RopeStyle::Norm,
        cpu::RopeStyle::Neox => RopeStyle::Neox,
    }
}
