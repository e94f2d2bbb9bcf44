//! Llama 1 to 3 and Mistral, and Mixtral, whose feed-forward networks are mixtures of experts. Many families are recorded
//! like this one.

use rocmforge_plan::{Activation, ExpertWeights, Value};

use crate::blocks::{attention, embeddings, feed_forward, last_norm, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{experts, n_experts, n_ff};
use crate::facts::{Experts, FeedForward, KeyFacts, Layer, ModelConfig, RMS_EPS};
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let n_ff = n_ff(keys)?;
    let feed_forward = match n_experts(keys)? {
        0 => FeedForward::Dense { n_ff },
        _ => FeedForward::Mixture(Experts {
            // In Mixtral's files this is the width of each expert.
            n_ff,
            ..experts(keys, ExpertWeights::Normalized)?
        }),
    };
    ModelConfig::read(keys, family, RMS_EPS, feed_forward)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    record_with(m, "ffn_norm")
}

/// Records the plan of a model that calls the norm before its feed-forward networks `ffn_norm`.
pub(super) fn record_with(m: &mut Builder<'_>, ffn_norm: &str) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        x = record_layer(m, layer, ffn_norm, x)?;
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}

pub(super) fn record_layer(
    m: &mut Builder<'_>,
    layer: Layer<'_>,
    ffn_norm: &str,
    x: Value,
) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    m.begin_layer(x);
    let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
    let out = attention(m, layer, normed)?;
    let x = m.plan.add(out, x);
    let normed = m.rms_norm(x, &layer.tensor(ffn_norm), eps)?;
    let out = feed_forward(m, layer, Activation::Silu, normed)?;
    Ok(m.plan.add(out, x))
}
