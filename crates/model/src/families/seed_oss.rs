//! Seed-OSS: Llama with biases of Q, K and V. The norm before the feed-forward network has another name.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, Layer, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        x = record_layer(m, layer, x)?;
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}

pub(super) fn record_layer(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    x: Value,
) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    m.plan.begin_layer();
    let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
    let out = attention(m, layer, normed)?;
    let x = m.plan.add(out, x);
    let normed = m.rms_norm(x, &layer.tensor("post_attention_norm"), eps)?;
    let out = feed_forward(m, layer, Activation::Silu, normed)?;
    Ok(m.plan.add(out, x))
}
