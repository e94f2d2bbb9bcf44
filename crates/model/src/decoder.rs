//! The wiring of decoder-only transformers (Llama and its kin): recorded once as a plan, for every backend.
//! `feed_forward.rs` and `mixture.rs` have the second half of a layer.
//!
//! What differs between the families is read off the file: biases and per-head Q/K norms exist where
//! their tensors do, Q, K and V are rows of one matrix where it is there, the output projection is the
//! embedding where it has no tensor of its own. What a file does not say is a method of `Architecture`.
//!
//! Constant factors cost nothing. With a residual factor `r` the stream is kept divided by `r`: each
//! block then adds its output as it is, and a norm reads the same values if its epsilon is divided by
//! `r * r`. The factor on the logits is part of the last norm's weight.

use std::ops::Range;
use std::sync::Arc;

use rocmforge_gguf::{Gguf, TensorInfo};
use rocmforge_plan::{ActFormat, act_format};

use super::arch::{BlockNorm, HeadNorm, StreamNorm};
use super::config::{ModelConfig, RopeScaling};
use super::lora::{Adapter, Adapters, Product};
use super::mixture::ExpertBuffers;
use super::rope::{self, Factors};
use super::weights::WeightLoader;
use crate::error::LoadError;
use rocmforge_plan::Weights;
use rocmforge_plan::{BufferId, KvSpec, Plan, Recorder, RopeId, RowCount, Scores, WeightId};

/// Records the plan of `config` and collects the tensors it refers to.
pub(super) fn record(
    config: &ModelConfig,
    gguf: Arc<Gguf>,
    adapters: &[Adapter],
) -> Result<(Plan, Weights), LoadError> {
    let adapters = Adapters::new(adapters, &config.arch_name)?;
    let mut loader = WeightLoader::new(gguf.clone(), &config.arch_name);
    let factors = factors(config, &mut loader)?;
    let mut plan = Recorder::new();
    let rotates = |in_window: bool| {
        let mut layers = config.layers.iter();
        layers.any(|layer| layer.rotates && layer.window.is_some() == in_window)
    };
    let rope = rotates(false).then(|| rope::table(config, &config.rope, &factors));
    let rope = rope.map(|table| plan.rope_table(table));
    // Factors are for long contexts, which layers with a window do not see.
    let none = Factors::default();
    let rope_in_window = rotates(true).then(|| rope::table(config, &config.rope_in_window, &none));
    let rope_in_window = rope_in_window.map(|table| plan.rope_table(table));
    let n_q = config.n_heads * config.k_dim;
    let n_attn = config.n_heads * config.v_dim;
    let experts = config
        .experts
        .map(|experts| ExpertBuffers::new(&mut plan, config, experts));
    let n_ff = config
        .experts
        .map_or(config.n_ff, |experts| experts.n_ff_shared.unwrap_or(0));
    let buffers = Buffers {
        x: plan.buffer(RowCount::Tokens, config.n_embd),
        normed: plan.buffer(RowCount::Tokens, config.n_embd),
        q: plan.buffer(RowCount::Tokens, n_q),
        k: plan.buffer(RowCount::Tokens, config.n_kv_heads * config.k_dim),
        q_normed: plan.buffer(RowCount::Tokens, n_q),
        k_normed: plan.buffer(RowCount::Tokens, config.n_kv_heads * config.k_dim),
        v: plan.buffer(RowCount::Tokens, config.n_kv_heads * config.v_dim),
        attn: plan.buffer(RowCount::Tokens, n_attn),
        gate: plan.buffer(RowCount::Tokens, n_ff),
        up: plan.buffer(RowCount::Tokens, n_ff),
        activated: plan.buffer(RowCount::Tokens, n_ff),
        product: plan.buffer(RowCount::Tokens, config.n_embd),
    };
    let mut wiring = Wiring {
        config,
        gguf: &gguf,
        loader,
        plan,
        rope,
        rope_in_window,
        buffers,
        adapters,
    };

    let embedding = wiring
        .loader
        .matrix("token_embd.weight", config.n_vocab, config.n_embd)?;
    let scale = config.scales.embedding / config.scales.residual;
    wiring.plan.embed(embedding, scale as f32, buffers.x);
    wiring.adapters.add_embedding(
        tensor(&gguf, "token_embd.weight"),
        scale as f32,
        buffers.x,
        &mut wiring.plan,
        &mut wiring.loader,
    )?;
    if let Some(n_positions) = config.n_positions {
        let table = wiring
            .loader
            .matrix("position_embd.weight", n_positions, config.n_embd)?;
        wiring.plan.add_positions(table, buffers.x);
    }
    for layer in 0..config.n_layers {
        wiring.attention(layer)?;
        match experts {
            Some(buffers) => wiring.mixture(layer, buffers)?,
            None => wiring.feed_forward(layer)?,
        }
    }
    let logits = wiring.output(embedding)?;
    let Wiring {
        plan,
        loader,
        adapters,
        ..
    } = wiring;
    adapters.finish(&gguf)?;
    Ok((plan.finish(logits), loader.finish()?))
}

