//! The wiring of decoder-only transformers with RMSNorm, rotary positions and a gated feed-forward
//! network (Llama, Qwen2, Qwen3): recorded once as a plan, for every backend.
//!
//! What differs between the families is read off the file: biases and per-head Q/K norms exist where
//! their tensors do, the output projection is the embedding where it has no tensor of its own.

use std::sync::Arc;

use rocmforge_cpu::act_format;
use rocmforge_gguf::Gguf;

use super::config::ModelConfig;
use super::rope;
use super::weights::{WeightLoader, Weights};
use crate::error::EngineError;
use crate::plan::{BufferId, KvSpec, Plan, PlanBuilder, RopeId, RowCount, WeightId};

/// Records the plan of `config` and collects the tensors it refers to.
pub(super) fn record(
    config: &ModelConfig,
    gguf: Arc<Gguf>,
) -> Result<(Plan, Weights), EngineError> {
    let mut loader = WeightLoader::new(gguf.clone(), &config.arch_name);
    let factors = loader.opt_values("rope_freqs.weight", config.n_rot / 2)?;
    if factors
        .iter()
        .flatten()
        .any(|&factor| !(factor.is_finite() && factor > 0.0))
    {
        let key = "rope_freqs.weight".to_string();
        return Err(EngineError::BadMetadata {
            key,
            value: "not positive".into(),
            wanted: "positive factors",
        });
    }
    let mut plan = PlanBuilder::new();
    let rope = plan.rope_table(rope::table(config, factors.as_deref()));
    let n_q = config.n_heads * config.k_dim;
    let n_attn = config.n_heads * config.v_dim;
    let buffers = Buffers {
        x: plan.buffer(RowCount::Tokens, config.n_embd),
        normed: plan.buffer(RowCount::Tokens, config.n_embd),
        q: plan.buffer(RowCount::Tokens, n_q),
        k: plan.buffer(RowCount::Tokens, config.n_kv_heads * config.k_dim),
        q_normed: plan.buffer(RowCount::Tokens, n_q),
        k_normed: plan.buffer(RowCount::Tokens, config.n_kv_heads * config.k_dim),
        v: plan.buffer(RowCount::Tokens, config.n_kv_heads * config.v_dim),
        attn: plan.buffer(RowCount::Tokens, n_attn),
        gate: plan.buffer(RowCount::Tokens, config.n_ff),
        up: plan.buffer(RowCount::Tokens, config.n_ff),
        activated: plan.buffer(RowCount::Tokens, config.n_ff),
        product: plan.buffer(RowCount::Tokens, config.n_embd),
    };
    let mut wiring = Wiring {
        config,
        gguf: &gguf,
        loader,
        plan,
        rope,
        buffers,
    };

    let embedding = wiring
        .loader
        .matrix("token_embd.weight", config.n_vocab, config.n_embd)?;
    wiring.plan.embed(embedding, buffers.x);
    for layer in 0..config.n_layers {
        wiring.attention(layer)?;
        wiring.feed_forward(layer)?;
    }
    let logits = wiring.output(embedding)?;
    let Wiring { plan, loader, .. } = wiring;
    Ok((plan.finish(logits), loader.finish()?))
}

/// The buffers all layers share.
#[derive(Debug, Clone, Copy)]
struct Buffers {
    /// The residual stream.
    x: BufferId,
    normed: BufferId,
    q: BufferId,
    k: BufferId,
    q_normed: BufferId,
    k_normed: BufferId,
    v: BufferId,
    attn: BufferId,
    gate: BufferId,
    up: BufferId,
    activated: BufferId,
    product: BufferId,
}

struct Wiring<'a> {
    config: &'a ModelConfig,
    gguf: &'a Gguf,
    loader: WeightLoader<'a>,
    plan: PlanBuilder,
    rope: RopeId,
    buffers: Buffers,
}

