//! Mamba-2 and hybrids of it: alone, in most layers of Granite 4 H, as some of the layers of Nemotron-H, which are each one
//! of Mamba-2, attention or a network, and beside attention in every layer of Falcon-H1.

use rocmforge_plan::{Activation, ExpertScores, ExpertWeights, KeySharing, Value};

use crate::blocks::{
    attention, embeddings, feed_forward, last_norm, logits, plain_experts, plain_feed_forward,
    plain_shared,
};
use crate::builder::Builder;
use crate::error::LoadError;
use crate::experts::{self, experts, with_stated_shared};
use crate::facts::{Experts, FeedForward, KeyFacts, LAYER_EPS, Layer, ModelConfig, RMS_EPS};
use crate::families::granite;
use crate::keys::{Keys, MAX_DIM};
use crate::recurrent::{LinearLayer, Recurrent, linear_layer};

fn layer_of(keys: &Keys<'_>) -> Result<LinearLayer, LoadError> {
    linear_layer(keys, KeySharing::Neighbours)
}

/// Mamba-2, whose layers have no networks.
pub(crate) fn facts(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let recurrent = Recurrent::Mamba2(layer_of(keys)?);
    let none = FeedForward::Dense { n_ff: 0 };
    let config = ModelConfig::read_hybrid(keys, (family, RMS_EPS), none, recurrent)?;
    match config.layers.iter().all(|layer| layer.recurrent.is_some()) {
        true => Ok(config),
        false => Err(keys.unsupported("attention")),
    }
}

pub(crate) fn record(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    one_block_each(m, &|m, layer, x| attention(m, layer, x))
}

/// Granite 4 H.
pub(crate) fn granite(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let recurrent = Recurrent::Mamba2(layer_of(keys)?);
    let feed_forward = match experts::n_experts(keys)? {
        0 => experts::dense(keys)?,
        _ => FeedForward::Mixture(granite::experts_of(keys)?),
    };
    let mut config = ModelConfig::read_hybrid(keys, (family, RMS_EPS), feed_forward, recurrent)?;
    let logits = keys.positive_or_zero("logit_scale")?.unwrap_or(1.0);
    granite::set_factors(keys, &mut config, logits)?;
    Ok(config)
}

/// Falcon-H1.
pub(crate) fn falcon(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let mut config = ModelConfig::read(keys, family, RMS_EPS, experts::dense(keys)?)?;
    let beside = Recurrent::BesideAttention(layer_of(keys)?);
    for layer in &mut config.layers {
        layer.recurrent = Some(beside);
    }
    Ok(config)
}

pub(crate) fn record_falcon(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = attention(m, layer, normed)?;
        x = m.plan.add(out, x);
        // Files have the tensor without the usual ending.
        let names = ["ffn_norm", "ffn_norm.weight"].map(|name| layer.tensor(name));
        let name = names.iter().find(|name| m.loader.has(name));
        let weight = m.loader.vector(name.unwrap_or(&names[0]), x.width(), 1.0)?;
        let normed = m.plan.rms_norm(x, weight, eps);
        let out = feed_forward(m, layer, Activation::Silu, normed)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}

/// Nemotron-H, with and without experts. Layers without heads of K and V and without a network are those of Mamba-2.
pub(crate) fn nemotron(keys: &Keys<'_>, family: &KeyFacts) -> Result<ModelConfig, LoadError> {
    let recurrent = Recurrent::Mamba2(layer_of(keys)?);
    let n_layers = keys.n_layers()?;
    let n_ff = keys.counts("feed_forward_length", n_layers, MAX_DIM)?;
    let mixture = match experts::n_experts(keys)? {
        0 => None,
        _ => Some(nemotron_experts(keys)?),
    };
    let eps_key = match keys.meta.get(&keys.key(RMS_EPS)) {
        Some(_) => RMS_EPS,
        None => LAYER_EPS,
    };
    let none = FeedForward::Dense { n_ff: 0 };
    let mut config = ModelConfig::read_hybrid(keys, (family, eps_key), none, recurrent)?;
    for (layer, n_ff) in config.layers.iter_mut().zip(n_ff) {
        layer.rope = None;
        layer.feed_forward = match mixture {
            Some(experts) if n_ff > 0 => FeedForward::Mixture(experts),
            _ => FeedForward::Dense { n_ff },
        };
    }
    Ok(config)
}

fn nemotron_experts(keys: &Keys<'_>) -> Result<Experts, LoadError> {
    let normalized = keys.meta.opt_bool(&keys.key("expert_weights_norm"))?;
    let weights = match normalized {
        Some(true) => ExpertWeights::Normalized,
        Some(false) | None => ExpertWeights::Scores,
    };
    let mut experts = with_stated_shared(keys, experts(keys, weights)?, None)?;
    experts.router.scores = ExpertScores::Sigmoid;
    experts.n_latent = keys.size_or_zero("moe_latent_size", MAX_DIM)?;
    Ok(experts)
}

pub(crate) fn record_nemotron(m: &mut Builder<'_>) -> Result<Value, LoadError> {
    one_block_each(m, &|m, layer, x| {
        let experts = match &layer.facts.feed_forward {
            FeedForward::Dense { n_ff: 0 } => return attention(m, layer, x),
            FeedForward::Dense { .. } => {
                return plain_feed_forward(m, layer, Activation::ReluSquared, x);
            }
            FeedForward::Mixture(experts) => experts,
        };
        let sum = plain_experts(m, layer, (Activation::ReluSquared, experts), x)?;
        match experts.shared {
            None => Ok(sum),
            Some(shared) => {
                let out = plain_shared(m, layer, (Activation::ReluSquared, shared.n_ff), x)?;
                Ok(m.plan.add(out, sum))
            }
        }
    })
}

/// Records layers with one norm and one block.
fn one_block_each(
    m: &mut Builder<'_>,
    block: &dyn Fn(&mut Builder<'_>, Layer<'_>, Value) -> Result<Value, LoadError>,
) -> Result<Value, LoadError> {
    let eps = m.config.norm_eps;
    let mut x = embeddings(m, 1.0)?;
    for layer in m.config.layers() {
        m.begin_layer(x);
        let normed = m.rms_norm(x, &layer.tensor("attn_norm"), eps)?;
        let out = block(m, layer, normed)?;
        x = m.plan.add(out, x);
    }
    let x = last_norm(m, x, "output_norm")?;
    logits(m, x, 1.0)
}
