//! LFM2: Llama with norms of heads, in which gated convolutions over a few tokens replace attention in most layers; with and
//! without experts. The file states no heads of K and V for these layers, and the last norm has the name of another.

use rocmforge_plan::{Activation, ExpertWeights, Mask, Value};

use crate::blocks::{attention, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{self, lead_with_dense, stated_experts};
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;
use crate::recurrent::{Recurrent, n_conv};

pub(crate) fn dense(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    read(keys, family, experts::dense(keys)?)
}

pub(crate) fn mixture(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = stated_experts(keys, None)?;
    experts.router.weights = ExpertWeights::Normalized;
    let mut config = read(keys, family, FeedForward::Mixture(experts))?;
    lead_with_dense(keys, &mut config)?;
    Ok(config)
}

fn read(
    keys: &Keys<'_>,
    family: &KeyFacts,
    feed_forward: FeedForward,
) -> Result<ModelConfig, LoadError> {
    let recurrent = Recurrent::ShortConv(n_conv(keys, "shortconv.l_cache")?);
    let mut config = ModelConfig::read_hybrid(keys, (family, RMS_EPS), feed_forward, recurrent)?;
    let window = keys.meta.opt_u32(&keys.key("attention.sliding_window"))?;
    if let Some(window) = window.filter(|&window| window > 0) {
        for layer in &mut config.layers {
            layer.mask = Mask::Window(window);
        }
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
        let normed = m.rms_norm(x, &layer.tensor("ffn_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "token_embd_norm")?;
    logits(m, x, 1.0)
}