/// The frequency factors that the file has and the family uses.
fn factors(config: &ModelConfig, loader: &mut WeightLoader<'_>) -> Result<Factors, LoadError> {
    let mut read = |name: &str| -> Result<Option<Vec<f32>>, LoadError> {
        let factors = loader.opt_values(name, config.n_rot / 2)?;
        let valid = |factor: &f32| factor.is_finite() && *factor > 0.0;
        if factors.iter().flatten().all(valid) {
            return Ok(factors);
        }
        Err(LoadError::BadMetadata {
            key: name.to_string(),
            value: "not positive".into(),
            wanted: "positive factors",
        })
    };
    if let RopeScaling::LongRope { .. } = config.rope.scaling {
        let mut required = |name: &str| {
            read(name)?.ok_or_else(|| LoadError::MissingTensor {
                name: name.to_string(),
                arch: config.arch_name.clone(),
            })
        };
        return Ok(Factors {
            usual: Some(required("rope_factors_short.weight")?),
            long: Some(required("rope_factors_long.weight")?),
        });
    }
    let usual = match config.arch.has_rope_freqs() {
        true => read("rope_freqs.weight")?,
        false => None,
    };
    Ok(Factors { usual, long: None })
}

/// The buffers all layers share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffers {
    /// The residual stream.
    pub(super) x: BufferId,
    normed: BufferId,
    q: BufferId,
    k: BufferId,
    q_normed: BufferId,
    k_normed: BufferId,
    v: BufferId,
    attn: BufferId,
    pub(super) gate: BufferId,
    pub(super) up: BufferId,
    pub(super) activated: BufferId,
    /// What a block adds to the residual stream.
    pub(super) product: BufferId,
}

pub(super) struct Wiring<'a> {
    pub(super) config: &'a ModelConfig,
    gguf: &'a Gguf,
    pub(super) loader: WeightLoader<'a>,
    pub(super) plan: Recorder,
    /// The tables of layers that rotate without and with a window, if there are any.
    rope: Option<RopeId>,
    rope_in_window: Option<RopeId>,
    pub(super) buffers: Buffers,
    adapters: Adapters<'a>,
}

