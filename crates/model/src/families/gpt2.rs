//! GPT-2: layer norms, learned positions, a feed-forward network without a gate. StarCoder 2 has RoPE instead of
//! learned positions.

use rocmforge_plan::{Activation, Value};

use crate::blocks::{add_positions, attention, embeddings, logits, plain_feed_forward};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts;
use crate::facts::{KeyFacts, LAYER_EPS, ModelConfig};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    ModelConfig::read(keys, family, LAYER_EPS, experts::dense(keys)?)
}

pub(crate) fn facts_with_positions(
    keys: &Keys<'_>,
    family: &KeyFacts,
) -> Result<ModelConfig, LoadError> {
    let mut config = facts(keys, family)?;
    config.n_positions = Some(config.n_ctx_train);
    for layer in &mut config.layers {
        layer.rope = None;
    }
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    if let Some(n_positions) = m.config.n_positions {
        x = add_positions(m, n_positions, x)?;
    }
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.layer_norm(x, &layer.tensor("attn_norm"))?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.layer_norm(x, &layer.tensor("ffn_norm"))?;
        let out = plain_feed_forward(m, layer, Activation::GeluTanh, normed)?;
        x = m.plan.add(out, x);
    }
    let x = m.plan.select_rows(x);
    let x = m.layer_norm(x, "output_norm")?;
    logits(m, x, 1.0)
}