impl Wiring<'_> {
    /// `x += attn_output(attention(norm(x)))`.
    fn attention(&mut self, layer: usize) -> Result<(), EngineError> {
        let c = self.config;
        let Buffers {
            x,
            normed,
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

        self.norm(x, &name("attn_norm.weight"), c.n_embd, normed)?;
        self.linear(normed, &name("attn_q"), n_q, c.n_embd, q)?;
        self.linear(normed, &name("attn_k"), n_k, c.n_embd, k)?;
        self.linear(normed, &name("attn_v"), n_v, c.n_embd, v)?;
        let q = self.rotated_heads(q, &name("attn_q_norm.weight"), q_normed)?;
        let k = self.rotated_heads(k, &name("attn_k_norm.weight"), k_normed)?;
        let kv = self.plan.kv_layer(KvSpec {
            n_kv_heads: c.n_kv_heads,
            k_dim: c.k_dim,
            v_dim: c.v_dim,
            window: None,
        });
        self.plan.kv_append(kv, k, v);
        self.plan
            .attention(kv, c.n_heads, 1.0 / (c.k_dim as f32).sqrt(), q, attn);
        self.linear(
            attn,
            &name("attn_output"),
            c.n_embd,
            c.n_heads * c.v_dim,
            product,
        )?;
        self.plan.add(product, x);
        Ok(())
    }

    /// Rotates the heads in `from` by position, after their norm where the family or the file has one;
    /// returns where they are.
    fn rotated_heads(
        &mut self,
        from: BufferId,
        norm: &str,
        normed: BufferId,
    ) -> Result<BufferId, EngineError> {
        let c = self.config;
        let heads = if c.arch.norms_heads() || self.loader.has(norm) {
            self.norm(from, norm, c.k_dim, normed)?;
            normed
        } else {
            from
        };
        self.plan.rope(heads, c.k_dim, self.rope, c.rope_style);
        Ok(heads)
    }

    /// `x += ffn_down(silu(ffn_gate(norm(x))) * ffn_up(norm(x)))`.
    fn feed_forward(&mut self, layer: usize) -> Result<(), EngineError> {
        let c = self.config;
        let Buffers {
            x,
            normed,
            gate,
            up,
            activated,
            product,
            ..
        } = self.buffers;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");

        self.norm(x, &name("ffn_norm.weight"), c.n_embd, normed)?;
        self.linear(normed, &name("ffn_gate"), c.n_ff, c.n_embd, gate)?;
        self.linear(normed, &name("ffn_up"), c.n_ff, c.n_embd, up)?;
        self.plan.silu_mul(gate, up, activated);
        self.linear(activated, &name("ffn_down"), c.n_embd, c.n_ff, product)?;
        self.plan.add(product, x);
        Ok(())
    }

    /// Logits of the wanted rows.
    fn output(&mut self, embedding: WeightId) -> Result<BufferId, EngineError> {
        let c = self.config;
        let selected = self.plan.buffer(RowCount::Logits, c.n_embd);
        let normed = self.plan.buffer(RowCount::Logits, c.n_embd);
        let logits = self.plan.buffer(RowCount::Logits, c.n_vocab);
        self.plan.select_rows(self.buffers.x, selected);
        self.norm(selected, "output_norm.weight", c.n_embd, normed)?;
        let (weight, tensor) = match self
            .loader
            .opt_matrix("output.weight", c.n_vocab, c.n_embd)?
        {
            Some(weight) => (weight, "output.weight"),
            None => (embedding, "token_embd.weight"),
        };
        let bias = self.loader.opt_vector("output.bias", c.n_vocab)?;
        self.product(normed, weight, tensor, bias, logits);
        Ok(logits)
    }

    fn norm(
        &mut self,
        from: BufferId,
        tensor: &str,
        width: usize,
        out: BufferId,
    ) -> Result<(), EngineError> {
        let weight = self.loader.vector(tensor, width)?;
        self.plan.rms_norm(from, weight, self.config.norm_eps, out);
        Ok(())
    }

    /// `out = from * {tensor}.weight^T`, plus `{tensor}.bias` where the file has one.
    fn linear(
        &mut self,
        from: BufferId,
        tensor: &str,
        n_out: usize,
        n_in: usize,
        out: BufferId,
    ) -> Result<(), EngineError> {
        let name = format!("{tensor}.weight");
        let weight = self.loader.matrix(&name, n_out, n_in)?;
        let bias = self.loader.opt_vector(&format!("{tensor}.bias"), n_out)?;
        self.product(from, weight, &name, bias, out);
        Ok(())
    }

    fn product(
        &mut self,
        from: BufferId,
        weight: WeightId,
        tensor: &str,
        bias: Option<WeightId>,
        out: BufferId,
    ) {
        let ty = self
            .gguf
            .tensor(tensor)
            .expect("the loader has found it")
            .ty;
        self.plan.matmul(from, weight, bias, act_format(ty), out);
    }
}
