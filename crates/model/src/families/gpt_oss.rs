//! gpt-oss: attention with sinks and biases, a window in every other layer, and experts with biases whose SwiGLU is
//! clamped.

use rocmforge_plan::{Activation, ExpertWeights, Value};

use crate::blocks::{attention, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::experts;
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::{Keys, MAX_DIM};
use crate::rope::Rope;
use crate::windows::{require_window, set_windows};

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = experts(keys, ExpertWeights::Normalized)?;
    experts.n_ff = keys.size("expert_feed_forward_length", MAX_DIM)?;
    experts.router.scale = 1.0;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    let global = config.ropes[0];
    let in_window = Rope {
        base: keys.positive("rope.freq_base_swa")?.unwrap_or(global.base),
        ..global
    };
    require_window(keys)?;
    set_windows(keys, &mut config, in_window, (None, 2))?;
    for layer in &mut config.layers {
        layer.has_sinks = true;
    }
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("post_attention_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::SwigluOai, normed)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}
