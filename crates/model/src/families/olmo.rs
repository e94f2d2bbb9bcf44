//! OLMo (first version): Llama with layer norms that have no weights.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, LAYER_EPS, ModelConfig};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    if let Some(limit) = keys.positive_or_zero("attention.clamp_kqv")? {
        return Err(keys.unsupported(format!("queries, keys and values limited to {limit}")));
    }
    ModelConfig::read(keys, family, LAYER_EPS, experts::dense(keys)?)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.plain_layer_norm(x, x.width());
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.plain_layer_norm(x, x.width());
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.plain_layer_norm(x, x.width());
    logits(m, x, 1.0)
}
