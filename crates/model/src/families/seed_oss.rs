//! Seed-OSS: Llama with biases of Q, K and V. The norm before the feed-forward network has another name.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.rms_norm(x, &layer.tensor("post_attention_norm"), eps)?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.rms_norm(x, "output_norm", eps)?;
    logits(m, x, 1.0)
}
