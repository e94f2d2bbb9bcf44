//! Phi 3.5 MoE: Phi 3 with experts, separate projections with biases, and norms with biases. llama.cpp has RMS norms and a
//! softmax over the chosen experts where the published model has layer norms and a router of its own (SparseMixer).

use rocmforge_plan::{Activation, ExpertWeights, Value};

use crate::blocks::{attention, embeddings, feed_forward, logits};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{experts, n_ff};
use crate::facts::{FeedForward, KeyFacts, ModelConfig, RMS_EPS};
use crate::families::phi3;
use crate::keys::Keys;

pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut experts = experts(keys, ExpertWeights::Normalized)?;
    // Its files state the width of each expert here.
    experts.n_ff = n_ff(keys)?;
    experts.router.scale = 1.0;
    let mut config = ModelConfig::read(keys, family, RMS_EPS, FeedForward::Mixture(experts))?;
    phi3::scale_untyped(keys, &mut config)?;
    Ok(config)
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.plan.begin_layer();
        let normed = m.biased_rms_norm(x, &layer.tensor("attn_norm"))?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        let normed = m.biased_rms_norm(x, &layer.tensor("ffn_norm"))?;
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    // Biases are added to the rows of all tokens.
    let x = m.biased_rms_norm(x, "output_norm")?;
    let x = m.plan.select_rows(x);
    logits(m, x, 1.0)
}