impl Wiring<'_> {
    /// `x += attn_output(attention(norm(x)))`, or with the norm around it.
    fn attention(&mut self, layer: usize) -> Result<(), LoadError> {
        let c = self.config;
        let view = c.layers[layer];
        let Buffers {
            q,
            k,
            v,
            q_normed,
            k_normed,
            attn,
            product,
            ..
        } = self.buffers;
        let (n_q, n_k, n_v) = (
            c.n_heads * c.k_dim,
            c.n_kv_heads * c.k_dim,
            c.n_kv_heads * c.v_dim,
        );
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");

        let input = self.block_input(&name("attn_norm"))?;
        let all = name("attn_qkv");
        let fused = self.loader.has(&format!("{all}.weight"));
        let mut first = 0;
        for (tensor, n_out, out) in [("attn_q", n_q, q), ("attn_k", n_k, k), ("attn_v", n_v, v)] {
            if fused {
                let part = first..first + n_out;
                self.linear_rows(input, &all, n_q + n_k + n_v, c.n_embd, part, out)?;
                first += n_out;
            } else {
                self.linear(input, &name(tensor), n_out, c.n_embd, out)?;
            }
        }
        let q = self.normed_heads(q, &name("attn_q_norm.weight"), n_q, q_normed)?;
        let k = self.normed_heads(k, &name("attn_k_norm.weight"), n_k, k_normed)?;
        if view.rotates {
            let table = match view.window {
                Some(_) => self.rope_in_window,
                None => self.rope,
            };
            let table = table.expect("there is a table if a layer rotates");
            self.plan.rope(q, c.k_dim, table, c.rope_style);
            self.plan.rope(k, c.k_dim, table, c.rope_style);
        }
        let kv = self.plan.kv_layer(KvSpec {
            n_kv_heads: c.n_kv_heads,
            k_dim: c.k_dim,
            v_dim: c.v_dim,
            window: view.window,
        });
        self.plan.kv_append(kv, k, v);
        let scores = Scores {
            scale: c.scales.attention as f32,
            soft_cap: c.soft_caps.attention,
        };
        self.plan.attention(kv, c.n_heads, scores, q, attn);
        let n_attn = c.n_heads * c.v_dim;
        self.linear(attn, &name("attn_output"), c.n_embd, n_attn, product)?;
        self.block_output(&name("post_attention_norm"))
    }

    /// The heads in `from` after their norm, where the family or the file has one; returns where they are.
    fn normed_heads(
        &mut self,
        from: BufferId,
        norm: &str,
        width: usize,
        normed: BufferId,
    ) -> Result<BufferId, LoadError> {
        let width = match self.config.arch.head_norm() {
            HeadNorm::IfPresent if !self.loader.has(norm) => return Ok(from),
            HeadNorm::IfPresent | HeadNorm::Each => self.config.k_dim,
            HeadNorm::Together => width,
        };
        let weight = self.loader.vector(norm, width, 1.0)?;
        self.plan
            .rms_norm(from, weight, self.config.norm_eps, normed);
        Ok(normed)
    }

    /// What a block reads: the residual stream, after the norm `tensor` if the family has it there.
    pub(super) fn block_input(&mut self, tensor: &str) -> Result<BufferId, LoadError> {
        let Buffers { x, normed, .. } = self.buffers;
        match self.config.arch.block_norm() {
            BlockNorm::After => Ok(x),
            BlockNorm::Before | BlockNorm::Both => {
                self.stream_norm(x, tensor, 1.0, normed)?;
                Ok(normed)
            }
        }
    }

    /// Adds `product` to the residual stream, after the norm `tensor` if the family has it there.
    pub(super) fn block_output(&mut self, tensor: &str) -> Result<(), LoadError> {
        let Buffers {
            x, normed, product, ..
        } = self.buffers;
        let output = match self.config.arch.block_norm() {
            BlockNorm::Before => product,
            BlockNorm::After | BlockNorm::Both => {
                self.norm(product, tensor, 1.0, self.config.norm_eps, normed)?;
                normed
            }
        };
        self.plan.add(output, x);
        Ok(())
    }

    /// Logits of the wanted rows.
    fn output(&mut self, embedding: WeightId) -> Result<BufferId, LoadError> {
        let c = self.config;
        let selected = self.plan.buffer(RowCount::Logits, c.n_embd);
        let normed = self.plan.buffer(RowCount::Logits, c.n_embd);
        let logits = self.plan.buffer(RowCount::Logits, c.n_vocab);
        self.plan.select_rows(self.buffers.x, selected);
        let factor = 1.0 / c.scales.logits;
        self.stream_norm(selected, "output_norm", factor, normed)?;
        let (weight, tensor) = match self
            .loader
            .opt_matrix("output.weight", c.n_vocab, c.n_embd)?
        {
            Some(weight) => (weight, "output.weight"),
            None => (embedding, "token_embd.weight"),
        };
        let bias = self
            .loader
            .opt_part("output.bias", c.n_vocab, 0..c.n_vocab, factor)?;
        self.product(normed, weight, tensor, bias, logits);
        // An adapter of a tied embedding changes only what goes in, as where it was trained.
        if tensor == "output.weight" {
            self.adapt(normed, tensor, 0..c.n_vocab, logits)?;
        }
        if let Some(cap) = c.soft_caps.logits {
            self.plan.soft_cap(cap, logits);
        }
        Ok(logits)
    }

    /// The norm of the residual stream in `from`, which is kept divided by the residual factor; `factor` is
    /// one on the result.
    fn stream_norm(
        &mut self,
        from: BufferId,
        tensor: &str,
        factor: f64,
        out: BufferId,
    ) -> Result<(), LoadError> {
        let residual = self.config.scales.residual;
        let eps = f64::from(self.config.norm_eps) / (residual * residual);
        self.norm(from, tensor, factor, eps as f32, out)
    }

    /// The norm `tensor` of rows of `n_embd` values, in the form that the family has; `factor` is one on the
    /// result.
    fn norm(
        &mut self,
        from: BufferId,
        tensor: &str,
        factor: f64,
        eps: f32,
        out: BufferId,
    ) -> Result<(), LoadError> {
        let c = self.config;
        let weight = format!("{tensor}.weight");
        let weight = self.loader.vector(&weight, c.n_embd, factor)?;
        match c.arch.stream_norm() {
            StreamNorm::Rms => self.plan.rms_norm(from, weight, eps, out),
            StreamNorm::Layer => {
                let bias = format!("{tensor}.bias");
                let bias = self.loader.vector(&bias, c.n_embd, factor)?;
                self.plan.layer_norm(from, weight, bias, eps, out);
            }
        }
        Ok(())
    }

    /// `out = from * {tensor}.weight^T`, plus `{tensor}.bias` where the file has one.
    pub(super) fn linear(
        &mut self,
        from: BufferId,
        tensor: &str,
        n_out: usize,
        n_in: usize,
        out: BufferId,
    ) -> Result<(), LoadError> {
        self.linear_rows(from, tensor, n_out, n_in, 0..n_out, out)
    }

    /// As `linear`, for some rows of a matrix that holds several projections.
    pub(super) fn linear_rows(
        &mut self,
        from: BufferId,
        tensor: &str,
        n_out: usize,
        n_in: usize,
        rows: Range<usize>,
        out: BufferId,
    ) -> Result<(), LoadError> {
        let name = format!("{tensor}.weight");
        let weight = self.loader.rows(&name, n_out, n_in, rows.clone())?;
        let bias = self
            .loader
            .opt_part(&format!("{tensor}.bias"), n_out, rows.clone(), 1.0)?;
        self.product(from, weight, &name, bias, out);
        self.adapt(from, &name, rows, out)
    }

    /// Adds what adapters have for some rows of `name` to the product with them.
    fn adapt(
        &mut self,
        from: BufferId,
        name: &str,
        rows: Range<usize>,
        out: BufferId,
    ) -> Result<(), LoadError> {
        let product = Product {
            tensor: tensor(self.gguf, name),
            rows,
            from,
            out,
        };
        self.adapters
            .add(&product, &mut self.plan, &mut self.loader)
    }

    /// The form of activations that products with `tensor` read.
    pub(super) fn act_format(&self, tensor: &str) -> ActFormat {
        let info = self.gguf.tensor(tensor);
        act_format(info.expect("the loader has found it").ty)
    }

    fn product(
        &mut self,
        from: BufferId,
        weight: WeightId,
        tensor: &str,
        bias: Option<WeightId>,
        out: BufferId,
    ) {
        let format = self.act_format(tensor);
        self.plan.matmul(from, weight, bias, format, out);
    }
}

/// A tensor that the loader has found.
fn tensor<'a>(gguf: &'a Gguf, name: &str) -> &'a TensorInfo {
    gguf.tensor(name).expect("the loader has found it")
}
